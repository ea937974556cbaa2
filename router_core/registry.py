"""Finds, imports, validates and instantiates plugins, each loaded once.

pluggy checks names and arguments of hooks and keeps the implementations; what it lets pass silently (a misspelt
hook, the wrong kind of function, ordering marks) is an error here.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from operator import itemgetter
from typing import Any, Literal

import pluggy
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import ValidationError

from router_core import hookspecs
from router_core.compiled_hooks import Hooks, compiled_hooks, is_compiled
from router_core.config import Config, config_error, did_you_mean
from router_core.errors import ConfigError
from router_core.hookspecs import (
    API_VERSION,
    ASYNC,
    DEPRECATED_HOOKS,
    IN_REQUEST,
    MAY_BE_PLAIN,
    OUTSIDE_REQUEST,
    PROJECT,
    marks_of,
)
from router_core.loaded_plugin import LoadedPlugin
from router_core.plans import Profile
from router_core.settings import NAME_PATTERN, PluginSettings, is_per_exchange

ENTRY_POINTS = "router_core.plugins"
HOOKS = (*IN_REQUEST, *OUTSIDE_REQUEST)
log = logging.getLogger("router_core")


@dataclass(frozen=True)
class PluginSource:
    """Where a plugin's class comes from, before it is imported."""

    name: str
    distribution: str
    version: str
    load: Callable[[], Any]
    origin: str


def installed() -> dict[str, PluginSource]:
    """Every plugin that an installed distribution offers, by name, without importing one."""
    found: dict[str, PluginSource] = {}
    read: dict[int, tuple[str, str]] = {}  # a distribution parses its metadata anew whenever it is asked
    for point in entry_points(group=ENTRY_POINTS):
        if id(point.dist) not in read:
            read[id(point.dist)] = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
        source = _of_entry_point(point, *read[id(point.dist)])
        other = found.get(point.name)
        if other is not None and other.distribution != source.distribution:
            raise ConfigError(
                f"two distributions offer a plugin {point.name!r}: {other.distribution} and {source.distribution}",
                where="installed packages",
            )
        found[point.name] = source
    return found


def _of_entry_point(point: EntryPoint, distribution: str, version: str) -> PluginSource:
    return PluginSource(
        name=point.name,
        distribution=distribution,
        version=version,
        load=point.load,
        origin=f"entry point {point.name} = {point.value}",
    )


