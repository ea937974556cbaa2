"""Reads configuration: flag > ``ROUTER__*`` > file > default. Names first; plugins validate their own tables later.

``plugins.toml`` holds ``enabled``, ``[router]``, ``[plugins.NAME]`` and ``[profiles.NAME]``. In the environment
``ROUTER__PORT`` is ``[router] port``, ``ROUTER__ENABLED`` the list, ``ROUTER__PLUGINS__HEALTH__INTERVAL_S`` a
plugin's setting. Values are TOML values, else text.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from router_core.errors import ConfigError
from router_core.settings import PlainText, ProfileSettings, RouterSettings

DEFAULT_FILE = "plugins.toml"
DEFAULT_ENABLED = ("metrics", "engine_control", "health", "retry", "session_affinity", "least_inflight")
PREFIX = "ROUTER__"
_SECRET = re.compile("token$|secret|password|api_key")
"""Names of settings whose values no message shows, and which are text whatever they look like."""


@dataclass(frozen=True)
class Config:
    """Everything that was configured; plugins' tables are still raw."""

    router: RouterSettings
    enabled: tuple[str, ...]
    plugins: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, ProfileSettings]
    profile: str | None = None
    """The profile that holds for the whole process."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> the file, variable or flag it came from; what is missing is a default."""
    file: str | None = None
    """The file that was read."""

    def where(self, key: str) -> str:
        """The source of a key, of something in the table that it names, or of the nearest table around it."""
        return _source_of(key, self.sources) or "default"


def _source_of(key: str, sources: Mapping[str, str]) -> str:
    inside = f"{key}."
    if key not in sources and (found := next((k for k in sources if k.startswith(inside)), None)):
        return sources[found]
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return sources.get(key, "")


class _Document(BaseSettings):
    """The shape of plugins.toml; pydantic-settings merges its sources by precedence, table by table."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    enabled: list[str] = list(DEFAULT_ENABLED)
    router: dict[str, Any] = {}
    plugins: dict[str, dict[str, Any]] = {}
    profiles: dict[str, ProfileSettings] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        layers: Sequence[_Layer] = getattr(init_settings, "init_kwargs", {}).get("layers", ())
        return tuple(_LayerSource(settings_cls, layer) for layer in layers)


@dataclass(frozen=True)
class _Layer:
    """One source, highest precedence first; ``origins`` says for each dotted key where it stands."""

    values: dict[str, Any]
    origins: dict[str, str]


class _LayerSource(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], layer: _Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._layer.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._layer.values


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    settings: Sequence[str] = (),
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    profile: str | None = None,
) -> Config:
    """Reads all sources.

    ``file`` is None for ``./plugins.toml`` if there is one, and empty for none. ``flags`` maps dotted keys to values;
    ``settings`` are ``--set`` texts ``KEY=VALUE``; ``enable``, ``disable`` and the process's ``profile`` change the
    list of plugins at last. Raises ConfigError naming file and key.
    """
    if file is None and Path(DEFAULT_FILE).is_file():
        file = DEFAULT_FILE
    layers = [
        _flag_layer(flags or {}, settings),
        _environment_layer(os.environ if environment is None else environment),
        _file_layer(file) if file else _Layer({}, {}),
    ]
    sources: dict[str, str] = {}
    for layer in reversed(layers):
        sources.update(layer.origins)
    try:
        document = _Document(layers=layers)  # type: ignore[call-arg]  # taken apart by the sources above
        router = RouterSettings.model_validate(document.router)
    except ValidationError as error:
        is_router = error.title == "RouterSettings"
        model, table = (RouterSettings, "router") if is_router else (_Document, "")
        raise config_error(error, model, table, sources) from None
    if profile is not None and profile not in document.profiles:
        known = ", ".join(sorted(document.profiles)) or "none"
        raise ConfigError(f"there is no profile {profile!r}; profiles: {known}", where="--profile")
    enabled = list(document.enabled)
    for name in enable:
        if name not in enabled:
            enabled.append(name)
            sources["enabled"] = "--enable"
    for name in disable:
        if name not in enabled:
            raise ConfigError(
                f"{name!r} is not enabled; enabled are: {', '.join(enabled) or 'none'}", where="--disable"
            )
        enabled.remove(name)
    _check_once(enabled, sources.get("enabled", "default"))
    return Config(router, tuple(enabled), document.plugins, document.profiles, profile, sources, file or None)


def _check_once(enabled: Sequence[str], where: str) -> None:
    for name in enabled:
        if enabled.count(name) > 1:
            raise ConfigError(f"{name!r} is listed twice", where=where, key="enabled")


def config_error(error: ValidationError, model: type[BaseModel], table: str, sources: Mapping[str, str]) -> ConfigError:
    """The first fault of a ``table``'s validation by its model, as one line that names source and key."""
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"]]
    key = ".".join([table, *loc] if table else loc)
    message, given = first["msg"].removeprefix("Value error, "), first.get("input")
    if first["type"] == "extra_forbidden":
        message = f"unknown key{did_you_mean(loc[-1], model.model_fields) if len(loc) == 1 else ''}"
    elif isinstance(given, str | int | float | bool) and not _is_secret(model, loc):
        message += f", not {given!r}"
    return ConfigError(message, where=_source_of(key, sources), key=key)


