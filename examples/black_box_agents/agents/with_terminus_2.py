"""Harbor's terminus-2 in a tmux of its own on this machine, no container: python with_terminus_2.py

It asks for token ids and logprobs itself, and says at the end how many it was given.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


class Here(BaseEnvironment):
    """The current directory."""

    @staticmethod
    def type() -> str:
        return "here"

    def _validate_definition(self) -> None: ...

    async def start(self, force_build: bool) -> None: ...

    async def stop(self, delete: bool) -> None:
        await self.exec("tmux kill-server")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None, **more) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await asyncio.wait_for(process.communicate(), timeout_sec)
        return ExecResult(stdout=out.decode(), stderr=error.decode(), return_code=process.returncode)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TMUX_TMPDIR"] = directory
        logs = Path(directory)
        here = Here(logs, "here", "here", TrialPaths(logs), EnvironmentConfig())
        agent = Terminus2(
            logs_dir=logs,
            model_name="openai/tiny",
            api_base=os.environ["OPENAI_BASE_URL"],
            max_turns=6,
            record_terminal_session=False,
            enable_summarize=False,
            collect_rollout_details=True,
            model_info={"max_input_tokens": 32768, "max_output_tokens": 512},
        )
        context = AgentContext()
        try:
            await agent.setup(here)
            await agent.run("Write notes.txt.", here, context)
        finally:
            await here.stop(delete=False)
        for detail in context.rollout_details or ():
            told = {key: [len(one) for one in value] for key, value in detail.items() if isinstance(value, list)}
            print(f"agent: was told {told}")


asyncio.run(main())
