"""What holds for the router holds in every process: workers, pauses, verbs, loads, figures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from processes_kit import Connect, children_of, ids_of

from router_core.testing import Connection, ScriptedRequest, ScriptedWorker, exchange_once, send_json

ASK = {"text": "hi"}


async def test_what_is_said_of_workers_is_known_to_all_when_it_is_answered(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--set", "enabled=[]")
        clients = await connect(router.port)
        urls = [f"{worker.url}/{number}" for number in range(len(clients))]
        for number, client in enumerate(clients):
            body = {"url": urls[number], "labels": {"n": str(number)}, "weight_version": str(number)}
            assert (await client.request(target="/workers", json=body)).status == 202
            for other in clients:
                assert (await other.request("GET", "/list_workers")).json()["urls"] == urls[: number + 1]
        for client in clients:
            told = (await client.request("GET", "/workers")).json()["workers"]
            assert [each["labels"]["n"] for each in told] == [str(number) for number in range(len(clients))]
        stats = [{"worker_id": urls[0], "kv_usage": 0.5}]
        assert (await clients[0].request(target="/workers/update_stats", json=stats)).status == 200
        for client in clients:
            assert (await client.request("GET", "/workers/stats")).json()["workers"][0]["stats"] == {"kv_usage": 0.5}
        for number, client in enumerate(clients[:-1]):
            assert (await client.request(target=f"/remove_worker?url={urls[number]}")).status == 200
            for other in clients:
                assert (await other.request("GET", "/list_workers")).json()["urls"] == urls[number + 1 :]
        assert (await clients[0].request(target=f"/remove_worker?url={urls[0]}")).status == 404
        assert (await clients[0].request("DELETE", f"/workers/{urls[-1].replace('/', '%2F')}?wait=true")).json()[
            "drained"
        ]


async def test_a_load_is_that_of_all_processes(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        clients, lookers = await connect(router.port), await connect(router.port)
        worker.hold()
        asked = [asyncio.create_task(client.request(json=ASK)) for client in clients]
        await worker.wait_for_requests(len(clients))
        for looker in lookers:
            assert (await looker.request("GET", "/workers")).json()["workers"][0]["load"] == len(clients)
            page = (await looker.request("GET", "/metrics")).body.decode()
            assert f'router_worker_inflight{{worker="{worker.url}"}} {len(clients)}.0' in page
            assert f'router_worker_state{{state="ready",worker="{worker.url}"}} 1.0' in page
        worker.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        for looker in lookers:
            assert (await looker.request("GET", "/workers")).json()["workers"][0]["load"] == 0
            page = (await looker.request("GET", "/metrics")).body.decode()
            assert f'router_requests_total{{outcome="ok"}} {len(clients)}.0' in page


async def test_requests_are_balanced_by_the_load_of_all_processes(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        router = await start_two("--worker", one.url, "--worker", other.url)
        clients = await connect(router.port)
        one.hold()
        other.hold()
        asked = []
        for number, client in enumerate(clients, 1):  # one after another: each sees what the others have
            asked.append(asyncio.create_task(client.request(json=ASK)))
            while len(one.requests) + len(other.requests) < number:  # noqa: ASYNC110  # of two workers
                await asyncio.sleep(0)
        assert len(one.requests) == len(other.requests) == len(clients) / 2
        one.release()
        other.release()
        await asyncio.gather(*asked)


async def test_a_bound_of_one_request_holds_over_processes_and_room_is_seen(start_two: Any, connect: Connect) -> None:
    """Who is held in one process goes on when a request of the other process has ended."""
    async with ScriptedWorker() as worker:
        bound = ("--enable", "admission", "--set", "plugins.admission.max_inflight_per_worker=1")
        router = await start_two("--worker", worker.url, *bound)
        clients = await connect(router.port)
        worker.hold()
        first = asyncio.create_task(clients[0].request(json=ASK))
        await worker.wait_for_requests(1)
        rest = [asyncio.create_task(client.request(json=ASK)) for client in clients[1:]]
        page = b""
        while f'held_requests{{kind="no_worker_yet"}} {len(rest)}.0'.encode() not in page:
            page = (await exchange_once(router.port, "GET", "/metrics")).body
        assert len(worker.requests) == 1
        worker.release()
        assert {answer.status for answer in await asyncio.gather(first, *rest)} == {200}


async def test_a_pause_is_a_pause_everywhere_until_it_is_ended_anywhere(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--enable", "weight_version")
        clients, others = await connect(router.port), await connect(router.port, 2)
        for round_number in range(1, 4):
            paused = await others[0].request(target="/routing/pause")
            assert (paused.status, paused.json()["epoch"]) == (200, round_number)
            before = len(worker.requests)
            asked = [asyncio.create_task(client.request(json=ASK)) for client in clients]
            held = 0
            while held < len(clients):
                told = (await others[1].request("GET", "/routing/status")).json()
                held = told["held"]["total"]
            assert (told["paused"], len(told["queue"]), len(worker.requests)) == (True, len(clients), before)
            assert (await others[1].request(target="/routing/resume")).json()["was_paused"]
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_sessions_of_all_processes_hang_and_go_on_by_one_call(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--enable", "session_control")
        ids = [*ids_of(0, 2), *ids_of(1, 2)]
        clients, others = await connect(router.port, len(ids)), await connect(router.port, 3)
        for client, session_id in zip(clients, ids, strict=True):
            assert (await client.request(json=ASK, headers=[("x-session-id", session_id)])).status == 200
        unknown = await others[0].request(target="/control/hang", json={"session_ids": [*ids, "nobody's"]})
        assert (unknown.status, unknown.get("x-router-error")) == (404, "unknown_session")
        hung = (await others[0].request(target="/control/hang", json={"session_ids": ids})).json()["hung"]
        assert [(each["session_id"], each["is_hung"]) for each in hung] == [(session_id, True) for session_id in ids]
        asked = [
            asyncio.create_task(client.request(json=ASK, headers=[("x-session-id", session_id)], timeout_s=60))
            for client, session_id in zip(clients, ids, strict=True)
        ]
        waiting = 0
        while waiting < len(ids):
            told = (await others[1].request("GET", "/control/sessions?status=hung")).json()
            waiting = sum(each["waiting"] for each in told["sessions"])
        assert (told["total"], len(worker.requests)) == (len(ids), len(ids))
        told = (await others[2].request(target="/control/continue", json={"session_ids": ids})).json()
        assert (told["had_hung"], [each["session_id"] for each in told["continued"]]) == (len(ids), ids)
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_a_version_that_is_stated_or_learnt_in_one_process_is_known_to_all(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        quiet = ("--set", "plugins.weight_version.version_path=")
        router = await start_two("--worker", worker.url, "--enable", "weight_version", *quiet)
        clients = await connect(router.port)
        for number, client in enumerate(clients):
            body = [{"worker_id": worker.url, "weight_version": str(number)}]
            assert (await client.request(target="/workers/update_weight_version", json=body)).status == 200
            for other in clients:
                answer = await other.request(json=ASK)
                assert answer.get("x-router-weight-version") == str(number)


async def test_a_verb_reaches_each_worker_once_and_its_effects_are_known_to_all(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        clients = await connect(router.port)
        for number, client in enumerate(clients, 1):
            answer = await client.request(target="/update_weight_version", json={"new_version": str(number)})
            assert answer.status == 200
            assert len(worker.requests) == number
            for other in clients:
                told = (await other.request("GET", "/workers")).json()["workers"][0]
                assert told["weight_version"] == str(number)


async def test_an_abort_by_rid_finds_the_request_in_whichever_process(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        router = await start_two("--worker", one.url, "--worker", other.url)
        clients, others = await connect(router.port), await connect(router.port, 1)
        is_aborted = asyncio.Event()

        async def until_aborted(request: ScriptedRequest, connection: Connection) -> bool:
            if request.path == "/generate":
                await is_aborted.wait()
            return await send_json(connection, {})

        one.handler = other.handler = until_aborted
        asked = [
            asyncio.create_task(client.request(json={"text": "hi", "rid": f"rid-{number}-"}))
            for number, client in enumerate(clients)
        ]
        while len(one.requests) + len(other.requests) < len(clients):  # noqa: ASYNC110  # of two workers
            await asyncio.sleep(0)
        where = {request.json()["rid"]: worker.url for worker in (one, other) for request in worker.requests}
        for rid, url in where.items():
            told = (await others[0].request(target="/abort_request", json={"rid": rid})).json()
            assert [result["url"] for result in told["results"].values()] == [url]
        told = (await others[0].request(target="/abort_request", json={"rid": "nobody's"})).json()
        assert told["total"] == 2
        is_aborted.set()
        await asyncio.gather(*asked)


async def test_all_processes_reload_or_none(start_two: Any, connect: Connect, tmp_path: Any) -> None:
    (tmp_path / "second.py").write_text(SECOND)
    config = tmp_path / "plugins.toml"
    config.write_text('enabled = ["least_inflight"]\n')
    router = await start_two("--config", str(config))
    clients = await connect(router.port)

    async def generations() -> set[tuple[int, str]]:
        answers = [(await client.request("GET", "/plugins")).json() for client in clients]
        return {(answer["generation"], answer["plugins"][0]["name"]) for answer in answers}

    config.write_text('enabled = ["round_robin"]\n')
    answer = await clients[0].request(target="/admin/reload")
    assert answer.json() == {"generation": 2, "enabled": ["round_robin"], "needs_restart": []}
    assert await generations() == {(2, "round_robin")}
    config.write_text('enabled = ["no_such_plugin"]\n')
    answer = await clients[1].request(target="/admin/reload")
    assert (answer.status, answer.get("x-router-error")) == (400, "bad_configuration")
    config.write_text('enabled = []\n[router]\nmiddleware_paths = ["second:StartsInOneProcessAlone"]\n')
    answer = await clients[2].request(target="/admin/reload")
    assert (answer.status, answer.get("x-router-error")) == (400, "bad_configuration")
    assert "only one may start" in answer.json()["error"]["message"]
    assert await generations() == {(2, "round_robin")}
    config.write_text('enabled = ["power_of_two"]\n[router]\nsession_ttl_s = 5\n')
    answer = await clients[3].request(target="/admin/reload")
    assert answer.json()["needs_restart"] == ["router.session_ttl_s"]
    assert {name for _, name in await generations()} == {"power_of_two"}


SECOND = """
import os

