"""A process that is killed: what is lost is said, the rest goes on, another takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from processes_kit import Connect, children_of, ids_of, is_alive, until

from router_core.testing import NoAnswerError, RawAnswer, RawClient, ScriptedWorker, exchange_once
from router_core.testing.answer import build_request

ASK = {"text": "hi"}


async def _ask(port: int, headers: Any = (), **options: Any) -> RawAnswer | None:
    try:
        return await exchange_once(port, json=ASK, headers=headers, **{"timeout_s": 60, **options})
    except (NoAnswerError, ConnectionError):
        return None


async def test_a_killed_process_loses_its_own_sessions_alone_and_says_so(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker, ScriptedWorker() as added:
        router = await start_two("--worker", worker.url, "--enable", "weight_version")
        lost, kept = ids_of(0, 3), ids_of(1, 3)
        for session_id in (*lost, *kept):
            assert (await exchange_once(router.port, target="/sessions", json={"session_id": session_id})).status == 200
        await exchange_once(router.port, target="/workers", json={"url": added.url, "labels": {"rack": "b"}})
        await exchange_once(router.port, target=f"/remove_worker?url={worker.url}")
        await exchange_once(router.port, target="/routing/pause")
        victim, other = children_of(router.pid)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(children_of(router.pid)) == 2 and victim not in children_of(router.pid))
        clients = await connect(router.port)  # those of the lost process wait for the new one

        for client in clients:  # it knows the workers and the pause
            assert (await client.request("GET", "/list_workers", timeout_s=30)).json()["urls"] == [added.url]
            assert (await client.request("GET", "/routing/status")).json()["paused"]
            assert (await client.request("GET", "/workers")).json()["workers"][0]["labels"] == {"rack": "b"}
        assert (await clients[0].request(target="/routing/resume")).json()["was_paused"]
        for client in clients:
            for session_id in lost:
                for answer in (
                    await client.request("GET", f"/sessions/{session_id}"),
                    await client.request(target=f"/sessions/{session_id}/generate", json=ASK),
                    await client.request(json=ASK, headers=[("x-session-id", session_id)]),
                ):
                    assert (answer.status, answer.get("x-router-error")) == (410, "session_lost")
                    assert f"process 0 (pid {victim})" in answer.json()["error"]["message"]
            for session_id in kept:
                assert (await client.request(target=f"/sessions/{session_id}/generate", json=ASK)).status == 200
                assert (await client.request(json=ASK, headers=[("x-session-id", session_id)])).status == 200
            assert (await client.request(json=ASK)).status == 200
        again = await clients[0].request(target="/sessions", json={"session_id": lost[0]})
        assert again.status == 200
        assert (await clients[1].request(target=f"/sessions/{lost[0]}/generate", json=ASK)).status == 200
        assert other in children_of(router.pid)
        router.signal(signal.SIGTERM)
        status, told = await router.wait()
        assert status == 0
        said = next(line for line in told.splitlines() if "lost:" in line)
        assert f"process 0 (pid {victim}) ended by signal 9" in said
        assert f"3 open sessions ({', '.join(sorted(lost))})" in said


async def test_a_kill_under_load_costs_what_ran_in_that_process_and_nothing_else(start_two: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        worker.hold()
        kept_id, lost_id = ids_of(1, 1)[0], ids_of(0, 1)[0]
        of_kept = [asyncio.create_task(_ask(router.port, [("x-session-id", kept_id)])) for _ in range(12)]
        of_lost = [asyncio.create_task(_ask(router.port, [("x-session-id", lost_id)])) for _ in range(12)]
        await worker.wait_for_requests(24)
        os.kill(children_of(router.pid)[0], signal.SIGKILL)
        answers = await asyncio.gather(*of_lost)
        told = [answer for answer in answers if answer is not None]
        assert {(answer.status, answer.get("x-router-error")) for answer in told} <= {(502, "owner_lost")}
        load = -1
        while load:  # what was in flight by it counts no more
            async with RawClient(router.port) as client:
                load = (await client.request("GET", "/workers", timeout_s=30)).json()["workers"][0]["load"]
            load -= sum(not task.done() for task in of_kept)
        worker.release()
        kept = await asyncio.gather(*of_kept)
        # those whose connection was the lost process's are gone with it; a turn that its owner had goes on to its end
        assert any(kept), (told, children_of(router.pid))
        assert {answer.status for answer in kept if answer is not None} == {200}
        answer = None
        while answer is None or answer.get("x-router-error") == "owner_away":  # until the new one is there
            answer = await _ask(router.port, [("x-session-id", lost_id)])
        assert answer.status == 200
        router.signal(signal.SIGTERM)
        status, said = await router.wait()
        assert (status, "12 attempts in flight" in said) == (0, True), said


async def test_an_owner_that_is_away_is_said_at_once(start_two: Any, connect: Connect) -> None:
    router = await start_two("--set", "enabled=[]")
    clients = await connect(router.port)
    for client in clients:  # what no process has accepted yet would wait for the next one
        assert (await client.request("GET", "/health")).status == 200
    victim, _ = children_of(router.pid)
    router.signal(signal.SIGSTOP)  # no other is started meanwhile
    os.kill(victim, signal.SIGKILL)
    await until(lambda: not is_alive(victim))
    answers = []
    asked = build_request("GET", f"/sessions/{ids_of(0, 1)[0]}", host="h")
    for client in clients:
        try:
            await client.send(asked[:10])
            await asyncio.sleep(0.02)  # a head that comes in pieces is forwarded; its connection would wait
            await client.send(asked[10:])
            answers.append(await client.read_answer("GET"))
        except (NoAnswerError, ConnectionError):
            continue
    router.signal(signal.SIGCONT)
    told = [(answer.status, answer.get("x-router-error")) for answer in answers]
    assert set(told) <= {(503, "owner_away"), (502, "owner_lost")}  # its threads may outlive it for a moment
    assert told[-1] == (503, "owner_away")


async def test_processes_end_when_their_supervisor_is_killed(start_two: Any) -> None:
    router = await start_two()
    pids = children_of(router.pid)
    os.kill(router.pid, signal.SIGKILL)
    await until(lambda: not any(is_alive(pid) for pid in pids))
    assert (await router.wait())[0] == -signal.SIGKILL  # reads its pipes to their end


async def test_a_process_that_is_told_to_end_is_replaced(start_two: Any) -> None:
    router = await start_two()
    victim, _ = children_of(router.pid)
    os.kill(victim, signal.SIGTERM)
    await until(lambda: victim not in children_of(router.pid) and len(children_of(router.pid)) == 2)
    for _ in range(8):
        assert (await exchange_once(router.port, "GET", "/health", timeout_s=30)).status == 200
