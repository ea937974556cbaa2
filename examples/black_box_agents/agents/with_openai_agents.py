"""The openai-agents SDK with a bash tool, over chat completions: python with_openai_agents.py [stream]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded
from openai import AsyncOpenAI


@function_tool(strict_mode=False)
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="none")
    agent = Agent(
        name="worker",
        instructions="You work in a directory with bash.",
        model=OpenAIChatCompletionsModel(model="tiny", openai_client=client),
        model_settings=ModelSettings(max_tokens=256),
        tools=[bash],
    )
    task = "Write a file, look at it, and say what you did."
    try:
        if "stream" in sys.argv[1:]:
            result = Runner.run_streamed(agent, task, max_turns=8)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, task, max_turns=8)
        print(f"agent: {len(result.raw_responses)} turns, its last words: {str(result.final_output)[:60]!r}")
    except MaxTurnsExceeded as error:
        print(f"agent: {error}")


asyncio.run(main())
