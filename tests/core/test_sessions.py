"""Sessions over the wire: opening, turns, what is bound to them, closing, eviction."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import Exchange, OutcomeKind, PluginSettings, Reject, Session, hookimpl
from router_core.clock import Clock
from router_core.testing import Faults, RawAnswer, RawClient, ScriptedWorker, build_request, exchange_once, reply

Serve = Callable[..., Awaitable[Any]]
TURN = "/sessions/s/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def call(router: Any, method: str, target: str, body: Any = None, headers: Any = ()) -> RawAnswer:
    return await exchange_once(router.port, method, target, headers, json=body)


async def opened(router: Any, **body: Any) -> Any:
    answer = await call(router, "POST", "/sessions", {"session_id": "s", **body})
    assert answer.status == 200, answer.body
    return answer.json()


def code(answer: RawAnswer) -> str | None:
    return answer.get("x-router-error")


# -------------------------------------------------------------------------------------------------------------- opening
async def test_a_session_is_opened_with_its_base_url(serve: Serve) -> None:
    router = await serve()
    told = await opened(router)
    assert told == {"session_id": "s", "base_url": f"http://127.0.0.1:{router.port}/sessions/s/v1"}
    first, second = (
        (await call(router, "POST", "/sessions")).json(),
        (await call(router, "POST", "/sessions", {})).json(),
    )
    assert first["session_id"] != second["session_id"]
    listed = (await call(router, "GET", "/sessions")).json()
    assert listed["total"] == 3
    shown = (await call(router, "GET", "/sessions/s")).json()
    assert shown == {"session_id": "s", "profile": None, "inflight": 0, "closing": False}


async def test_an_open_id_again_is_a_conflict_and_free_after_its_end(serve: Serve) -> None:
    router = await serve()
    await opened(router)
    again = await call(router, "POST", "/sessions", {"session_id": "s"})
    assert (again.status, code(again)) == (409, "session_exists")
    assert (await call(router, "DELETE", "/sessions/s")).status == 204
    await opened(router)


@pytest.mark.parametrize("session_id", ["a", "A-z0.9_:-", "x" * 256])
async def test_ids_that_are_allowed(serve: Serve, session_id: str) -> None:
    router = await serve()
    assert (await call(router, "POST", "/sessions", {"session_id": session_id})).json()["session_id"] == session_id
    assert (await call(router, "GET", f"/sessions/{session_id}")).status == 200


@pytest.mark.parametrize("session_id", ["", "x" * 257, "a b", "a/b", "a\n", "é", "\ud800", "capabilities", 7, True])
async def test_ids_that_are_not(serve: Serve, session_id: Any) -> None:
    router = await serve()
    text = json.dumps({"session_id": session_id}).encode()
    answer = await exchange_once(router.port, "POST", "/sessions", body=text)
    assert (answer.status, code(answer), answer.json()["error"]["param"]) == (400, "bad_session_id", "session_id")


@pytest.mark.parametrize("session_id", ["a%20b", "a%0A", "%FF", "capabilities", "x" * 257, "", "%C3%A9"])
async def test_a_turn_of_an_id_that_cannot_be_is_the_clients_fault(serve: Serve, session_id: str) -> None:
    router = await serve()
    answer = await call(router, "POST", f"/sessions/{session_id}/generate", ASK)
    assert (answer.status, code(answer)) == (400, "bad_session_id")


@pytest.mark.parametrize("key", ["unknown", "Session_id", "sampling_params", "\ud800", ""])
async def test_a_key_that_nobody_takes_is_named(serve: Serve, key: str) -> None:
    router = await serve()
    answer = await exchange_once(router.port, "POST", "/sessions", body=json.dumps({key: 1}).encode())
    assert (answer.status, code(answer)) == (400, "unknown_key")
    assert json.loads(answer.body)["error"]["param"] == key
    assert (await call(router, "GET", "/sessions")).json()["total"] == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("request_id", "a\r\nevil: 1"),
        ("request_id", "é"),
        ("request_id", ""),
        ("request_id", " padded"),
        ("prompt_id", "x" * 1025),
        ("version_tag", {"a": 1}),
        ("trajectory_id", ["a"]),
        ("is_validate", 1.5),
        ("profile", 7),
        ("profile", "nobody"),
        ("cache_salt", ""),
        ("cache_salt", 7),
        ("cache_salt", "\ud800"),
        ("secret", "\udfff"),
        ("secret", ""),
    ],
)
async def test_a_bad_value_is_named(serve: Serve, key: str, value: Any) -> None:
    router = await serve()
    answer = await exchange_once(router.port, "POST", "/sessions", body=json.dumps({key: value}).encode())
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, key)
    assert (await call(router, "GET", "/sessions")).json()["total"] == 0


# ------------------------------------------------------------------------------------------------------------- turns
async def test_a_turn_reaches_the_worker_without_its_session(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        await opened(router)
        for method, rest, target in (
            ("POST", "/v1/chat/completions?a=%2F", b"/v1/chat/completions?a=%2F"),
            ("GET", "/v1/thing", b"/v1/thing"),
            ("POST", "/v1/v1/chat/completions", b"/v1/chat/completions"),
            ("POST", "//generate", b"//generate"),
            ("PUT", "/", b"/"),
            ("POST", "/sessions/t/generate", b"/sessions/t/generate"),
        ):
            assert (await call(router, method, f"/sessions/s{rest}", ASK)).status == 200
            request = worker.requests[-1]
            assert (request.method, request.target) == (method, target)
        assert (await call(router, "POST", "/sessions/%73/generate", ASK)).status == 200


async def test_bound_values_go_on_every_turn_and_a_turn_cannot_override_them(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        bound = {
            "request_id": "r-1",
            "prompt_id": 7,
            "version_tag": "12",
            "is_validate": False,
            "trajectory_id": "t-1",
            "is_sticky": True,
        }
        await opened(router, **bound)
        wanted = {
            "x-request-id": "r-1",
            "x-prompt-id": "7",
            "x-version-tag": "12",
            "x-is-validate": "false",
            "x-smg-tito-trajectory-id": "t-1",
            "x-is-sticky": "true",
            "x-smg-tito-session-id": "s",
        }
        for fields in ([], [(name.upper(), "mine") for name in wanted] + [("X-Own", "1")]):
            assert (await call(router, "POST", TURN, ASK, fields)).status == 200
            request = worker.requests[-1]
            assert {name: request.values(name) for name in wanted} == {k: [v] for k, v in wanted.items()}
            assert request.values("x-own") == (["1"] if fields else [])


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("/generate", "extra_key"),
        ("/v1/chat/completions", "cache_salt"),
        ("/v1/completions", "cache_salt"),
        ("/x", None),
    ],
)
async def test_the_cache_salt_goes_under_the_engines_own_name(serve: Serve, target: str, key: str | None) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        await opened(router, cache_salt='sa"lt é')
        body = b'{"text" : "x", "extra_key":"mine","cache_salt": "mine", "n": 1e-05}'
        await exchange_once(router.port, target=f"/sessions/s{target}", body=body)
        got = worker.requests[-1].body
        if key is None:
            assert got == body
        else:
            assert json.loads(got)[key] == 'sa"lt é'
            assert got.startswith(b'{"text" : "x", ')
            assert got.endswith(b', "n": 1e-05}')
            assert worker.requests[-1].get("content-length") == str(len(got))
        malformed = b'{"text": '
        await exchange_once(router.port, target=f"/sessions/s{target}", body=malformed)
        assert worker.requests[-1].body == malformed


async def test_a_secret_is_asked_for_and_never_forwarded_or_shown(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        await opened(router, secret="s3cret-é")
        for fields in ([], [("Authorization", "Bearer wrong")], [("Authorization", b"Bearer s3cret-\xe9")]):
            for target, more in ((TURN, []), ("/generate", [("X-Session-Id", "s")])):
                answer = await call(router, "POST", target, ASK, [*fields, *more])
                assert (answer.status, code(answer)) == (401, "wrong_secret")
                assert "s3cret" not in answer.body.decode()
        assert worker.requests == []
        right = [("Authorization", "Bearer s3cret-é".encode())]
        assert (await call(router, "POST", TURN, ASK, right)).status == 200
        assert worker.requests[0].get("authorization") is None
        for target in ("/sessions", "/sessions/s"):
            assert "s3cret" not in (await call(router, "GET", target)).body.decode()


async def test_an_unknown_session_is_a_404_on_the_path_only(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        answer = await call(router, "POST", TURN, ASK)
        assert (answer.status, code(answer)) == (404, "unknown_session")
        for name in ("X-Session-Id", "X-SMG-Tito-Session-Id", "X-SMG-Routing-Key"):
            assert (await call(router, "POST", "/generate", ASK, [(name, "never opened")])).status == 200
            assert worker.requests[-1].get(name) == "never opened"


async def test_a_session_is_found_by_path_then_by_the_list_of_headers(serve: Serve) -> None:
    seen: list[tuple[str | None, str | None]] = []

    class Sees:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            seen.append((exchange.session_id, exchange.session.id if exchange.session else None))

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Sees,))
        worker.handler = reply(b"{}")
        await opened(router)
        headers = [("X-SMG-Routing-Key", "r"), ("X-SMG-Tito-Session-Id", "t"), ("X-Session-Id", "s")]
        await call(router, "POST", TURN, ASK, [("X-Session-Id", "other")])
        await call(router, "POST", "/generate", ASK, headers)
        await call(router, "POST", "/generate", ASK, headers[:2])
        await call(router, "POST", "/generate", ASK, headers[:1])
        await call(router, "POST", "/generate", ASK, [("Authorization", "Bearer s"), ("Cookie", "session=s")])
        assert seen == [("s", "s"), ("s", "s"), ("t", None), ("r", None), (None, None)]


async def test_the_list_of_session_headers_is_a_setting(serve: Serve) -> None:
    seen: list[str | None] = []

    class Sees:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            seen.append(exchange.session_id)

    router = await serve(classes=(Sees,), router={"session_headers": ["X-Mine"]})
    await call(router, "POST", "/generate", ASK, [("X-Session-Id", "a"), ("x-mine", "b")])
    assert seen == ["b"]


# ------------------------------------------------------------------------------------------------------------- closing
async def running_turn(router: Any, worker: ScriptedWorker) -> asyncio.Task[RawAnswer]:
    worker.fault(Faults.hold(release := asyncio.Event()))
    count = len(worker.requests)
    turn = asyncio.create_task(call(router, "POST", TURN, ASK))
    turn.release = release  # type: ignore[attr-defined]
    await worker.wait_for_requests(count + 1)
    return turn


async def test_a_delete_waits_for_the_running_turn_and_refuses_new_ones(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}")
        await opened(router)
        turn = await running_turn(router, worker)
        assert (await call(router, "GET", "/sessions/s")).json()["inflight"] == 1
        deleting = [asyncio.create_task(call(router, "DELETE", "/sessions/s")) for _ in range(2)]
        session = router.application.sessions.get("s")
        while not session.closing:  # noqa: ASYNC110  # the call begins in the server
            await asyncio.sleep(0)
        refused = await call(router, "POST", TURN, ASK)
        assert (refused.status, code(refused)) == (409, "session_closing")
        reopened = await call(router, "POST", "/sessions", {"session_id": "s"})
        assert (reopened.status, code(reopened)) == (409, "session_exists")
        turn.release.set()
        assert (await turn).status == 200
        for answer in await asyncio.gather(*deleting):
            assert (answer.status, answer.body, answer.get("x-router-cancelled-turns")) == (204, b"", None)
        gone = await call(router, "POST", TURN, ASK)
        assert (gone.status, code(gone)) == (404, "unknown_session")


async def test_turns_that_outlast_the_deadline_are_cancelled_and_counted(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"session_close_timeout_s": 0.05})
        await opened(router)
        turns = [await running_turn(router, worker) for _ in range(2)]
        answer = await call(router, "DELETE", "/sessions/s")
        assert (answer.status, answer.get("x-router-cancelled-turns")) == (204, "2")
        for turn in turns:
            cut = await turn
            assert (cut.status, code(cut)) == (409, "session_closed")
        await worker.wait_until_idle()
        await router.ends.wait(2)
        assert [outcome.kind for outcome in router.ends.outcomes] == [OutcomeKind.REJECTED] * 2


async def test_a_delete_that_does_not_wait_cuts_and_a_waiting_one_returns_with_it(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"session_close_timeout_s": 3600})
        await opened(router)
        turn = await running_turn(router, worker)
        waiting = asyncio.create_task(call(router, "DELETE", "/sessions/s"))
        session = router.application.sessions.get("s")
        while not session.closing:  # noqa: ASYNC110
            await asyncio.sleep(0)
        answer = await call(router, "DELETE", "/sessions/s?wait=false")
        assert (answer.status, answer.get("x-router-cancelled-turns")) == (204, "1")
        assert (await waiting).status == 204
        assert (await turn).status == 409


async def test_a_cancelled_stream_is_broken_not_ended(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        await opened(router)
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(target=TURN, json={**ASK, "stream": True}))
            answer = await client.read_head()
            await client.read_piece(answer)
            assert (await call(router, "DELETE", "/sessions/s?wait=false")).status == 204
            await client.read_body(answer)
            assert answer.clean is False


async def test_a_late_end_of_a_turn_touches_no_session_opened_later_with_its_id(serve: Serve) -> None:
    leaving = asyncio.Event()

    class Lingers:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Any:
            try:
                return await call_next(exchange)
            except asyncio.CancelledError:
                if exchange.session is not None and "x-late" in exchange.request.headers:
                    await leaving.wait()
                raise

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Lingers,))
        worker.handler = reply(b"{}")
        await opened(router)
        worker.fault(Faults.stall())
        turn = asyncio.create_task(call(router, "POST", TURN, ASK, [("X-Late", "1")]))
        await worker.wait_for_requests(1)
        old = router.application.sessions.get("s")
        assert (await call(router, "DELETE", "/sessions/s?wait=false")).status == 204
        await opened(router)
        new = router.application.sessions.get("s")
        assert (new is old, old.inflight, new.inflight) == (False, 1, 0)
        touched = new.last_used_at
        leaving.set()
        assert (await turn).status == 409
        await router.settle()
        assert (old.inflight, new.inflight, new.closing, new.last_used_at) == (0, 0, False, touched)
        assert (await call(router, "POST", TURN, ASK)).status == 200


# -------------------------------------------------------------------------------------------------------------- plugins
class Keeps:
    """Takes a key, describes it, and notes what closes."""

    class Settings(PluginSettings):
        pass

    closed: list[tuple[str, str]] = []  # noqa: RUF012  # one for the whole test, set anew by it

    def __init__(self, settings: Settings) -> None:
        self.notes: dict[str, Any] = {}

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> list[str]:
        if body.get("note") == "bad":
            raise Reject(422, "bad_note", "no such note", "note")
        self.notes[session.id] = body.get("note")
        return ["note"]

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any]:
        return {"note": self.notes.get(session.id), "session_id": "not mine to say"}

    @hookimpl
    def session_closed(self, session: Session, reason: str) -> None:
        type(self).closed.append((session.id, reason))


async def test_plugins_take_keys_describe_refuse_and_hear_of_the_end(serve: Serve) -> None:
    class Kept(Keeps):
        closed: list[tuple[str, str]] = []  # noqa: RUF012

    class Later:
        @hookimpl
        def describe_session(self) -> dict[str, Any]:
            return {"note": "of a later plugin", "more": 1}

    router = await serve(classes=(Kept, Later))
    await opened(router, note="n")
    shown = (await call(router, "GET", "/sessions/s")).json()
    assert (shown["session_id"], shown["note"], shown["more"]) == ("s", "n", 1)
    refused = await call(router, "POST", "/sessions", {"session_id": "t", "note": "bad"})
    assert (refused.status, code(refused)) == (422, "bad_note")
    unknown = await call(router, "POST", "/sessions", {"session_id": "u", "note": "n", "other": 1})
    assert (unknown.status, code(unknown)) == (400, "unknown_key")
    assert (await call(router, "DELETE", "/sessions/s")).status == 204
    assert Kept.closed == [("t", "refused"), ("u", "refused"), ("s", "deleted")]


async def test_a_session_is_bound_to_its_profile(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, profiles={"quiet": {"disable": ["ends"]}})
        worker.handler = reply(b"{}")
        await opened(router, profile="quiet")
        await call(router, "POST", TURN, ASK)
        assert router.ends.outcomes == []
        await call(router, "POST", TURN, ASK, [("X-Router-Plugins", "+ends")])
        await router.ends.wait(1)
        assert (await call(router, "GET", "/sessions/s")).json()["profile"] == "quiet"


# -------------------------------------------------------------------------------------------------------------- bounds
class TurnedClock(Clock):
    """Time as a test says."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


