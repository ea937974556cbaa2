"""The text of a stream behind a seam of two segments."""

from __future__ import annotations

from typing import Any

import orjson

from router_partial_rollout.rollout import Rollout
from router_partial_rollout.text import NO_CHARACTER, is_same_text


class SeamText:
    """The text that goes on behind a seam: right from the first whole character on."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.shown = ""
        """What the client has."""
        self._base: str | None = None
        self._skip = 0

    def begin(self) -> None:
        self._base, self._skip = None, 0

    async def grown(self, before: str, ids: list[int], part_ids: list[int], part_text: str) -> str:
        """All text: ``ids`` are those of all segments; ``part_text`` is the newest segment's by its worker."""
        if self._base is None:
            whole = await self._rollout.decode(ids)
            if whole is None or not is_same_text(whole, before + part_text):
                self._base = before.rstrip(NO_CHARACTER)
            elif whole.endswith(NO_CHARACTER) or ((await self._rollout.decode(part_ids)) or "").endswith(NO_CHARACTER):
                # either a character is not whole yet, or the worker waits for what it takes for one
                return self._show(whole)
            else:
                self._base, self._skip = whole, len(part_text)
        return self._show(self._base + part_text[self._skip :])

    def _show(self, text: str) -> str:
        """Nothing that was shown is taken back, and what may become a character waits."""
        text = self._rollout.settled(text)
        self.shown = text if len(text) > len(self.shown) else self.shown
        return self.shown


def event_of(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"
