"""One generation of a scripted engine: its prompt, its words, and how far it has come."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from router_core.testing.experts import Experts
from router_core.testing.words import Words

_numbers = itertools.count(1)


@dataclass(slots=True)
class Generation:
    """``words`` answer ``prompt_ids``. Every view takes ``count``: how many tokens have been sampled so far."""

    body: dict[str, Any]
    """The request's JSON object."""
    prompt_ids: list[int]
    words: Words
    weight_version: str
    experts: Experts | None
    model: str
    is_aborted: bool = False
    stop_at: int | None = None
    """Tokens after which it ends early, by ``max_tokens`` or an abort."""
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def rid(self) -> str:
        """Its id: the request's own ``rid``, else a scripted one."""
        rid = self.body.get("rid") or self.body.get("request_id")
        return rid if isinstance(rid, str) else f"{self.number:032x}"

    @property
    def count(self) -> int:
        """Tokens when it ends."""
        whole = len(self.words.ids)
        return whole if self.stop_at is None else min(whole, self.stop_at)

    @property
    def finish(self) -> str:
        """``stop``, ``length`` or ``abort``."""
        if self.is_aborted:
            return "abort"
        return "length" if self.count < len(self.words.ids) else self.words.finish

    @property
    def sequence(self) -> list[int]:
        return [*self.prompt_ids, *self.words.ids[: self.count]]

    @property
    def shows_tool_calls(self) -> bool:
        return bool(self.words.tool_calls) and self.count == len(self.words.ids)

    def text(self, kind: str, count: int | None = None) -> str:
        """The ``reasoning`` or ``content`` sampled so far."""
        return "".join(self.words.parts(kind)[: self.count if count is None else count])

    def usage(self) -> dict[str, Any]:
        prompt, completion = len(self.prompt_ids), self.count
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{self.number}_{at}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for at, call in enumerate(self.words.tool_calls)
        ]

    def chat_finish(self) -> str:
        return "tool_calls" if self.shows_tool_calls and self.finish == "stop" else self.finish

    def deltas(self, reasoning_key: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """What each token adds to a chat message: its place and the delta; tool calls with the last token.

        ``count`` is read as it goes, since an abort may shorten it.
        """
        thoughts, contents = self.words.parts("reasoning"), self.words.parts("content")
        at = 0
        while at < self.count:
            delta: dict[str, Any] = {}
            if thoughts[at]:
                delta[reasoning_key] = thoughts[at]
            if contents[at]:
                delta["content"] = contents[at]
            if at == self.count - 1 and self.shows_tool_calls:
                delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(self.tool_calls())]
            yield at, delta
            at += 1


Event = tuple[int, dict[str, Any]]
"""Of a stream: tokens sampled when it is sent, and its JSON."""
