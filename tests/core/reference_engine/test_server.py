"""How an engine is started, found and described."""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router_core.reference_engine import EngineOptions, add_arguments
from router_core.reference_engine.command import options_from
from router_core.reference_engine.tokenizer import ASSETS


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, router_core.reference_engine\n"
        "heavy = {'numpy', 'tokenizers', 'starlette', 'uvicorn', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_flags_and_options_are_the_same() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert options_from(parser.parse_args([])) == EngineOptions()
    flags = ["--port", "8", "--step-delay-s", "0.5", "--weight-version", "v3", "--seed", "4", "--no-tool-call-parser"]
    expected = EngineOptions(port=8, step_delay_s=0.5, weight_version="v3", seed=4, tool_call_parser=False)
    assert options_from(parser.parse_args(flags)) == expected


async def test_a_process_says_where_it_listens_and_ends_on_a_signal(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "router_core.reference_engine", "--ready-file", str(ready), "--model-seed", "3"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        place = json.loads(ready.read_text())
        assert place["pid"] == process.pid
        assert said.strip().endswith(place["url"])
        async with aiohttp.ClientSession() as http, http.get(place["url"] + "/ready") as response:
            assert response.status == 200
    finally:
        process.terminate()
    await process.communicate()
    assert process.returncode == 0


async def test_what_cannot_be_served_is_one_line_and_exit_status_2() -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = str(taken.sockets[0].getsockname()[1])
    for flags, words in (
        (["--port", port], f"cannot listen on 127.0.0.1:{port}: Address already in use"),
        (["--port", "99999"], "--port is a number from 0 to 65535, not 99999"),
        (["--port", "0", "--model", "/nonexistent"], "--model: there is no directory '/nonexistent'"),
    ):
        command = [sys.executable, "-m", "router_core.reference_engine", *flags]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        assert (process.returncode, said.decode()) == (2, f"router-core engine: {words}\n")
    taken.close()
    await taken.wait_closed()


async def test_a_model_that_is_not_there_is_said(serving: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tokenizer|No such file"):
        async with serving(model=tmp_path):
            pass
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((ASSETS / name).read_bytes())
    with pytest.raises(ValueError, match=r"config\.json: model_type is llama"):
        async with serving(model=tmp_path):
            pass


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping"])
async def test_health_is_empty_and_fine(client: Any, path: str) -> None:
    assert await client.get(path) == (200, "")


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info", "/get_server_info", "/server_info"])
async def test_the_model_is_described(client: Any, path: str) -> None:
    status, info = await client.get(path)
    assert status == 200
    assert info["weight_version"] == "default"
    assert info["served_model_name"] == "reference"


async def test_models_and_loads_are_listed(client: Any) -> None:
    _, models = await client.get("/v1/models")
    assert [model["id"] for model in models["data"]] == ["reference"]
    _, loads = await client.get("/v1/loads")
    assert loads["loads"][0]["num_running_reqs"] == 0
    status, metrics = await client.get("/metrics")
    assert status == 200
    assert 'sglang:num_running_reqs{model_name="reference"} 0' in metrics


async def test_an_unknown_path_is_404_and_a_wrong_method_405(client: Any) -> None:
    assert await client.get("/get_load") == (404, {"detail": "Not Found"})
    assert (await client.get("/generate"))[0] == 405


async def test_text_becomes_ids_and_back(client: Any) -> None:
    for prefix in ("", "/v1"):
        _, answer = await client.post(prefix + "/tokenize", {"prompt": "hi there"})
        assert answer["count"] == len(answer["tokens"])
        assert answer["max_model_len"] == 32768
        _, text = await client.post(prefix + "/detokenize", {"tokens": answer["tokens"]})
        assert text == {"text": "hi there"}
    _, listed = await client.post("/tokenize", {"prompt": ["a", "b c"]})
    assert listed["count"] == [len(tokens) for tokens in listed["tokens"]]
    _, texts = await client.post("/detokenize", {"tokens": listed["tokens"]})
    assert texts == {"text": ["a", "b c"]}
    assert (await client.post("/detokenize", {"tokens": [5000]}))[0] == 400


async def test_a_checkpoint_is_served(serving: Any, client: Any, tmp_path: Path) -> None:
    from router_core.reference_engine.checkpoint import write_checkpoint

    write_checkpoint(client.engine.model, tmp_path)
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 10, "temperature": 0}}
    async with serving(model=tmp_path) as other:
        assert (await other.generate(**body))["output_ids"] == (await client.generate(**body))["output_ids"]
