"""Chat through vLLM's ``/v1/completions`` (0.32) with the prompt's ids: parsed here.

Streams are deltas with ids in each; neither weight versions nor, in streams, routed experts are told.
"""

from __future__ import annotations

import itertools
from typing import Any

import orjson

from router_core import Reject, Request, Worker

from .chat import are_ids
from .chat_writer import usage
from .interface import AbortedPart, Ask, EngineServices
from .translate_parsing import Parsing
from .translate_reader import Json, Piece, TranslatedReader
from .translate_request import json_schema, most_tokens, top_logprobs, translate_fields
from .versions import read_versions
from .vllm import IDS_FLAG

PATH = b"/v1/completions"
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos", "bad_words"),
    *("allowed_token_ids", "include_stop_str_in_output", "spaces_between_special_tokens", "priority", "request_id"),
    *("cache_salt", "kv_transfer_params", "ec_transfer_params", "structured_outputs", "vllm_xargs"),
    "routed_experts_prompt_start",
)
"""Chat fields that both calls know under the same name."""
PREFIX = "token_id:"


class VllmCompletions:
    """`TokenEngine` for vLLM's completions call."""

    path = PATH

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self.parsing = Parsing(services)

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        call = self.call(ask, worker)
        await self.parsing.prepare()
        request.path = PATH
        request.set_body(orjson.dumps({**call, "prompt": orjson.Fragment(ask.prompt_json)}))

    def call(self, ask: Ask, worker: Worker) -> Json:
        """The request. Raises Reject (400) naming a field that cannot be said in it."""
        if ask.prompt_ids is None:
            raise ValueError("a prompt without ids cannot be translated")
        body = ask.body
        fields = translate_fields(body, {name: name for name in FIELDS}, frozenset({IDS_FLAG}))
        json_schema(body)  # what is no schema is refused here, by name
        most = most_tokens(ask, worker, self._services)
        if most is None:
            raise Reject(
                400,
                "not_translatable",
                "max_tokens must be given: the worker does not tell its context, and without it gives 16 tokens"
                " (or set plugins.tito.default_max_tokens)",
                "max_tokens",
            )
        call: Json = {
            **fields,
            "prompt": list(ask.prompt_ids),
            "max_tokens": most,
            "logprobs": top_logprobs(body),
            IDS_FLAG: True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
        }
        for name in ("model", "response_format"):
            if body.get(name) is not None:
                call[name] = body[name]
        if ask.is_streamed:
            call |= {"stream": True, "stream_options": {"include_usage": True}}
        return call

    def so_far(self, part: AbortedPart) -> Json:
        """What this call would have answered."""
        ids, prompt_ids, cached = part.ids, part.prompt_ids, part.reading.cached_tokens
        names = [f"{PREFIX}{token}" for token in ids]
        logprobs = {
            "tokens": names,
            "token_logprobs": part.logprobs,
            "top_logprobs": [{name: told} for name, told in zip(names, part.logprobs, strict=True)],
            "text_offset": [0, *itertools.accumulate(map(len, names))][: len(names)],
        }
        choice = {
            "index": 0,
            "text": part.text,
            "token_ids": ids,
            "prompt_token_ids": prompt_ids,
            "logprobs": logprobs,
            "finish_reason": "abort",
            "stop_reason": None,
        }
        if part.reading.experts is not None:
            choice["routed_experts"] = part.reading.experts
        return {
            **{key: part.head.get(key) for key in ("id", "created", "model")},
            "object": "text_completion",
            "choices": [choice],
            "usage": usage(len(prompt_ids), len(ids), cached),
        }

    def reader(self, ask: Ask, worker: Worker) -> VllmCompletionsReader:
        return VllmCompletionsReader(ask, self.parsing, reasoning_key="reasoning", stop_key="stop_reason")


class VllmCompletionsReader(TranslatedReader):
    """Reads the one choice, and ``usage``."""

    def take(self, answer: Json) -> Piece:
        self._read_head(answer)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return Piece()
        if len(choices) > 1 or choices[0].get("index", 0) != 0:
            self.reading.fault = "many_choices"
        choice = choices[0]
        if are_ids(choice.get("prompt_token_ids")):
            self.reading.prompt_ids = choice["prompt_token_ids"]
        if isinstance(choice.get("routed_experts"), str):
            self.reading.experts = choice["routed_experts"]
        ids = choice["token_ids"] if are_ids(choice.get("token_ids")) else []
        logprobs = choice.get("logprobs") or {}
        told = logprobs.get("token_logprobs")
        tops = logprobs.get("top_logprobs")
        text, reason = choice.get("text"), choice.get("finish_reason")
        return Piece(
            text=text if isinstance(text, str) else "",
            token_ids=ids,
            logprobs=told if isinstance(told, list) else (),
            tops=[_tops(top) for top in tops] if isinstance(tops, list) and self.ask.asks("logprobs") else (),
            finish_reason=str(reason) if reason is not None else None,
            matched=choice.get("stop_reason"),
        )

    def _read_head(self, answer: Json) -> None:
        if isinstance(answer.get("id"), str) and not self.writer.id:
            self.writer.id = "chatcmpl-" + answer["id"].removeprefix("cmpl-")
        if isinstance(answer.get("model"), str):
            self.reading.model = self.writer.model = answer["model"]
        if isinstance(answer.get("metadata"), dict):
            read_versions(answer["metadata"], self.reading)
        counted = answer.get("usage")
        details = counted.get("prompt_tokens_details") if isinstance(counted, dict) else None
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            self.reading.cached_tokens = details["cached_tokens"]

    def beside_choice(self, piece: Piece) -> Json:
        return {"token_ids": list(piece.token_ids)} if self.ask.asks(IDS_FLAG) else {}

    def beside_answer(self) -> Json:
        return {"prompt_token_ids": list(self.reading.prompt_ids or ())} if self.ask.asks(IDS_FLAG) else {}


def _tops(told: Any) -> list[tuple[int, float | None]]:
    """The likeliest first: vLLM lists the sampled one before them."""
    if not isinstance(told, dict):
        return []
    found = [(int(name[len(PREFIX) :]), value) for name, value in told.items() if _is_id(name)]
    return sorted(found, key=lambda item: -item[1] if isinstance(item[1], int | float) else float("inf"))


def _is_id(name: str) -> bool:
    return name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal()
