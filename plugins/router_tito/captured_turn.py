"""One turn on its way to a worker and back: rendered, put to the worker, read, committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from router_core import (
    ROUTED_EXPERTS,
    TOKEN_FORM,
    Answer,
    Attempt,
    AttemptWithdrawn,
    CallNext,
    ClientLeft,
    Exchange,
    Headers,
    Reject,
)

from .call import Call, Head
from .chat_request import ChatRequest
from .engines import INJECT, AnswerReader, Ask, ChatInTokens, ChatReader, UnknownEngineError
from .errors import MessageError, TraceError, TurnRefusedError
from .limits import room
from .node import CommitResult
from .packed import Ids
from .results import NOT_A_SAMPLE, check_reading, turn_result
from .session_options import LENGTHS, sampling_record
from .session_trace import SessionTrace
from .tries import Tries, Try
from .turn import PendingTurn
from .turn_prompt import TurnPrompt

if TYPE_CHECKING:
    from .capture import Capture
    from .settings import TitoSettings

log = logging.getLogger(__name__)

UNTRAINABLE_HEADER = "x-router-untrainable"
CONFLICT = 409
"""Status of a refusal that is about the session's state, such as weights it has outlived: asking again is no use."""
EVENT_STREAM = "text/event-stream"


class CapturedTurn:
    """Runs a turn's call. ``overrides`` are the keys of the client's body that the session set."""

    def __init__(
        self,
        capture: Capture,
        exchange: Exchange,
        settings: TitoSettings,
        session: SessionTrace,
        chat: ChatRequest,
        overrides: Mapping[str, Any],
        pending: PendingTurn,
        call: Call,
    ) -> None:
        self._capture = capture
        self._exchange = exchange
        self._settings = settings
        self._session = session
        self._chat = chat
        self._overrides = overrides
        self._pending = pending
        self._call = call
        self._prompt = TurnPrompt(capture, exchange, settings, session, chat, pending)
        self._ask = Ask(chat.body, None)
        self._tries = Tries()
        self._prompt_ids: Ids | None = None
        self._form: ChatInTokens | None = None

    async def run(self, call_next: CallNext) -> None:
        """The whole turn; however it ends, the call is told, and nothing is raised."""
        try:
            await self._call_worker(call_next)
        finally:
            self._capture.finished(self._session)

    async def _call_worker(self, call_next: CallNext) -> None:
        try:
            await self._prompt.render()
            self._ask = Ask(
                {**self._chat.body, **self._overrides},
                self._prompt.ids,
                is_continued=self._prompt.is_continued,
                wants_experts=self._settings.routed_experts,
            )
            for name, value in self._overrides.items():
                self._exchange.request.set_key(name, value)
            self._exchange.request.accept_identity()
            await self._read(await call_next(self._exchange))
        except asyncio.CancelledError:
            self._refuse("client_left")
            self._call.finish(ClientLeft("the client left, and nobody asked again"))
        except Reject as error:
            if error.status == CONFLICT:
                self._session.end_status = error.code
            self._call.finish(error)
        except Exception as error:  # noqa: BLE001  # whoever waits for the call raises it
            self._refuse("failed")
            self._call.finish(error)
        else:
            await self._prompt.look_back(self._prompt_ids, self._call.node_id)

    # -------------------------------------------------------------------------------------------------- the way there
    async def prepare(self, attempt: Attempt) -> None:
        """The worker is known: write the request in its dialect. Raises Reject."""
        worker = attempt.worker
        facts = await self._capture.detector.facts(worker)
        form = self._taken_form
        if form is not None and (facts is None or facts.kind != form.kind):
            # It would not know the call, and answer the messages anew.
            self._exchange.excluded_workers.add(worker)
            raise AttemptWithdrawn(f"the answer was begun by {form.kind}, which {worker.url} is not")
        if facts is None or facts.kind is None:
            # One that does not answer will fail by itself, and may be tried elsewhere.
            if facts is not None and self._settings.on_uncapturable == "fail":
                raise self._uncapturable("unknown_worker")
            self._tries.add(Try(attempt, self._ask, None, None))
            return
        ask = self._within_room(attempt, facts.max_model_len)
        engines, mode = self._capture.engines, self._prompt.mode
        if form is not None:
            await form.write(ask, attempt.request, worker)
            return
        try:
            engine = engines.get(mode, facts.kind)
            if mode == INJECT:
                self._form = self._exchange.state[TOKEN_FORM] = engines.token_form(ask, worker, facts.kind)
        except UnknownEngineError as error:
            raise Reject(501, "unsupported_mode", f"{error} (plugins.tito.mode)") from None
        await engine.write(ask, attempt.request, worker)
        self._tries.add(Try(attempt, ask, engine.reader(ask, worker), worker.weight_version))

    @property
    def _taken_form(self) -> ChatInTokens | None:
        """The turn's token form, once somebody goes on with it in that."""
        return self._form if self._form is not None and self._form.is_taken else None

    def _within_room(self, attempt: Attempt, worker_limit: int | None) -> Ask:
        """The ask with an answer no longer than the session has room for."""
        ask = self._ask
        most = room(self._session.options, len(ask.prompt_ids), worker_limit) if ask.prompt_ids is not None else None
        if most is None:
            return ask
        given = {key: ask.body[key] for key in LENGTHS if isinstance(ask.body.get(key), int)}
        limited = {key: min(value, most) for key, value in given.items()} or {LENGTHS[0]: most}
        for key, value in limited.items():
            if value != given.get(key):
                attempt.request.set_key(key, value)
        return replace(ask, body={**ask.body, **limited})

    # --------------------------------------------------------------------------------------------------- the way back
    async def _read(self, answer: Answer) -> None:
        tried = self._tries.answered()
        self._call.worker_url = self._exchange.worker.url if self._exchange.worker else None
        if answer.status != 200 or answer.error_code is not None:
            self._refuse(f"status_{answer.status}")
            await self._pass(answer)
        elif tried is None or tried.reader is None:
            await self._pass_untrainable(answer, "unknown_worker")
        elif (answer.headers.get("content-encoding") or "identity") != "identity":
            await self._pass_untrainable(answer, "encoded_answer")
        elif (answer.headers.get("content-type") or "").startswith(EVENT_STREAM):
            await self._stream(answer, tried, tried.reader)
        else:
            await self._whole(answer, tried, tried.reader)

    async def _whole(self, answer: Answer, tried: Try, reader: AnswerReader) -> None:
        body = await answer.body()
        if self._taken_form is not None:
            reader = self._taken_form.reader(None)
        told = await reader.whole(body)
        self._commit(tried, reader)
        self._answer_whole(answer, told)

    async def _stream(self, answer: Answer, tried: Try, reader: AnswerReader) -> None:
        self._call.begin(Head(answer.status, _open_headers(answer), is_whole=False))
        async for chunk in answer.chunks:
            if self._taken_form is not None and isinstance(reader, ChatReader):
                reader = self._taken_form.reader(reader)
            self._call.write(await reader.feed(chunk))
        rest = await reader.end()
        self._commit(tried, reader)
        if self._must_fail:
            self._call.finish(self._uncapturable(self._call.untrainable))
            return
        self._call.write(rest)
        self._call.finish()

    async def _pass(self, answer: Answer) -> None:
        """An answer that is not read, as it comes."""
        if "content-length" in answer.headers:
            self._answer_whole(answer, await answer.body())
            return
        self._call.begin(Head(answer.status, _open_headers(answer), is_whole=False, error_code=answer.error_code))
        async for chunk in answer.chunks:
            self._call.write(chunk)
        self._call.finish()

    async def _pass_untrainable(self, answer: Answer, reason: str) -> None:
        self._mark_untrainable(reason, None)
        if not self._must_fail:
            answer.headers.set(UNTRAINABLE_HEADER, reason)
            await self._pass(answer)
        else:
            await answer.aclose()
            self._call.finish(self._uncapturable(reason))

    def _answer_whole(self, answer: Answer, body: bytes) -> None:
        if self._must_fail:
            self._call.finish(self._uncapturable(self._call.untrainable))
            return
        headers = _open_headers(answer)
        if self._call.untrainable:
            headers.set(UNTRAINABLE_HEADER, self._call.untrainable)
        self._call.write(body)
        self._call.begin(Head(answer.status, headers, is_whole=True, error_code=answer.error_code))
        self._call.finish()

    @property
    def _must_fail(self) -> bool:
        return bool(self._call.untrainable) and self._settings.on_uncapturable == "fail"

    @staticmethod
    def _uncapturable(reason: str) -> Reject:
        return Reject(
            502, "untrainable", f"the turn cannot be trained on: {reason} (plugins.tito.on_uncapturable = fail)"
        )

    # ----------------------------------------------------------------------------------------------------- committing
    def _commit(self, tried: Try, reader: AnswerReader) -> None:
        """Put the answer into the trace, or say why not."""
        session, reading = self._session, reader.reading
        if session.is_closed:
            return
        session.generation_time_s += self._capture.clock.now() - tried.attempt.started_at
        try:
            committed = self._try_commit(tried, reader)
        except TurnRefusedError as refused:
            if refused.reason in NOT_A_SAMPLE:
                self._capture.counts.refused[refused.reason] += 1
            else:
                log.warning("%r cannot be trained on: %s: %s", self._exchange, refused.reason, refused)
                self._mark_untrainable(refused.reason, reading.message)
        except TraceError:
            log.debug("%r: its session was closed meanwhile", self._exchange)
        else:
            self._capture.committed(session, self._call, committed)

    def _try_commit(self, tried: Try, reader: AnswerReader) -> CommitResult:
        trace, reading = self._session.trace, reader.reading
        try:
            self._prompt_ids = check_reading(reading)
        except TurnRefusedError as refused:
            trace.refuse(refused.reason)
            raise
        known_version = tried.attempt.worker.weight_version
        result = turn_result(
            reading,
            self._prompt_ids,
            self._prompt.rendered,
            sampling=sampling_record(self._chat.body, self._overrides, tried.ask.body),
            weight_version=known_version if known_version == tried.weight_version else None,
            wants_experts=self._settings.routed_experts,
            experts_shape=self._settings.experts_shape,
            collected=self._exchange.state.get(ROUTED_EXPERTS),
        )
        return trace.commit(self._pending, result)

    def _mark_untrainable(self, reason: str, message: Mapping[str, Any] | None) -> None:
        self._call.untrainable = reason
        if self._session.is_closed:
            return
        try:
            self._session.trace.mark_untrainable(self._pending, reason, message)
        except MessageError:
            self._session.trace.mark_untrainable(self._pending, reason)
        self._capture.missed(self._session, reason)

    def _refuse(self, reason: str) -> None:
        self._capture.counts.refused[reason] += 1
        self._session.trace.refuse(reason)


def _open_headers(answer: Answer) -> Headers:
    """The answer's fields without those that belong to its old body."""
    headers = answer.headers.copy()
    headers.remove("content-length")
    return headers
