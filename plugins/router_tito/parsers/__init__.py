"""Reads reasoning and tool calls out of the text of an answer, piece by piece, as it grows.

    text --feed--> AnswerParser --Delta--> reasoning, content, whole tool calls

Pure and incremental: however the text is cut into pieces, the joined deltas are the same. Nothing of the text is lost:
a tool call that cannot be read stays content. Text is held back only as long as it may become a marker or a call.

To add a form: a class with the three members of `ToolForm` (interface.py), entered in ``FORMS``.
"""

from __future__ import annotations

from .answer import AnswerParser
from .deepseek import DeepSeekV3
from .detect import detect_form
from .glm import Glm4
from .interface import Delta, ToolCall, ToolForm
from .llama import Llama3
from .qwen import Qwen
from .visible import SpecialTextFilter

FORMS: dict[str, ToolForm] = {
    "qwen": Qwen(),
    "llama3": Llama3(),
    "deepseek_v3": DeepSeekV3(),
    "glm4": Glm4(),
}
"""Name of a form -> how tool calls are written in it."""

__all__ = [
    "FORMS",
    "AnswerParser",
    "Delta",
    "SpecialTextFilter",
    "ToolCall",
    "ToolForm",
    "detect_form",
]
