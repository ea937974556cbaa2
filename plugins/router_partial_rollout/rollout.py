"""One generation over several dispatches: which aborts are continued, and what is asked for next."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from router_core import (
    KEPT_VERSION,
    TOKEN_FORM,
    Attempt,
    AttemptWithdrawn,
    CallNext,
    Exchange,
    MalformedBody,
    Router,
    Worker,
)
from router_partial_rollout.completions import Completions
from router_partial_rollout.dispatch import Dispatches
from router_partial_rollout.generate import Generate
from router_partial_rollout.inference import Inference
from router_partial_rollout.joined import Joined
from router_partial_rollout.limits import Counts, Limits
from router_partial_rollout.plain_chat import PlainChat
from router_partial_rollout.text import Texts, is_same_text, settled, split_stops
from router_partial_rollout.whole_text import WholeText
from router_partial_rollout.wire import Json, SegmentError, Wire

log = logging.getLogger(__name__)

WIRES: dict[str, Wire] = {
    "/generate": Generate(),
    "/v1/completions": Completions(),
    "/inference/v1/generate": Inference(),
}
"""Raw path of an attempt -> its wire. Chat has none: what its worker parsed cannot be joined."""
CHAT = "/v1/chat/completions"
IN_TOKENS: dict[str, Wire] = {**WIRES, CHAT: PlainChat()}
"""The same of an attempt in a chat turn's token form."""

ALL_MADE = "all_made"
IN_CHAT = "cannot_be_continued"


