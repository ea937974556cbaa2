"""Plugins are found, checked and made, before anything serves; what pluggy would let pass is an error here."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

import pytest

from router_core import ConfigError, Exchange, PluginSettings, hookimpl, per_exchange
from router_core.app import Application
from router_core.build import build_name
from router_core.config import load
from router_core.hookspecs import ASYNC, IN_REQUEST, MAY_BE_PLAIN, OUTSIDE_REQUEST
from router_core.registry import installed
from router_core.testing.router import _importable

Command = Callable[..., Awaitable[tuple[int, str, str]]]


def application(*classes: type[Any], **tables: Any) -> Application:
    router = {"middleware_paths": [_importable(cls) for cls in classes]}
    return Application(load({"enabled": [], "router": router, **tables}, file="", environment={}))


def refused(*classes: type[Any], **tables: Any) -> str:
    """The one line that says why these plugins are refused."""
    with pytest.raises(ConfigError) as error:
        application(*classes, **tables)
    line = str(error.value)
    assert "\n" not in line
    return line


# ------------------------------------------------------------------------------------------------------- wrong classes
def test_a_misspelt_hook_is_refused_with_a_suggestion() -> None:
    class Wrong:
        @hookimpl
        def score_worker(self) -> None: ...

    line = refused(Wrong)
    assert "there is no hook 'score_worker'; did you mean 'score_workers'?" in line
    assert "plugin 'wrong'" in line


def test_a_name_that_is_like_no_hook_is_refused_with_all_of_them() -> None:
    class Wrong:
        @hookimpl
        def zzz(self) -> None: ...

    line = refused(Wrong)
    assert all(hook in line for hook in (*IN_REQUEST, *OUTSIDE_REQUEST))


def test_a_method_named_like_a_hook_must_be_marked() -> None:
    class Wrong:
        @hookimpl
        def response_end(self) -> None: ...

        async def request_start(self, exchange: Exchange) -> None: ...

    assert "'request_start' is not marked @hookimpl" in refused(Wrong)


@pytest.mark.parametrize("hook", [hook for hook in (*IN_REQUEST, *OUTSIDE_REQUEST) if hook not in MAY_BE_PLAIN])
def test_the_wrong_kind_of_function_is_refused(hook: str) -> None:
    async def async_hook(self: Any) -> None: ...

    def plain_hook(self: Any) -> None: ...

    function = plain_hook if hook in ASYNC else async_hook
    function.__name__ = hook
    wrong = type("Wrong", (), {hook: hookimpl(function)})
    assert f"hook {hook!r} must be {'async def' if hook in ASYNC else 'a plain def, not async'}" in refused(wrong)


def test_an_async_generator_is_no_hook() -> None:
    class Wrong:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> Any:
            yield None

    assert "must be async def" in refused(Wrong)


@pytest.mark.parametrize("mark", ["tryfirst", "trylast", "wrapper", "hookwrapper", "optionalhook"])
def test_marks_of_order_are_refused(mark: str) -> None:
    import pluggy

    marker = pluggy.HookimplMarker("router_core")

    class Wrong:
        def response_end(self) -> Any:
            yield

    Wrong.response_end = marker(**{mark: True})(Wrong.response_end)  # type: ignore[method-assign]
    assert f"{mark} on 'response_end' is not allowed: order is `enabled`" in refused(Wrong)


def test_default_values_are_refused() -> None:
    class Wrong:
        @hookimpl
        def response_end(self, exchange: Any = None) -> None: ...

    assert "must have no default values" in refused(Wrong)


@pytest.mark.parametrize("make", [staticmethod, classmethod, property])
def test_a_hook_is_a_method(make: Any) -> None:
    def response_end(self: Any) -> None: ...

    wrong = type("Wrong", (), {"response_end": make(hookimpl(response_end)), "identify": hookimpl(lambda self: None)})
    line = refused(wrong)
    assert "response_end" in line or "identify" in line


def test_an_argument_that_the_hook_has_not_is_refused() -> None:
    class Wrong:
        @hookimpl
        def response_end(self, request: Any) -> None: ...

    line = refused(Wrong)
    assert "response_end" in line
    assert "request" in line


@pytest.mark.parametrize("needs", [">=2", "<1", "==9"])
def test_another_version_of_the_hooks_is_refused(needs: str) -> None:
    class Wrong:
        requires_api = needs

        @hookimpl
        def response_end(self) -> None: ...

    assert f"plugin 'wrong' needs hook API {needs}, this is version 1" in refused(Wrong)


@pytest.mark.parametrize("needs", ["newest", "1", "", 1])
def test_a_version_range_that_is_none_is_refused(needs: Any) -> None:
    class Wrong:
        requires_api = needs

        @hookimpl
        def response_end(self) -> None: ...

    if needs == "":
        application(Wrong)
    else:
        assert "is no version range" in refused(Wrong)


def test_what_to_do_on_errors_is_one_of_two() -> None:
    class Wrong:
        on_error = "ignore"

        @hookimpl
        def response_end(self) -> None: ...

    assert "on_error must be 'fail' or 'skip', not 'ignore'" in refused(Wrong)


@pytest.mark.parametrize("name", ["Upper", "with-dash", "1st", "", "new\nline", "ünï", "core", 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    class Wrong:
        @hookimpl
        def response_end(self) -> None: ...

    Wrong.name = name  # type: ignore[attr-defined]
    if name == "core":
        assert application(Wrong).registry.plugins[0].name == "core"
    else:
        assert "is no plugin name" in refused(Wrong)


def test_a_name_that_is_taken_is_refused() -> None:
    class Health:
        @hookimpl
        def response_end(self) -> None: ...

    assert "the name 'health' is taken already" in refused(Health)


def test_a_class_that_cannot_be_made_is_refused_with_its_reason() -> None:
    class Wrong:
        def __init__(self, settings: PluginSettings) -> None:
            raise OSError("no such device")

        @hookimpl
        def response_end(self) -> None: ...

    assert "plugin 'wrong' cannot be made: OSError('no such device')" in refused(Wrong)


def test_a_class_may_refuse_its_settings_itself() -> None:
    class Wrong:
        def __init__(self, settings: PluginSettings) -> None:
            raise ConfigError("there is no such folder", where="plugins.toml", key="plugins.wrong.folder")

        @hookimpl
        def response_end(self) -> None: ...

    assert refused(Wrong) == "plugins.toml: plugins.wrong.folder: there is no such folder"


def test_settings_are_a_model_of_ours() -> None:
    class Wrong:
        class Settings:
            pass

        @hookimpl
        def response_end(self) -> None: ...

    assert "Settings must be a subclass of PluginSettings" in refused(Wrong)


# ------------------------------------------------------------------------------------------------------ compiled hooks
class Compiled:
    """A method as mypyc makes it: no function, without room for an attribute.

    A plain one has a signature; of an ``async def`` only the kind can be seen.
    """

    __slots__ = (
        "__annotations__",
        "__code__",
        "__defaults__",
        "__kwdefaults__",
        "__name__",
        "__signature__",
        "function",
    )

    def __init__(self, function: Any) -> None:
        self.function, self.__name__ = function, function.__name__
        self.__annotations__ = self.__defaults__ = self.__kwdefaults__ = None
        self.__code__ = (lambda: None).__code__.replace(co_flags=function.__code__.co_flags)
        if not inspect.iscoroutinefunction(function):
            self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self.function, instance)


def test_hooks_that_take_no_mark_and_have_no_readable_arguments_are_hooks() -> None:
    class Small:
        @hookimpl
        @Compiled
        def score_workers(self, workers: Any) -> Any:
            return self, workers

        @hookimpl
        @Compiled
        async def attempt_start(self, exchange: Any, attempt: Any) -> Any:
            return exchange, attempt

        @hookimpl
        @Compiled
        def session_moved(self) -> Any:
            return self

        @hookimpl
        def response_end(self, outcome: Any) -> Any:
            return outcome

    (plugin,) = application(Small).registry.plugins
    hooks = plugin.hooks
    assert sorted(hooks) == ["attempt_start", "response_end", "score_workers", "session_moved"]
    assert hooks["score_workers"]("exchange", "workers") == (plugin.instance, "workers")
    assert asyncio.run(hooks["attempt_start"]("exchange", "attempt")) == ("exchange", "attempt")
    assert hooks["session_moved"]("id", "old", "new") is plugin.instance
    assert hooks["response_end"]("exchange", "outcome") == "outcome"


@pytest.mark.parametrize("is_marked", [True, False])
def test_such_hooks_are_checked_like_functions(is_marked: bool) -> None:
    def misspelt(self: Any) -> None: ...

    def unknown(self: Any, request: Any, worker: Any) -> None: ...

    def default(self: Any, exchange: Any = None) -> None: ...

    async def kind(self: Any) -> None: ...

    def mark(function: Any) -> Any:
        return hookimpl(Compiled(function)) if is_marked else Compiled(function)

    def line(hook: str, function: Any) -> str:
        other = {"metrics": hookimpl(lambda self: None)}
        return refused(type("Wrong", (), {**other, hook: mark(function)}))

    if not is_marked:
        assert "method 'response_end' is not marked @hookimpl" in line("response_end", unknown)
        return
    assert "there is no hook 'response_ends'; did you mean 'response_end'?" in line("response_ends", misspelt)
    assert "hook 'response_end' has no request, worker; it has exchange, outcome" in line("response_end", unknown)
    assert "must have no default values" in line("response_end", default)
    assert "hook 'response_end' must be a plain def, not async" in line("response_end", kind)
    assert "hook 'startup' must be async def" in line("startup", misspelt)


def test_nothing_is_asked_of_a_plugin_that_has_not_started() -> None:
    class Small:
        @property
        def router(self) -> Any:
            raise RuntimeError("the router has not started")

        @hookimpl
        def response_end(self) -> None: ...

    assert list(application(Small).registry.plugins[0].hooks) == ["response_end"]


def test_settings_may_stand_in_a_module_of_their_own() -> None:
    class Elsewhere(PluginSettings):
        limit: int = 3

    class Small:
        Settings: ClassVar[type[PluginSettings]] = Elsewhere

        def __init__(self, settings: Elsewhere) -> None:
            self.limit = settings.limit

        @hookimpl
        def response_end(self) -> None: ...

    (plugin,) = application(Small, plugins={"small": {"limit": 5}}).registry.plugins
    assert plugin.instance.limit == 5


# ------------------------------------------------------------------------------------------------------ right classes
def test_a_plugin_needs_neither_settings_nor_constructor_nor_version() -> None:
    class Small:
        @hookimpl
        def response_end(self) -> None: ...

    (plugin,) = application(Small).registry.plugins
    assert (plugin.name, plugin.settings.weight, list(plugin.hooks)) == ("small", 1.0, ["response_end"])


def test_hooks_are_inherited_and_overridden() -> None:
    class Base:
        @hookimpl
        def response_end(self) -> str:
            return "base"

        @hookimpl
        def score_workers(self) -> str:
            return "base"

    class Derived(Base):
        @hookimpl
        def score_workers(self) -> str:
            return "derived"

    (plugin,) = application(Derived).registry.plugins
    assert sorted(plugin.hooks) == ["response_end", "score_workers"]
    assert plugin.hooks["score_workers"](None, []) == "derived"


@pytest.mark.parametrize(
    ("cls", "name"), [("HTTPCache", "http_cache"), ("PowerOf2", "power_of2"), ("X", "x"), ("snake_case", "snake_case")]
)
def test_a_class_is_named_in_snake_case(cls: str, name: str) -> None:
    def response_end(self: Any) -> None: ...

    assert application(type(cls, (), {"response_end": hookimpl(response_end)})).registry.plugins[0].name == name


def test_plugins_run_in_the_order_of_enabled_then_of_the_flags() -> None:
    first = type("First", (), {"response_end": hookimpl(_end)})
    second = type("Second", (), {"response_end": hookimpl(_end)})
    app = application(first, second, enabled=["round_robin", "health"])
    assert app.plans.default.names == ("round_robin", "health", "first", "second")


def _end(self: Any) -> None: ...


_end.__name__ = "response_end"


# ------------------------------------------------------------------------------------------------------------ settings
class Tuned:
    """A plugin with settings, for the tests below."""

    class Settings(PluginSettings):
        ttl_s: float = per_exchange(600.0, gt=0)
        folder: str = "here"
        names: list[str] = []  # noqa: RUF012  # a pydantic field

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @hookimpl
    def response_end(self) -> None: ...


def test_settings_reach_the_plugin() -> None:
    app = application(Tuned, plugins={"tuned": {"ttl_s": 5, "names": ["a"], "weight": 0.5}})
    settings = app.registry.plugins[0].instance.settings
    assert (settings.ttl_s, settings.folder, settings.names, settings.weight) == (5.0, "here", ["a"], 0.5)


@pytest.mark.parametrize(
    ("table", "key", "word"),
    [
        ({"tll_s": 1}, "plugins.tuned.tll_s", "unknown key"),
        ({"ttl_s": "long"}, "plugins.tuned.ttl_s", "not 'long'"),
        ({"ttl_s": 0}, "plugins.tuned.ttl_s", "greater than 0"),
        ({"ttl_s": float("nan")}, "plugins.tuned.ttl_s", "finite"),
        ({"names": "a"}, "plugins.tuned.names", "list"),
        ({"weight": -1}, "plugins.tuned.weight", "greater than or equal to 0"),
        ({"folder": ["x"]}, "plugins.tuned.folder", "string"),
    ],
)
def test_a_wrong_setting_is_named(table: dict[str, Any], key: str, word: str) -> None:
    line = refused(Tuned, plugins={"tuned": table})
    assert key in line
    assert word in line


def test_a_table_of_an_unknown_plugin_is_refused_and_of_a_disabled_one_is_not() -> None:
    assert "there is no plugin 'healht'; did you mean 'health'?" in refused(plugins={"healht": {}})
    application(plugins={"health": {"interval_s": 1}})
    application(plugins={"health": {"no such key, but it is not loaded": 1}})


def test_an_unknown_plugin_is_refused_with_a_suggestion() -> None:
    assert refused(enabled=["healht"]) == "--enabled: enabled: there is no plugin 'healht'; did you mean 'health'?"
    assert "installed: " in refused(enabled=["zzz"])
    assert "router.available" in refused(router={"available": ["zzz"]})
    assert "profiles.p.enable" in refused(profiles={"p": {"enable": ["zzz"]}})
    assert "listed twice" in refused(enabled=["health", "health"])


def test_a_profile_overrides_only_what_its_plugin_allows() -> None:
    application(Tuned, profiles={"p": {"plugins": {"tuned": {"ttl_s": 1}}}})
    line = refused(Tuned, profiles={"p": {"plugins": {"tuned": {"folder": "there"}}}})
    assert "profiles.p.plugins.tuned.folder: a profile cannot override it" in line
    line = refused(Tuned, profiles={"p": {"plugins": {"tuned": {"ttl_s": "long"}}}})
    assert "profiles.p.plugins.tuned.ttl_s" in line
    line = refused(Tuned, profiles={"p": {"plugins": {"tuned": {"tll_s": 1}}}})
    assert "profiles.p.plugins.tuned.tll_s: unknown key" in line
    assert "is not loaded" in refused(profiles={"p": {"plugins": {"tuned": {"ttl_s": 1}}}})
    assert "there is no plugin 'zzz' to disable" in refused(profiles={"p": {"disable": ["zzz"]}})
    assert "profiles.p.enabel: unknown key" in refused(profiles={"p": {"enabel": []}})


# ------------------------------------------------------------------------------------------------- a stranger's package
PLUGIN = """
from router_core import hookimpl


