"""A smolagents ToolCallingAgent with a bash tool: python with_smolagents.py"""

from __future__ import annotations

import os
import subprocess

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a command.

    Args:
        command: what to run
    """
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


model = OpenAIServerModel("tiny", api_base=os.environ["OPENAI_BASE_URL"], api_key="none", max_tokens=256)
agent = ToolCallingAgent([bash], model, max_steps=6)
answer = agent.run("Write a file, look at it, and say what you did.")
print(f"agent: its last words: {str(answer)[:60]!r}")
