"""OpenAI's chat and completions as SGLang 0.5.23 answers them."""

import time
from collections.abc import AsyncIterator
from typing import Any

from router_core.reference_engine.answer_parser import ToolCall
from router_core.reference_engine.choices import Choice, Piece, reasoning_tokens
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.generation import Generation, Sampled, TokenLogprob
from router_core.reference_engine.http import DONE, event, merged
from router_core.reference_engine.openai_call import OpenAiCall
from router_core.reference_engine.sglang import Wishes, meta_info, routed_experts, weight_versions

Json = dict[str, Any]

_NOT_STREAMED = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")


class SglangOpenAi:
    """Writes answers and streams of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check_chat(self, call: OpenAiCall) -> None:
        """Refuse what SGLang cannot stream."""
        for name in _NOT_STREAMED:
            if call.stream and call.asks(name):
                raise InvalidFieldError(
                    name, f"{name} is not supported with streaming. Please set stream=false when using {name}=true."
                )

    def chat_answer(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        """Return the answer to a chat request whose generations are finished."""
        answer = self._head(call, generations, "chat.completion")
        answer["choices"] = [self._chat_choice(call, *item) for item in enumerate(generations)]
        answer["usage"] = self._usage(call, generations)
        answer["metadata"] = self._metadata(generations[0])
        extra = self._sglext(call, generations, with_experts=not call.asks("return_meta_info"))
        return answer | ({"sglext": extra} if extra else {})

    def completion_answer(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        """Return the answer to a completion request whose generations are finished."""
        answer = self._head(call, generations, "text_completion")
        answer["choices"] = [self._completion_choice(call, *item) for item in enumerate(generations)]
        answer["usage"] = self._usage(call, generations)
        answer["metadata"] = self._metadata(generations[0])
        if call.routed_experts:
            answer["sglext"] = {"routed_experts": routed_experts(generations[0], call.routed_experts_from)}
        return answer

    async def chat_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield the events of a streamed chat: role, deltas, ends, what was asked in sglext, usage."""
        head = self._head(call, generations, "chat.completion.chunk")
        choices = [Choice(call, generation) for generation in generations]
        async for index, piece in merged([choice.pieces() for choice in choices]):
            head["id"] = generations[index].request.rid
            if piece.is_first:
                opening = {"reasoning_content": None, "role": "assistant", "content": ""}
                yield event(head | {"choices": [_delta(index, opening)]})
            logprobs = self._chat_logprobs(call, piece.sampled) if call.logprobs and piece.sampled else None
            for delta in _chat_deltas(piece, has_logprobs=logprobs is not None):
                yield event(head | {"choices": [_delta(index, delta, logprobs)]})
                logprobs = None
        for index, choice in enumerate(choices):
            yield event(head | {"choices": [_end(index, choice)]})
        extra = self._sglext(call, generations, with_experts=True)
        if extra:
            yield event(head | {"choices": [], "usage": None, "sglext": extra})
        if call.wants_usage:
            yield event(head | {"choices": [], "usage": self._usage(call, generations)})
        yield DONE

    async def completion_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield the events of a streamed completion."""
        head = self._head(call, generations, "text_completion")
        choices = [Choice(call, generation) for generation in generations]
        async for index, piece in merged([choice.pieces() for choice in choices]):
            head["id"] = generations[index].request.rid
            choice = {
                "index": index,
                "text": piece.text,
                "logprobs": self._completion_logprobs(call, piece.sampled) if call.logprobs else None,
                "finish_reason": choices[index].finish_reason() if piece.is_last else None,
                "matched_stop": _matched(generations[index]) if piece.is_last else None,
            }
            if call.asks("return_token_ids"):
                choice["token_ids"] = piece.token_ids
                if piece.is_first:
                    choice["prompt_token_ids"] = generations[index].request.prompt_ids
            yield event(head | {"choices": [choice], "usage": None})
        if call.routed_experts:
            extra = {"routed_experts": routed_experts(generations[0], call.routed_experts_from)}
            yield event(head | {"choices": [], "usage": None, "sglext": extra})
        if call.wants_usage:
            usage = {key: value for key, value in self._usage(call, generations).items() if value is not None}
            yield event(head | {"choices": [], "usage": usage})
        yield DONE

    def _head(self, call: OpenAiCall, generations: list[Generation], kind: str) -> Json:
        rid = generations[0].request.rid
        return {"id": rid, "object": kind, "created": int(time.time()), "model": call.model}

    def _chat_choice(self, call: OpenAiCall, index: int, generation: Generation) -> Json:
        choice = Choice(call, generation)
        parsed = choice.take().parsed
        message: Json = {
            "role": "assistant",
            "content": parsed.content.strip() if parsed.tool_calls else parsed.content,
        }
        message["reasoning_content"] = parsed.reasoning or None
        if parsed.tool_calls:
            message["tool_calls"] = [_tool_call(*item) for item in enumerate(parsed.tool_calls)]
        told = {
            "index": index,
            "message": message,
            "logprobs": self._chat_logprobs(call, generation.sampled) if call.logprobs else None,
            "finish_reason": choice.finish_reason(),
            "matched_stop": None if choice.has_tool_calls else _matched(generation),
        }
        if call.asks("return_token_ids") or call.asks("return_prompt_token_ids"):
            told["prompt_token_ids"] = generation.request.prompt_ids
        if call.asks("return_token_ids"):
            told["response_token_ids"] = generation.output_ids
        if call.asks("return_meta_info"):
            told["meta_info"] = self._meta_info(call, generation)
        return told

    def _completion_choice(self, call: OpenAiCall, index: int, generation: Generation) -> Json:
        choice = {
            "index": index,
            "text": generation.text,
            "logprobs": self._completion_logprobs(call, generation.sampled) if call.logprobs else None,
            "finish_reason": Choice(call, generation).finish_reason(),
            "matched_stop": _matched(generation),
        }
        if call.asks("return_token_ids"):
            choice |= {"token_ids": generation.output_ids, "prompt_token_ids": generation.request.prompt_ids}
        return choice

    def _meta_info(self, call: OpenAiCall, generation: Generation) -> Json:
        wishes = Wishes(
            logprobs=call.logprobs,
            text_in_logprobs=True,
            top_logprobs=call.top_logprobs,
            routed_experts=call.routed_experts,
            routed_experts_from=call.routed_experts_from,
            reasoning_tokens=reasoning_tokens(call, generation, self._engine.tokenizer),
        )
        return meta_info(generation, wishes, self._engine)

    def _metadata(self, generation: Generation) -> Json:
        return {
            "weight_version": self._engine.weight_version,
            "weight_versions": weight_versions(generation, self._engine),
        }

    def _sglext(self, call: OpenAiCall, generations: list[Generation], *, with_experts: bool) -> Json:
        """Return what is told at the level of the answer: experts of the first choice, ids of all."""
        extra: Json = {}
        if call.routed_experts and with_experts:
            extra["routed_experts"] = routed_experts(generations[0], call.routed_experts_from)
        if call.asks("return_input_ids_in_sglext"):
            extra["input_ids"] = generations[0].request.prompt_ids
        if call.asks("return_output_ids_in_sglext"):
            extra["output_ids"] = [generation.output_ids for generation in generations]
        return extra

    def _usage(self, call: OpenAiCall, generations: list[Generation]) -> Json:
        """Return the token counts; each prompt counts once, however many samples it has."""
        prompt = sum(len(generation.request.prompt_ids) for generation in generations[:: call.n])
        completion = sum(len(generation.output_ids) for generation in generations)
        thinking = sum(reasoning_tokens(call, generation, self._engine.tokenizer) for generation in generations)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "reasoning_tokens": thinking,
            "completion_tokens_details": {"reasoning_tokens": thinking} if thinking else None,
        }

    def _text(self, told: TokenLogprob) -> str:
        return self._engine.tokenizer.decode([told.token_id], skip_special_tokens=False)

    def _chat_logprobs(self, call: OpenAiCall, sampled: list[Sampled]) -> Json:
        def entry(told: TokenLogprob) -> Json:
            text = self._text(told)
            raw = self._engine.tokenizer.token_bytes([told.token_id], skip_special_tokens=False)
            return {"token": text, "bytes": list(raw), "logprob": told.logprob}

        return {"content": [entry(told.token) | {"top_logprobs": [entry(top) for top in told.top]} for told in sampled]}

    def _completion_logprobs(self, call: OpenAiCall, sampled: list[Sampled]) -> Json:
        tops = [{self._text(top): top.logprob for top in told.top} for told in sampled]
        return {
            "text_offset": [-1] * len(sampled),
            "token_logprobs": [told.token.logprob for told in sampled],
            "tokens": [self._text(told.token) for told in sampled],
            "top_logprobs": tops if call.top_logprobs else [],
        }


def _chat_deltas(piece: Piece, *, has_logprobs: bool) -> list[Json]:
    """Return the deltas of a piece: thinking, content, then for each tool call its name and its arguments."""
    deltas: list[Json] = []
    parsed = piece.parsed
    if parsed.reasoning:
        deltas.append({"reasoning_content": parsed.reasoning})
    if parsed.content:
        deltas.append({"reasoning_content": None, "content": parsed.content})
    for index, call in enumerate(parsed.tool_calls, piece.first_tool_call):
        whole = _tool_call(index, call)
        named = whole | {"function": {"name": call.name, "arguments": ""}}
        added = whole | {"id": None, "function": {"name": None, "arguments": call.arguments}}
        deltas += [{"reasoning_content": None, "tool_calls": [part]} for part in (named, added)]
    if has_logprobs and not deltas:
        deltas.append({"reasoning_content": None})
    return deltas


def _delta(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, "matched_stop": None}


def _end(index: int, choice: Choice) -> Json:
    ended = _delta(index, {"reasoning_content": None})
    return ended | {"finish_reason": choice.finish_reason(), "matched_stop": _matched(choice.generation)}


def _matched(generation: Generation) -> str | int | None:
    return (generation.finish_reason or {}).get("matched")


def _tool_call(index: int, call: ToolCall) -> Json:
    return {
        "id": call.id,
        "index": index,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
