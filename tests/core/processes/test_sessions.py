"""A session is one, whichever process its requests come to."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from processes_kit import Connect, ids_of

from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawClient, ScriptedWorker

CHAT = "/v1/chat/completions"
TITO = ("--enable", "hf_tokenizer", "--enable", "tito", "--set", f"plugins.hf_tokenizer.path={ASSETS}")


async def test_a_session_named_by_its_header_stays_at_one_worker(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        router = await start_two("--worker", one.url, "--worker", other.url)
        clients = await connect(router.port)
        for session_id in (*ids_of(0, 2), *ids_of(1, 2)):
            asked = [client.request(json={"text": "hi"}, headers=[("x-session-id", session_id)]) for client in clients]
            answers = [await each for each in asked]
            assert {answer.status for answer in answers} == {200}
            assert len({answer.get("x-router-worker") for answer in answers}) == 1


async def test_turns_over_many_connections_make_one_whole_trace(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, *TITO)
        clients = await connect(router.port)
        for session_id in (*ids_of(0, 1), *ids_of(1, 1)):
            opened = await clients[0].request(target="/sessions", json={"session_id": session_id})
            assert opened.status == 200
            messages: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
            for turn, client in enumerate(clients):
                answer = await client.request(
                    target=f"/sessions/{session_id}{CHAT}", json={"model": "m", "messages": messages}, timeout_s=60
                )
                assert answer.status == 200, answer.body
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"turn {turn}"}]
            for client in clients:
                told = (await client.request("GET", f"/sessions/{session_id}")).json()
                assert told["session_id"] == session_id
                assert told["metadata"]["turns"] == len(clients)
                assert [len(each["records"]) for each in told["trajectories"]] == [len(clients)]
                assert told["trajectories"][0]["is_complete"], told["trajectories"][0]["reasons"]


async def test_sessions_are_opened_listed_and_deleted_through_any_process(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        clients = await connect(router.port)
        opened = [(await client.request(target="/sessions", json={})).json()["session_id"] for client in clients]
        named = [*ids_of(0, 2), *ids_of(1, 2)]
        for client, session_id in zip(clients, named, strict=False):
            opened.append(
                (await client.request(target="/sessions", json={"session_id": session_id})).json()["session_id"]
            )
        assert opened[-len(named) :] == named
        for client in clients:
            again = await client.request(target="/sessions", json={"session_id": named[0]})
            assert (again.status, again.get("x-router-error")) == (409, "session_exists")
            told = (await client.request("GET", "/sessions")).json()
            assert sorted(each["session_id"] for each in told["sessions"]) == sorted(opened)
            assert told["total"] == len(opened)
        for client, session_id in zip(clients, reversed(opened), strict=False):
            assert (await client.request("DELETE", f"/sessions/{session_id}")).status == 204
            gone = await client.request("GET", f"/sessions/{session_id}")
            assert (gone.status, gone.get("x-router-error")) == (404, "unknown_session")


async def test_the_base_url_of_a_forwarded_opening_is_the_clients_own(start_two: Any, connect: Connect) -> None:
    router = await start_two()
    for client in await connect(router.port):
        session_id = ids_of(0, 1)[0]
        answer = await client.request(target="/sessions", json={"session_id": session_id})
        if answer.status == 200:
            assert answer.json()["base_url"] == f"http://127.0.0.1:{router.port}/sessions/{session_id}/v1"
        assert (await client.request("DELETE", f"/sessions/{session_id}")).status == 204


async def test_a_client_that_leaves_stops_its_turn_in_the_owning_process(start_two: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        worker.hold()
        clients = [RawClient(router.port) for _ in range(8)]
        for client in clients:
            await client.__aenter__()
        asked = [
            asyncio.create_task(client.request(json={"text": "hi"}, headers=[("x-session-id", ids_of(0, 1)[0])]))
            for client in clients
        ]
        await worker.wait_for_requests(8)
        for client, task in zip(clients, asked, strict=True):
            task.cancel()
            await client.__aexit__(None, None, None)
        await asyncio.gather(*asked, return_exceptions=True)
        await worker.wait_until_idle()
        async with RawClient(router.port) as client:
            load = -1
            while load:
                load = (await client.request("GET", "/workers")).json()["workers"][0]["load"]


async def test_streams_and_uploads_pass_through_the_owner_byte_for_byte(start_two: Any, connect: Connect) -> None:
    sent = bytes(range(256)) * 4096
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--set", "enabled=[]")

        async def echo(request: Any, connection: Any) -> bool:
            await connection.begin(200, [("x-odd", "kept  as is")], content_type="application/octet-stream")
            for start in range(0, len(request.body), 50_000):
                await connection.write(request.body[start : start + 50_000])
            return bool(await connection.end())

        worker.handler = echo
        for client in await connect(router.port):
            answer = await client.request(target="/any/thing?x=1", body=sent, headers=[("x-session-id", "s")])
            assert answer.body == sent
            assert answer.get("x-odd") == "kept  as is"
        names = {name.lower() for request in worker.requests for name, _ in request.headers}
        assert not any(b"peer" in orjson.dumps(str(name)) for name in names)
        assert {request.get("x-forwarded-for") for request in worker.requests} == {"127.0.0.1"}
