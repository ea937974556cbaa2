"""No plugin makes an exchange or a session wait for the garbage collector: see `tests/core/test_garbage.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import Experts, RawClient, ScriptedWorker
from router_core.testing.router import running_router
from tests.bench.load.routers import ALL
from tests.garbage import garbage

COUNT = 10
PLUGINS = {
    "hf_tokenizer": {"path": str(ASSETS)},
    "routed_experts": {"layers": 2, "top_k": 2, "num_experts": 8, "dense_layers": []},
}


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """pytest keeps what was logged, and by it exchanges that would be garbage."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def generate(client: RawClient, name: str, *, is_stream: bool) -> None:
    for number in range(COUNT):
        body = {"text": "hello there", "rid": f"{name}-{number}", "stream": is_stream}
        answer = await client.request("POST", "/generate", json=body, headers={"x-session-id": name})
        assert answer.status == 200, answer.body


async def chat(client: RawClient, name: str, *, is_stream: bool) -> None:
    for number in range(COUNT):
        session = f"{name}-{number}"
        assert (await client.request("POST", "/sessions", json={"session_id": session})).status == 200
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": is_stream}
        answer = await client.request("POST", f"/sessions/{session}/v1/chat/completions", json=body)
        assert answer.status == 200, answer.body
        assert (await client.request("DELETE", f"/sessions/{session}")).status in (200, 204)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("load", [generate, chat], ids=["generate", "chat"])
async def test_every_plugin_lets_go_of_what_has_ended(load: object, is_stream: bool) -> None:
    async with ScriptedWorker() as worker:
        worker.say("x y", ids=[8, 9], times=None)
        worker.engine.experts = Experts(2, 2, 8)
        async with running_router([worker.url], enabled=ALL, plugins=PLUGINS) as router:
            await router.application.outside.find_tokenizer(None).ready()
            async with RawClient(router.port) as client:
                await load(client, "first", is_stream=is_stream)  # type: ignore[operator]  # one of the two above
                with garbage() as found:
                    await load(client, "second", is_stream=is_stream)  # type: ignore[operator]  # the same
                    async with asyncio.timeout(10):
                        while router.application.proxy.running:  # noqa: ASYNC110  # nothing tells of the last end
                            await asyncio.sleep(0)
                    await asyncio.sleep(0.05)
    assert {name: count for name, count in found.items() if count >= COUNT} == {}
