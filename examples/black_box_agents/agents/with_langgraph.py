"""A LangGraph agent (langchain's create_agent) with a bash tool: python with_langgraph.py [stream]"""

from __future__ import annotations

import os
import subprocess
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


model = ChatOpenAI(
    model="tiny",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key="none",
    max_tokens=256,
    streaming="stream" in sys.argv[1:],
)
agent = create_agent(model, [bash], system_prompt="You work in a directory with bash.")
task = "Write a file, look at it, and say what you did."
state = agent.invoke({"messages": [("user", task)]}, {"recursion_limit": 20})
print(f"agent: {len(state['messages'])} messages, its last words: {str(state['messages'][-1].content)[:60]!r}")
