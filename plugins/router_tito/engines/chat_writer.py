"""Writes chat answers and chunks from what was read out of another call's answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from router_tito.parsers import Delta

Json: TypeAlias = dict[str, Any]

DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(slots=True)
class ChatWriter:
    """One answer. ``reasoning_key`` is what the kind of worker calls reasoning; ``stop_key`` what ended the answer."""

    model: str
    reasoning_key: str
    stop_key: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    calls: int = 0
    """Tool calls written so far."""

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word: a turn that ends with tool calls says so."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def message(self, parsed: Delta) -> Json:
        """The whole message."""
        message: Json = {"role": "assistant", "content": parsed.content or (None if parsed.calls else "")}
        if parsed.reasoning:
            message[self.reasoning_key] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = self._calls(parsed)
        return message

    def answer(self, choice: Mapping[str, Any], usage: Json, extra: Mapping[str, Any]) -> bytes:
        """The whole answer. ``choice`` is the one there is, ``extra`` goes beside it."""
        return orjson.dumps(
            {**self._head("chat.completion"), "choices": [{"index": 0, **choice}], "usage": usage, **extra}
        )

    def delta(self, parsed: Delta) -> Json:
        """What a piece added, as a delta."""
        delta: Json = {}
        if parsed.reasoning:
            delta[self.reasoning_key] = parsed.reasoning
        if parsed.content:
            delta["content"] = parsed.content
        if parsed.calls:
            first = self.calls
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(self._calls(parsed), first)]
        return delta

    def chunk(self, delta: Json, *, extra: Mapping[str, Any] | None = None, **choice: Any) -> bytes:
        """An event of a stream."""
        told = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
        return self._event({"choices": [told], **(extra or {})})

    def tail(self, **told: Any) -> bytes:
        """An event without a choice."""
        return self._event({"choices": [], **told})

    def _event(self, told: Mapping[str, Any]) -> bytes:
        return b"data: " + orjson.dumps({**self._head("chat.completion.chunk"), **told}) + b"\n\n"

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _calls(self, parsed: Delta) -> list[Json]:
        self.calls += len(parsed.calls)
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.calls
        ]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> Json:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }


def logprob_entry(text: str, logprob: float | None, tops: Sequence[tuple[str, float | None]]) -> Json:
    """One position of ``logprobs.content``; a token that is part of a character has no bytes to tell."""
    return {
        **_token(text, logprob),
        "top_logprobs": [_token(*top) for top in tops],
    }


def _token(text: str, logprob: float | None) -> Json:
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
