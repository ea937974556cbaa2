"""A passthrough router between RL rollouts and inference workers, built of hooks and plugins.

These are the public names: a plugin imports from here and from nowhere below.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from router_core.bodies import checked_version, read_json
from router_core.clock import Clock
from router_core.control import ControlAnswer, ControlClient
from router_core.errors import (
    AttemptWithdrawn,
    ClientLeft,
    ConfigError,
    MalformedBody,
    NoWorker,
    PluginError,
    Reject,
    RouterError,
    WorkerFault,
    WorkerLost,
    WorkerProtocolError,
    WorkerUnreachable,
)
from router_core.headers import Headers
from router_core.holds import Held, HoldQueue
from router_core.hookspecs import API_VERSION, DEPRECATED_NAMES, CallNext, hookimpl
from router_core.router import Router
from router_core.scan import FoundValue, Pieces, Sink, ValueScanner, keep_nothing
from router_core.settings import PluginSettings, per_exchange
from router_core.sse import EventSplitter, event_data
from router_core.strip import MemberStripper, without_members
from router_core.timing import HookTime, HookTimes
from router_core.types import (
    KEPT_VERSION,
    ROUTED_EXPERTS,
    TOKEN_FORM,
    Answer,
    Attempt,
    Exchange,
    Identity,
    InTokens,
    Outcome,
    OutcomeKind,
    Request,
    RoutedExperts,
    Scores,
    Session,
    StateKey,
    TokenForm,
    Worker,
    WorkerState,
)
from router_core.worker_updates import update_workers

if TYPE_CHECKING:
    from router_core.in_process import RunningRouter, serving

__all__ = [
    "API_VERSION",
    "KEPT_VERSION",
    "ROUTED_EXPERTS",
    "TOKEN_FORM",
    "Answer",
    "Attempt",
    "AttemptWithdrawn",
    "CallNext",
    "ClientLeft",
    "Clock",
    "ConfigError",
    "ControlAnswer",
    "ControlClient",
    "EventSplitter",
    "Exchange",
    "FoundValue",
    "Headers",
    "Held",
    "HoldQueue",
    "HookTime",
    "HookTimes",
    "Identity",
    "InTokens",
    "MalformedBody",
    "MemberStripper",
    "NoWorker",
    "Outcome",
    "OutcomeKind",
    "Pieces",
    "PluginError",
    "PluginSettings",
    "Reject",
    "Request",
    "RoutedExperts",
    "Router",
    "RouterError",
    "RunningRouter",
    "Scores",
    "Session",
    "Sink",
    "StateKey",
    "TokenForm",
    "ValueScanner",
    "Worker",
    "WorkerFault",
    "WorkerLost",
    "WorkerProtocolError",
    "WorkerState",
    "WorkerUnreachable",
    "checked_version",
    "event_data",
    "hookimpl",
    "keep_nothing",
    "per_exchange",
    "read_json",
    "serving",
    "update_workers",
    "without_members",
]


def __getattr__(name: str) -> Any:
    """The server behind ``serving`` is loaded by whoever asks for it, and by nobody else."""
    if name in ("RunningRouter", "serving"):
        return getattr(import_module("router_core.in_process"), name)
    if (new := DEPRECATED_NAMES.get(name)) is not None:
        warnings.warn(f"router_core.{name} is deprecated, use router_core.{new}", DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
