"""The router's own routes: at an address of their own, behind a token; and which workers may register."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_core import ConfigError, hookimpl, serving
from router_core.app import Application
from router_core.config import load
from router_core.introspection import explain
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

ASK: dict[str, Any] = {"text": "hi"}
TOKEN = "t0p-secret-token"
BEARER = [("authorization", f"Bearer {TOKEN}")]
PROBES = ["/health", "/liveness", "/readiness"]
OWN = [
    ("GET", "/workers"),
    ("POST", "/add_worker?url=http://127.0.0.1:1"),
    ("GET", "/list_workers"),
    ("POST", "/workers/update_stats"),
    ("POST", "/sessions"),
    ("GET", "/sessions"),
    ("GET", "/sessions/s1"),
    ("DELETE", "/sessions/s1"),
    ("GET", "/plugins"),
    ("POST", "/admin/reload"),
    ("POST", "/pause_generation"),
    ("GET", "/metrics"),
    ("GET", "/plugins/shows/it"),
    ("GET", "/%77orkers"),
]
ENABLED = ("engine_control", "metrics")


class Shows:
    @hookimpl
    def routes(self) -> list[Route]:
        return [Route("/plugins/shows/it", lambda request: JSONResponse("shown"), methods=["GET"])]


# ------------------------------------------------------------------------------------------------------------ token
@pytest.mark.parametrize(("method", "target"), OWN)
async def test_every_route_of_the_router_asks_for_the_token(method: str, target: str) -> None:
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=ENABLED, classes=[Shows], router={"admin_token": TOKEN}) as router,
    ):
        for headers in ([], [("authorization", "Bearer wrong")], [("authorization", f"Basic {TOKEN}")]):
            refused = await exchange_once(router.port, method, target, headers)
            assert (refused.status, refused.json()["error"]["code"]) == (401, "unauthorized")
            assert refused.get("www-authenticate") == "Bearer" and refused.get("x-router-error") == "unauthorized"
        assert (await exchange_once(router.port, method, target, BEARER)).status not in (401, 502)
        assert worker.requests == [] or target == "/pause_generation"


async def test_probes_turns_and_what_is_proxied_need_no_token() -> None:
    async with ScriptedWorker() as worker, running_router([worker.url], router={"admin_token": TOKEN}) as router:
        for path in PROBES:
            assert (await exchange_once(router.port, "GET", path)).status == 200
        opened = await exchange_once(router.port, "POST", "/sessions", BEARER, json={"session_id": "s1"})
        assert opened.status == 200
        assert (await exchange_once(router.port, target="/sessions/s1/generate", json=ASK)).status == 200
        mine = [("authorization", "Bearer of-the-engine")]
        assert (await exchange_once(router.port, headers=mine, json=ASK)).status == 200
        assert worker.requests[-1].get("authorization") == "Bearer of-the-engine"


def test_the_token_is_shown_nowhere() -> None:
    config = load(file="", environment={"ROUTER__ADMIN_TOKEN": "1e5"})
    assert config.router.admin_token is not None and config.router.admin_token.get_secret_value() == "1e5"
    application = Application(config)
    assert "1e5" not in explain(config, application.registry) + repr(config) + repr(application.router.args)
    with pytest.raises(ConfigError, match=r"router.admin_token: .*a token is printable ASCII without spaces") as error:
        load(file="", environment={"ROUTER__ADMIN_TOKEN": "my secret"})
    assert "my secret" not in str(error.value)


# ---------------------------------------------------------------------------------------------------- other address
async def test_at_the_address_for_turns_there_are_turns_and_probes_alone() -> None:
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=ENABLED, classes=[Shows], router={"admin_port": 0}) as router,
    ):
        assert router.admin_port != router.port
        for method, target in OWN:
            refused = await exchange_once(router.port, method, target)
            assert (refused.status, refused.json()["error"]["code"]) == (404, "not_found"), target
        assert worker.requests == [] and len(router.router.workers.ready()) == 1
        for path in PROBES:
            assert (await exchange_once(router.port, "GET", path)).status == 200
            assert (await exchange_once(router.admin_port, "GET", path)).status == 200
        opened = await exchange_once(router.admin_port, "POST", "/sessions", json={"session_id": "s1"})
        assert opened.json()["base_url"] == f"http://127.0.0.1:{router.port}/sessions/s1/v1"
        assert (await exchange_once(router.port, target="/sessions/s1/generate", json=ASK)).status == 200
        assert (await exchange_once(router.admin_port, "GET", "/plugins/shows/it")).json() == "shown"


async def test_both_addresses_and_a_token_go_together() -> None:
    config = {"enabled": [], "router": {"admin_host": "127.0.0.1", "admin_port": 0, "admin_token": TOKEN}}
    async with serving(config) as router:
        assert (await exchange_once(router.port, "GET", "/workers", BEARER)).status == 404
        assert (await exchange_once(router.admin_port, "GET", "/workers")).status == 401
        assert (await exchange_once(router.admin_port, "GET", "/workers", BEARER)).status == 200


@pytest.mark.parametrize(
    ("router", "told"),
    [
        ({"admin_host": "127.0.0.1"}, "router.admin_host: needs router.admin_port beside it"),
        ({"admin_port": 8000}, "router.admin_port: must differ from router.port"),
    ],
)
def test_addresses_that_cannot_be_told_apart_are_an_error(router: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Application(load({f"router.{key}": value for key, value in router.items()}, file="", environment={}))


@pytest.mark.parametrize(
    ("router", "warns"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "admin_token": TOKEN}, False),
        ({"host": "0.0.0.0", "admin_host": "127.0.0.1", "admin_port": 0}, False),
        ({"admin_host": "0.0.0.0", "admin_port": 0}, True),
        ({}, False),
    ],
)
async def test_a_wide_open_router_says_so_loudly(
    router: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving({"enabled": [], "router": router}):
        pass
    assert ("MAY CONTROL THIS ROUTER" in caplog.text) is warns


# ---------------------------------------------------------------------------------------------------------- workers
HOSTS = ["127.0.0.1", "*.cluster.local", "10.1.0.0/16", "fd00::/8"]


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("http://127.0.0.1:1", True),
        ("http://a.cluster.local:1", True),
        ("http://A.Cluster.Local", True),
        ("http://10.1.200.3:30000@1", True),
        ("http://[fd00::1]:1", True),
        ("http://10.2.0.1:1", False),
        ("http://cluster.local", False),
        ("http://evilcluster.local", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://169.254.169.254", False),
        ("https://127.0.0.1:1", False),
    ],
)
async def test_only_allowed_workers_may_register(url: str, is_allowed: bool) -> None:
    async with running_router(enabled=(), router={"worker_schemes": ["http"], "worker_hosts": HOSTS}) as router:
        for method, target, body in (
            ("POST", f"/add_worker?url={url}", None),
            ("POST", "/workers", {"url": url}),
            ("PUT", "/workers", [url]),
        ):
            answer = await exchange_once(router.port, method, target, json=body)
            if is_allowed:
                assert answer.status < 300
            else:
                assert (answer.status, answer.json()["error"]["code"]) == (400, "worker_not_allowed")
                assert "router.worker_" in answer.json()["error"]["message"]
                assert len(router.router.workers) == 0


@pytest.mark.parametrize(
    ("router", "told"),
    [
        ({"workers": ["http://10.2.0.1:1"], "worker_hosts": ["10.1.0.0/16"]}, r"router.workers: .*router.worker_hosts"),
        ({"workers": ["http://a:1"], "worker_schemes": ["https"]}, r"router.workers: .*\(router.worker_schemes\)"),
        ({"worker_hosts": ["10.1.0.0/99"]}, "router.worker_hosts: no host and no network: '10.1.0.0/99'"),
    ],
)
def test_a_worker_that_is_not_allowed_stops_the_start(router: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Application(load({f"router.{key}": value for key, value in router.items()}, file="", environment={}))
