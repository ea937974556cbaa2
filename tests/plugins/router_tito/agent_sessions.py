"""Sessions as agents hold them, written for these tests: what an agent sends and what its model says, turn by turn.

Each is a list of messages; every assistant's message is what the model answers to the ones before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tito_kit import assistant, call, system, tool, user

Message = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        },
    }
    for name in ("look", "edit")
]
START = [
    system("You mend code.\n\nBe brief."),
    user("Mend `area.py`:\r\n\r\n```\n  File 1\n    def area(a) -> int\n```"),
]

TEXT_ONLY: list[Message] = [
    *START,
    assistant("THOUGHT: find it.\n\n```bash\nls -la\n```"),
    user("<returncode>0</returncode>\n<output>\ntotal 4\n-rw-r--r-- area.py\n</output>"),
    assistant("THOUGHT: read it.\n\n```bash\ncat area.py\n```"),
    user("<returncode>1</returncode>\n<output>\ncat: area.py: Permission denied\n</output>"),
    assistant("I cannot read it."),
    user("Your answer has no command. Give one."),
    assistant("```bash\necho done\n```"),
]
"""Commands in plain text, results as the user's messages, a refusal of the harness."""

CALLS: list[Message] = [
    *START,
    assistant("I look first.", tool_calls=[call("look", '{"x": "area.py"}', "call00001")]),
    tool("1: def area(a) -> int\r\n2:   return a", "call00001"),
    assistant(None, tool_calls=[call("edit", '{"x":"area.py\\n:"}', "call00002")]),
    tool("Replaced.", "call00002"),
    assistant("It is mended."),
    user("And the test?"),
    assistant(None, tool_calls=[call("look", '{"x": "test.py"}', "call00003")]),
    tool("", "call00003"),
    assistant("It is empty."),
]
"""Tool calls, some without a text, in two tasks."""

PARALLEL: list[Message] = [
    *START,
    assistant(
        None,
        tool_calls=[call("look", '{"x": "a"}', "call00001"), call("look", '{"x": "b"}', "call00002")],
    ),
    tool("A", "call00001"),
    tool("B", "call00002"),
    assistant("Both, again.", tool_calls=[call("look", "{}", f"call0000{index}") for index in (3, 4, 5)]),
    *(tool(text, f"call0000{index}") for index, text in ((3, "C"), (4, "D"), (5, "E"))),
    assistant("Done."),
]
"""Several calls at once, their results in a row."""

REASONING: list[Message] = [
    *START,
    assistant("", reasoning_content="I must look.", tool_calls=[call("look", '{"x": "a"}', "call00001")]),
    tool("A", "call00001"),
    assistant("A it is.", reasoning_content="It says A.\n\nSo A."),
    user("Sure?"),
    assistant("Yes.", reasoning_content="I am."),
]
"""An answer's reasoning is sent back with it."""

ERRORS: list[Message] = [
    *START,
    assistant(None, tool_calls=[call("look", '{"x": ', "call00001")]),
    tool("Error: the arguments are no JSON: unexpected end", "call00001"),
    assistant(None, tool_calls=[call("lock", '{"x": "a"}', "call00002")]),
    tool("Error: unknown tool lock", "call00002"),
    user("Use only the tools that you have."),
    assistant("Sorry.", tool_calls=[call("look", '{"x": "a"}', "call00003")]),
    tool("A", "call00003"),
    assistant("A."),
]
"""Calls that cannot be read or answered, and a reminder right behind the error."""

COMPACTED: list[list[Message]] = [
    CALLS[:7],
    [
        *START,
        user("So far: you looked at area.py and mended it. Go on."),
        assistant("I check.", tool_calls=[call("look", '{"x": "area.py"}', "call00004")]),
        tool("def area(a) -> int:", "call00004"),
        assistant("It holds."),
    ],
]
"""The history is replaced by a summary: two conversations, one behind the other."""

SESSIONS: dict[str, list[list[Message]]] = {
    "text only": [TEXT_ONLY],
    "calls": [CALLS],
    "parallel": [PARALLEL],
    "reasoning": [REASONING],
    "errors": [ERRORS],
    "compacted": COMPACTED,
}


def has_tools(conversation: Sequence[Message]) -> bool:
    return any(message.get("tool_calls") for message in conversation)
