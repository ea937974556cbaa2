"""Renders a conversation to text as ``assets/chat_template.jinja`` does, without jinja.

A test holds the two equal. The rules are Qwen3's: thinking is shown only in the turns after the user's last question,
tool answers are grouped in one user turn, tools are listed in the system turn.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


def render_chat(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
    is_thinking: bool = True,
) -> str:
    """Return the prompt text of ``messages``, which must not be empty; a content that is no string counts as empty."""
    parts = [_system(messages, tools)]
    last_query = _last_query(messages)
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user" or (role == "system" and index > 0):
            parts.append(f"<|im_start|>{role}\n{_content(message)}<|im_end|>\n")
        elif role == "assistant":
            parts.append(_assistant(message, index > last_query, index == len(messages) - 1))
        elif role == "tool":
            parts.append(_tool(messages, index))
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
        if not is_thinking:
            parts.append("<think>\n\n</think>\n\n")
    return "".join(parts)


def _content(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _system(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the system turn: the first message if it is the system's, and the tools."""
    said = _content(messages[0]) if messages[0]["role"] == "system" else None
    if tools:
        listed = "".join("\n" + _json(tool) for tool in tools)
        said = ("" if said is None else said + "\n\n") + _TOOLS_HEAD + listed + _TOOLS_TAIL
    return "" if said is None else f"<|im_start|>system\n{said}<|im_end|>\n"


def _last_query(messages: Sequence[Message]) -> int:
    """Return the index of the last message in which the user, not a tool, said something."""
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].get("content")
        if messages[index]["role"] != "user" or not isinstance(content, str):
            continue
        if not (content.startswith("<tool_response>") and content.endswith("</tool_response>")):
            return index
    return len(messages) - 1


def _assistant(message: Message, is_after_query: bool, is_last: bool) -> str:
    content = _content(message)
    thinking = ""
    if isinstance(message.get("reasoning_content"), str):
        thinking = message["reasoning_content"]
    elif "</think>" in content:
        before = content.split("</think>")[0].rstrip("\n")
        thinking = before.split("<think>")[-1].lstrip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
    said = content
    if is_after_query and (is_last or thinking):
        said = "<think>\n" + thinking.strip("\n") + "\n</think>\n\n" + content.lstrip("\n")
    return f"<|im_start|>assistant\n{said}{_tool_calls(message, bool(content))}<|im_end|>\n"


def _tool_calls(message: Message, has_content: bool) -> str:
    parts = []
    for index, tool_call in enumerate(message.get("tool_calls") or ()):
        call = tool_call.get("function") or tool_call
        arguments = call.get("arguments", {})
        text = arguments if isinstance(arguments, str) else _json(arguments)
        line = f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {text}}}\n</tool_call>'
        parts.append("\n" + line if has_content or index > 0 else line)
    return "".join(parts)


def _tool(messages: Sequence[Message], index: int) -> str:
    is_first = index == 0 or messages[index - 1]["role"] != "tool"
    is_last = index == len(messages) - 1 or messages[index + 1]["role"] != "tool"
    response = f"\n<tool_response>\n{_content(messages[index])}\n</tool_response>"
    return ("<|im_start|>user" if is_first else "") + response + ("<|im_end|>\n" if is_last else "")