def _is_secret(model: type[BaseModel], loc: Sequence[str]) -> bool:
    """Whether a value must not be shown: by its name, or since its field, or one around it, holds secrets."""
    found = model.model_fields.get(loc[0]) if loc else None
    return bool(loc and _SECRET.search(loc[-1])) or (found is not None and "Secret" in str(found.annotation))


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence about an unknown name: the known one that is near to it, else ``otherwise``."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else otherwise


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return PlainText(text)
    return parsed["value"] if set(parsed) == {"value"} else PlainText(text)


def _value(parts: Sequence[str], text: str) -> Any:
    """The value of a flag or variable. A number that is not written as it would be shown stays text: models read it
    as a number where they want one, and where they want a text (a secret ``1e5``, a name ``1_0``) nothing is lost."""
    if _SECRET.search(parts[-1]):
        return text
    value = toml_value(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return PlainText(text) if is_number and str(value) != text and parts[:2] != ["router", "args"] else value


def _flag_layer(flags: Mapping[str, Any], settings: Sequence[str]) -> _Layer:
    layer = _Layer({}, {})
    for pair in settings:
        key, equals, value = pair.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"{pair!r} is not KEY=VALUE", where="--set")
        if len(parts) == 1 and parts[0] not in _Document.model_fields:
            parts = ["router", *parts]
        _put(layer, parts, _value(parts, value.strip()), f"--set {key}")
    for key, value in flags.items():
        flag = "worker" if key == "router.workers" else key.rpartition(".")[2].replace("_", "-")
        _put(layer, key.split("."), value, f"--{flag}")
    _split_enabled(layer)
    return layer


def _split_enabled(layer: _Layer) -> None:
    if isinstance(enabled := layer.values.get("enabled"), PlainText):
        layer.values["enabled"] = [part.strip() for part in enabled.split(",") if part.strip()]


def _environment_layer(environment: Mapping[str, str]) -> _Layer:
    layer = _Layer({}, {})
    for name, text in environment.items():
        if not name.upper().startswith(PREFIX):
            continue
        parts = name[len(PREFIX) :].lower().split("__")
        if parts[0] not in _Document.model_fields:
            if len(parts) > 1 or parts[0] not in RouterSettings.model_fields:
                hint = did_you_mean(parts[0], [*_Document.model_fields, *RouterSettings.model_fields])
                raise ConfigError(f"no such setting{hint}", where=f"environment variable {name}", key=".".join(parts))
            parts = ["router", *parts]
        _put(layer, parts, _value(parts, text), f"environment variable {name}")
    _split_enabled(layer)
    return layer


def _file_layer(file: str) -> _Layer:
    try:
        values = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=file) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=file) from None
    return _Layer(values, dict.fromkeys(_dotted(values), file))


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _put(layer: _Layer, parts: Sequence[str], value: Any, origin: str) -> None:
    table = layer.values
    for part in parts[:-1]:
        nested = table.setdefault(part, {})
        if not isinstance(nested, dict):
            raise ConfigError(f"{part!r} is a value and a table at once", where=origin, key=".".join(parts))
        table = nested
    table[parts[-1]] = value
    layer.origins[".".join(parts)] = origin
