"""The requests and answers of the benchmark, in the form of SGLang's ``/generate``; client and worker agree on them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

LAYERS, TOP_K = 48, 8
ROW_BYTES = LAYERS * TOP_K * 4
"""Routed experts of one token: int32 [layers, top_k]."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the worker answers. Token ids have three digits, so that small vocabularies know them."""

    prompt_tokens: int = 64
    tokens: int = 4
    """Tokens of an answer, each with its logprob."""
    delay_s: float = 0.0
    events: int = 0
    """Events of a streamed answer; 0: the answer is one JSON object."""
    interval_s: float = 0.0
    has_experts: bool = False
    """Whether the answer holds the routed experts of all tokens: 2 KiB a token."""


def token_ids(count: int) -> list[int]:
    return [100 + number * 7 % 300 for number in range(count)]


def request_body(script: Script) -> bytes:
    body = {
        "input_ids": token_ids(script.prompt_tokens),
        "sampling_params": {"max_new_tokens": max(script.tokens, script.events), "temperature": 1.0},
        "return_logprob": True,
        "stream": script.events > 0,
    }
    if script.has_experts:
        body["return_routed_experts"] = True
    return json.dumps(body, separators=(",", ":")).encode()


def answer_body(script: Script) -> bytes:
    ids = token_ids(script.tokens)
    meta = {
        "id": "0123456789abcdef0123456789abcdef",
        "finish_reason": {"type": "length", "length": script.tokens},
        "prompt_tokens": script.prompt_tokens,
        "completion_tokens": script.tokens,
        "weight_version": "default",
        "output_token_logprobs": [
            [-0.0123456789012345 * (number % 97 + 1), token_id, None] for number, token_id in enumerate(ids)
        ],
    }
    if script.has_experts:
        row = b"".join((expert % 128).to_bytes(4, "little") for expert in range(LAYERS * TOP_K))
        meta["routed_experts"] = base64.b64encode(row * (script.prompt_tokens + script.tokens - 1)).decode()
    answer = {"text": "word " * script.tokens, "output_ids": ids, "meta_info": meta}
    return json.dumps(answer, separators=(",", ":")).encode()


def event(number: int, at_ns: int) -> bytes:
    """One event of a stream; it says when it was written, on the clock that all programs of a machine share."""
    return (
        b'data: {"text":" word","output_ids":[%d],"meta_info":{"id":"0123456789abcdef","completion_tokens":%d,'
        b'"finish_reason":null,"at_ns":%d}}\n\n' % (100 + number % 300, number + 1, at_ns)
    )


def written_at_ns(event: bytes) -> int | None:
    """When an event was written; None of ``[DONE]``."""
    _, found, rest = event.rpartition(b'"at_ns":')
    return int(rest.rstrip(b"}\r\n ")) if found else None
