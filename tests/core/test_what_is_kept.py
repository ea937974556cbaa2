"""What an exchange that is over leaves in memory: a body must not wait for the garbage collector."""

import asyncio
import gc

import pytest

from router_core.testing import Faults, RawClient, ScriptedWorker, build_request, reply
from router_core.testing.router import running_router
from router_core.upload import Upload

ASKED = build_request(body=b"x" * 300_000)


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize("how", ["answered", "left amid the upload", "left while held", "worker lost"])
async def test_no_body_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, front: str, how: str
) -> None:
    caplog.set_level("CRITICAL", logger="router_core")  # what is captured is kept
    monkeypatch.setattr("router_core.types.exchange.STOP_AGAIN_S", 0.01)
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=(), router={"front": front}) as router:
        worker.handler = reply()
        gc.collect()
        before = _uploads()  # of other tests, whose reports keep them
        gc.disable()
        try:
            for _ in range(3):
                async with RawClient(router.port) as client:
                    await _ask(client, worker, how)
            running = router.application.proxy.running
            async with asyncio.timeout(5.0):
                while running:  # noqa: ASYNC110  # nothing tells: whoever hears of the end keeps it
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # the timer that would interrupt it again
            assert len(_uploads()) <= len(before)
        finally:
            gc.enable()


def _uploads() -> list[Upload]:
    return [kept for kept in gc.get_objects() if isinstance(kept, Upload)]


async def _ask(client: RawClient, worker: ScriptedWorker, how: str) -> None:
    if how == "left amid the upload":
        await client.send(ASKED[:2000])
        await worker.wait_until(lambda: worker.live > 0)
        client.leave()
        return
    if how == "left while held":
        worker.fault(Faults.stall())
        seen = len(worker.requests)
        await client.send(ASKED)
        await worker.wait_for_requests(seen + 1)
        client.leave()
        return
    if how == "worker lost":
        worker.fault(Faults.close_before_answer())
    await client.send(ASKED)
    assert (await client.read_answer()).status == (502 if how == "worker lost" else 200)
