"""A chat request as capture reads it; everything else in it is the worker's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from router_core import Reject

from .canonical import canonical_json
from .errors import MessageError

CONVERSATION = frozenset({"messages", "tools", "chat_template_kwargs"})
"""Keys that the request key of a trace covers."""
SINGLE = ("n", "best_of")
REFUSED = {
    "use_beam_search": "beam search samples nothing that could be trained",
    "continue_final_message": "a prefilled answer cannot be recorded: its beginning was not sampled",
    "echo": "an answer that repeats what came before it cannot be recorded: that was not sampled",
}
"""Keys that must not be set, and why."""
TEMPLATE_OVERRIDES = ("chat_template", "documents")
"""Keys with which a client has the worker render in a way we do not."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The body of ``POST /v1/chat/completions``: ``body`` is its JSON."""

    body: Mapping[str, Any]

    @classmethod
    def read(cls, text: bytes) -> ChatRequest | None:
        """None for what has no messages to read: the worker will say what it thinks of it."""
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            return None
        if set(map(type, body["messages"])) != {dict}:
            return None
        is_readable = isinstance(body.get("tools") or [], list)
        return cls(body) if is_readable and isinstance(body.get("chat_template_kwargs") or {}, dict) else None

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        messages: list[Mapping[str, Any]] = self.body["messages"]
        return messages

    @property
    def tools(self) -> list[Any]:
        return self.body.get("tools") or []

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the template is given beside messages and tools; engines give it ``reasoning_effort`` too."""
        kwargs = dict(self.body.get("chat_template_kwargs") or {})
        if self.body.get("reasoning_effort") is not None:
            kwargs.setdefault("reasoning_effort", self.body["reasoning_effort"])
        return kwargs

    @property
    def renders_itself(self) -> str:
        """Why its prompt cannot be rendered here, "" if it can: it brings ids or a template of its own."""
        transfer = self.body.get("kv_transfer_params")
        if self.body.get("input_ids") or (isinstance(transfer, Mapping) and transfer.get("prompt_token_ids")):
            return "client_ids"
        return "client_template" if any(self.body.get(key) for key in TEMPLATE_OVERRIDES) else ""

    def check(self) -> None:
        """Raise Reject (400) for what a record could not represent."""
        for key in SINGLE:
            value = self.body.get(key)
            if isinstance(value, int | float) and value > 1:
                raise _not_capturable(key, f"{key} must be 1 in a captured session, not {value}")
        for key, why in REFUSED.items():
            if self.body.get(key):
                raise _not_capturable(key, why)
        if self.body.get("add_generation_prompt") is False:
            raise _not_capturable("add_generation_prompt", "an answer without its generation prompt is a prefill")
        if self.messages[-1].get("role") == "assistant":
            raise _not_capturable(
                "messages",
                "the last message is the assistant's: workers take it for the beginning of an answer, or not",
            )

    def key(self, request: bytes) -> bytes:
        """Key of the whole body: equal for equal bodies, however spelt. ``request`` covers the conversation."""
        rest = {name: value for name, value in self.body.items() if name not in CONVERSATION}
        try:
            text = canonical_json(rest)
        except (MessageError, RecursionError):
            text = repr(rest)
        return blake2b(request + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def replace(self, overrides: Mapping[str, Any]) -> ChatRequest:
        """The same request with other values of some keys."""
        return ChatRequest({**self.body, **overrides}) if overrides else self


def _not_capturable(field: str, why: str) -> Reject:
    return Reject(400, "not_capturable", why, field)
