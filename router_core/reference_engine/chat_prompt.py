"""The prompt ids of a chat request: given as ids, or rendered from its messages."""

import json
from collections.abc import Mapping
from typing import Any

from router_core.reference_engine import fields
from router_core.reference_engine.chat_template import render_chat
from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.options import Dialect
from router_core.reference_engine.tokenizer import Tokenizer


def is_thinking(body: fields.Fields) -> bool:
    """The template is not told to switch thinking off."""
    return fields.flag(fields.mapping(body, "chat_template_kwargs"), "enable_thinking", True)


def render_messages(body: fields.Fields, dialect: Dialect) -> str:
    """Return the prompt text of a chat request; ``continue_final_message`` leaves the last turn open."""
    messages = read_messages(body, dialect)
    tools = fields.mappings(body, "tools")
    if dialect == "sglang" and body.get("tool_choice") == "none":
        tools = []
    if fields.flag(body, "continue_final_message"):
        if messages[-1]["role"] != "assistant":
            raise InvalidFieldError(
                "continue_final_message", "continue_final_message needs a last message of the assistant."
            )
        return _open_ended(messages, tools, dialect)
    wants_prompt = fields.flag(body, "add_generation_prompt", True)
    return render_chat(messages, tools, add_generation_prompt=wants_prompt, is_thinking=is_thinking(body))


def _open_ended(messages: list[dict[str, Any]], tools: list[fields.Fields], dialect: Dialect) -> str:
    """Return the prompt text that ends inside the last message; only vLLM renders that one as the template would."""
    last: str = messages[-1]["content"]
    if dialect == "sglang":
        return (render_chat(messages[:-1], tools) if messages[:-1] else "<|im_start|>assistant\n") + last
    rendered = render_chat(messages, tools, add_generation_prompt=False)
    return rendered[: rendered.rindex(last.strip()) + len(last.strip())]


def prompt_ids(body: fields.Fields, tokenizer: Tokenizer, vocabulary_size: int, dialect: Dialect) -> list[int]:
    """Return the ids to answer: SGLang's ``input_ids``, vLLM's ``kv_transfer_params``, or the rendered messages."""
    given, name = body.get("input_ids"), "input_ids"
    if dialect == "vllm":
        name = "kv_transfer_params.prompt_token_ids"
        given = fields.mapping(body, "kv_transfer_params").get("prompt_token_ids")
    if given is not None:
        read_messages(body, dialect)
        return fields.ids(given, name, vocabulary_size)
    return tokenizer.encode(render_messages(body, dialect))


def read_messages(body: fields.Fields, dialect: Dialect) -> list[dict[str, Any]]:
    """Return messages as the template wants them: text contents, arguments of tool calls parsed."""
    messages = fields.mappings(body, "messages")
    if not messages:
        raise InvalidFieldError("messages", "Messages cannot be empty.")
    return [_message(message, index, dialect) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], index: int, dialect: Dialect) -> dict[str, Any]:
    name = f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise InvalidFieldError(f"{name}.role", f"{name}.role must be a string.")
    read = dict(message) | {"content": _content(message.get("content"), name, dialect)}
    if dialect == "vllm" and isinstance(message.get("reasoning"), str):
        read["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        read["tool_calls"] = [_tool_call(call, name) for call in fields.mappings(message, "tool_calls")]
    return read


def _content(content: Any, name: str, dialect: Dialect) -> str:
    """Return the text of a content; the texts of a list of parts are joined as the server joins them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InvalidFieldError(f"{name}.content", f"{name}.content must be a string or a list of parts.")
    for part in content:
        if not isinstance(part.get("text"), str):
            raise InvalidFieldError(
                f"{name}.content", f"{name}.content has a part that is no text: {part.get('type')!r}."
            )
    return (" " if dialect == "sglang" else "\n").join(part["text"] for part in content)


def _tool_call(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = fields.mapping(call, "function")
    if not isinstance(function.get("name"), str):
        raise InvalidFieldError(f"{name}.tool_calls", f"{name}.tool_calls has a call without a function name.")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise InvalidFieldError(
                f"{name}.tool_calls", f"{name}.tool_calls has arguments that are no JSON: {error}"
            ) from None
    return {"id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}
