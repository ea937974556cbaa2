"""examples/black_box_agents over reference engines: the openai SDK in front, the witness behind, nothing differs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "black_box_agents"
SDK = [sys.executable, str(EXAMPLE / "agents" / "openai_sdk.py")]
WORDS = ("--words", str(EXAMPLE / "words" / "tool_loop.json"))


async def ran(*flags: str) -> tuple[int | None, str]:
    """Exit status of the example, and what it printed."""
    command = [sys.executable, str(EXAMPLE / "run.py"), *flags, *WORDS, "--", *SDK]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_a_tool_loop_is_one_sequence_and_equals_what_the_engine_said() -> None:
    status, said = await ran("--kind", "vllm", "--mode", "translate")
    assert status == 0, said
    assert "agent: 4 turns" in said and said.count(" equal\n") == 4 + 1
    sums = re.search(r"(\d+) tokens sampled, (\d+) trained, (\d+) sequences; (\d+) scored again", said)
    assert sums and sums[1] == sums[2] == sums[4] and sums[3] == "1", said
    assert "drift {}" in said


async def test_an_answer_that_was_lost_on_its_way_is_asked_for_again_and_is_no_sample() -> None:
    status, said = await ran("--kind", "sglang", "--cut", "1")
    assert status == 0, said
    assert "1 /v1/chat/completions   its connection broke: no sample" in said
    assert " 1 sequences" in said and said.endswith("all equal\n")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import compare  # type: ignore[import-not-found]  # found in the example's directory only
    import witness  # type: ignore[import-not-found]

    return compare, witness


def compared(modules: tuple[Any, Any], **changes: Any) -> list[str]:
    """Faults of one call with prompt 1 2 and answer 3 4, after ``changes`` to what was kept of it."""
    compare, witness = modules
    asked = {"input_ids": [1, 2], "stream": False}
    info = {"prompt_tokens": 2, "finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 3], [-0.25, 4]]}
    call = witness.Call("/generate", asked, 200, json.dumps({"output_ids": [3, 4], "meta_info": info}).encode(), True)
    turn = {"start": 2, "end": 4, "is_trained": True}
    row = {"branch_id": 1, "tokens": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1], "logprobs": [0, 0, -0.5, -0.25]}
    samples = {"complete": True, "reasons": [], "samples": [{**row, "turns": [turn], **changes}]}
    comparison = compare.Comparison([call], samples)
    comparison.compare()
    faults: list[str] = comparison.faults
    return faults


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"logprobs": [0, 0, -0.5, -0.2500001]}, "call 1: the logprobs that were kept are others"),
        ({"tokens": [1, 2, 3, 5]}, "call 1: these ids were not kept"),
        ({"tokens": [1, 1, 3, 4]}, "a kept turn was never seen: ((1, 1), (3, 4))"),
        ({"loss_mask": [0, 1, 1, 0]}, "branch 1: the mask is not that of its sampled tokens"),
        ({"loss_mask": [0, 1, 1, 1]}, "3 tokens are trained, the engine sampled 2"),
    ],
)
def test_whatever_differs_is_named(modules: tuple[Any, Any], changes: dict[str, Any], fault: str) -> None:
    assert compared(modules) == []
    assert fault in compared(modules, **changes)
