"""Which plugins run for a request: the process's own, a profile's, a session's, a header's."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import Exchange, PluginSettings, Reject, hookimpl, per_exchange
from router_core.plan import LoadedPlugin
from router_core.plans import MAX_PLANS, Plans, Profile
from router_core.testing import ScriptedWorker, exchange_once, reply

Serve = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}


def noting(name: str, seen: list[str]) -> type[Any]:
    class Notes:
        @hookimpl
        async def request_start(self) -> None:
            seen.append(name)

    return type(name.title(), (Notes,), {})


@pytest.fixture
def seen() -> list[str]:
    return []


async def ran(router: Any, seen: list[str], *fields: tuple[str, str], target: str = "/generate") -> str:
    """The plugins that ran for one request, in order."""
    seen.clear()
    answer = await exchange_once(router.port, target=target, headers=fields, json=ASK)
    assert answer.status == 200, answer.body
    return "".join(seen)


async def test_headers_profiles_and_sessions_choose_among_what_is_loaded(serve: Serve, seen: list[str]) -> None:
    classes = tuple(noting(name, seen) for name in "abc")
    profiles = {"few": {"disable": ["b", "c"]}, "most": {"disable": ["a"]}, "more": {"enable": ["round_robin"]}}
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=classes, profiles=profiles)
        worker.handler = reply(b"{}")
        assert await ran(router, seen) == "abc"
        assert await ran(router, seen, ("X-Router-Plugins", "-b")) == "ac"
        assert await ran(router, seen, ("X-Router-Plugins", " -a , -c ,, +c")) == "bc"
        assert await ran(router, seen, ("X-Router-Plugins", "")) == "abc"
        assert await ran(router, seen, ("X-Router-Plugins", "-a,+a,-a,+a")) == "abc"
        assert await ran(router, seen, ("X-Router-Profile", "few")) == "a"
        assert await ran(router, seen, ("X-Router-Profile", "few"), ("X-Router-Plugins", "+c")) == "ac"
        assert await ran(router, seen, ("X-Router-Profile", "more")) == "abc"
        await exchange_once(router.port, "POST", "/sessions", json={"session_id": "s", "profile": "few"})
        turn = "/sessions/s/generate"
        assert await ran(router, seen, target=turn) == "a"
        assert await ran(router, seen, ("X-Session-Id", "s")) == "a"
        assert await ran(router, seen, ("X-Router-Profile", "most"), target=turn) == "bc"
        assert await ran(router, seen, ("X-Router-Plugins", "+b,-a"), target=turn) == "b"
        assert not [n for r in worker.requests for n, _ in r.headers if n.lower().startswith(b"x-router")]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x-router-plugins", "+nobody", "unknown_plugin"),
        ("x-router-plugins", "a", "unknown_plugin"),
        ("x-router-plugins", "+", "unknown_plugin"),
        ("x-router-plugins", "-a;+b", "unknown_plugin"),
        ("x-router-plugins", "+A", "unknown_plugin"),
        ("x-router-profile", "nobody", "unknown_profile"),
        ("x-router-profile", "Few", "unknown_profile"),
    ],
)
async def test_unknown_names_are_the_clients_fault(
    serve: Serve, seen: list[str], name: str, value: str, code: str
) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(noting("a", seen),), profiles={"few": {}})
        answer = await exchange_once(router.port, headers=[(name, value)], json=ASK)
        assert (answer.status, answer.get("x-router-error"), answer.json()["error"]["param"]) == (400, code, name)
        assert (worker.requests, seen) == ([], [])


async def test_a_plugin_that_is_installed_and_not_loaded_is_told_from_one_that_is_not_there(
    serve: Serve, seen: list[str]
) -> None:
    router = await serve(classes=(noting("a", seen),))
    answer = await exchange_once(router.port, headers=[("x-router-plugins", "+tito")], json=ASK)
    assert (answer.status, answer.get("x-router-error")) == (400, "unknown_plugin")
    assert answer.json()["error"]["message"] == (
        "'tito' is installed but not loaded: name it in router.available, then start anew"
    )


class Limits:
    """Reads its own settings as they hold for the exchange."""

    class Settings(PluginSettings):
        limit: int = per_exchange(10)
        unit: str = "s"

    seen: list[tuple[int, str]] = []  # noqa: RUF012  # set anew by the test

    def __init__(self, settings: Settings) -> None:
        pass

    @hookimpl
    async def request_start(self, exchange: Exchange) -> None:
        settings = exchange.settings(self)
        type(self).seen.append((settings.limit, settings.unit))


async def test_a_profile_overrides_settings_for_its_exchanges_alone(serve: Serve) -> None:
    class Limit(Limits):
        seen: list[tuple[int, str]] = []  # noqa: RUF012

    profiles = {"low": {"plugins": {"limit": {"limit": 3}}}, "same": {}}
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Limit,), profiles=profiles, plugins={"limit": {"unit": "ms"}})
        for profile in (None, "low", "same", "low", None):
            fields = [] if profile is None else [("X-Router-Profile", profile)]
            await exchange_once(router.port, headers=fields, json=ASK)
        assert Limit.seen == [(10, "ms"), (3, "ms"), (10, "ms"), (3, "ms"), (10, "ms")]


async def test_settings_of_another_plugin_are_not_to_be_had(serve: Serve) -> None:
    errors: list[type[Exception]] = []

    class Asks:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            try:
                exchange.settings(object())
            except Exception as error:  # noqa: BLE001  # whatever it is
                errors.append(type(error))

    router = await serve(classes=(Asks,))
    await exchange_once(router.port, json=ASK)
    assert errors == [KeyError]


# ------------------------------------------------------------------------------------------------ plans by themselves
def plans(enabled: str = "ab", profile: str | None = None, **profiles: Profile) -> Plans:
    loaded = [LoadedPlugin(name, object(), PluginSettings(), "d", "1", "fail") for name in "abc"]
    return Plans(loaded, list(enabled), profiles, profile=profile, hook_timeout_s=1)


def profile_of(enable: str = "", disable: str = "") -> Profile:
    return Profile(frozenset(enable), frozenset(disable), {})


def test_a_plan_is_compiled_once() -> None:
    some = plans(p=profile_of("c", "a"))
    assert some.of("p", None) is some.of("p", None)
    assert some.of("p", "+a") is some.of("p", "+a")
    assert some.of("p", None).names == ("b", "c")
    assert some.of(None, None) is some.default
    assert some.all.names == ("a", "b", "c")


def test_the_process_may_have_a_profile() -> None:
    some = plans(profile="p", p=profile_of(disable="a"), q=profile_of("c"))
    assert some.default.names == ("b",)
    assert some.of("q", None).names == ("a", "b", "c")
    assert some.of(None, "+a").names == ("a", "b")


def test_the_number_of_kept_plans_is_bounded() -> None:
    some = plans()
    for number in range(MAX_PLANS * 2):
        assert some.of(None, ",".join(["+a"] * number)).names == ("a", "b")
    assert len(some._plans) <= MAX_PLANS
    assert some.default.names == ("a", "b")


def test_a_header_without_end_is_refused_or_compiled_but_never_kept_wrong() -> None:
    some = plans()
    with pytest.raises(Reject, match="is not \\+ or - and the name"):
        some.of(None, "+a," * 1000 + "+zzz")
    assert some.of(None, "+c," * 1000).names == ("a", "b", "c")
