"""The stream of ``/inference/v1/generate`` over several segments."""

from __future__ import annotations

from router_core import event_data
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.seam import event_of
from router_partial_rollout.wire import Json, Wire, joined_usage, only_choice, read_part

ENDS = ("finish_reason", "stop_reason", "weight_versions", "routed_experts")


class InferenceReader:
    """Each event is what was added, in ids."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.part: Json | None = None
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self._held: Json = {}
        """The event that said abort."""

    def start_from(self, part: Json) -> None:
        self.part, self._held = part, part

    def begin(self) -> None:
        self.is_aborted, self.part = False, None

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        chunk = None if data is None or data == b"[DONE]" else read_part(data)
        if chunk is None or "error" in chunk:
            return event
        rollout, choice = self._rollout, only_choice(chunk)
        if not choice:
            return event if rollout.whole is None else event_of(self._counted(chunk))
        self._add(chunk, choice)
        if rollout.may_go_on(chunk):
            self.is_aborted, self._held = True, chunk
            return b""
        if rollout.is_untouched or (rollout.whole is None and choice.get("finish_reason") is None):
            return event
        if choice.get("finish_reason") is None:
            return event_of(self._moved(chunk))
        return event_of(await self._ended(chunk))

    def _add(self, chunk: Json, choice: Json) -> None:
        """Puts an event's tokens into ``part``."""
        if self.part is None:
            self.part = {**chunk, "choices": [{**choice, "token_ids": [], "logprobs": None}]}
        part: Json = self.part["choices"][0]
        part["token_ids"] += choice.get("token_ids") or ()
        part.update((key, choice[key]) for key in ENDS if choice.get(key) is not None)
        told = choice.get("logprobs")
        if isinstance(told, dict):
            content = (part["logprobs"] or {}).get("content", [])
            part["logprobs"] = {"content": content + (told.get("content") or [])}
        self.part["usage"] = None

    def kept(self) -> bytes:
        """The tokens of the event that said abort, which is none."""
        held, self._held = self._held, {}
        choice = only_choice(held)
        if not choice.get("token_ids"):
            return b""
        kept = {**held, "choices": [{**choice, **dict.fromkeys(ENDS)}]}
        return event_of(self._moved(kept) if self._rollout.made.count > 1 else kept)

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout, held = self._rollout, self._held
        self._held = {}
        if rollout.whole is None:
            if rollout.is_changed and self.part is not None:
                held["choices"][0]["finish_reason"] = self.part["choices"][0]["finish_reason"]
            return event_of(held)
        is_kept = self.part is rollout.made.last_part
        ended = {**(self.part or {}), "choices": [{**only_choice(self.part or {}), "token_ids": [], "logprobs": None}]}
        return event_of(await self._ended(ended if is_kept or not held else held))

    async def _ended(self, chunk: Json) -> Json:
        """The last event, with what is told of the whole."""
        rollout = self._rollout
        if self.part is not None and self.part is not rollout.made.last_part:
            rollout.take(self.part)
        whole = await rollout.finished()
        told = only_choice(whole)
        choice = {**only_choice(chunk), **{key: told[key] for key in ENDS if key in told}}
        return {**self._moved(chunk), "choices": [choice], "metadata": whole["metadata"]}

    def _moved(self, chunk: Json) -> Json:
        """An event of a later segment as one of the first one's stream."""
        whole = self._rollout.whole or {}
        return {**chunk, "prompt_token_ids": None, "request_id": whole.get("request_id")}

    def _counted(self, chunk: Json) -> Json:
        """Usage comes at the end, and is told of the newest segment: the others' tokens are before it."""
        usage, made = chunk.get("usage"), self._rollout.made
        if not isinstance(usage, dict):
            return self._moved(chunk)
        newest = len(self._wire.ids(self.part or {}) or ())
        before = {"prompt_tokens": len(made.prompt_ids), "completion_tokens": len(made.ids) - newest}
        return {**self._moved(chunk), "usage": joined_usage(before, usage)}