class Registry:
    """The plugins of this process in request order: those of ``enabled``, then what profiles and requests may add."""

    def __init__(self, config: Config, extra: Sequence[PluginSource] = ()) -> None:
        """Loads everything. ``extra`` are plugin classes named by path, appended to ``enabled`` in their order.

        Raises ConfigError, before anything serves.
        """
        self._config = config
        self._sources = installed()
        self._pluggy = Hooks(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        if DEPRECATED_HOOKS:
            old = {name: getattr(hookspecs, new) for name, new in DEPRECATED_HOOKS.items()}
            self._pluggy.add_hookspecs(type("Deprecated", (), old))
        self.plugins: list[LoadedPlugin] = []
        for source in extra:
            if source.name in self._sources or source.name in config.enabled:
                raise ConfigError(f"the name {source.name!r} is taken already", where=source.origin)
            self._sources[source.name] = source
        self.enabled = (*config.enabled, *(source.name for source in extra))
        self._check_tables()
        for name in self._wanted():
            self._load(name)
        self.profiles = {name: self._profile(name) for name in config.profiles}
        if config.router.processes > 1:
            self._check_processes()
        self.installed = frozenset(self._sources)
        """The names of all plugins there are, loaded or not."""

    def _wanted(self) -> list[str]:
        names = [*self.enabled]
        for profile in self._config.profiles.values():
            names += profile.enable
        return list(dict.fromkeys([*names, *self._config.router.available]))

    def _check_tables(self) -> None:
        for name in self._config.plugins:
            if name not in self._sources:
                raise ConfigError(
                    f"there is no plugin {name!r}{self._suggest(name)}",
                    where=self._config.where(f"plugins.{name}"),
                    key=f"plugins.{name}",
                )

    def _suggest(self, name: str) -> str:
        return did_you_mean(name, self._sources, f"; installed: {', '.join(sorted(self._sources)) or 'none'}")

    def _find(self, name: str) -> PluginSource:
        if name not in self._sources:
            key = "enabled" if name in self.enabled else "router.available"
            key = next((f"profiles.{p}.enable" for p, v in self._config.profiles.items() if name in v.enable), key)
            raise ConfigError(
                f"there is no plugin {name!r}{self._suggest(name)}", where=self._config.where(key), key=key
            )
        return self._sources[name]

    def _check_processes(self) -> None:
        """A plugin that does not say that it works in several processes is not run in them."""
        for plugin in self.plugins:
            says = getattr(plugin.instance, "several_processes", False)
            used = [
                plugin.settings,
                *(p.settings[plugin.name] for p in self.profiles.values() if plugin.name in p.settings),
            ]
            if not all(says(settings) if callable(says) else says is True for settings in used):
                raise ConfigError(
                    f"plugin {plugin.name!r} does not work in several processes"
                    + (" as it is set" if callable(says) else ": its class does not say several_processes = True"),
                    where=self._config.where("router.processes"),
                    key="router.processes",
                )

    # -------------------------------------------------------------------------------------------------------- loading
    def _load(self, name: str) -> None:
        source = self._find(name)
        if not re.match(NAME_PATTERN, name):
            raise ConfigError(f"{name!r} is no plugin name: a-z, 0-9 and _, a letter first", where=source.origin)
        try:
            cls = source.load()
        except (Exception, SystemExit) as error:
            raise ConfigError(f"plugin {name!r} cannot be imported: {error!r}", where=source.origin) from error
        if not inspect.isclass(cls):
            raise ConfigError(f"plugin {name!r} is {cls!r}, not a class", where=source.origin)
        _check_class(name, cls, source.origin)
        settings = self._settings(name, cls)
        try:
            factory: Any = cls
            instance = factory(settings) if cls.__init__ is not object.__init__ else factory()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"plugin {name!r} cannot be made: {error!r}", where=source.origin) from error
        on_error: Literal["fail", "skip"] = "skip" if getattr(cls, "on_error", "fail") == "skip" else "fail"
        plugin = LoadedPlugin(name, instance, settings, source.distribution, source.version, on_error)
        self._register(plugin, source.origin)
        self.plugins.append(plugin)

    def _settings(
        self, name: str, cls: type[Any], overrides: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> PluginSettings:
        """A plugin's settings; ``overrides`` are those of the profile at ``prefix``."""
        model = getattr(cls, "Settings", PluginSettings)
        if not (inspect.isclass(model) and issubclass(model, PluginSettings)):
            raise ConfigError(f"plugin {name!r}: Settings must be a subclass of PluginSettings")
        try:
            return model.model_validate({**self._config.plugins.get(name, {}), **(overrides or {})})
        except ValidationError as error:
            raise config_error(error, model, f"{prefix}plugins.{name}", self._config.sources) from None

    def _register(self, plugin: LoadedPlugin, origin: str) -> None:
        try:
            self._pluggy.register(plugin.instance, name=plugin.name)
            self._pluggy.check_pending()
        except pluggy.PluginValidationError as error:
            raise ConfigError(f"plugin {plugin.name!r}: {' '.join(str(error).split())}", where=origin) from None
        for caller in self._pluggy.get_hookcallers(plugin.instance) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin.instance:
                    self._add_hook(plugin, caller.name, impl.function, tuple(impl.argnames), origin)
        for name, function in compiled_hooks(type(plugin.instance)):  # which pluggy does not see
            self._add_hook(plugin, name, getattr(plugin.instance, name), _taken(plugin, name, function, origin), origin)

    def _add_hook(
        self, plugin: LoadedPlugin, name: str, function: Callable[..., Any], taken: tuple[str, ...], origin: str
    ) -> None:
        hook = _current_name(plugin, name, origin)
        spec = _argument_names(getattr(hookspecs, hook))
        plugin.hooks[hook] = _by_position(function, taken, spec)

    def _profile(self, name: str) -> Profile:
        profile = self._config.profiles[name]
        loaded = {plugin.name: plugin for plugin in self.plugins}
        for listed in profile.disable:
            if listed not in loaded:
                raise ConfigError(
                    f"there is no plugin {listed!r} to disable",
                    where=self._config.where(f"profiles.{name}"),
                    key=f"profiles.{name}.disable",
                )
        settings = {}
        for plugin_name, table in profile.plugins.items():
            key = f"profiles.{name}.plugins.{plugin_name}"
            if plugin_name not in loaded:
                raise ConfigError(f"plugin {plugin_name!r} is not loaded", where=self._config.where(key), key=key)
            cls = type(loaded[plugin_name].instance)
            model = getattr(cls, "Settings", PluginSettings)
            for setting in table:
                if setting in model.model_fields and not is_per_exchange(model, setting):
                    raise ConfigError(
                        "a profile cannot override it: its plugin does not mark it per_exchange",
                        where=self._config.where(key),
                        key=f"{key}.{setting}",
                    )
            settings[plugin_name] = self._settings(plugin_name, cls, table, f"profiles.{name}.")
        return Profile(frozenset(profile.enable), frozenset(profile.disable), settings)


def _current_name(plugin: LoadedPlugin, hook: str, origin: str) -> str:
    """The hook's name of today; an old one works, and is warned of."""
    new = DEPRECATED_HOOKS.get(hook)
    if new is None:
        return hook
    if marks_of(getattr(type(plugin.instance), new, None)) is not None:
        raise ConfigError(f"plugin {plugin.name!r}: {hook!r} and {new!r} are one hook: drop {hook!r}", where=origin)
    warning = f"plugin {plugin.name!r}: hook {hook!r} is deprecated, rename it to {new!r}"
    warnings.warn(warning, DeprecationWarning, stacklevel=2)
    log.warning("%s (%s)", warning, origin)
    return new


def _check_class(name: str, cls: type[Any], origin: str) -> None:
    """What pluggy would let pass: unmarked and misspelt hooks, ordering marks, the wrong kind, defaults."""
    requires = getattr(cls, "requires_api", None)
    if requires is not None:
        try:
            fits = SpecifierSet(requires).contains(str(API_VERSION))
        except (InvalidSpecifier, TypeError):
            raise ConfigError(
                f"plugin {name!r}: requires_api = {requires!r} is no version range", where=origin
            ) from None
        if not fits:
            raise ConfigError(f"plugin {name!r} needs hook API {requires}, this is version {API_VERSION}", where=origin)
    if getattr(cls, "on_error", "fail") not in ("fail", "skip"):
        raise ConfigError(f"plugin {name!r}: on_error must be 'fail' or 'skip', not {cls.on_error!r}", where=origin)
    marked = False
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        options = marks_of(function)
        if options is None:
            if attribute in HOOKS and isinstance(function, classmethod | property):
                raise ConfigError(f"plugin {name!r}: hook {attribute!r} must be a method", where=origin)
            if attribute in HOOKS and callable(function):
                raise ConfigError(f"plugin {name!r}: method {attribute!r} is not marked @hookimpl", where=origin)
            continue
        marked = True
        _check_hook(name, attribute, function, options, origin)
    if not marked:
        raise ConfigError(
            f"plugin {name!r}: {cls.__qualname__} implements no hook (mark methods @hookimpl)", where=origin
        )


def _check_hook(name: str, hook: str, function: Any, options: Mapping[str, Any], origin: str) -> None:
    hook = DEPRECATED_HOOKS.get(hook, hook)
    if hook not in HOOKS:
        hint = did_you_mean(hook, HOOKS, f"; hooks: {', '.join(HOOKS)}")
        raise ConfigError(f"plugin {name!r}: there is no hook {hook!r}{hint}", where=origin)
    for mark in ("tryfirst", "trylast", "wrapper", "hookwrapper", "optionalhook"):
        if options.get(mark):
            raise ConfigError(f"plugin {name!r}: {mark} on {hook!r} is not allowed: order is `enabled`", where=origin)
    is_generator = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
    may_be_plain = hook in MAY_BE_PLAIN and not is_generator
    if hook in ASYNC and not may_be_plain and not inspect.iscoroutinefunction(function):
        raise ConfigError(f"plugin {name!r}: hook {hook!r} must be async def", where=origin)
    if hook not in ASYNC and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise ConfigError(f"plugin {name!r}: hook {hook!r} must be a plain def, not async", where=origin)
    if not inspect.isfunction(function) and not is_compiled(function):
        raise ConfigError(f"plugin {name!r}: hook {hook!r} must be a method", where=origin)
    if any(p.default is not p.empty for p in inspect.signature(function).parameters.values()):
        raise ConfigError(f"plugin {name!r}: hook {hook!r} must have no default values", where=origin)


def _taken(plugin: LoadedPlugin, name: str, function: Callable[..., Any], origin: str) -> tuple[str, ...]:
    """The arguments that a compiled hook takes: all of them where it does not tell, as an ``async def`` of mypyc's."""
    spec = _argument_names(getattr(hookspecs, DEPRECATED_HOOKS.get(name, name)))
    told = _argument_names(function)
    taken = told[1:] if told else spec
    if unknown := [argument for argument in taken if argument not in spec]:
        known = f"it has {', '.join(spec) or 'none'}"
        raise ConfigError(f"plugin {plugin.name!r}: hook {name!r} has no {', '.join(unknown)}; {known}", where=origin)
    return taken


def _argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _by_position(function: Callable[..., Any], taken: tuple[str, ...], spec: tuple[str, ...]) -> Callable[..., Any]:
    """The implementation as a function of all the hook's arguments in order; it may have asked for fewer."""
    if taken == spec:
        return function
    if not taken:
        return lambda *args: function()
    if len(taken) == 1 and len(spec) == 2:
        return (lambda first, _: function(first)) if taken == spec[:1] else (lambda _, second: function(second))
    chosen = itemgetter(*(spec.index(argument) for argument in taken))
    if len(taken) == 1:
        return lambda *args: function(chosen(args))
    return lambda *args: function(*chosen(args))


# ------------------------------------------------------------------------------------------------- --middleware-paths
_FORM = "pkg.mod:Class, the module found in the current directory or installed"


def import_path(path: str, where: str) -> Any:
    """The object that ``pkg.mod:Class`` or ``pkg.mod.Class`` names. Raises ConfigError."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    dotted = f"{module_name}.{attribute}".split(".")
    if module_name.endswith(".py") or attribute == "py" or not all(part.isidentifier() for part in dotted):
        raise ConfigError(f"{path!r} is not of the form {_FORM}", where=where)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{path!r} cannot be imported: {_why_not_imported(error, module_name)}", where=where
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path!r}: {module_name} has no {part!r}", where=where)
        found = getattr(found, part)
    return found


def _why_not_imported(error: BaseException, module_name: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in the current directory, nor an installed one (form: pkg.mod:Class)"
    if isinstance(error, SyntaxError):
        return f"a syntax error in {error.filename}, line {error.lineno}: {error.msg}"
    return str(error) if isinstance(error, ImportError) else repr(error)


def is_plugin_class(cls: Any) -> bool:
    """Whether a class has a method marked as a hook."""
    return inspect.isclass(cls) and any(marks_of(inspect.getattr_static(cls, name)) is not None for name in dir(cls))


def plugin_source(cls: type[Any], path: str) -> PluginSource:
    """The source of a plugin class that was named by its path; its name is ``name`` or its class name in snake case."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
    name = getattr(cls, "name", snake)
    return PluginSource(str(name), path, "path", lambda: cls, f"middleware path {path}")
