"""A recording pass-through between router and engine: what the engine was asked and what it answered, byte for byte.

It knows nothing of router-core, and reads the engines' answers by itself, so that what the router kept can be compared
with it. It can also dictate what a model says that has nothing to say (a random one): the reference engine takes ids
from a header, SGLang and vLLM through the logits processors in ``dictation/``. The ids are cut at random, not as a
tokenizer would cut the text, so that an answer that was tokenised again anywhere shows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

GENERATES = ("/v1/chat/completions", "/v1/completions", "/generate", "/inference/v1/generate")
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "accept-encoding"}
CONTROL = re.compile(r"(<\|im_end\|>|</?think>|</?tool_call>)")
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)

Json = dict[str, Any]


@dataclass
class Call:
    """One call that asked the engine to generate. What the engine says counts; what it was asked is only a check."""

    path: str
    asked: Json
    status: int = 0
    body: bytes = b""
    is_whole: bool = False
    prompt_ids: list[int] | None = None
    prompt_tokens: int | None = None
    """The engine's own count, in its usage."""
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def given_ids(self) -> list[int] | None:
        """The ids that the request told the engine to generate from."""
        transfer = self.asked.get("kv_transfer_params") or {}
        for given in (
            self.asked.get("input_ids"),
            transfer.get("prompt_token_ids"),
            self.asked.get("token_ids"),
            self.asked.get("prompt"),
        ):
            if isinstance(given, list) and given and isinstance(given[0], int):
                return given
        return None

    @property
    def is_sample(self) -> bool:
        """Whether the engine answered it to its end."""
        return self.status == 200 and self.is_whole and self.finish_reason not in (None, "abort")

    def read(self) -> None:
        """Read the recorded answer."""
        if self.status != 200 or not self.is_whole:
            return
        events = list(_events(self.body)) if self.asked.get("stream") else [json.loads(self.body)]
        for event in events:
            self._read_sglang_generate(event) if "meta_info" in event else self._read_openai(event)
        if self.prompt_ids is None:
            self.prompt_ids = self.given_ids

    def _read_sglang_generate(self, event: Json) -> None:
        """Cumulative: the last event says all."""
        info = event["meta_info"]
        self.output_ids, self.prompt_tokens = event["output_ids"], info["prompt_tokens"]
        told = info.get("output_token_logprobs") or []
        self.logprobs = [entry[0] for entry in told]
        if [entry[1] for entry in told] != self.output_ids:
            raise ValueError("the engine's logprobs are of other ids than its output")
        self.prompt_ids = event.get("prompt_token_ids") or self.prompt_ids
        if info.get("finish_reason"):
            self.finish_reason = info["finish_reason"]["type"]

    def _read_openai(self, event: Json) -> None:
        """Chat, completions and vLLM's generate, of either engine; events add up."""
        if event.get("usage"):
            self.prompt_tokens = event["usage"]["prompt_tokens"]
        extension = event.get("sglext") or {}
        self.prompt_ids = extension.get("input_ids") or event.get("prompt_token_ids") or self.prompt_ids
        if extension.get("output_ids"):
            self.output_ids = extension["output_ids"][0]
        for choice in event.get("choices") or ():
            self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
            self.output_ids = self.output_ids + list(choice.get("token_ids") or ())
            logprobs = choice.get("logprobs") or {}
            self.logprobs += [entry["logprob"] for entry in logprobs.get("content") or ()]
            self.logprobs += list(logprobs.get("token_logprobs") or ())
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


class Witness:
    """The pass-through.

    ``words``: the texts that the first calls are to be answered with, in order; then nothing is dictated any more.
    ``cut``: the number of the call whose connection to the router breaks before its answer is whole.
    """

    def __init__(self, engine: str, words: list[str], dictation: str, cut: int | None = None) -> None:
        self.engine = engine
        self.calls: list[Call] = []
        self.url = ""
        self._words = iter(words)
        self._random = random.Random(0)
        self._dictation = dictation
        self._cut_call = cut
        self._http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def serving(self) -> Any:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        async with aiohttp.ClientSession(timeout=TIMEOUT, auto_decompress=False) as self._http:
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        call = None
        if request.method == "POST" and request.path in GENERATES:
            call = Call(request.path, json.loads(body))
            self.calls.append(call)
            body = await self._dictate(call, headers, body)
        assert self._http is not None
        url = self.engine + request.path_qs
        async with self._http.request(request.method, url, data=body, headers=headers) as answer:
            kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP]
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if call is not None:
                    call.body += chunk
                    if len(self.calls) == self._cut_call:
                        assert request.transport is not None
                        request.transport.abort()
                        return response
                await response.write(chunk)
            await response.write_eof()
        if call is not None:
            call.status, call.is_whole = answer.status, True
        return response

    async def _dictate(self, call: Call, headers: dict[str, str], body: bytes) -> bytes:
        words = next(self._words, None)
        if words is None:
            return body
        ids = await self._cut(words)
        if self._dictation == "reference":
            headers["x-reference-script"] = json.dumps(ids)
            return body
        asked = json.loads(body)
        if self._dictation == "sglang":
            asked["custom_logit_processor"] = json.dumps({"callable": b"cdictate_sglang\nDictation\n.".hex()})
            own = asked["sampling_params"] if call.path == "/generate" else asked
            own["custom_params"], own["temperature"] = {"dictated": ids}, 0
        elif call.path == "/inference/v1/generate":
            asked["sampling_params"]["extra_args"] = {"dictated": ids}
        else:
            asked["vllm_xargs"] = {"dictated": ids}
        return json.dumps(asked).encode()

    async def _cut(self, words: str) -> list[int]:
        """Ids of the words, cut at random: control tokens stay whole, nothing else does."""
        ids: list[int] = []
        for part in CONTROL.split(words):
            while part:
                size = len(part) if CONTROL.fullmatch(part) else self._random.randint(1, 6)
                ids += await self._tokenize(part[:size])
                part = part[size:]
        return ids

    async def _tokenize(self, text: str) -> list[int]:
        assert self._http is not None
        body = {"prompt": text, "add_special_tokens": False}
        async with self._http.post(f"{self.engine}/tokenize", json=body) as answer:
            ids: list[int] = (await answer.json())["tokens"]
        return ids


def _events(body: bytes) -> Iterator[Json]:
    """The JSON of each server-sent event before ``[DONE]``."""
    for line in body.split(b"\n"):
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            yield json.loads(line[5:])
