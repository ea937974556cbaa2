"""The stream of ``/v1/completions`` over several segments."""

from __future__ import annotations

from typing import Any

from router_core import event_data
from router_partial_rollout.completions import check_one_kind, head_of, joined_logprobs, offset_after
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.seam import SeamText, event_of
from router_partial_rollout.wire import Json, Wire, joined_usage, read_part


class CompletionReader:
    """``/v1/completions``: each event is what was added, and ids come with each."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.part: Json | None = None
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self._held: tuple[bytes, Json] = (b"", {})
        """The event that said abort, as it came."""
        self._kept = b""
        """What the client gets of it where it is no end, but for the first segment's."""
        self._text = SeamText(rollout)

    def start_from(self, part: Json) -> None:
        self.part, self._held = part, (b"none came", part)

    def begin(self) -> None:
        self.is_aborted, self.part = False, None
        self._text.begin()

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        chunk = None if data is None or data == b"[DONE]" else read_part(data)
        if chunk is None or "error" in chunk:
            return event
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return event if self._rollout.whole is None else event_of(self._counted(chunk))
        choice = choices[0]
        self._add(chunk, choice)
        if self._rollout.may_go_on(chunk):
            self.is_aborted, self._held = True, (event, chunk)
            if self._rollout.whole is not None:
                self._kept = _told(await self._moved(chunk, _without_end(choice)))
            return b""
        if self._rollout.whole is None:
            if choice.get("finish_reason") is not None and not self._rollout.is_untouched:
                self._rollout.take(self.part or {})
                return event_of({**self._stripped(chunk), "metadata": (await self._rollout.finished())["metadata"]})
            self._text.shown += choice.get("text") or ""
            return event_of(self._stripped(chunk)) if self._is_told(choice) else event
        return event_of(await self._moved(chunk, choice))

    def _add(self, chunk: Json, choice: Json) -> None:
        """Puts an event's tokens into ``part``."""
        if self.part is None:
            self.part = {**chunk, "choices": [dict(choice)]}
            choice = {}
        part: Json = self.part["choices"][0]
        if choice:
            for key in ("text", "token_ids"):
                if choice.get(key):
                    part[key] = (part.get(key) or type(choice[key])()) + choice[key]
            if choice.get("logprobs") is not None:
                # offsets of one stream go on by themselves
                part["logprobs"] = _appended(part.get("logprobs"), choice["logprobs"])
            for key in ENDS:
                if choice.get(key) is not None:
                    part[key] = choice[key]
        prompt, made = part.get("prompt_token_ids"), part.get("token_ids")
        self.part["usage"] = {} if made is None else {"completion_tokens": len(made)}
        if prompt is not None:
            self.part["usage"]["prompt_tokens"] = len(prompt)

    def kept(self) -> bytes:
        (event, chunk), kept = self._held, self._kept
        self._held, self._kept = (b"", {}), b""
        if not event or self._rollout.made.count > 1:
            return kept
        choice = chunk["choices"][0]
        text = self._rollout.settled(self._text.shown + (choice.get("text") or ""))
        added = text[len(self._text.shown) :]
        self._text.shown += added
        return _told(self._stripped({**chunk, "choices": [{**_without_end(choice), "text": added}]}))

    async def _moved(self, chunk: Json, choice: Json) -> Json:
        """An event of a later segment as one of the first one's stream."""
        rollout, wire, part = self._rollout, self._wire, self.part or {}
        whole = rollout.whole or {}
        first = whole["choices"][0]
        check_one_kind(first, choice)
        moved = dict(chunk)
        choice = {**choice}
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = None
        if isinstance(choice.get("logprobs"), dict) and isinstance(first.get("logprobs"), dict):
            end = offset_after(first["logprobs"])
            offsets = choice["logprobs"].get("text_offset") or []
            choice["logprobs"] = {**choice["logprobs"], "text_offset": [at + end if at >= 0 else at for at in offsets]}
        shown = self._text.shown
        if choice.get("finish_reason") is not None:
            rollout.take(part)
            text = wire.text(await rollout.finished())
            moved["metadata"] = (rollout.whole or {}).get("metadata")
        else:
            part_ids = wire.ids(part) or []
            text = await self._text.grown(wire.text(whole), [*rollout.made.ids, *part_ids], part_ids, wire.text(part))
        choice["text"] = text[len(shown) :]
        moved["choices"] = [choice]
        return self._stripped(self._counted(moved))

    def _counted(self, chunk: Json) -> Json:
        usage, whole = chunk.get("usage"), self._rollout.whole or {}
        if not isinstance(usage, dict):
            return {**chunk, **head_of(whole)}
        told: Json = whole.get("usage") or {}
        is_over = self.part is not None and self._rollout.made.last_part is self.part
        usage = {**usage, **told} if is_over else joined_usage(told, usage)
        return {**chunk, **head_of(whole), "usage": usage}

    def _is_told(self, choice: Json) -> bool:
        return self._rollout.is_stripped and ("token_ids" in choice or "prompt_token_ids" in choice)

    def _stripped(self, chunk: Json) -> Json:
        if not self._rollout.is_stripped:
            return chunk
        choice = {key: value for key, value in chunk["choices"][0].items() if key not in STRIPPED}
        return {**chunk, "choices": [choice]}

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout = self._rollout
        (event, chunk), kept = self._held, self._kept
        self._held, self._kept = (b"", {}), b""
        if rollout.whole is None:
            if rollout.is_changed:
                chunk["choices"][0]["finish_reason"] = (self.part or chunk)["choices"][0]["finish_reason"]
                return event_of(self._stripped(chunk))
            return event_of(self._stripped(chunk)) if self._is_told(chunk["choices"][0]) else event
        if self.part is not None and self.part is not rollout.made.last_part:
            rollout.take(self.part)
        whole = await rollout.finished()
        told = whole["choices"][0]
        ended = {key: told[key] for key in ENDS if key in told}
        choice = {"index": 0, "text": self._wire.text(whole)[len(self._text.shown) :], "logprobs": None, **ended}
        head = {**head_of(whole), "object": whole.get("object")}
        return kept + event_of({**head, "choices": [choice], "metadata": whole.get("metadata")})


def _without_end(choice: Json) -> Json:
    return {key: None if key in ENDS else value for key, value in choice.items()}


def _told(chunk: Json) -> bytes:
    """An event, if there is anything in it."""
    choice = chunk["choices"][0]
    return event_of(chunk) if choice.get("text") or choice.get("token_ids") or choice.get("logprobs") else b""


ENDS = ("finish_reason", "stop_reason", "matched_stop")
STRIPPED = frozenset(("token_ids", "prompt_token_ids"))


def _appended(first: Any, second: Json) -> Json:
    """Logprobs of one stream, one event behind the other."""
    if not isinstance(first, dict):
        return second
    without = {**second, "text_offset": []}
    joined: Json = joined_logprobs(first, without)
    joined["text_offset"] = [*(first.get("text_offset") or ()), *(second.get("text_offset") or ())]
    return joined
