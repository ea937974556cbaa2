"""Which form a model writes its tool calls in, told from how its chat template writes them."""

from __future__ import annotations

from .deepseek import CALL_BEGIN
from .llama import TAG

SIGNS = (
    ("deepseek_v3", (CALL_BEGIN,)),
    ("glm4", ("<arg_key>",)),
    ("qwen", ("<tool_call>",)),
    ("llama3", (TAG,)),
    ("llama3", ("<|start_header_id|>", '"parameters"')),
)
"""Form -> texts that all stand in a conversation with tools and a call; the first that fits."""


def detect_form(rendered: str) -> str | None:
    """Name of the form in which a rendered conversation, with tools and one tool call, holds the call."""
    return next((name for name, signs in SIGNS if all(sign in rendered for sign in signs)), None)