async def test_idle_sessions_are_evicted_and_say_so(serve: Serve) -> None:
    clock = TurnedClock()
    async with ScriptedWorker() as worker:
        router = await serve(worker, clock=clock, router={"session_ttl_s": 10})
        worker.handler = reply(b"{}")
        for name in ("a", "b", "c"):
            await call(router, "POST", "/sessions", {"session_id": name})
        clock.time_s = 8
        await call(router, "POST", "/sessions/b/generate", ASK)
        await router.settle()
        clock.time_s = 11
        router.application.sessions.sweep()
        listed = (await call(router, "GET", "/sessions")).json()["sessions"]
        assert [session["session_id"] for session in listed] == ["b"]
        for method, target in (("POST", "/sessions/a/generate"), ("GET", "/sessions/a"), ("DELETE", "/sessions/a")):
            answer = await call(router, method, target)
            assert (answer.status, code(answer)) == (410, "session_evicted")
            assert "router.session_ttl_s" in answer.json()["error"]["message"]
        assert (await call(router, "POST", "/generate", ASK, [("X-Session-Id", "a")])).status == 200
        await call(router, "POST", "/sessions", {"session_id": "a"})
        assert (await call(router, "POST", "/sessions/a/generate", ASK)).status == 200


async def test_a_session_that_runs_is_not_evicted(serve: Serve) -> None:
    clock = TurnedClock()
    async with ScriptedWorker() as worker:
        router = await serve(worker, clock=clock, router={"session_ttl_s": 10, "max_sessions": 1})
        worker.handler = reply(b"{}")
        await opened(router)
        turn = await running_turn(router, worker)
        clock.time_s = 100
        router.application.sessions.sweep()
        full = await call(router, "POST", "/sessions", {"session_id": "t"})
        assert (full.status, code(full)) == (503, "too_many_sessions")
        turn.release.set()
        assert (await turn).status == 200
        await router.settle()
        assert (await call(router, "POST", "/sessions", {"session_id": "t"})).status == 200
        gone = await call(router, "POST", TURN, ASK)
        assert (gone.status, code(gone)) == (410, "session_evicted")
        assert "router.max_sessions" in gone.json()["error"]["message"]


async def test_the_longest_idle_session_makes_room(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"max_sessions": 2})
        worker.handler = reply(b"{}")
        for name in ("a", "b"):
            await call(router, "POST", "/sessions", {"session_id": name})
        await call(router, "POST", "/sessions/a/generate", ASK)
        await router.settle()
        await call(router, "POST", "/sessions", {"session_id": "c"})
        listed = (await call(router, "GET", "/sessions")).json()["sessions"]
        assert [session["session_id"] for session in listed] == ["a", "c"]
