"""The prompt of a request's JSON body as a chain of block hashes: equal prefixes give equal first hashes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import orjson

PROMPT_KEYS = ("input_ids", "text", "prompt", "messages", "input")
"""Keys that hold the prompt, the most exact one first: SGLang's /generate, completions, chat, responses."""
CONTEXT_KEYS = ("model", "lora_path", "extra_key", "cache_salt", "tools", "instructions", "chat_template_kwargs")
"""Keys that change what the engine computes or caches for the same prompt: they start the chain."""


def block_chain(body: Mapping[str, Any], block_bytes: int) -> list[int]:
    """A hash for each whole block of the prompt, over all that stands before it; empty where there is no prompt.

    The hashes hold within this process only. The rest behind the last whole block is not in the chain.
    """
    for key in PROMPT_KEYS:
        if prompt := body.get(key):
            break
    else:
        return []
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        try:
            return _linked(body, prompt, block_bytes // 4, tuple)
        except TypeError:
            pass  # something in it is no id, and cannot be hashed
    return _linked(body, prompt_bytes(prompt), block_bytes, bytes)


def _linked(body: Mapping[str, Any], told: Sequence[Any], size: int, packed: Callable[[Any], Hashable]) -> list[int]:
    chain: list[int] = []
    if len(told) < size:
        return chain
    link = hash(orjson.dumps([body.get(key) for key in CONTEXT_KEYS]))
    for start in range(0, len(told) - size + 1, size):
        link = hash((link, packed(told[start : start + size])))
        chain.append(link)
    return chain


def prompt_bytes(prompt: Any) -> bytes:
    """The prompt so that a longer one begins with a shorter one's bytes: UTF-8 of text, open lists."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    return orjson.dumps(prompt)[:-1]
