"""A model's chat template: what it wants messages to look like, and the text it makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from .canonical import join_parts
from .errors import TemplateRefusedError, UnrenderableError
from .node import Message, RenderContext
from .tokenizer import Tokenizer

KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})

ArgumentForm: TypeAlias = Literal["text", "object"]
ARGUMENT_FORMS: tuple[ArgumentForm, ...] = ("text", "object")

_PROBE_NAME = "probe_fn"
_PROBE_ARGUMENTS = '{"probe_key": "probe value"}'
_PROBE_CALL = {
    "type": "function",
    "id": "call00001",
    "function": {"name": _PROBE_NAME, "arguments": _PROBE_ARGUMENTS},
}

REFUSED = "refused"
LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class TemplateShape:
    """How a template takes an assistant's tool calls, found by trying: templates differ, and some lose a call silently.

    ``arguments``: as the text the model wrote or as an object. ``empty_content``: "" or null beside tool calls.
    ``renders_tool_calls``: False when the template drops them whatever they look like.
    """

    arguments: ArgumentForm = "text"
    empty_content: str | None = ""
    renders_tool_calls: bool = True


class ChatTemplate:
    """Renders messages as text through the tokenizer's own template, in the shape that template understands."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._role_faults: dict[tuple[str, bytes], str] = {}
        self.shape = TemplateShape()
        self.shape = self._find_shape()

    def render(self, messages: Sequence[Message], context: RenderContext, *, generation_prompt: bool) -> str:
        """Text of the conversation; ``TemplateRefusedError`` with the template's own words when it raises.

        ``UnrenderableError`` for content that is not text.
        """
        shaped = [self.shape_message(message) for message in messages]
        try:
            return self._tokenizer.apply_chat_template(
                shaped,
                tools=list(context.tools) or None,
                add_generation_prompt=generation_prompt,
                template_kwargs=context.template_kwargs,
            )
        except Exception as error:  # a template is its author's program: whatever it raises is its refusal
            roles = ", ".join(dict.fromkeys(str(message["role"]) for message in shaped))
            raise TemplateRefusedError(f"the chat template refused messages of the roles {roles}: {error}") from error

    def shape_message(self, message: Message) -> Message:
        """The message as this template takes it: content as text, one name for reasoning, no empty tool_calls."""
        shaped = {key: value for key, value in message.items() if key not in ("reasoning", "tool_calls")}
        shaped["content"] = text_content(message)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reasoning:
            shaped["reasoning_content"] = reasoning
        else:
            shaped.pop("reasoning_content", None)
        calls = message.get("tool_calls")
        if calls:
            shaped["tool_calls"] = [self._shape_call(call) for call in calls]
            shaped["content"] = shaped["content"] or self.shape.empty_content
        return shaped

    def check_nothing_lost(self, messages: Sequence[Message], text: str, context: RenderContext) -> None:
        """``TemplateRefusedError`` naming a role whose messages are not in ``text``, the rendering of ``messages``.

        A template skips a role it has no case for as easily as it refuses it, and then a whole message is gone.
        """
        roles = {message["role"] for message in messages}
        lost = [role for role in roles & KNOWN_ROLES if self.role_fault(role, context) == LEFT_OUT]
        own = [message for message in messages if message["role"] not in KNOWN_ROLES]
        lost += [message["role"] for message in own if text_content(message).strip() not in text]
        if lost:
            raise TemplateRefusedError(f"the chat template leaves out messages of the role {sorted(lost)[0]!r}")

    def role_fault(self, role: str, context: RenderContext) -> str:
        """``REFUSED`` or ``LEFT_OUT`` if a message of this role does not get into the text, else ""; remembered."""
        place = (role, context_key(context))
        if place not in self._role_faults:
            make_room(self._role_faults)
            self._role_faults[place] = self._try_role(role, context)
        return self._role_faults[place]

    def _try_role(self, role: str, context: RenderContext) -> str:
        asked: Message = {"role": "user", "content": "probe question"}
        before = [asked] if role in ("assistant", "tool") else []
        after = [asked] if role in ("assistant", "system") else []
        if role == "tool":
            before = [asked, {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]}]
        marked = {"role": role, "content": "probe of a role", "tool_call_id": _PROBE_CALL["id"], "name": _PROBE_NAME}
        if role != "tool":
            marked = {"role": role, "content": "probe of a role"}
        try:
            text = self.render([*before, marked, *after], context, generation_prompt=True)
        except TemplateRefusedError:
            return REFUSED
        return "" if "probe of a role" in text else LEFT_OUT

    def _shape_call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping):
            return call
        arguments = function.get("arguments")
        if self.shape.arguments == "object" and isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                return call  # no object to give: the template takes the text, or refuses it
        elif self.shape.arguments == "text" and arguments is None:
            arguments = ""
        return {**call, "function": {**function, "arguments": arguments}}

    def _find_shape(self) -> TemplateShape:
        messages: list[Message] = [
            {"role": "user", "content": "probe question"},
            {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]},
            {"role": "tool", "content": "probe result", "tool_call_id": "call00001", "name": _PROBE_NAME},
        ]
        shapes = [TemplateShape(arguments, empty) for arguments in ARGUMENT_FORMS for empty in ("", None)]
        for self.shape in shapes:
            try:
                text = self.render(messages, RenderContext((), {}), generation_prompt=False)
            except TemplateRefusedError:
                continue
            wanted = _PROBE_ARGUMENTS if self.shape.arguments == "text" else "probe_key"
            if _PROBE_NAME in text.split("probe result")[0] and wanted in text and '\\"probe_key' not in text:
                return self.shape
        return TemplateShape(renders_tool_calls=False)


def context_key(context: RenderContext) -> bytes:
    """Key of a render context by its exact text, key order included: a template sees the order."""
    text = repr((context.tools, sorted(context.template_kwargs.items())))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def make_room(known: dict[Any, str]) -> None:
    """Empty a memory of things tried out once it has grown past any honest use."""
    if len(known) >= 256:
        known.clear()


def text_content(message: Message) -> str:
    """Content of a message as text, "" for none; ``UnrenderableError`` if it holds anything else."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    joined = join_parts(content) if isinstance(content, list | tuple) else None
    if joined is None:
        raise UnrenderableError(f"a {message.get('role')} message has content that is not text")
    return joined
