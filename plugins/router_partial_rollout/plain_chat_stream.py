"""The stream of SGLang's chat call with nothing parsed, as one of ``/generate``: ids come with its end alone."""

from __future__ import annotations

from typing import Any

from router_core import event_data
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.seam import event_of
from router_partial_rollout.text import NO_CHARACTER
from router_partial_rollout.wire import Json, Wire, as_object, only_choice, read_part


class PlainChatReader:
    """Each event that goes out repeats what there is: the text as it grows, the ids of the segments before."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.part: Json | None = None
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self.begin()

    def start_from(self, part: Json) -> None:
        self.part = part

    def begin(self) -> None:
        self.is_aborted, self.part = False, None
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._end: Json = {}
        """The choice that told the reason."""

    def kept(self) -> bytes:
        return b""

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        chunk = None if data is None or data == b"[DONE]" else read_part(data)
        if chunk is None or "error" in chunk:
            return event
        choice = only_choice(chunk)
        if choice:
            return self._grown(choice)
        if "sglext" not in chunk or not self._end or self.part is not None:
            return b""  # usage is told by whoever reads ids
        choice = {
            **self._end,
            "message": {"content": "".join(self._text)},
            "logprobs": {"content": self._logprobs},
        }
        self.part = self._wire.part({**chunk, "choices": [choice]})
        if self._rollout.may_go_on(self.part):
            self.is_aborted = True
            return b""
        return await self.final()

    def _grown(self, choice: Json) -> bytes:
        content = as_object(choice.get("delta")).get("content")
        self._logprobs += as_object(choice.get("logprobs")).get("content") or []
        if choice.get("finish_reason") is not None:
            self._end = choice
        rollout, whole = self._rollout, self._rollout.whole
        if not isinstance(content, str) or not content:
            return b""
        self._text.append(content)
        before = self._wire.text(whole or {})
        if whole is None or before.endswith(NO_CHARACTER):
            return b""  # the character is whole only in all ids
        growing = {**whole, "text": rollout.settled(before + "".join(self._text))}
        meta = {key: value for key, value in whole["meta_info"].items() if key not in ENDS}
        return event_of({**growing, "meta_info": {**meta, "finish_reason": None}})

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout = self._rollout
        if rollout.whole is None:
            return event_of(self.part) if self.part is not None else b""
        if self.part is not None and self.part is not rollout.made.last_part:
            rollout.take(self.part)
        return event_of(await rollout.finished())


ENDS = ("routed_experts", "weight_versions")