class LongestUrl:
    requires_api = ">=1,<2"

    @hookimpl
    def pick_worker(self, workers):
        return max(workers, key=lambda worker: len(worker.url))
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """Installs a package with an entry point, as pip would leave it, into a folder for the path."""

    def install(name: str, entry: str, source: str = PLUGIN) -> Path:
        site = tmp_path / "site"
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[router_core.plugins]\n{entry}\n")
        (site / f"{name.replace('-', '_')}.py").write_text(source)
        return site

    return install


async def test_a_strangers_plugin_is_found_by_its_entry_point(command: Command, stranger: Any) -> None:
    site = stranger("far-away", "longest_url = far_away:LongestUrl")
    env = {"PYTHONPATH": str(site)}
    status, out, _ = await command("check", "--set", "enabled=longest_url", env=env)
    said = f"1 made, on: longest_url; file: none; build: {build_name()}"
    assert (status, out) == (0, f"ok (plugins were made, not started): {said}\n")
    status, out, _ = await command("plugins", "--set", "enabled=longest_url", env=env)
    (line,) = [line for line in out.splitlines() if "longest_url" in line]
    assert line.split() == ["1", "longest_url", "on", "1.2", "far-away", "pick_worker"]


async def test_a_plugin_that_is_not_enabled_is_not_imported(command: Command, stranger: Any) -> None:
    site = stranger("far-away", "broken = far_away:Broken", "raise ImportError('must not be imported')")
    env = {"PYTHONPATH": str(site)}
    status, out, _ = await command("plugins", "--set", "enabled=[]", env=env)
    assert status == 0
    assert "(not imported)" in out
    status, _, told = await command("check", "--enable", "broken", env=env)
    assert status == 2
    assert "plugin 'broken' cannot be imported: ImportError('must not be imported')" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("broken = far_away:NoSuchClass", "cannot be imported"),
        ("broken = no_such_module:X", "cannot be imported"),
        ("broken = far_away:hookimpl", "not a class"),
        ("broken = far_away:Empty", "implements no hook"),
        ("Broken-Name = far_away:LongestUrl", "is no plugin name"),
    ],
)
async def test_an_entry_point_that_leads_nowhere_is_one_clear_line(
    command: Command, stranger: Any, entry: str, word: str
) -> None:
    site = stranger("far-away", entry, PLUGIN + "\n\nclass Empty:\n    pass\n")
    name = entry.partition(" ")[0]
    status, _, told = await command("check", "--enable", name, env={"PYTHONPATH": str(site)})
    assert status == 2
    assert word in told
    assert len(told.splitlines()) == 1


async def test_two_distributions_of_one_name_are_refused(command: Command, stranger: Any) -> None:
    site = stranger("far-away", "health = far_away:LongestUrl")
    status, _, told = await command("check", env={"PYTHONPATH": str(site)})
    assert status == 2
    assert "two distributions offer a plugin 'health'" in told
    assert len(told.splitlines()) == 1


def test_the_built_in_plugins_are_found_like_a_strangers() -> None:
    found = installed()
    assert {"health", "least_inflight", "round_robin"} <= set(found)
    assert found["health"].distribution == "router-core"


def test_a_plugin_brings_in_no_other_one() -> None:
    script = (
        "import sys, router_health.plugin; print(*{m.split('.')[0] for m in sys.modules if m.startswith('router_')})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {"router_core__mypyc"} == {"router_core", "router_health"}