class Rollout:
    """Belongs to one exchange."""

    def __init__(
        self, exchange: Exchange, call_next: CallNext, limits: Limits, *, router: Router, texts: Texts, counts: Counts
    ) -> None:
        self.exchange = exchange
        self.counts = counts
        self.made = Joined()
        self.dispatches = Dispatches(exchange, call_next, counts)
        self.hint: Worker | None = None
        """The last worker: it has the prefix in its cache."""
        self.is_stripped = False
        """Whether ids are in the answer that the client did not ask for."""
        self.is_changed = False
        """Whether the newest part is no longer what came from its worker, though it is the only one."""
        self._limits = limits
        self._router = router
        self._texts = texts
        self._attempt: Attempt | None = None
        self._split_stops: list[str] = []
        """Ends of stop texts that began before the newest dispatch."""
        self._version: str | None = None
        self._idle = 0

    @property
    def wire(self) -> Wire | None:
        return self.made.wire

    @property
    def whole(self) -> Json | None:
        return self.made.whole

    @property
    def is_untouched(self) -> bool:
        """Whether the answer is one worker's, whose name is on its head. That of a stream is sent with the first
        dispatch, even if that brought no token."""
        return self.whole is None and self.dispatches.count == 1

    @property
    def continues_lost(self) -> bool:
        return self._limits.continues_lost

    # -------------------------------------------------------------------------------------------------------- asking
    def prepare(self, attempt: Attempt) -> Awaitable[None] | None:
        """The worker is known, and what others make of the request: say what is still to be made.

        Raises AttemptWithdrawn where the worker's call is another than that of what was made.
        """
        form = self.exchange.state.get(TOKEN_FORM)
        wires = IN_TOKENS if form is not None and form.is_taken else WIRES
        made, wire = self.made, wires.get(attempt.request.path.decode("latin-1"))
        if made.whole is None:
            made.wire = wire
            if wire is None or not wire.flags:
                self._expect(attempt)
                return None
        return self._ask(attempt, wire)

    def _expect(self, attempt: Attempt) -> None:
        self._attempt = attempt
        attempt.before_send(lambda: self._at_send(attempt.worker))

    async def _ask(self, attempt: Attempt, wire: Wire | None) -> None:
        made = self.made
        if wire is not None and wire.flags:
            await self._ask_for_ids(attempt, wire)
        if made.whole is not None:
            if wire is not made.wire or wire is None:
                self.exchange.excluded_workers.add(attempt.worker)
                raise AttemptWithdrawn(f"the rest would be asked for in another way at {attempt.worker.url}")
            self._split_stops = split_stops(wire.text(made.whole), wire.stops(made.body))
            rest = wire.continuation(
                made.body, made.prompt_ids, made.ids, start=made.experts_start, stops=self._split_stops
            )
            for key, value in rest.set.items():
                attempt.request.set_key(key, value)
            for key in rest.remove:
                attempt.request.remove_key(key)
        self._expect(attempt)

    async def _ask_for_ids(self, attempt: Attempt, wire: Wire) -> None:
        body = await attempt.request.body()
        for key, value in wire.flags.items():
            self.is_stripped = f'"{key}"'.encode() not in body
            if self.is_stripped:
                attempt.request.set_key(key, value)

    def _at_send(self, worker: Worker) -> None:
        self._version, self.hint = worker.weight_version, worker

    def is_hinted(self, worker: Worker) -> bool:
        """Whether the rest had best go to this worker: it made the last part, and it is not paused."""
        return worker is self.hint and not worker.windows.were_open(self._router.clock.now())

    # ----------------------------------------------------------------------------------------------------------- chat
    @property
    def is_chat(self) -> bool:
        """Whether the answer is chat as its worker parses it, and could be gone on with in its token form."""
        return self.wire is None and TOKEN_FORM in self.exchange.state

    @property
    def is_abort_likely(self) -> bool:
        """Whether the newest answer may end with an abort that is continued."""
        return self._limits.is_always or (self._attempt is not None and self._is_in_window(self._attempt))

    async def out_of_chat(self, told: bytes, *, is_stream: bool) -> Json | None:
        """An aborted chat answer as a part in its token form; None: it is passed on as it is."""
        if (why := self._why_unwanted(is_lost=False)) is None:
            form = self.exchange.state[TOKEN_FORM]
            found = await form.of(told, is_stream=is_stream)
            if found is not None:
                self.made.wire, self.made.body = IN_TOKENS[found.path], found.request
                return found.answer
            why = IN_CHAT
        self._end(why)
        return None

    def settle_form(self) -> None:
        """Behind an aborted chat answer: its token form is gone over to; without a token the turn stays as it was."""
        form = self.exchange.state.get(TOKEN_FORM)
        if form is None or form.is_taken:
            return
        form.is_taken = self.whole is not None or self.is_changed
        if not form.is_taken:
            self.made.wire, self.made.body = None, {}

    # ------------------------------------------------------------------------------------------------------- deciding
    def may_go_on(self, part: Json) -> bool:
        """Whether this end of a part is perhaps not that of the answer: see `is_continued`."""
        if self.wire is None:
            return False
        finish = self.wire.finish(part)
        return finish.is_abort or finish.matched in self._split_stops

    async def is_continued(self, part: Json, *, is_lost: bool = False) -> bool:
        """Whether the answer goes on behind this part, which is then kept. Raises SegmentError.

        A part without a token is dropped, and the same is asked for again.
        """
        if self.wire is not None and self.wire.finish(part).matched in self._split_stops:
            goes_on = await self._is_false_stop(self.wire, part)
        else:
            goes_on = await self._is_abort_continued(part, is_lost=is_lost)
        if goes_on and self.wire is not None and self.wire.ids(part):
            self.take(part)
        return goes_on

    async def _is_false_stop(self, wire: Wire, part: Json) -> bool:
        """Whether the end of a stop text came, but not behind its beginning. Where it did, the whole stop is told."""
        body, before, ids = self.made.body, self.made.ids, wire.ids(part) or []
        matched = str(wire.finish(part).matched)
        said = wire.text(part) if wire.keeps_stop(body) else wire.text(part) + matched
        text = wire.text(self.whole or {}) + said
        decoded = await self.decode([*before, *ids])
        text = decoded if decoded is not None and is_same_text(decoded, text) else text
        wire.set_text(part, said)
        stops = [stop for stop in wire.stops(body) if stop in text]
        if stops:
            wire.set_matched(part, min(stops, key=text.find))
            return False
        budget = wire.budget(body)
        if budget is not None and len(before) + len(ids) >= budget:
            wire.end_by_length(part)
            return False
        return self.dispatches.count < self._limits.max_dispatches

    async def _is_abort_continued(self, part: Json, *, is_lost: bool) -> bool:
        why = await self._why_final(part, is_lost)
        if why is None:
            self._idle = 0 if self.wire is not None and self.wire.ids(part) else self._idle + 1
            return True
        if why == ALL_MADE and self.wire is not None:
            self.wire.end_by_length(part)
            self.is_changed = True
        self._end(why)
        return False

    def _end(self, why: str) -> None:
        self.counts.final[why] += 1
        log.info("%r: an abort is passed on: %s", self.exchange, why)

    def _why_unwanted(self, *, is_lost: bool) -> str | None:
        """Why an abort is the end whatever was made."""
        if self._attempt is None:
            return "unknown_call"
        if self.exchange.abort_was_asked:
            return "asked"
        if is_lost or self._is_in_window(self._attempt) or self._limits.is_always:
            return None
        return "outside_window"

    async def _why_final(self, part: Json, is_lost: bool) -> str | None:
        wire, attempt, limits, made = self.wire, self._attempt, self._limits, self.made
        if (why := self._why_unwanted(is_lost=is_lost)) is not None or wire is None or attempt is None:
            return why or "unknown_call"
        if is_lost:
            self.dispatches.excluded.add(attempt.worker)
        ids = wire.ids(part)
        if ids is None:
            return "no_ids"
        is_idle = not ids and self._idle >= limits.max_idle_dispatches and not self._is_in_window(attempt)
        if is_idle or self.dispatches.count >= limits.max_dispatches:
            return "too_often"
        if not made.body and not await self._read_body(attempt):
            return "unknown_call"
        if wire.why_not(made.body) is not None:
            return "cannot_be_continued"
        budget = wire.budget(made.body)
        if budget is not None and len(made.ids) + len(ids) >= budget:
            return ALL_MADE
        if ids and not made.prompt_ids and not await self._find_prompt(wire, attempt, part):
            return "unknown_prompt"
        return None

    async def _read_body(self, attempt: Attempt) -> bool:
        try:
            body = await attempt.request.json()
        except MalformedBody:
            return False
        self.made.body = body if isinstance(body, dict) else {}
        return bool(self.made.body)

    async def _find_prompt(self, wire: Wire, attempt: Attempt, part: Json) -> bool:
        """The ids that the first segment was generated from; they must be as many as its worker counted."""
        prompt = wire.prompt(self.made.body)
        found = prompt if isinstance(prompt, list) else wire.prompt_ids_told(part)
        if found is None and isinstance(prompt, str):
            found = await self._texts.encode(attempt.worker, prompt, model=self.made.body.get("model"))
        count = wire.prompt_tokens(part)
        if not found or (count is not None and count != len(found)):
            return False
        self.made.prompt_ids = found
        return True

    def _is_in_window(self, attempt: Attempt) -> bool:
        since = max(attempt.started_at, self._router.clock.now() - self._limits.window_grace_s)
        return attempt.worker.pending_weight_version is not None or attempt.worker.windows.were_open(since)

    # -------------------------------------------------------------------------------------------------------- joining
    def take(self, part: Json) -> None:
        """Puts a segment behind what there is. Raises SegmentError."""
        wire, attempt = self.wire, self._attempt
        if wire is None or attempt is None:
            raise SegmentError("an answer in an unknown shape")
        finish, worker = wire.finish(part), attempt.worker
        is_sure = finish.is_abort or worker.weight_version == self._version
        ids = self.made.take(part, worker.url, version=self._version if is_sure else None)
        self.exchange.state[KEPT_VERSION] = self.made.first_version
        if not finish.kind or finish.is_abort:
            self.counts.kept_tokens += len(ids)

    async def finished(self) -> Json:
        """The whole answer, ready for the client."""
        whole, wire = self.whole, self.wire
        if whole is None or wire is None or self._attempt is None:
            raise SegmentError("there is no part")
        self.counts.joined += self.made.count > 1
        wire.set_text(whole, await WholeText(self.made, self._texts).of_end(self._attempt.worker, wire, whole))
        self.made.tell_segments(whole)
        return whole

    async def decode(self, ids: list[int]) -> str | None:
        """Text of output ids; None where nobody can tell."""
        if self._attempt is None:
            return None
        return await WholeText(self.made, self._texts).decode(self._attempt.worker, ids)

    def settled(self, text: str) -> str:
        """The text as far as a stream may show it, although more follows."""
        return settled(text, self.wire.stops(self.made.body) if self.wire is not None else ())
