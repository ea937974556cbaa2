"""Hooks outside a request: start and stop, routes in their places, changes of workers, tokenizers."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from router_core import ConfigError, Router, Worker, WorkerState, hookimpl
from router_core.app import Application
from router_core.config import load
from router_core.testing import ScriptedWorker, exchange_once, reply
from router_core.testing.router import _importable, running_router

Serve = Callable[..., Awaitable[Any]]


async def say(request: Any) -> JSONResponse:
    return JSONResponse({"path": request.url.path, "params": dict(request.path_params)})


def routed(*routes: Any, name: str = "routed") -> type[Any]:
    class Routed:
        @hookimpl
        def routes(self) -> Any:
            return list(routes)

    Routed.name = name  # type: ignore[attr-defined]
    return Routed


def application(*classes: type[Any]) -> Application:
    router = {"middleware_paths": [_importable(cls) for cls in classes]}
    return Application(load({"enabled": [], "router": router}, file="", environment={}))


def refused(*classes: type[Any]) -> str:
    with pytest.raises(ConfigError) as error:
        application(*classes)
    return str(error.value)


# -------------------------------------------------------------------------------------------------------------- routes
async def test_routes_in_their_places_are_served_and_nothing_else_is_taken(serve: Serve) -> None:
    plugin = routed(
        Route("/plugins/routed/table", say, methods=["GET"]),
        Route("/plugins/routed/table/{row}", say, methods=["GET", "DELETE"]),
        Route("/sessions/{session_id}/trace", say, methods=["GET"]),
        Route("/sessions/{session_id}/trace/{part:path}", say, methods=["GET"]),
    )
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plugin,))
        worker.handler = reply(b"of the worker")
        for target, params in (
            ("/plugins/routed/table", {}),
            ("/plugins/routed/table/a%20b", {"row": "a b"}),
            ("/sessions/s/trace", {"session_id": "s"}),
            ("/sessions/s/trace/a/b", {"session_id": "s", "part": "a/b"}),
        ):
            answer = await exchange_once(router.port, "GET", target)
            assert (answer.status, answer.json()["params"]) == (200, params)
        wrong = await exchange_once(router.port, "POST", "/plugins/routed/table")
        assert (wrong.status, wrong.get("x-router-error")) == (405, "method_not_allowed")
        unknown = await exchange_once(router.port, "GET", "/plugins/routed/other")
        assert (unknown.status, unknown.get("x-router-error")) == (404, "not_found")
        assert worker.requests == []
        await exchange_once(router.port, "POST", "/sessions", json={"session_id": "s"})
        for target in ("/sessions/s/tracer", "/trace", "/table"):
            assert (await exchange_once(router.port, "POST", target)).body == b"of the worker"


@pytest.mark.parametrize(
    "path",
    [
        "/mine",
        "/",
        "/generate",
        "/v1/chat/completions",
        "/plugins",
        "/plugins/",
        "/plugins/routed",
        "/plugins/other/x",
        "/plugins/routedx/x",
        "/plugins/{name}/x",
        "/workers/mine",
        "/sessions/{id}",
        "/sessions/{id}/{rest}",
        "/sessions/{id}/{rest:path}",
        "/sessions/mine/x",
        "/{anything:path}",
        "/health",
    ],
)
def test_a_route_outside_its_place_is_refused(path: str) -> None:
    line = refused(routed(Route(path, say)))
    assert "plugin 'routed'" in line
    assert "must be below /plugins/routed/" in line or "claimed by the core already" in line


def test_a_route_that_another_claims_is_refused() -> None:
    first = routed(Route("/sessions/{id}/trace", say, methods=["GET"]), name="first")
    second = routed(Route("/sessions/{session_id}/trace", say, methods=["GET"]), name="second")
    assert "GET /sessions/{}/trace is claimed by plugin 'first' already" in refused(first, second)
    other = routed(Route("/sessions/{id}/trace", say, methods=["DELETE"]), name="second")
    application(first, other)


def test_a_mount_is_allowed_below_the_plugins_own_place() -> None:
    application(routed(Mount("/plugins/routed/files", routes=[Route("/x", say)])))
    assert "must be below" in refused(routed(Mount("/files", routes=[Route("/x", say)])))


@pytest.mark.parametrize("routes", [7, ["/plugins/routed/x"], [None], "text"])
def test_what_are_no_routes_is_refused(routes: Any) -> None:
    class Wrong:
        @hookimpl
        def routes(self) -> Any:
            return routes

    line = refused(Wrong)
    assert "gives no routes" in line or "is no Starlette route" in line


def test_routes_that_raise_are_refused() -> None:
    class Wrong:
        @hookimpl
        def routes(self) -> Any:
            raise ValueError("no routes today")

    assert "plugin 'wrong' gives no routes: ValueError('no routes today')" in refused(Wrong)


# ------------------------------------------------------------------------------------------------------ start and stop
async def test_plugins_start_in_order_and_stop_in_reverse_and_one_that_fails_stops_no_other() -> None:
    seen: list[str] = []

    def plugin(name: str, *, fails: bool = False) -> type[Any]:
        class Plugin:
            @hookimpl
            async def startup(self, router: Router) -> None:
                seen.append(f"start {name}")

            @hookimpl
            async def shutdown(self) -> None:
                seen.append(f"stop {name}")
                if fails:
                    raise ValueError("at the end")

        return type(name, (Plugin,), {})

    async with running_router(classes=(plugin("A"), plugin("B", fails=True), plugin("C")), enabled=()):
        assert seen == ["start A", "start B", "start C"]
    assert seen[3:] == ["stop C", "stop B", "stop A"]


async def test_a_plugin_that_does_not_start_stops_the_router() -> None:
    class Wrong:
        @hookimpl
        async def startup(self) -> None:
            raise ValueError("no such model")

    with pytest.raises(ConfigError, match="plugin 'wrong' did not start: ValueError"):
        async with running_router(classes=(Wrong,), enabled=()):
            pass


async def test_available_plugins_start_although_nothing_enables_them() -> None:
    async with running_router(enabled=(), router={"available": ["health"]}) as router:
        assert router.application.plans.default.names == ()
        assert [plugin.name for plugin in router.application.registry.plugins] == ["health"]


# ----------------------------------------------------------------------------------------------------------- observers
async def test_changes_of_workers_are_told_and_one_that_raises_is_counted(serve: Serve) -> None:
    seen: list[tuple[str, str | None, str]] = []

    class Raises:
        @hookimpl
        def worker_changed(self) -> None:
            raise ValueError("an observer")

    class Sees:
        @hookimpl
        def worker_changed(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
            seen.append((worker.url, old and str(old), str(new)))

    router = await serve("http://h:1", classes=(Raises, Sees))
    workers = router.application.workers
    worker = workers.get("http://h:1")
    workers.quarantine(worker, worker.generation, "for a test")
    assert workers.quarantine(worker, worker.generation, "again") is False
    workers.restore(worker, worker.generation)
    workers.remove(worker)
    assert seen == [
        ("http://h:1", None, "ready"),
        ("http://h:1", "ready", "quarantined"),
        ("http://h:1", "quarantined", "ready"),
        ("http://h:1", "ready", "removed"),
    ]
    (plugin,) = [p for p in router.application.registry.plugins if p.name == "raises"]
    assert plugin.errors == {"worker_changed": 4}


def test_the_first_tokenizer_wins() -> None:
    def offering(name: str, found: Any) -> type[Any]:
        class Offers:
            @hookimpl
            def tokenizer(self, name: str | None) -> Any:
                return found

        return type(name, (Offers,), {})

    app = application(offering("First", None), offering("Second", "t"), offering("Third", "u"))
    assert app.outside.find_tokenizer("model") == "t"


def test_metrics_of_all_plugins_are_joined_and_those_that_fail_left_out() -> None:
    def telling(name: str, tell: Callable[[], Any]) -> type[Any]:
        class Tells:
            @hookimpl
            def metrics(self) -> Any:
                return tell()

        return type(name, (Tells,), {})

    app = application(
        telling("First", lambda: "a 1"),
        telling("Second", lambda: 1 / 0),
        telling("Third", lambda: None),
        telling("Fourth", lambda: 7),
        telling("Fifth", lambda: "b 2\n"),
    )
    assert app.outside.metrics() == "a 1\nb 2\n"
    assert app.outside.errors() == {("second", "metrics"): 1, ("fourth", "metrics"): 1}
