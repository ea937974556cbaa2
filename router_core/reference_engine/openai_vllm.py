"""OpenAI's chat and completions as vLLM 0.32 answers them; routed experts as 0.29 tells them."""

import io
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pybase64

from router_core.reference_engine.answer_parser import ToolCall
from router_core.reference_engine.choices import Choice, Piece, reasoning_tokens
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.generation import Generation, Sampled, TokenLogprob
from router_core.reference_engine.http import DONE, event, merged
from router_core.reference_engine.openai_call import OpenAiCall

Json = dict[str, Any]

FINGERPRINT = "vllm-0.32.0-reference"


class VllmOpenAi:
    """Writes answers and streams of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check_chat(self, call: OpenAiCall) -> None:
        """Nothing is refused that could be read."""

    def chat_answer(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        """Return the answer to a chat request whose generations are finished."""
        first = generations[0]
        usage = self._usage(call, generations)
        usage["prompt_tokens_details"] = _prompt_details(first) | {"created_cache_tokens": 0, "multimodal_tokens": None}
        if self._engine.options.reasoning_parser:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._thinking(call, generations)}
        return self._head(call, "chat.completion") | {
            "choices": [self._chat_choice(call, *item) for item in enumerate(generations)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage,
            "prompt_logprobs": self._prompt_logprobs(call, first),
            "prompt_token_ids": first.request.prompt_ids if call.asks("return_token_ids") else None,
            "prompt_text": None,
            **_NO_TRANSFERS,
        }

    def completion_answer(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        """Return the answer to a completion request whose generations are finished."""
        usage = self._usage(call, generations)
        unknown = {"created_cache_tokens": None, "multimodal_tokens": None}
        usage["prompt_tokens_details"] = _prompt_details(generations[-1]) | unknown
        return self._head(call, "text_completion") | {
            "choices": [self._completion_choice(call, *item) for item in enumerate(generations)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage,
            **_NO_TRANSFERS,
        }

    async def chat_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield the events of a streamed chat; ids come with each piece, routed experts never."""
        head = self._head(call, "chat.completion.chunk")
        prompt_ids = generations[0].request.prompt_ids if call.asks("return_token_ids") else None
        for index in range(len(generations)):
            opening = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            yield event(head | {"choices": [opening], "prompt_token_ids": prompt_ids, "prompt_text": None})
        choices = [Choice(call, generation) for generation in generations]
        async for index, piece in merged([choice.pieces() for choice in choices]):
            delta = _chat_delta(piece)
            is_told = bool(delta) or piece.is_last or call.logprobs or call.asks("return_token_ids")
            if is_told:
                told: Json = {"index": index, "delta": delta, "logprobs": None}
                if call.logprobs:
                    told["logprobs"] = self._chat_logprobs(call, piece.sampled)
                yield event(self._chunk(call, head, choices[index], piece, told))
        if call.wants_usage:
            usage = self._usage(call, generations)
            usage["prompt_tokens_details"] = _prompt_details(generations[0]) | {"created_cache_tokens": 0}
            if self._engine.options.reasoning_parser:
                usage["completion_tokens_details"] = {"reasoning_tokens": self._thinking(call, generations)}
            yield event(head | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT})
        yield DONE

    async def completion_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield the events of a streamed completion; the first of each choice holds the prompt's ids."""
        head = self._head(call, "text_completion")
        choices = [Choice(call, generation) for generation in generations]
        offsets = [0] * len(choices)
        async for index, piece in merged([choice.pieces() for choice in choices]):
            told: Json = {"index": index, "text": piece.text, "logprobs": None}
            if call.logprobs:
                told["logprobs"] = self._completion_logprobs(call, piece.sampled, offsets[index])
                offsets[index] += sum(len(token) for token in told["logprobs"]["tokens"])
            chunk = self._chunk(call, head, choices[index], piece, told)
            told["stop_reason"] = _stop_reason(self._engine, generations[index]) if piece.is_last else None
            wants_ids = call.asks("return_token_ids") and piece.is_first
            told["prompt_token_ids"] = generations[index].request.prompt_ids if wants_ids else None
            yield event(chunk)
        if call.wants_usage:
            usage = self._usage(call, generations)
            usage["prompt_tokens_details"] = _prompt_details(generations[-1])
            del usage["completion_tokens_details"]
            yield event(head | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT})
        yield DONE

    def _chunk(self, call: OpenAiCall, head: Json, choice: Choice, piece: Piece, told: Json) -> Json:
        """Return a chunk with one choice; its end has a reason, and the fingerprint if no usage follows."""
        told["finish_reason"] = choice.finish_reason() if piece.is_last else None
        if piece.is_last:
            told["stop_reason"] = _stop_reason(self._engine, choice.generation)
        told["token_ids"] = piece.token_ids if call.asks("return_token_ids") else None
        chunk = head | {"choices": [told]}
        if piece.is_last and not call.wants_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return chunk

    def _head(self, call: OpenAiCall, kind: str) -> Json:
        return {"id": call.id, "object": kind, "created": int(time.time()), "model": call.model}

    def _chat_choice(self, call: OpenAiCall, index: int, generation: Generation) -> Json:
        choice = Choice(call, generation)
        parsed = choice.take().parsed
        content: str | None = parsed.content
        if (parsed.tool_calls or parsed.reasoning) and not parsed.content.strip():
            content = None
        message: Json = {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if parsed.tool_calls:
            message["tool_calls"] = [_tool_call(call) for call in parsed.tool_calls]
        message["reasoning"] = parsed.reasoning or None
        return {
            "index": index,
            "message": message,
            "logprobs": self._chat_logprobs(call, generation.sampled) if call.logprobs else None,
            "finish_reason": choice.finish_reason(),
            "stop_reason": _stop_reason(self._engine, generation),
            "token_ids": generation.output_ids if call.asks("return_token_ids") else None,
            "routed_experts": _experts(call, generation),
        }

    def _completion_choice(self, call: OpenAiCall, index: int, generation: Generation) -> Json:
        wants_ids = call.asks("return_token_ids")
        return {
            "index": index,
            "text": generation.text,
            "logprobs": self._completion_logprobs(call, generation.sampled, 0) if call.logprobs else None,
            "finish_reason": Choice(call, generation).finish_reason(),
            "stop_reason": _stop_reason(self._engine, generation),
            "token_ids": generation.output_ids if wants_ids else None,
            "prompt_logprobs": self._prompt_logprobs(call, generation),
            "prompt_token_ids": generation.request.prompt_ids if wants_ids else None,
            "routed_experts": _experts(call, generation),
        }

    def _usage(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        prompt = sum(len(generation.request.prompt_ids) for generation in generations[:: call.n])
        completion = sum(len(generation.output_ids) for generation in generations)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }

    def _thinking(self, call: OpenAiCall, generations: list[Generation]) -> int:
        return sum(reasoning_tokens(call, generation, self._engine.tokenizer) for generation in generations)

    def _name(self, call: OpenAiCall, token_id: int) -> str:
        if call.asks("return_tokens_as_token_ids"):
            return f"token_id:{token_id}"
        return self._text(token_id)

    def _text(self, token_id: int) -> str:
        """Return the text of one id; one that ends inside a character has none."""
        text = self._engine.tokenizer.decode([token_id], skip_special_tokens=False)
        return "" if text.endswith("\ufffd") else text

    def _chat_logprobs(self, call: OpenAiCall, sampled: list[Sampled]) -> Json:
        def entry(told: TokenLogprob) -> Json:
            text = self._text(told.token_id)
            return {"token": self._name(call, told.token_id), "logprob": told.logprob, "bytes": list(text.encode())}

        return {
            "content": [
                entry(told.token) | {"top_logprobs": [entry(top) for top in _listed(told)[: call.top_logprobs]]}
                for told in sampled
            ]
        }

    def _completion_logprobs(self, call: OpenAiCall, sampled: list[Sampled], offset: int) -> Json:
        """Return OpenAI's lists; ``offset`` is that of the first token in the text of all tokens."""
        tokens = [self._name(call, told.token.token_id) for told in sampled]
        starts = [offset + sum(map(len, tokens[:number])) for number in range(len(tokens))]
        return {
            "text_offset": starts,
            "token_logprobs": [told.token.logprob for told in sampled],
            "tokens": tokens,
            "top_logprobs": [
                {self._name(call, top.token_id): top.logprob for top in _listed(told)[: call.top_logprobs + 1]}
                for told in sampled
            ],
        }

    def _prompt_logprobs(self, call: OpenAiCall, generation: Generation) -> list[Json | None] | None:
        """Return for each prompt position but the first its ids with logprob, rank and text; None if not asked."""
        wanted = call.body.get("prompt_logprobs")
        if wanted is None:
            return None

        def entry(told: TokenLogprob) -> Json:
            text = self._text(told.token_id)
            return {"logprob": told.logprob, "rank": told.rank, "decoded_token": text}

        return [
            None if told is None else {str(top.token_id): entry(top) for top in [told.token, *told.top[:wanted]]}
            for told in generation.prompt_logprobs
        ]


_NO_TRANSFERS: Json = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _listed(told: Sampled) -> list[TokenLogprob]:
    """Return the sampled id and then the likeliest others, the order in which vLLM cuts its lists."""
    return [told.token, *(top for top in told.top if top.token_id != told.token.token_id)]


def _prompt_details(generation: Generation) -> Json:
    return {"cached_tokens": generation.cached_tokens}


def _stop_reason(engine: Engine, generation: Generation) -> str | int | None:
    """Return the stop text or stop id; the end of the turn is none."""
    matched: str | int | None = (generation.finish_reason or {}).get("matched")
    return None if matched == engine.tokenizer.eos_id else matched


def _experts(call: OpenAiCall, generation: Generation) -> str | None:
    """Return base64 of a ``.npy`` of [prompt + completion - 1 - start, num_layers, top_k], in the smallest type."""
    if not call.routed_experts:
        return None
    rows = generation.experts()[call.routed_experts_from :]
    kind = np.uint8 if rows.max(initial=0) <= np.iinfo(np.uint8).max else np.uint16
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(rows, dtype=kind))
    return pybase64.b64encode(file.getvalue()).decode("ascii")


def _chat_delta(piece: Piece) -> Json:
    parsed, delta = piece.parsed, Json()
    if parsed.reasoning:
        delta["reasoning"] = parsed.reasoning
    if parsed.content:
        delta["content"] = parsed.content
    if parsed.tool_calls:
        numbered = enumerate(parsed.tool_calls, piece.first_tool_call)
        delta["tool_calls"] = [{"index": index} | _tool_call(call) for index, call in numbered]
    return delta


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
