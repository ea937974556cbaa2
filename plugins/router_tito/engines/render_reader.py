"""Reads answers of vLLM's ``/inference/v1/generate``, and has the worker make chat of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from router_core import EventSplitter, Worker, event_data

from .chat import are_ids
from .chat_writer import DONE_EVENT, logprob_entry, usage
from .deltas import MessageBuilder
from .interface import Ask, EngineServices, Reading
from .translate_request import top_logprobs
from .versions import read_versions
from .vllm import IDS_FLAG

log = logging.getLogger(__name__)

Json = dict[str, Any]

DERENDER = "/v1/chat/completions/derender"
FAULT = "derender_failed"
DONE = b"[DONE]"


class Derenderer:
    """Asks one worker to parse one answer, whole or piece by piece."""

    def __init__(self, services: EngineServices, worker: Worker, ask: Ask) -> None:
        self._services = services
        self._worker = worker
        self._chat = {key: value for key, value in ask.body.items() if key not in ("stream", "stream_options")}
        self._state: Any = None

    async def whole(self, generated: Json, prompt_ids: list[int]) -> Json | None:
        """The chat answer, None where the worker gives none."""
        return await self._call({"generate_response": generated}, prompt_ids)

    async def piece(self, generated: Json, prompt_ids: list[int]) -> Json | None:
        """The chat event for what was added. The worker keeps nothing: its state goes with every call."""
        told = await self._call({"stream": True, "generate_chunk": generated, "stream_state": self._state}, prompt_ids)
        chunk = told.get("chunk") if told is not None else None
        if told is None or not isinstance(chunk, dict):
            return None
        self._state = told.get("stream_state")
        return chunk

    def logprobs(self, choice: Json) -> Json | None:
        """A choice's logprobs in chat form: beside a parser's pieces vLLM tells none."""
        told, tokenizer = choice.get("logprobs"), self._services.find_tokenizer()
        content = told.get("content") if isinstance(told, dict) else None
        if not isinstance(content, list) or tokenizer is None:
            return None

        def named(entry: Json) -> tuple[str, float | None]:
            return tokenizer.decode([entry["token_id"]]), entry.get("logprob")

        most = top_logprobs(self._chat)
        return {
            "content": [
                logprob_entry(*named(entry), [named(top) for top in _likeliest(entry)[:most]]) for entry in content
            ]
        }

    async def _call(self, body: Json, prompt_ids: list[int]) -> Json | None:
        services = self._services
        asked = {
            **body,
            "model": self._chat.get("model"),
            "prompt_tokens": len(prompt_ids),
            "prompt_token_ids": prompt_ids,
            "chat_request": self._chat,
        }
        answer = await services.control.call(
            self._worker,
            "POST",
            DERENDER,
            timeout_s=services.timeout_s,
            body=orjson.dumps(asked),
            headers={"content-type": "application/json"},
        )
        told = answer.json() if answer.is_ok else None
        if isinstance(told, dict):
            return told
        log.warning("%s%s: %s", self._worker.url, DERENDER, answer.error or f"status {answer.status}")
        return None


class RenderReader:
    """`AnswerReader` that gets ids from one call and the message from another."""

    def __init__(self, ask: Ask, derenderer: Derenderer) -> None:
        self.ask = ask
        self.reading = Reading(model=str(ask.body.get("model") or ""))
        self._derenderer = derenderer
        self._splitter = EventSplitter()
        self._message = MessageBuilder()
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._calls = 0
        self._last: Json | None = None
        self._is_done = False
        self._broken = b""

    # ------------------------------------------------------------------------------------------------- AnswerReader
    async def whole(self, body: bytes) -> bytes:
        generated = _decode(body)
        choice = self._read(generated) if generated is not None else None
        if generated is None or choice is None:
            self.reading.fault = self.reading.fault or "unreadable_answer"
            return body
        self._finish()
        answer = await self._derenderer.whole(self._slim(generated, choice), self._prompt)
        made = _only_choice(answer) if answer is not None else None
        if answer is None or made is None:
            self.reading.fault = FAULT
            return body
        message = made.get("message")
        self.reading.message = dict(message) if isinstance(message, dict) else {}
        made["finish_reason"] = self.reading.finish_reason = self._reason(choice, self.reading.message)
        if self.ask.asks(IDS_FLAG):
            made["token_ids"], answer["prompt_token_ids"] = self._ids, self._prompt
        answer["usage"] = self._usage()
        return orjson.dumps(answer)

    async def feed(self, chunk: bytes) -> bytes:
        try:
            events = self._splitter.feed(chunk)
        except ValueError:
            self.reading.fault = "unreadable_answer"
            return b""
        added = self._merge(events)
        if added is None or self._broken:
            return b""
        return await self._derender(*added)

    async def end(self) -> bytes:
        rest = b""
        if self._last is not None and not self._broken:
            rest = _event(self._last)
            if (self.ask.body.get("stream_options") or {}).get("include_usage"):
                head = {key: self._last.get(key) for key in ("id", "object", "created", "model")}
                rest += _event({**head, "choices": [], "usage": self._usage()})
        self.reading.message = self._message.message()
        self._finish()
        return rest + (self._broken or (DONE_EVENT if self._is_done else b""))

    # ------------------------------------------------------------------------------------------------------- reading
    def _merge(self, events: list[bytes]) -> tuple[Json, Json] | None:
        """What several events added, as one event and its choice: each costs the worker a pass over the answer."""
        merged: Json | None = None
        whole: Json | None = None
        for event in events:
            data = event_data(event)
            if data == DONE:
                self._is_done = True
            told = _decode(data) if data is not None and data != DONE else None
            if told is None:
                continue
            if told.get("error") is not None:
                self.reading.fault, self._broken = "worker_error", event
                continue
            choice = self._read(told)
            if choice is None:
                continue
            if merged is None or whole is None:
                merged, whole = choice, told
            else:
                _append(merged, choice)
        return (whole, merged) if whole is not None and merged is not None else None

    async def _derender(self, generated: Json, choice: Json) -> bytes:
        made = await self._derenderer.piece({**self._slim(generated, choice), "usage": None}, self._prompt)
        if made is None:
            self.reading.fault = FAULT
            error = {"message": "the worker did not parse its own answer", "type": "server_error", "code": FAULT}
            self._broken = _event({"error": error})
            return b""
        told = _only_choice(made)
        if told is None:
            return b""
        delta = told.get("delta")
        self._message.add(delta if isinstance(delta, dict) else {})
        if self.ask.asks(IDS_FLAG):
            told["token_ids"] = choice.get("token_ids")
        if self.ask.asks("logprobs") and told.get("logprobs") is None:
            told["logprobs"] = self._derenderer.logprobs(choice)
        made.pop("usage", None)
        if choice.get("finish_reason") is None:
            has_news = any((delta or {}).values()) or told.get("logprobs") or self.ask.asks(IDS_FLAG)
            return _event(made) if has_news else b""
        reason = self._reason(choice, self._message.message())
        told["finish_reason"] = self.reading.finish_reason = reason
        self._last = made
        return b""

    def _read(self, generated: Json) -> Json | None:
        reading = self.reading
        if are_ids(generated.get("prompt_token_ids")):
            reading.prompt_ids = generated["prompt_token_ids"]
        if isinstance(generated.get("model"), str):
            reading.model = generated["model"]
        counted = generated.get("usage")
        details = counted.get("prompt_tokens_details") if isinstance(counted, dict) else None
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            reading.cached_tokens = details["cached_tokens"]
        choice = _only_choice(generated)
        if choice is None:
            return None
        if len(generated["choices"]) > 1 or choice.get("index", 0) != 0:
            reading.fault = "many_choices"
        if are_ids(choice.get("token_ids")):
            self._ids += choice["token_ids"]
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if isinstance(content, list):
            self._logprobs += [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]
        if isinstance(choice.get("routed_experts"), str):
            reading.experts = choice["routed_experts"]
        read_versions(choice, reading)
        if isinstance(generated.get("metadata"), dict):
            read_versions(generated["metadata"], reading)
        return choice

    def _slim(self, generated: Json, choice: Json) -> Json:
        """What the worker needs back; experts and logprobs that nobody wants to see do not travel again.

        Nor does the token that ended the answer: vLLM's own chat leaves it out of the text, its derendering does not.
        """
        kept = {**choice, "routed_experts": None}
        if self._ends_with_stop_token(choice):
            kept["token_ids"] = kept["token_ids"][:-1]
        if not self.ask.asks("logprobs"):
            kept["logprobs"] = None
        return {**generated, "choices": [kept], "prompt_token_ids": None}

    def _ends_with_stop_token(self, choice: Json) -> bool:
        if choice.get("finish_reason") != "stop" or isinstance(choice.get("stop_reason"), str):
            return False
        # An answer of that token alone stays whole, which vLLM wants to have one token at least.
        is_shown = bool(self.ask.body.get("include_stop_str_in_output"))
        return not is_shown and bool(choice.get("token_ids")) and len(self._ids) > 1

    @staticmethod
    def _reason(choice: Json, message: Mapping[str, Any]) -> str:
        reason = str(choice.get("finish_reason") or "")
        return "tool_calls" if reason == "stop" and message.get("tool_calls") else reason

    @property
    def _prompt(self) -> list[int]:
        return list(self.reading.prompt_ids if self.reading.prompt_ids is not None else self.ask.prompt_ids or ())

    def _usage(self) -> Json:
        return usage(len(self._prompt), len(self._ids), self.reading.cached_tokens)

    def _finish(self) -> None:
        if self._ids:
            self.reading.completion_ids = self._ids
        if self._logprobs:
            self.reading.logprobs = self._logprobs


def _append(choice: Json, later: Json) -> None:
    """Add what a later event told of the same choice."""
    choice["token_ids"] = [*(choice.get("token_ids") or ()), *(later.get("token_ids") or ())]
    for key in ("finish_reason", "stop_reason", "weight_versions"):
        if later.get(key) is not None:
            choice[key] = later[key]
    mine, theirs = choice.get("logprobs"), later.get("logprobs")
    if isinstance(mine, dict) and isinstance(theirs, dict):
        choice["logprobs"] = {"content": [*(mine.get("content") or ()), *(theirs.get("content") or ())]}


def _likeliest(entry: Json) -> list[Json]:
    """The likeliest first: vLLM lists the sampled one before them."""
    return sorted(entry.get("top_logprobs") or (), key=lambda top: -(top.get("logprob") or 0.0))


def _only_choice(answer: Json) -> Json | None:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _event(told: Json) -> bytes:
    return b"data: " + orjson.dumps(told) + b"\n\n"


def _decode(text: bytes) -> Json | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
