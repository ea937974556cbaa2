"""The text of an answer of several parts."""

from __future__ import annotations

from router_core import Worker
from router_partial_rollout.joined import Joined
from router_partial_rollout.text import NO_CHARACTER, Texts, ids_of_text, is_same_text, without_stop
from router_partial_rollout.wire import Json, Wire


class WholeText:
    """Decodes what was made of one answer as if that had been in one go."""

    def __init__(self, made: Joined, texts: Texts) -> None:
        self._made = made
        self._texts = texts

    async def decode(self, worker: Worker, ids: list[int]) -> str | None:
        """Text of output ids; None where nobody can tell."""
        wire, body = self._made.wire, self._made.body
        if wire is None:
            return None
        return await self._texts.decode(worker, ids, skip_special=wire.skips_special(body), model=body.get("model"))

    async def of_end(self, worker: Worker, wire: Wire, answer: Json) -> str:
        """The text of the joined answer; the parts in a row where nobody can decode."""
        if not wire.has_text:
            return ""
        finish, body = wire.finish(answer), self._made.body
        ids = wire.ids(answer) or []
        parts = without_stop(wire, body, wire.text(answer), finish)
        text = await self.decode(worker, list(ids_of_text(wire, body, ids, finish)))
        if text is None:
            return parts
        text = without_stop(wire, body, text, finish)
        text = text if wire.shows_partial(answer) else text.rstrip(NO_CHARACTER)
        return text if is_same_text(text, parts) else parts
