"""A scripted vLLM with its render, generate and derender routes, in the shapes that 0.32 answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from capture_kit import trained_tokenizer
from router_tito.node import RenderContext
from router_tito.parsers import FORMS, AnswerParser, Delta
from router_tito.template import ChatTemplate

from router_core.testing import ScriptedRequest, ScriptedWorker
from router_core.testing.connection import Connection

RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"
LIMIT = 4096


class RenderingVllm:
    """Answers a worker's requests; ``words`` are said one after another, one token in each event of a stream."""

    def __init__(self, worker: ScriptedWorker, words: Sequence[str]) -> None:
        self.tokenizer = trained_tokenizer()
        self._template = ChatTemplate(self.tokenizer)
        self.words = iter(words)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.derenders = True
        self.cuts: list[int] = []
        """After how many tokens the coming answers are aborted; what is asked for next is their rest."""
        self._rest: list[int] = []
        self._otherwise = worker.handler
        worker.handler = self.answer

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for called, body in self.calls if called == path]

    async def answer(self, request: ScriptedRequest, connection: Connection) -> bool:
        if request.path not in (RENDER, GENERATE, DERENDER):
            return await self._otherwise(request, connection)
        body = request.json()
        self.calls.append((request.path, body))
        if request.path == RENDER:
            return await self._send(connection, self._render(body))
        if request.path == DERENDER and not self.derenders:
            return await connection.answer(b'{"error":{"message":"no","type":"x"}}', 500, ())
        if request.path == DERENDER:
            return await self._send(connection, self._stream_piece(body) if body.get("stream") else self._whole(body))
        ids = self._rest or self.tokenizer.encode(next(self.words))
        cut = self.cuts.pop(0) if self.cuts else len(ids)
        ids, self._rest = ids[:cut], ids[cut:]
        end = "abort" if self._rest else "stop"
        if not body.get("stream"):
            return await self._send(connection, self._generated(body, ids, end))
        await connection.begin(200, (), content_type="text/event-stream; charset=utf-8")
        for at in range(len(ids)):
            is_last = at == len(ids) - 1
            event = {
                "request_id": "generate-tokens-1",
                "usage": None,
                "output_mode": "tokens",
                "prompt_token_ids": body["token_ids"] if at == 0 else None,
                "choices": [_choice(ids[at : at + 1], at, finish=end if is_last else None, total=len(ids))],
            }
            await connection.write(b"data: " + orjson.dumps(event) + b"\n\n")
        usage = {"request_id": "generate-tokens-1", "usage": _usage(body, len(ids)), "choices": []}
        await connection.write(b"data: " + orjson.dumps(usage) + b"\n\ndata: [DONE]\n\n")
        return await connection.end()

    @staticmethod
    async def _send(connection: Connection, value: Mapping[str, Any]) -> bool:
        return await connection.answer(orjson.dumps(value), 200, ())

    def _render(self, body: Mapping[str, Any]) -> dict[str, Any]:
        context = RenderContext(tuple(body.get("tools") or ()), {})
        text = self._template.render(body["messages"], context, generation_prompt=True)
        ids = self.tokenizer.encode(text)
        most = body.get("max_completion_tokens") or body.get("max_tokens") or LIMIT - len(ids)
        return {
            "request_id": "chatcmpl-1",
            "token_ids": ids,
            "token_offsets": None,
            "features": None,
            "sampling_params": {
                "temperature": body.get("temperature", 1.0),
                "stop": [],
                "max_tokens": most,
                "logprobs": 0,
                "skip_special_tokens": False,
                "output_kind": 2,
            },
            "model": body.get("model"),
            "reasoning_ended": False,
            "return_token_ids": None,
            "output_mode": "tokens",
            "stream": False,
            "stream_options": None,
        }

    @staticmethod
    def _generated(body: Mapping[str, Any], ids: list[int], end: str) -> dict[str, Any]:
        return {
            "request_id": "generate-tokens-1",
            "model": body.get("model"),
            "created": 1,
            "usage": _usage(body, len(ids)),
            "prompt_token_ids": body["token_ids"],
            "output_mode": "tokens",
            "choices": [_choice(ids, 0, finish=end, total=len(ids))],
        }

    def _whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        generated = body["generate_response"]
        (choice,) = generated["choices"]
        parsed = self._parse(choice["token_ids"], body["chat_request"])
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None, "refusal": None}
        if parsed.calls:
            message["tool_calls"] = _calls(parsed)
        message["reasoning"] = parsed.reasoning or None
        told = {"index": 0, "message": message, "logprobs": None, "finish_reason": choice["finish_reason"]}
        return {
            "id": generated["request_id"],
            "object": "chat.completion",
            "created": 2,
            "model": body["model"],
            "choices": [{**told, "stop_reason": None, "token_ids": None, "routed_experts": None}],
            "usage": {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0},
            "prompt_token_ids": None,
        }

    def _stream_piece(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """As vLLM does it: what was said before is read again, and the difference told, control tokens included."""
        state = body["stream_state"] or {"output_token_ids": [], "tools_streamed": False}
        (choice,) = body["generate_chunk"]["choices"]
        parser = AnswerParser(FORMS["qwen"], body["chat_request"].get("tools") or [])
        parser.feed(self.tokenizer.decode(state["output_token_ids"]))
        ids = [*state["output_token_ids"], *choice["token_ids"]]
        added = parser.feed(self.tokenizer.decode(ids)[len(self.tokenizer.decode(state["output_token_ids"])) :])
        is_last = choice["finish_reason"] is not None
        rest = parser.end() if is_last else Delta()
        delta: dict[str, Any] = {} if state["output_token_ids"] else {"role": "assistant"}
        if added.reasoning + rest.reasoning:
            delta["reasoning"] = added.reasoning + rest.reasoning
        if added.content + rest.content:
            delta["content"] = added.content + rest.content
        if added.calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_calls(added))]
        told = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": choice["finish_reason"]}
        chunk = {"id": "generate-tokens-1", "object": "chat.completion.chunk", "created": 2, "model": body["model"]}
        return {
            "chunk": {**chunk, "choices": [told], "usage": None},
            "stream_state": {"output_token_ids": ids, "tools_streamed": bool(added.calls)},
        }

    def _parse(self, ids: Sequence[int], chat: Mapping[str, Any]) -> Delta:
        parser = AnswerParser(FORMS["qwen"], chat.get("tools") or [])
        first, rest = parser.feed(self._text(ids)), parser.end()
        return Delta(first.reasoning + rest.reasoning, first.content + rest.content, (*first.calls, *rest.calls))

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([token_id for token_id in ids if token_id not in self.tokenizer.special_ids])


def _choice(ids: list[int], start: int, *, finish: str | None, total: int) -> dict[str, Any]:
    content = [
        {"token_id": token_id, "logprob": -0.5 - at / 16, "rank": 1, "top_logprobs": []}
        for at, token_id in enumerate(ids, start)
    ]
    return {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
        "weight_versions": [{"version": "v3", "start": 0, "end": total}] if finish else None,
        "logprobs": {"content": content},
    }


def _usage(body: Mapping[str, Any], completion: int) -> dict[str, Any]:
    prompt = len(body["token_ids"])
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": 7},
    }


def _calls(parsed: Delta) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in parsed.calls
    ]
