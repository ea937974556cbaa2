"""The models of all settings: ``[router]``, ``[profiles.NAME]``, and the base of every plugin's own.

Field docstrings are the reference documentation; units stand in the names.
"""

from __future__ import annotations

from typing import Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_core.core_schema import ValidationInfo

NAME_PATTERN = r"^[a-z][a-z0-9_]*\Z"


class PlainText(str):
    """A value from the environment or ``--set`` that is no TOML value; a list setting takes it by commas."""

    __slots__ = ()


class Settings(BaseModel):
    """Base of every settings model: an unknown key is an error, a value is never changed later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _split_by_comma(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, PlainText) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            if get_origin(annotation) in (list, tuple, set, frozenset):
                return [part.strip() for part in value.split(",") if part.strip()]
        return value


class PluginSettings(Settings):
    """Base of a plugin's ``Settings``."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of this plugin's scores in the sum that chooses a worker."""


def per_exchange(default: Any, **field: Any) -> Any:
    """A plugin's setting that profiles may override: ``ttl_s: float = per_exchange(600.0)``.

    Read it by ``exchange.settings(self)``.
    """
    return Field(default=default, json_schema_extra={"per_exchange": True}, **field)


def is_per_exchange(model: type[BaseModel], key: str) -> bool:
    """Whether profiles may override this setting."""
    extra = model.model_fields[key].json_schema_extra if key in model.model_fields else None
    return isinstance(extra, dict) and bool(extra.get("per_exchange"))


class RouterSettings(Settings):
    """The ``[router]`` table."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback unless told otherwise."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one (see ``ready_file``)."""
    admin_host: str | None = None
    """Address for the router's own routes where they have one of their own (``admin_port``); else that of ``host``."""
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of their own for the router's routes, 0 for a free one. ``port`` then serves turns and probes alone."""
    admin_token: SecretStr | None = None
    """Token that the router's own routes ask for (``Authorization: Bearer TOKEN``); probes and turns do not."""
    workers: list[str] = []
    """URLs of the workers known at start; more may register at any time."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes that serve the port together. Each session is owned by one of them; every loaded plugin has to say that
    it works so (``several_processes``)."""
    process_timeout_s: float = Field(default=10.0, ge=0)
    """Seconds in which each of several processes has to answer its supervisor; one that does not counts as hung (it was
    stopped, or its event loop is blocked), and is killed and replaced. 0 never does."""
    worker_schemes: list[Literal["http", "https"]] = ["http", "https"]
    """Schemes that a worker's URL may have."""
    worker_hosts: list[str] = []
    """Hosts that a worker may be on: names, ``*.domain``, addresses, networks (``10.0.0.0/8``). Empty for any."""
    ready_file: str | None = None
    """File that gets one JSON line ``{"host", "port", "url", "pid"}`` once the port is open; ``admin_url`` too."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged to standard error."""
    available: list[str] = []
    """Plugins to load although nothing enables them, so that a request or session may."""
    middleware_paths: list[str] = []
    """``pkg.mod:Class`` of plugin classes or ASGI middleware classes; the first middleware is the outermost."""
    slime_router_middleware_paths: list[str] = []
    """The same in SlimeRouter's order: the last middleware is the outermost."""
    args: dict[str, Any] = {}
    """What a slime middleware reads as ``router.args``, beside these settings."""

    front: Literal["auto", "asgi"] = "auto"
    """How clients' requests come in: ``asgi`` by uvicorn's own way, ``auto`` past it where no ASGI middleware is
    mounted, which costs half as much."""
    data_client: Literal["h1", "aiohttp"] = "h1"
    """Client for data traffic: ``h1`` is lean and our own (TLS workers go through aiohttp all the same)."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection to a worker."""
    max_body_bytes: int = Field(default=1 << 30, gt=0)
    """Longest request body; a longer one is refused (413)."""
    max_held_body_bytes: int = Field(default=64 << 20, gt=0)
    """Most bytes of a body kept for a request that no worker has yet; more is refused (413)."""
    max_collected_bytes: int = Field(default=16 << 20, gt=0)
    """Longest answer of unknown length collected for an HTTP/1.0 client; a longer one is a 502."""
    max_field_bytes: int = Field(default=65536, gt=0)
    """Longest header field of a worker's answer."""

    hook_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds an async hook may take (``around_upstream`` has no deadline)."""
    reload_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that the `startup` of a plugin may take at a reload; then the former configuration serves on."""
    skip_max_failures: int = Field(default=20, ge=0)
    """Failures of a plugin with ``on_error = "skip"`` within ``skip_window_s`` that switch it off; 0 never does."""
    skip_window_s: float = Field(default=60.0, gt=0)
    """Seconds within which they count."""
    trace_hooks: bool = False
    """Whether each call of a hook is logged with its plugin, exchange and duration. For trying things out."""
    loop_stall_s: float = Field(default=1.0, ge=0)
    """Seconds that the event loop may stand still before a warning says which hook blocks it; 0 for no watch."""
    max_background_tasks: int = Field(default=10_000, gt=0)
    """Most background tasks of plugins at one time."""
    shutdown_grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running requests get to finish after SIGTERM."""

    max_held_requests: int = Field(default=10_000, gt=0)
    """Most requests that wait in the router at one time; one more is refused (503)."""
    hold_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds that a request may wait in the router, all in all; then it is refused (503)."""
    hold_for_starting_workers: bool = False
    """Whether a request waits while no worker is ready and some are starting; else it is refused (503) at once."""

    max_workers: int = Field(default=4096, gt=0)
    """Most workers registered at one time."""
    drain_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that a draining worker's running requests get before it is gone."""

    debug_header: bool = True
    """Whether a request with ``x-router-debug: 1`` is told how it was routed; else the header means nothing."""

    session_headers: list[str] = ["x-session-id", "x-smg-tito-session-id", "x-smg-routing-key"]
    """Headers that name a request's session, in this order, after the path."""
    max_sessions: int = Field(default=100_000, gt=0)
    """Most open sessions; one more evicts the longest idle one, or is refused where none is idle."""
    session_ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds without a turn after which an open session is evicted."""
    session_close_timeout_s: float = Field(default=30.0, ge=0)
    """Seconds that deleting a session waits for its running turns before it cancels them."""

    @field_validator("admin_token")
    @classmethod
    def _is_token(cls, token: SecretStr | None) -> SecretStr | None:
        text = token.get_secret_value() if token is not None else "-"
        if not text or not all("!" <= c <= "~" for c in text):
            raise ValueError("a token is printable ASCII without spaces, and not empty")
        return token

    @field_validator("session_headers")
    @classmethod
    def _lower(cls, names: list[str]) -> list[str]:
        return [name.lower() for name in names]


class ProfileSettings(Settings):
    """A ``[profiles.NAME]`` table: a named set of switches for some requests or sessions."""

    enable: list[str] = []
    """Plugins that are on beside those of ``enabled``, appended in this order."""
    disable: list[str] = []
    """Plugins that are off."""
    plugins: dict[str, dict[str, Any]] = {}
    """Overrides of settings that their plugin marks ``per_exchange``."""


__all__ = [
    "NAME_PATTERN",
    "PlainText",
    "PluginSettings",
    "ProfileSettings",
    "RouterSettings",
    "SecretStr",
    "Settings",
    "is_per_exchange",
    "per_exchange",
]
