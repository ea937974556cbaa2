"""The hooks of partial rollouts."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar

import orjson

from router_core import (
    Answer,
    Attempt,
    CallNext,
    Exchange,
    MemberStripper,
    PluginSettings,
    Reject,
    Router,
    Scores,
    StateKey,
    Worker,
    WorkerFault,
    hookimpl,
    without_members,
)
from router_partial_rollout.limits import Counts, Limits
from router_partial_rollout.opening import Opening
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.settings import PartialRolloutSettings
from router_partial_rollout.stream import is_stream, stream
from router_partial_rollout.text import Texts
from router_partial_rollout.wire import ABORT, Json, SegmentError, only_choice, read_part

HEADER = "x-partial-rollout"
TARGETS = frozenset((b"/generate", b"/v1/completions", b"/v1/chat/completions"))
ABORTED = b'"abort"'
"""Is in the bytes of each aborted answer."""
ROLLOUT = StateKey[Rollout]("partial rollout")


class PartialRollout:
    """Asks for the rest of a generation that its worker cut short, as often as needed."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = PartialRolloutSettings

    def __init__(self, settings: PartialRolloutSettings) -> None:
        self._settings = settings
        self._counts = Counts()
        self._router: Router
        self._texts: Texts

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        self._texts = Texts(router, timeout_s=self._settings.call_timeout_s)

    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        settings: PartialRolloutSettings = exchange.settings(self)
        when = _when(exchange, settings)
        if when == "never" or exchange.request.method != "POST" or exchange.request.path not in TARGETS:
            return call_next(exchange)
        limits = Limits(
            is_always=when == "always",
            window_grace_s=settings.window_grace_s,
            max_dispatches=settings.max_dispatches,
            max_idle_dispatches=settings.max_idle_dispatches,
            continues_lost=settings.continue_lost,
        )
        rollout = Rollout(exchange, call_next, limits, router=self._router, texts=self._texts, counts=self._counts)
        exchange.state[ROLLOUT] = rollout
        return _answer(rollout)

    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> Awaitable[None] | None:
        rollout = exchange.state.get(ROLLOUT)
        return None if rollout is None else rollout.prepare(attempt)

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
        rollout = exchange.state.get(ROLLOUT)
        if rollout is None or rollout.made.whole is None:
            return None
        return {worker: 1.0 for worker in workers if rollout.is_hinted(worker)}

    @hookimpl
    def response_end(self, exchange: Exchange) -> None:
        if exchange.state.get(ROLLOUT) is not None:
            exchange.state.pop(ROLLOUT)  # the two hold each other

    @hookimpl
    def metrics(self) -> str:
        counts = self._counts
        told = {"continued": counts.continued, "joined": counts.joined, "kept_tokens": counts.kept_tokens}
        lines = []
        for name, value in told.items():
            lines += [f"# TYPE router_partial_rollout_{name}_total counter"]
            lines += [f"router_partial_rollout_{name}_total {value}"]
        lines.append("# TYPE router_partial_rollout_final_aborts_total counter")
        lines += [
            f'router_partial_rollout_final_aborts_total{{reason="{why}"}} {count}'
            for why, count in sorted(counts.final.items())
        ]
        return "\n".join(lines)


async def _answer(rollout: Rollout) -> Answer:
    """One answer, whole, or as a stream that is one. Raises what the layers within raise, and Reject (502)."""
    request, made = rollout.exchange.request, rollout.made
    if request.ready_body is None:
        await request.body()  # kept: it may be sent more than once
    request.accept_identity()
    try:
        answer = await rollout.dispatches.first()
        while answer.status == 200 and answer.error_code is None and not answer.is_encoded:
            if made.wire is None and not rollout.is_chat:
                return answer
            if is_stream(answer):
                answer.chunks = stream(rollout, answer.chunks)
                return answer
            body = answer.arrived_body()
            if body is None or made.whole is not None:
                is_lost = False  # nothing is awaited where an exception is handled
                try:
                    body = await _body(rollout, answer)
                except WorkerFault:
                    if made.whole is None:
                        raise
                    is_lost = True
                if is_lost:
                    return await _joined(rollout, answer)
                if body is None:
                    return answer
            is_end = made.whole is None and ABORTED not in body
            part = None if is_end else await _part(rollout, body)
            if part is None:
                return _stripped(rollout, answer, body)
            if rollout.may_go_on(part) and await rollout.is_continued(part):
                rollout.settle_form()
                rest = await rollout.dispatches.rest()
                if rest is not None:
                    answer = rest
                    continue
            elif made.whole is not None:
                rollout.take(part)
            if made.whole is not None:
                return await _joined(rollout, answer)
            rollout.settle_form()
            return _stripped(rollout, answer, orjson.dumps(part) if rollout.is_changed else body)
        return answer
    except SegmentError as error:
        raise Reject(502, "segment_mismatch", f"the segments of the answer do not fit together: {error}") from None


async def _body(rollout: Rollout, answer: Answer) -> bytes | None:
    """The answer's body, whole; None where it passes as it comes, since it is not to be continued or joined."""
    if rollout.whole is not None or answer.arrived_body() is not None:
        return await answer.body()
    length, opening = answer.headers.get("content-length"), Opening(answer.chunks)
    passes = await opening.is_no_abort()
    if passes and rollout.is_stripped and rollout.wire is not None:
        answer.chunks = without_members(opening.all(), *rollout.wire.extra_members)
        return None
    answer.chunks = opening.all()
    if length is not None:
        answer.headers.set("content-length", length)  # nothing is taken out
    return None if passes else await answer.body()


async def _part(rollout: Rollout, body: bytes) -> Json | None:
    """An answer that says abort, or follows one, if it may have to be continued or joined."""
    if not rollout.is_chat:
        part = read_part(body)
        return rollout.wire.part(part) if part is not None and rollout.wire is not None else part
    is_aborted = only_choice(read_part(body) or {}).get("finish_reason") == ABORT
    return await rollout.out_of_chat(body, is_stream=False) if is_aborted else None


async def _joined(rollout: Rollout, answer: Answer) -> Answer:
    whole = await rollout.finished()
    return _stripped(rollout, answer, orjson.dumps(whole))


def _stripped(rollout: Rollout, answer: Answer, body: bytes) -> Answer:
    """The answer with this body, without the ids that the client did not ask for."""
    if rollout.is_stripped and rollout.wire is not None:
        stripper = MemberStripper(*rollout.wire.extra_members)
        body = stripper.feed(body) + stripper.rest()
    if body is not answer.ready_body:
        answer.set_body(body)
    return answer


def _when(exchange: Exchange, settings: PartialRolloutSettings) -> str:
    """What the request wants, else the settings. Raises Reject (400)."""
    given = exchange.request.headers.get(HEADER)
    if given is None:
        return settings.when
    exchange.request.headers.remove(HEADER)
    if given.strip().lower() not in ("true", "false"):
        raise Reject(400, "bad_value", f"{HEADER} must be true or false, not {given[:64]!r}", HEADER)
    return "always" if given.strip().lower() == "true" else "never"
