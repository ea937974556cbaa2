"""The scripted tokenizer: a token is a character and its id the character's code point.

Every text has ids and every id a text, on any worker, without a vocabulary; a text's ids begin with its prefix's ids.
"""

from collections.abc import Iterable, Mapping
from typing import Any

TURN_START = 151644
TURN_END = 151645
"""The end token: sampled last when an answer stops by itself. Both have the ids that Qwen's tokenizers give them."""

_SPECIALS = {"<|im_start|>": TURN_START, "<|im_end|>": TURN_END}


def encode(text: str) -> list[int]:
    """Its ids; ``<|im_start|>`` and ``<|im_end|>`` are one token each."""
    for special, token_id in _SPECIALS.items():
        text = text.replace(special, chr(token_id))
    return [ord(character) for character in text]


def decode(ids: Iterable[int]) -> str:
    """Their text, without the special tokens; an id that is no character is U+FFFD."""
    return "".join(_piece(token_id) for token_id in ids)


def render_chat(messages: Iterable[Mapping[str, Any]]) -> str:
    """The prompt of a chat: each message between its marks, then the mark that asks for the assistant's."""
    turns = [f"<|im_start|>{message.get('role', '')}\n{_content(message)}<|im_end|>\n" for message in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _piece(token_id: int) -> str:
    if token_id in (TURN_START, TURN_END):
        return ""
    is_character = 0 <= token_id < 0x110000 and not 0xD800 <= token_id < 0xE000
    return chr(token_id) if is_character else "\ufffd"
