"""A tool loop with nothing but the openai SDK, every second turn streamed.

It runs what the model calls for, several calls at a time if there are. When the model calls for nothing it ends, or
with ``--go-on`` is told to go on. With ``--timeout`` the SDK gives up calls that take longer, and asks again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]


def ask(client: OpenAI, messages: list[Any], *, stream: bool, max_tokens: int) -> dict[str, Any]:
    """One turn; the message as it is sent back."""
    options: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": max_tokens}
    if not stream:
        return client.chat.completions.create(**options).choices[0].message.model_dump(exclude_none=True)
    content, thought, calls = "", "", {}
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            extra = choice.delta.model_extra or {}
            content += choice.delta.content or ""
            thought += extra.get("reasoning_content") or extra.get("reasoning") or ""
            for part in choice.delta.tool_calls or ():
                made = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {"arguments": ""}})
                if part.function is not None:
                    made["function"]["name"] = made["function"].get("name") or part.function.name
                    made["function"]["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    return {**message, "tool_calls": list(calls.values())} if calls else message


def run(arguments: str) -> str:
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError):
        return f"cannot read {arguments!r}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S")
    parser.add_argument("--go-on", action="store_true")
    options = parser.parse_args()
    messages: list[Any] = [
        {"role": "system", "content": "You work in a directory with bash."},
        {"role": "user", "content": "Write a file, look at it, and say what you did."},
    ]
    with OpenAI(timeout=options.timeout, max_retries=20) as client:
        for turn in range(options.turns):
            answer = ask(client, messages, stream=bool(turn % 2), max_tokens=options.max_tokens)
            messages.append(answer)
            for called in answer.get("tool_calls", ()):
                result = run(called["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": called["id"], "content": result})
            if not answer.get("tool_calls"):
                if not options.go_on:
                    break
                messages.append({"role": "user", "content": "Go on."})
    print(f"agent: {turn + 1} turns, {len(messages)} messages, its last words: {answer.get('content')!r:.60}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
