"""Chat through SGLang's ``/generate`` (0.5.23): ids in, ids and text out, parsed here.

Its streams are cumulative: each event holds all of the text, ids and logprobs so far. Weight versions by span and
routed experts come with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from router_core import Request, Worker

from .chat import are_ids
from .interface import Ask, EngineServices
from .sglang import EXPERTS_FLAG, INPUT_FLAG, OUTPUT_FLAG
from .translate_parsing import Parsing
from .translate_reader import Json, Piece, TranslatedReader
from .translate_request import json_schema, most_tokens, top_logprobs, translate_fields
from .versions import read_versions

PATH = b"/generate"
SAMPLING = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "stop_regex")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")},
    **{name: name for name in ("ignore_eos", "no_stop_trim", "regex", "ebnf", "custom_params")},
    "seed": "sampling_seed",
    "min_tokens": "min_new_tokens",
}
"""Chat field -> sampling parameter."""
BESIDE = (
    *("rid", "priority", "lora_path", "cache_salt", "extra_key", "session_params", "custom_logit_processor"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "routed_dp_rank"),
    *("disagg_prefill_dp_rank", "routed_experts_start_len", EXPERTS_FLAG),
)
"""Chat fields that go beside the sampling parameters under their own names."""
FIELDS = {**SAMPLING, **{name: name for name in BESIDE}}
SHOWN = frozenset({INPUT_FLAG, OUTPUT_FLAG})
"""Flags for what the reader shows."""


class SglangGenerate:
    """Engine for SGLang's native call."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._parsing = Parsing(services)

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        if ask.prompt_ids is None:
            raise ValueError("a prompt without ids cannot be translated")
        body = ask.body
        fields = translate_fields(body, FIELDS, SHOWN)
        beside = {name: fields.pop(name) for name in BESIDE if name in fields}
        sampling = {
            **fields,
            "max_new_tokens": most_tokens(ask, worker, self._services),
            "skip_special_tokens": False,
        }
        if schema := json_schema(body):
            sampling["json_schema"] = schema
        call: Json = {
            "input_ids": orjson.Fragment(ask.prompt_json),
            "sampling_params": sampling,
            "return_logprob": True,
            "return_prompt_token_ids": True,
            **_adapter(body.get("model")),
            **beside,
        }
        if wanted := top_logprobs(body):
            call["top_logprobs_num"] = wanted
        if ask.is_streamed:
            call["stream"] = True
        if ask.wants_experts:
            call[EXPERTS_FLAG] = True
        await self._parsing.prepare()
        request.path = PATH
        request.set_body(orjson.dumps(call))

    def reader(self, ask: Ask, worker: Worker) -> SglangGenerateReader:
        return SglangGenerateReader(ask, self._parsing, reasoning_key="reasoning_content", stop_key="matched_stop")


class SglangGenerateReader(TranslatedReader):
    """Reads ``text``, ``output_ids`` and ``meta_info``."""

    _seen = 0
    """Characters of the text that were read."""

    def take(self, answer: Json) -> Piece:
        meta = answer.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        self._read_meta(answer, meta)
        told = answer.get("output_ids")
        ids = told if are_ids(told) else []
        # A server may be set to send increments: then there are fewer ids than tokens.
        is_cumulative = meta.get("completion_tokens") in (None, len(ids))
        new_ids = ids[len(self._ids) :] if is_cumulative else ids
        entries = _entries(meta.get("output_token_logprobs"), new_ids)
        tops = meta.get("output_top_logprobs")
        reason = meta.get("finish_reason")
        reason = reason if isinstance(reason, dict) else None
        matched = reason.get("matched") if reason is not None else None
        if reason is not None and is_cumulative:
            # The end tells all logprobs, should an earlier event have told none.
            whole = _entries(meta.get("output_token_logprobs"), ids)
            self._logprobs = [entry[0] for entry in whole[: len(ids) - len(new_ids)]] or self._logprobs
        return Piece(
            text=self._new_text(answer.get("text"), is_last=reason is not None, is_cumulative=is_cumulative),
            token_ids=new_ids,
            logprobs=[entry[0] for entry in entries],
            tops=[_top(top) for top in tops[-len(new_ids) :]] if isinstance(tops, list) and new_ids else (),
            finish_reason=str(reason.get("type")) if reason is not None else None,
            matched=matched,
        )

    def _read_meta(self, answer: Json, meta: Json) -> None:
        reading, given = self.reading, self.ask.prompt_ids or ()
        if isinstance(meta.get("id"), str) and not self.writer.id:
            self.writer.id = meta["id"]
        if are_ids(answer.get("prompt_token_ids")):
            reading.prompt_ids = answer["prompt_token_ids"]
        elif reading.prompt_ids is None and meta.get("prompt_tokens") == len(given):
            # Older servers do not tell them; nothing stands between these ids and the model.
            reading.prompt_ids = given
        if isinstance(meta.get("cached_tokens"), int):
            reading.cached_tokens = meta["cached_tokens"]
        read_versions(meta, reading)
        if isinstance(meta.get("routed_experts"), str):
            reading.experts = meta["routed_experts"]

    def _new_text(self, text: Any, *, is_last: bool, is_cumulative: bool) -> str:
        if not isinstance(text, str):
            return ""
        if not is_cumulative:
            return text
        if not is_last:
            text = text.rstrip("\ufffd")  # a character whose last bytes are still to come
        # A stop text is cut off at the end: what was said of it before cannot be taken back.
        added: str = text[self._seen :]
        self._seen += len(added)
        return added

    def beside_answer(self) -> Json:
        shown: Json = {}
        if self.ask.asks(INPUT_FLAG):
            shown["input_ids"] = list(self.reading.prompt_ids or ())
        if self.ask.asks(OUTPUT_FLAG):
            shown["output_ids"] = [list(self._ids)]
        if self.ask.asks(EXPERTS_FLAG) and self.reading.experts is not None:
            shown["routed_experts"] = self.reading.experts
        return {"sglext": shown} if shown else {}


def _adapter(model: Any) -> Json:
    """``base:adapter`` names a LoRA adapter, as in SGLang's chat call."""
    adapter = model.partition(":")[2].strip() if isinstance(model, str) else ""
    return {"lora_path": adapter} if adapter else {}


def _entries(told: Any, ids: Sequence[int]) -> list[Any]:
    """The entries [logprob, id, text] of the newest ids; none where they are not those of these ids."""
    entries = told[-len(ids) :] if isinstance(told, list) and ids else []
    is_right = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) > 1] == list(ids)
    return entries if is_right else []


def _top(told: Any) -> list[tuple[int, float | None]]:
    return [(entry[1], entry[0]) for entry in told] if isinstance(told, list) else []
