"""One generation over several dispatches: what was made so far, and what is asked for next."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from router_core import (
    Answer,
    Attempt,
    CallNext,
    Exchange,
    MalformedBody,
    NoWorker,
    Reject,
    Router,
    Worker,
    WorkerFault,
)
from router_partial_rollout.completions import Completions
from router_partial_rollout.generate import Generate
from router_partial_rollout.limits import Counts, Limits
from router_partial_rollout.text import (
    NO_CHARACTER,
    Texts,
    ids_of_text,
    is_same_text,
    settled,
    split_stops,
    without_stop,
)
from router_partial_rollout.wire import Json, SegmentError, Span, Wire

log = logging.getLogger(__name__)

WIRES: dict[str, Wire] = {"/generate": Generate(), "/v1/completions": Completions()}
"""Raw path of an attempt -> its wire. Chat has none: what its worker parsed cannot be joined."""


ALL_MADE = "all_made"


class AbortAsked(Exception):
    """Somebody asked for an abort while nothing was at a worker."""


class Rollout:
    """Belongs to one exchange. ``whole`` is the joined answer so far, in its wire's shape; None while there is none."""

    def __init__(
        self, exchange: Exchange, call_next: CallNext, limits: Limits, *, router: Router, texts: Texts, counts: Counts
    ) -> None:
        self.exchange = exchange
        self.counts = counts
        self.wire: Wire | None = None
        self.body: Json = {}
        """The first request's."""
        self.whole: Json | None = None
        self.last_part: Json | None = None
        """What `take` was given last."""
        self.hint: Worker | None = None
        """The last worker: it has the prefix in its cache."""
        self.dispatches = 0
        self.segments = 0
        """How many parts `take` was given."""
        self.is_stripped = False
        """Whether ids are in the answer that the client did not ask for."""
        self.is_changed = False
        """Whether the newest part is no longer what came from its worker, though it is the only one."""
        self._call_next = call_next
        self._limits = limits
        self._router = router
        self._texts = texts
        self._segments: list[tuple[str, Span]] = []
        self._prompt_ids: list[int] = []
        self._attempt: Attempt | None = None
        self._split_stops: list[str] = []
        """Ends of stop texts that began before the newest dispatch."""
        self._version: str | None = None
        self._idle = 0
        self._excluded = set(exchange.excluded_workers)

    # -------------------------------------------------------------------------------------------------------- asking
    async def prepare(self, attempt: Attempt) -> None:
        """The worker is known, and what others make of the request: say what is still to be made. Raises Reject."""
        wire = WIRES.get(attempt.request.path.decode("latin-1"))
        if self.whole is None:
            self.wire = wire
        if wire is not None and wire.flags:
            await self._ask_for_ids(attempt, wire)
        if self.whole is None:
            pass
        elif wire is not self.wire or wire is None:
            raise Reject(502, "segment_mismatch", f"the rest would be asked for in another way at {attempt.worker.url}")
        else:
            ids, experts = self.ids, wire.experts(self.whole)
            start = None if experts is None else len(self._prompt_ids) + len(ids) - 1
            self._split_stops = split_stops(wire.text(self.whole), wire.stops(self.body))
            rest = wire.continuation(self.body, self._prompt_ids, ids, start=start, stops=self._split_stops)
            for key, value in rest.set.items():
                attempt.request.set_key(key, value)
            for key in rest.remove:
                attempt.request.remove_key(key)
        self._attempt = attempt
        attempt.before_send(lambda: self._at_send(attempt.worker))

    async def _ask_for_ids(self, attempt: Attempt, wire: Wire) -> None:
        body = await attempt.request.body()
        for key, value in wire.flags.items():
            self.is_stripped = f'"{key}"'.encode() not in body
            if self.is_stripped:
                attempt.request.set_key(key, value)

    def _at_send(self, worker: Worker) -> None:
        self._version, self.hint = worker.weight_version, worker

    async def dispatch(self) -> Answer:
        """The next answer. Raises what the layers within raise, and AbortAsked."""
        self.dispatches += 1
        if self.dispatches == 1:
            return await self._call_next(self.exchange)
        exchange = self.exchange
        if exchange.abort_was_asked:
            raise AbortAsked
        self.counts.continued += 1
        exchange.excluded_workers.clear()
        exchange.excluded_workers.update(self._excluded)
        task = asyncio.ensure_future(self._call_next(exchange))
        exchange.on_abort(lambda: None if self._is_at_worker else task.cancel())
        try:
            await asyncio.wait([task])
        finally:
            exchange.on_abort(None)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled() and exchange.abort_was_asked:
            raise AbortAsked
        return task.result()

    @property
    def continues_lost(self) -> bool:
        return self._limits.continues_lost

    @property
    def _is_at_worker(self) -> bool:
        return any(attempt.outcome is None and attempt.request_sent for attempt in self.exchange.attempts)

    async def dispatch_rest(self) -> Answer | None:
        """The answer to a continuation; None where none is to be had, and what was made is all there is."""
        try:
            answer = await self.dispatch()
        except AbortAsked:
            self.counts.final["asked"] += 1
            return None
        except (NoWorker, WorkerFault) as error:
            self._give_up(error)
            return None
        except Reject as error:
            if error.status < 500 or self.exchange.interruption is not None:
                raise
            self._give_up(error)
            return None
        if answer.status == 200:
            return answer
        await answer.aclose()
        self._give_up(f"its worker answered {answer.status}")
        return None

    def _give_up(self, why: object) -> None:
        self.counts.final["no_rest"] += 1
        log.warning("%r is not continued: %s", self.exchange, why)

    # ------------------------------------------------------------------------------------------------------- deciding
    @property
    def ids(self) -> list[int]:
        """The output so far."""
        return (self.wire.ids(self.whole) or []) if self.wire is not None and self.whole is not None else []

    def may_go_on(self, part: Json) -> bool:
        """Whether this end of a part is perhaps not that of the answer: see `is_continued`."""
        if self.wire is None:
            return False
        finish = self.wire.finish(part)
        return finish.is_abort or finish.matched in self._split_stops

    async def is_continued(self, part: Json, *, is_lost: bool = False) -> bool:
        """Whether the answer goes on behind this part. Raises SegmentError."""
        if self.wire is not None and self.wire.finish(part).matched in self._split_stops:
            return await self._is_false_stop(self.wire, part)
        return await self._is_abort_continued(part, is_lost=is_lost)

    async def _is_false_stop(self, wire: Wire, part: Json) -> bool:
        """Whether the end of a stop text came, but not behind its beginning. Where it did, the whole stop is told."""
        matched = str(wire.finish(part).matched)
        before, ids = self.ids, wire.ids(part) or []
        said = wire.text(part) if wire.keeps_stop(self.body) else wire.text(part) + matched
        text = wire.text(self.whole or {}) + said
        decoded = await self.decode([*before, *ids])
        text = decoded if decoded is not None and is_same_text(decoded, text) else text
        wire.set_text(part, said)
        stops = [stop for stop in wire.stops(self.body) if stop in text]
        if stops:
            wire.set_matched(part, min(stops, key=text.find))
            return False
        budget = wire.budget(self.body)
        if budget is not None and len(before) + len(ids) >= budget:
            wire.end_by_length(part)
            return False
        return self.dispatches < self._limits.max_dispatches

    async def _is_abort_continued(self, part: Json, *, is_lost: bool) -> bool:
        """Whether this aborted part of the answer is kept and the rest asked for. Raises SegmentError.

        A part without a token is dropped, and the same is asked for again.
        """
        why = await self._why_final(part, is_lost)
        if why is None:
            self._idle = 0 if self.wire is not None and self.wire.ids(part) else self._idle + 1
            return True
        if why == ALL_MADE and self.wire is not None:
            self.wire.end_by_length(part)
            self.is_changed = True
        self.counts.final[why] += 1
        log.info("%r: an abort is passed on: %s", self.exchange, why)
        return False

    async def _why_final(self, part: Json, is_lost: bool) -> str | None:
        wire, attempt, limits, is_in_window = self.wire, self._attempt, self._limits, False
        if wire is None or attempt is None:
            return "unknown_call"
        if self.exchange.abort_was_asked:
            return "asked"
        if is_lost:
            self._excluded.add(attempt.worker)
        elif not (is_in_window := self._is_in_window(attempt)) and not limits.is_always:
            return "outside_window"
        ids = wire.ids(part)
        if ids is None:
            return "no_ids"
        is_idle = not ids and not is_in_window and self._idle >= limits.max_idle_dispatches
        if is_idle or self.dispatches >= limits.max_dispatches:
            return "too_often"
        if not self.body and not await self._read_body(attempt):
            return "unknown_call"
        if wire.why_not(self.body) is not None:
            return "cannot_be_continued"
        budget = wire.budget(self.body)
        if budget is not None and len(self.ids) + len(ids) >= budget:
            return ALL_MADE
        if ids and not self._prompt_ids and not await self._find_prompt(wire, attempt, part):
            return "unknown_prompt"
        return None

    async def _read_body(self, attempt: Attempt) -> bool:
        try:
            body = await attempt.request.json()
        except MalformedBody:
            return False
        self.body = body if isinstance(body, dict) else {}
        return bool(self.body)

    async def _find_prompt(self, wire: Wire, attempt: Attempt, part: Json) -> bool:
        """The ids that the first segment was generated from; they must be as many as its worker counted."""
        prompt = wire.prompt(self.body)
        found = prompt if isinstance(prompt, list) else wire.prompt_ids_told(part)
        if found is None and isinstance(prompt, str):
            found = await self._texts.encode(attempt.worker, prompt, model=self.body.get("model"))
        count = wire.prompt_tokens(part)
        if not found or (count is not None and count != len(found)):
            return False
        self._prompt_ids = found
        return True

    def _is_in_window(self, attempt: Attempt) -> bool:
        since = max(attempt.started_at, self._router.clock.now() - self._limits.window_grace_s)
        return attempt.worker.pending_weight_version is not None or attempt.worker.windows.were_open(since)

    def is_hinted(self, worker: Worker) -> bool:
        """Whether the rest had best go to this worker: it made the last part, and it is not paused."""
        return worker is self.hint and not worker.windows.were_open(self._router.clock.now())

    # -------------------------------------------------------------------------------------------------------- joining
    def take(self, part: Json) -> None:
        """Puts a segment behind what there is. Raises SegmentError."""
        wire = self.wire
        if wire is None or self._attempt is None:
            raise SegmentError("an answer in an unknown shape")
        ids = wire.ids(part)
        if ids is None:
            raise SegmentError("a segment does not tell its ids")
        if self.whole is not None or self.body:
            wire.check_logprobs(self.body, part)
        self.last_part = part
        self.segments += 1
        before = self.ids
        self._segments += [(self._attempt.worker.url, span.moved(len(before))) for span in self._spans(part, len(ids))]
        self.whole = part if self.whole is None else self.joined(part)
        if not wire.finish(part).kind or wire.finish(part).is_abort:
            self.counts.kept_tokens += len(ids)

    def joined(self, part: Json, *, is_growing: bool = False) -> Json:
        """``whole`` with this part behind it. A part that still grows has no experts yet. Raises SegmentError."""
        wire, whole = self.wire, self.whole
        if wire is None or whole is None:
            return part
        joined = wire.join(whole, part)
        if not is_growing:
            wire.set_experts(joined, self._joined_experts(wire, whole, part))
        return joined

    def _joined_experts(self, wire: Wire, whole: Json, part: Json) -> Any:
        first, second = wire.experts(whole), wire.experts(part)
        if first is None or not wire.ids(part):
            return second if first is None else first
        if second is None:
            raise SegmentError("a segment has no routed experts, the one before it has")
        rows = len(self._prompt_ids) + len(self.ids) - 1 - wire.experts_start(self.body)
        return wire.join_experts(first, rows, second, len(wire.ids(part) or ()))

    def _spans(self, part: Json, made: int) -> list[Span]:
        if self.wire is None or not made:
            return []
        if spans := self.wire.spans(part):
            return spans
        worker = self._attempt.worker if self._attempt is not None else None
        is_sure = self.wire.finish(part).is_abort or (worker is not None and worker.weight_version == self._version)
        return [Span(self._version if is_sure else None, 0, made)]

    def tell_segments(self, answer: Json) -> None:
        """Writes into the answer who made which tokens, with which weights."""
        if self.wire is not None:
            told = [
                {"start": span.start, "end": span.end, "worker": worker, "weight_version": span.version}
                for worker, span in self._segments
                if span.start < span.end
            ]
            self.wire.set_segments(answer, told)

    # ----------------------------------------------------------------------------------------------------------- text
    async def decode(self, ids: list[int]) -> str | None:
        """Text of output ids; None where nobody can tell."""
        if self.wire is None or self._attempt is None:
            return None
        skips = self.wire.skips_special(self.body)
        return await self._texts.decode(self._attempt.worker, ids, skip_special=skips, model=self.body.get("model"))

    def settled(self, text: str) -> str:
        """The text as far as a stream may show it, although more follows."""
        return settled(text, self.wire.stops(self.body) if self.wire is not None else ())

    async def _end_text(self, wire: Wire, answer: Json) -> str:
        """The text of a joined answer as if it had been made in one go; the parts in a row where nobody can decode."""
        finish = wire.finish(answer)
        ids = wire.ids(answer) or []
        parts = without_stop(wire, self.body, wire.text(answer), finish)
        text = await self.decode(list(ids_of_text(wire, self.body, ids, finish)))
        if text is None:
            return parts
        text = without_stop(wire, self.body, text, finish)
        text = text if wire.shows_partial(answer) else text.rstrip(NO_CHARACTER)
        return text if is_same_text(text, parts) else parts

    async def finished(self) -> Json:
        """The whole answer, ready for the client."""
        assert self.whole is not None and self.wire is not None  # there is one: `take` came before
        self.counts.joined += 1
        self.wire.set_text(self.whole, await self._end_text(self.wire, self.whole))
        self.tell_segments(self.whole)
        return self.whole


def read_part(body: bytes) -> Json | None:
    """An answer's JSON object, or None."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
