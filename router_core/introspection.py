"""What is configured and what runs, for people: ``GET /plugins``, ``check --explain`` and ``check --schema``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from pydantic import BaseModel, SecretStr
from pydantic.json_schema import models_json_schema

from router_core.config import DEFAULT_ENABLED, Config
from router_core.loaded_plugin import LoadedPlugin
from router_core.plans import Plans
from router_core.registry import Registry, installed
from router_core.settings import PluginSettings, ProfileSettings, RouterSettings

HIDDEN = "**********"


def describe_plugins(registry: Registry, plans: Plans) -> list[dict[str, Any]]:
    """Every loaded plugin in request order, then what else is installed."""
    times: dict[str, dict[str, Any]] = {}
    for time in plans.times or ():
        times.setdefault(time.plugin, {})[time.hook] = {"calls": time.calls, "seconds": round(time.seconds, 6)}
    told = [_loaded(order, plugin, plans, times) for order, plugin in enumerate(registry.plugins, 1)]
    loaded = {plugin.name for plugin in registry.plugins}
    told += [
        {"name": name, "version": source.version, "distribution": source.distribution, "loaded": False}
        for name, source in sorted(installed().items())
        if name not in loaded
    ]
    return told


def _loaded(order: int, plugin: LoadedPlugin, plans: Plans, times: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "distribution": plugin.distribution,
        "loaded": True,
        "order": order,
        "hooks": list(plugin.hooks),
        "settings": shown(plugin.settings),
        "on": {"default": plugin.name in plans.default.names, "profiles": plans.profiles_with(plugin.name)},
        "on_error": plugin.on_error,
        "switched_off": plugin.is_off,
        "errors": dict(plugin.errors),
        "hook_times": times.get(plugin.name, {}),
    }


def shown(value: Any) -> Any:
    """A setting's value as people may see it: no secret, nothing that is no JSON."""
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, BaseModel):
        return {name: shown(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [shown(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


# ------------------------------------------------------------------------------------------------ check --explain
def explain(config: Config, registry: Registry) -> str:
    """One line a setting: its key, its value, and the flag, variable or file it came from."""
    rows = [("enabled", shown(config.enabled), config.sources.get("enabled", "default"))]
    rows += _rows(config, "router", config.router)
    for plugin in registry.plugins:
        rows += _rows(config, f"plugins.{plugin.name}", plugin.settings)
    for name, profile in config.profiles.items():
        validated = registry.profiles[name].settings
        overrides = {
            plugin: {key: shown(getattr(validated[plugin], key)) for key in table}
            for plugin, table in profile.plugins.items()
        }
        for key, value, source in _rows(config, f"profiles.{name}", profile):
            rows.append((key, overrides if key.endswith(".plugins") else value, source))
    texts = [(key, orjson.dumps(value).decode(), source) for key, value, source in rows]
    widths = [min(max(len(row[column]) for row in texts), 60) for column in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}" for key, value, source in texts)


def _rows(config: Config, prefix: str, settings: BaseModel) -> Iterator[tuple[str, Any, str]]:
    for name in type(settings).model_fields:
        key = f"{prefix}.{name}"
        inside = (source for other, source in config.sources.items() if other.startswith(f"{key}."))
        yield key, shown(getattr(settings, name)), config.sources.get(key) or next(inside, "default")


# ------------------------------------------------------------------------------------------------- check --schema
def schema() -> dict[str, Any]:
    """The JSON schema of plugins.toml, with the settings of every installed plugin that can be imported."""
    models: dict[str, type[BaseModel]] = {"router": RouterSettings, "profile": ProfileSettings}
    for name, source in sorted(installed().items()):
        try:
            models[f"plugin {name}"] = getattr(source.load(), "Settings", PluginSettings)
        except Exception:  # noqa: BLE001, S112  # one that cannot be imported has no schema; serving it says why
            continue
    refs, definitions = models_json_schema([(model, "validation") for model in dict.fromkeys(models.values())])
    of = {name: refs[model, "validation"] for name, model in models.items()}
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    plugins = {name.removeprefix("plugin "): ref for name, ref in of.items() if name.startswith("plugin ")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "plugins.toml of router-core",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "enabled": {**names, "default": list(DEFAULT_ENABLED)},
            "router": of["router"],
            "plugins": {"type": "object", "additionalProperties": False, "properties": plugins},
            "profiles": {"type": "object", "additionalProperties": of["profile"]},
        },
        **definitions,
    }
