"""What a person can see: GET /plugins, check --explain, check --schema, traced hooks, and who blocks the loop."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr

import router_core
from router_core import ConfigError, PluginSettings, Router, hookimpl, hookspecs, per_exchange
from router_core.app import Application
from router_core.build import build_name
from router_core.cli import main
from router_core.config import Config, load
from router_core.introspection import explain, schema
from router_core.loaded_plugin import LoadedPlugin
from router_core.stalls import StallWatch
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import _importable, running_router

ROOT = Path(__file__).parents[2]


class Secretive:
    class Settings(PluginSettings):
        key: SecretStr = SecretStr("hidden-by-default")
        """A secret."""

    def __init__(self, settings: Settings) -> None: ...

    @hookimpl
    async def startup(self, router: Router) -> None:
        router.time_hooks()

    @hookimpl
    async def request_start(self) -> None: ...


async def test_plugins_are_shown_with_everything_but_secrets() -> None:
    profiles = {"quiet": {"disable": ["secretive"]}, "loud": {"enable": ["round_robin"]}}
    async with (
        ScriptedWorker() as worker,
        running_router(
            [worker.url],
            enabled=["least_inflight"],
            classes=[Secretive],
            plugins={"secretive": {"key": "s3cret-value"}},
            profiles=profiles,
        ) as router,
    ):
        for _ in range(3):
            await exchange_once(router.port, json={"text": "hi"})
        answer = await exchange_once(router.port, "GET", "/plugins")
    assert b"s3cret" not in answer.body and b"hidden-by" not in answer.body
    assert answer.json()["build"] == build_name()
    told = {plugin["name"]: plugin for plugin in answer.json()["plugins"]}
    secretive = told["secretive"]
    assert (secretive["order"], secretive["hooks"]) == (2, ["request_start", "startup"])
    assert secretive["settings"] == {"weight": 1.0, "key": "**********"}
    assert secretive["on"] == {"default": True, "profiles": ["loud"]}
    assert secretive["hook_times"]["request_start"]["calls"] == 3
    assert told["round_robin"]["on"] == {"default": False, "profiles": ["loud"]}
    assert told["least_inflight"]["distribution"] == "router-core"
    assert told["tito"] == {"name": "tito", "version": "0.1.0", "distribution": "router-core", "loaded": False}


# ---------------------------------------------------------------------------------------------------------- check
def test_each_setting_is_explained_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plugins.toml"
    file.write_text('enabled = ["health"]\n[plugins.health]\ninterval_s = 3\n[router]\nport = 1\n', encoding="utf-8")
    monkeypatch.setenv("ROUTER__PLUGINS__HEALTH__TIMEOUT_S", "4")
    config = load({"router.port": 2}, settings=["plugins.health.max_failures=5"], file=str(file))
    lines = explain(config, Application(config).registry).splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert rows["enabled"] == ['["health"]', str(file)]
    assert rows["router.port"] == ["2", "--port"]
    assert rows["router.host"] == ['"127.0.0.1"', "default"]
    assert rows["plugins.health.interval_s"] == ["3.0", str(file)]
    assert rows["plugins.health.timeout_s"] == ["4.0", "environment variable ROUTER__PLUGINS__HEALTH__TIMEOUT_S"]
    assert rows["plugins.health.max_failures"] == ["5", "--set plugins.health.max_failures"]
    assert rows["plugins.health.weight"] == ["1.0", "default"]


def test_the_command_explains(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--explain", "--port", "1234"]) == 0
    assert "router.port" in (said := capsys.readouterr().out) and "--port" in said


def test_the_schema_knows_every_installed_plugins_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == schema()
    plugins = told["properties"]["plugins"]["properties"]
    assert {"health", "tito", "least_inflight"} <= plugins.keys()
    health = told["$defs"][plugins["health"]["$ref"].rpartition("/")[2]]
    assert health["properties"]["interval_s"]["description"] and health["additionalProperties"] is False


@pytest.mark.parametrize("name", ["plugins.toml", "examples/async_update/plugins.toml"])
def test_our_files_fit_the_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema (extra `test`) is not installed")
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(tomllib.loads((ROOT / name).read_text(encoding="utf-8")), schema())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("enabled = 5", "5 is not of type 'array'"),
        ("[router]\nprot = 1", "'prot' was unexpected"),
        ("[plugins.health]\ninterval_s = 'soon'", "'soon' is not of type 'number'"),
        ("[plugins.nobody]", "'nobody' was unexpected"),
        ("[profiles.a]\nenabled = []", "'enabled' was unexpected"),
    ],
)
def test_what_is_wrong_does_not_fit_the_schema(text: str, told: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema (extra `test`) is not installed")
    with pytest.raises(jsonschema.ValidationError, match=told):
        jsonschema.validate(tomllib.loads(text), schema())


class Quiet:
    """A plugin whose secrets have names that say nothing."""

    class Settings(PluginSettings):
        credential: SecretStr | None = Field(default=None, min_length=8)
        """A secret."""
        phrase: SecretStr = per_exchange(SecretStr("as before"))
        """Another one."""

    def __init__(self, settings: Settings) -> None: ...

    @hookimpl
    def response_end(self) -> None: ...


def _with_secrets(**tables: Any) -> Config:
    return load({"enabled": [], "router.middleware_paths": [_importable(Quiet)], **tables}, file="", environment={})


def test_a_secret_is_not_in_what_is_said_about_a_wrong_one() -> None:
    with pytest.raises(ConfigError, match=r"plugins.quiet.credential: .*8 items") as error:
        Application(_with_secrets(plugins={"quiet": {"credential": "t0psecr"}}))
    assert "t0psecr" not in str(error.value)


def test_a_profiles_secrets_are_not_explained() -> None:
    config = _with_secrets(profiles={"a": {"plugins": {"quiet": {"phrase": "t0psecret"}}}})
    told = explain(config, Application(config).registry)
    assert "t0psecret" not in told
    assert 'profiles.a.plugins {"quiet":{"phrase":"**********"}}' in " ".join(told.split())


# --------------------------------------------------------------------------------------------------- trace, stalls
async def test_traced_hooks_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router_core")
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=["retry"], router={"trace_hooks": True}) as router,
    ):
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("hook retry.")]
    assert any(line.startswith("hook retry.around_upstream of ") and line.endswith(" ms") for line in lines)


def test_the_environment_switches_tracing_on() -> None:
    assert load(file="", environment={"ROUTER__TRACE_HOOKS": "1"}).router.trace_hooks is True


async def test_a_hook_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Blocks:
        @hookimpl
        async def request_start(self) -> None:
            await asyncio.sleep(0)
            until = time.monotonic() + 10
            while time.monotonic() < until and not _stalls(caplog):
                time.sleep(0.005)  # noqa: ASYNC251  # what is tried is that the loop is blocked

    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], classes=[Blocks], router={"loop_stall_s": 0.1}) as router,
    ):
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
    (told,) = [line for line in _stalls(caplog) if "blocks" in line]
    assert "stands still for more than 0.1 s" in told
    assert "plugin 'blocks' blocks it in hook 'request_start', at " in told and "test_introspection.py:" in told


def test_that_a_compiled_hook_may_block_the_loop_is_said() -> None:
    class Builtin:
        metrics = dict.get  # a method without a frame

    def loaded(name: str, instance: object) -> LoadedPlugin:
        return LoadedPlugin(name, instance, PluginSettings(), "d", "1", "fail", {"metrics": print})

    watch = StallWatch(1.0)
    assert watch._culprit(None) == "no hook blocks it, at an unknown line"
    watch.know([loaded("seen", type("Seen", (), {"metrics": lambda self: None})())])
    assert watch._culprit(None) == "no hook blocks it, at an unknown line"
    watch.know([loaded("unseen", Builtin())])
    assert watch._culprit(None) == "no hook blocks it, unless a compiled one of unseen, at an unknown line"


def _stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "stands still" in record.getMessage()]


# ----------------------------------------------------------------------------------------------------- deprecation
async def test_an_old_name_of_a_hook_works_and_its_user_is_told_the_new_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(hookspecs.DEPRECATED_HOOKS, "exchange_end", "response_end")
    ended = []

    class Old:
        @hookimpl
        def exchange_end(self, outcome: object) -> None:
            ended.append(outcome)

    async with ScriptedWorker() as worker:
        with pytest.warns(
            DeprecationWarning, match="plugin 'old': hook 'exchange_end' is deprecated, rename it to 're"
        ):
            async with running_router([worker.url], classes=[Old]) as router:
                assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
    assert len(ended) == 1
    assert "plugin 'old': hook 'exchange_end' is deprecated, rename it to 'response_end'" in caplog.text


def test_an_old_public_name_leads_to_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hookspecs.DEPRECATED_NAMES, "Refuse", "Reject")
    with pytest.warns(DeprecationWarning, match="router_core.Refuse is deprecated, use router_core.Reject"):
        assert router_core.Refuse is router_core.Reject
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = router_core.Nothing
