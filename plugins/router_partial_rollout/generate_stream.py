"""The stream of ``/generate`` over several segments."""

from __future__ import annotations

from router_core import event_data
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.seam import SeamText, event_of
from router_partial_rollout.wire import Finish, Json, Wire, read_part


class GenerateReader:
    """``/generate``: each event repeats the whole answer so far; one of a later segment gets what was before."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self._raw: bytes | None = None
        self._part: Json | None = None
        self._event = b""
        self._text = SeamText(rollout)

    @property
    def part(self) -> Json | None:
        return self._part if self._part is not None else read_part(self._raw) if self._raw is not None else None

    @part.setter
    def part(self, value: Json | None) -> None:
        self._part = value

    def start_from(self, part: Json) -> None:
        self._part = part

    def begin(self) -> None:
        self.is_aborted, self._part, self._raw = False, None, None
        self._text.begin()

    def kept(self) -> bytes:
        return b""

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None or data == b"[DONE]":
            return event
        self._raw, self._part = data, None
        is_first = self._rollout.is_untouched
        if is_first and b'"abort"' not in data:
            return event
        part = read_part(data)
        if part is None or "error" in part:
            return event
        finish = self._wire.finish(part)
        if self._rollout.may_go_on(part):
            self.is_aborted, self._part, self._event = True, part, event
            return b""
        return event if is_first else await self._grown(part, finish)

    async def _grown(self, part: Json, finish: Finish) -> bytes:
        rollout, wire = self._rollout, self._wire
        if finish.kind is not None:
            rollout.take(part)
            return event_of(await rollout.finished())
        before = wire.text(rollout.whole or {})
        joined = rollout.made.with_part(part, is_growing=True)
        wire.set_text(joined, await self._text.grown(before, *self._ids(joined, part), wire.text(part)))
        return event_of(joined)

    def _ids(self, joined: Json, part: Json) -> tuple[list[int], list[int]]:
        return self._wire.ids(joined) or [], self._wire.ids(part) or []

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout = self._rollout
        if rollout.whole is None:
            return event_of(self._part) if rollout.is_changed and self._part is not None else self._event
        if self._part is not None and self._part is not rollout.made.last_part:
            rollout.take(self._part)
        return event_of(await rollout.finished())