from router_core import hookimpl


class StartsInOneProcessAlone:
    several_processes = True

    @hookimpl
    async def startup(self):
        try:
            os.close(os.open("taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise ValueError("only one may start") from None
"""


async def test_sighup_reloads_all(start_two: Any, connect: Connect, tmp_path: Any) -> None:
    import signal

    config = tmp_path / "plugins.toml"
    config.write_text('enabled = ["least_inflight"]\n')
    router = await start_two("--config", str(config))
    config.write_text('enabled = ["round_robin"]\n')
    router.signal(signal.SIGHUP)
    for client in await connect(router.port):
        name = ""
        async with asyncio.timeout(20):
            while name != "round_robin":
                name = (await client.request("GET", "/plugins")).json()["plugins"][0]["name"]


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_requests_that_run_at_the_end_are_answered(start_two: Any, connect: Connect, number: str) -> None:
    import signal

    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        pids = children_of(router.pid)
        clients = await connect(router.port)
        worker.hold()
        asked = [
            asyncio.create_task(client.request(json=ASK, headers=[("x-session-id", f"s{at}")] if at % 2 else ()))
            for at, client in enumerate(clients)
        ]
        await worker.wait_for_requests(len(clients))
        router.signal(getattr(signal, number))
        while True:  # nothing new is taken
            try:
                await exchange_once(router.port, "GET", "/health")
            except ConnectionError:
                break
        worker.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        status, told = await router.wait()
        assert status == (0 if number == "SIGTERM" else 130), told
        assert len(pids) == 2
        assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: int) -> bool:
    import os

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
