"""The sessions of the design's table of exact cases, played in Qwen3 ids."""

from __future__ import annotations

from typing import Any

from tito_kit import Agent, Qwen3Cut, assistant, call, system, tool, user

# fmt: off
T1 = [
    151667, 198, 83, 16, 198, 151668, 271,
    151657, 198, 4913, 606, 3252, 69, 2198, 16370, 22317, 87, 788, 16, 11248, 151658, 151645,
]
# fmt: on
T2 = [17 if token == 16 else token for token in T1]
DONE = [151667, 198, 83, 18, 198, 151668, 271, 10438, 151645]
SUM = [151667, 198, 83, 24, 198, 151668, 271, 1242, 151645]
START = [system("S."), user("q1")]


def calling(number: int, *, thinks: bool = True) -> dict[str, Any]:
    reasoning = {"reasoning_content": f"t{number}"} if thinks else {}
    return assistant(None, tool_calls=[call("f", f'{{"x":{number}}}', f"c{number}")], **reasoning)


def linear(matcher: str = "loose_tool_call", *, thinks: bool = True, **fields: Any) -> Agent:
    """Three turns; ``thinks``: whether the client sends the thinking back. ``fields`` go into each result."""
    agent = Agent(Qwen3Cut(), matchers=[matcher])
    messages = list(START)
    agent.ask(messages, T1, calling(1), **fields)
    messages += [calling(1, thinks=thinks), tool("r1", "c1")]
    agent.ask(messages, T2, calling(2), **fields)
    messages += [calling(2, thinks=thinks), tool("r2", "c2")]
    agent.ask(messages, DONE, assistant("done", reasoning_content="t3"), **fields)
    return agent


def tool_dropped() -> Agent:
    """Two tool messages, then one of them is not sent any more."""
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask([*START, calling(1), tool("r1"), tool("r2")], T2, calling(2))
    agent.ask([*START, calling(1), tool("r1")], DONE, assistant("done", reasoning_content="t3"))
    return agent


def summarised() -> Agent:
    """Two turns, a summary of them, and a last turn on that summary."""
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask([*START, calling(1), tool("r1")], T2, calling(2))
    history = [*START, calling(1), tool("r1"), calling(2), tool("r2"), user("Summarize.")]
    agent.ask(history, SUM, assistant("sum", reasoning_content="t9"))
    agent.ask([system("S."), user("q1\n\nSummary: sum")], DONE, assistant("done", reasoning_content="t3"))
    return agent


def retried() -> Agent:
    """The first request twice, recorded as two answers; the agent goes on from the second."""
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask(START, T2, calling(2))
    agent.ask([*START, calling(2), tool("r2", "c2")], DONE, assistant("done", reasoning_content="t3"))
    return agent


def coalesced() -> Agent:
    """The first request twice, but the second one was given the first one's answer: one call."""
    agent = Agent(Qwen3Cut())
    agent.ask(START, T2, calling(2))
    agent.ask([*START, calling(2), tool("r2", "c2")], DONE, assistant("done", reasoning_content="t3"))
    return agent
