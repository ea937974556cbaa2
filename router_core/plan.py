"""The compiled hooks of one set of enabled plugins, and the rules by which they run.

pluggy registers and validates; here each hook is a flat tuple of calls which the core makes itself. A raise is kept
inside its exchange: observers are logged and dropped for the exchange, any other hook fails it (500
``plugin_error``), unless its plugin says ``on_error = "skip"``. Refusals, a client that left and a worker's fault
are no failures of a plugin.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from router_core.deadline import run_within
from router_core.errors import AttemptWithdrawn, ClientLeft, PluginError, Reject, WorkerFault
from router_core.hookspecs import CallNext
from router_core.types import Answer, Attempt, Exchange, Identity, Outcome, Scores, Session, Worker

log = logging.getLogger("router_core")

PASSING = (Reject, ClientLeft, AttemptWithdrawn, WorkerFault, PluginError)
"""What a hook may raise without being at fault."""
FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""What costs a plugin its own exchange only; a cancellation only where nobody cancelled the exchange."""


@dataclass(eq=False, slots=True)
class LoadedPlugin:
    """One plugin of this process: its instance, settings, where it came from, and what went wrong with it."""

    name: str
    instance: Any
    settings: Any
    distribution: str
    version: str
    on_error: Literal["fail", "skip"]
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Hook name -> its implementation, taking the hook's arguments by position."""
    errors: Counter[str] = field(default_factory=Counter)
    """Failures by hook."""
    is_off: bool = False
    """Whether it was switched off for failing too often."""
    on_failure: Callable[[LoadedPlugin], None] | None = None

    def failed(self, hook: str, error: BaseException | str) -> PluginError:
        """Counts and logs a failure; the error says which plugin, which hook, and what."""
        self.errors[hook] += 1
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        trace = error if isinstance(error, BaseException) else None
        log.error("plugin %r failed in hook %r: %s", self.name, hook, text, exc_info=trace)
        if self.on_failure is not None:
            self.on_failure(self)
        return PluginError(self.name, hook, text)


Call = tuple[LoadedPlugin, Callable[..., Any]]
HookWrap = Callable[[LoadedPlugin, str, Callable[..., Any]], Callable[..., Any]]
"""Plugin, hook and implementation -> what is called in its place."""


class Plan:
    """What runs for the exchanges of one set of plugins, in the order of ``plugins``."""

    def __init__(
        self,
        plugins: Sequence[LoadedPlugin],
        *,
        hook_timeout_s: float,
        overrides: Mapping[str, Any] | None = None,
        wraps: Sequence[HookWrap] = (),
    ) -> None:
        """``wraps`` stand around every call, the last one outermost; without one nothing is in the way."""
        self.plugins = tuple(plugins)
        self._timeout_s = hook_timeout_s
        self._wraps = tuple(wraps)
        self._settings = {id(plugin.instance): plugin.settings for plugin in plugins}
        for plugin in plugins:
            if overrides and plugin.name in overrides:
                self._settings[id(plugin.instance)] = overrides[plugin.name]
        self._identify = self._calls("identify")
        self._request_start = self._calls("request_start")
        self._around = self._calls("around_upstream")
        self._filter = self._calls("filter_workers")
        self._score = self._calls("score_workers")
        self._pick = self._calls("pick_worker")
        self._attempt_start = self._calls("attempt_start")
        self._response_start = self._calls("response_start")[::-1]
        self.chunk_observers = self._calls("response_chunk")
        self._response_end = self._calls("response_end")
        self._session_opened = self._calls("session_opened")
        self._describe_session = self._calls("describe_session")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(plugin.name for plugin in self.plugins)

    def _calls(self, hook: str) -> tuple[Call, ...]:
        return tuple((plugin, self._wrapped(plugin, hook)) for plugin in self.plugins if hook in plugin.hooks)

    def _wrapped(self, plugin: LoadedPlugin, hook: str) -> Callable[..., Any]:
        call = plugin.hooks[hook]
        for wrap in self._wraps:
            call = wrap(plugin, hook, call)
        return call

    def settings_of(self, plugin: object) -> Any:
        """The settings that hold for this plan's exchanges."""
        return self._settings[id(plugin)]

    # ---------------------------------------------------------------------------------------------------- plain hooks
    def identify(self, exchange: Exchange) -> Identity | None:
        known: Identity | None = None
        for plugin, call in self._identify:
            found = _guarded(plugin, "identify", call, exchange)
            if isinstance(found, Identity) and found.is_text:
                known = found if known is None else known.completed_by(found)
            elif found is not None:
                _refuse(plugin, "identify", f"answered {found!r}, not an Identity of texts")
        return known

    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> tuple[Sequence[Worker], dict[str, str]]:
        """What every filter leaves, and for each worker's url the plugin that left it out."""
        out: dict[str, str] = {}
        for plugin, call in self._filter:
            workers = tuple(workers)  # a plugin that keeps or spoils it spoils nothing
            kept = _guarded(plugin, "filter_workers", call, exchange, workers)
            if kept is None:
                continue
            try:
                kept = list(kept)
                alien = [worker for worker in kept if worker not in workers]
            except TypeError:
                _refuse(plugin, "filter_workers", f"answered {kept!r}, not workers")
                continue
            if alien:
                _refuse(plugin, "filter_workers", f"answered {alien[0]!r}, which it was not given")
                continue
            out.update((worker.url, f"left out by plugin {plugin.name}") for worker in workers if worker not in kept)
            workers = kept
        return tuple(workers), out

    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores:
        """The weighted sum of all scores; every one of ``workers`` has a value."""
        total = dict.fromkeys(workers, 0.0)
        for plugin, call in self._score:
            scores = _guarded(plugin, "score_workers", call, exchange, workers)
            if scores is None:
                continue
            weight = self._settings[id(plugin.instance)].weight
            if (fault := _score_fault(scores, total)) is not None:
                _refuse(plugin, "score_workers", fault)
                continue
            for worker, score in scores.items():
                total[worker] += weight * score
        return total

    def pick_worker(self, exchange: Exchange, workers: Sequence[Worker], scores: Scores) -> Worker | None:
        scores = MappingProxyType(scores)  # the core still needs them
        for plugin, call in self._pick:
            picked = _guarded(plugin, "pick_worker", call, exchange, workers, scores)
            if picked is None:
                continue
            if not isinstance(picked, Worker) or picked not in workers:
                _refuse(plugin, "pick_worker", f"answered {picked!r}, which is none of its workers")
                continue
            return picked
        return None

    # ---------------------------------------------------------------------------------------------------- async hooks
    async def request_start(self, exchange: Exchange) -> Answer | None:
        for plugin, call in self._request_start:
            answer = await self._timed(plugin, "request_start", call, exchange)
            if isinstance(answer, Answer):
                return answer
            if answer is not None:
                _refuse(plugin, "request_start", f"answered {answer!r}, not an Answer")
        return None

    async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        for plugin, call in self._attempt_start:
            await self._timed(plugin, "attempt_start", call, exchange, attempt)

    async def response_start(self, exchange: Exchange, answer: Answer) -> None:
        for plugin, call in self._response_start:
            await self._timed(plugin, "response_start", call, exchange, answer)

    async def _timed(self, plugin: LoadedPlugin, hook: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return await run_within(self._timeout_s, call(*args))
        except PASSING:
            raise
        except FAULTS as error:
            if is_cancelled(error):
                raise
            failure = plugin.failed(hook, error)
            if plugin.on_error == "skip":
                return None
            raise failure from error

    async def around_upstream(self, exchange: Exchange, attempt: Callable[[Exchange], Awaitable[Answer]]) -> Answer:
        """The onion around ``attempt``."""
        if not self._around:
            return await attempt(exchange)
        return await self._layer(0, exchange, attempt)

    async def _layer(self, depth: int, exchange: Exchange, attempt: Callable[[Exchange], Awaitable[Answer]]) -> Answer:
        if depth == len(self._around):
            return await attempt(exchange)
        plugin, call = self._around[depth]
        has_called = False
        of_another: BaseException | None = None  # further in, and no failure of this plugin

        async def call_next(_: Exchange) -> Answer:
            nonlocal has_called, of_another
            has_called = True
            try:
                return await self._layer(depth + 1, exchange, attempt)
            except BaseException as error:
                of_another = error
                raise

        next_: CallNext = call_next
        try:
            answer = await call(exchange, next_)
        except PASSING:
            raise
        except FAULTS as error:
            if error is of_another or is_cancelled(error):
                raise
            failure = plugin.failed("around_upstream", error)
            if plugin.on_error == "skip" and not has_called:
                return await self._layer(depth + 1, exchange, attempt)
            raise failure from error
        if not isinstance(answer, Answer):
            failure = plugin.failed("around_upstream", f"answered {answer!r}, not an Answer")
            if plugin.on_error == "skip" and not has_called:
                return await self._layer(depth + 1, exchange, attempt)
            raise failure
        return answer

    # ------------------------------------------------------------------------------------------------------- sessions
    async def session_opened(self, session: Session, body: dict[str, Any]) -> set[str]:
        """The keys of the body that plugins take. Raises Reject where one refuses the session."""
        taken: set[str] = set()
        for plugin, call in self._session_opened:
            keys = await self._timed(plugin, "session_opened", call, session, body)
            if keys is None:
                continue
            if not isinstance(keys, list | tuple | set | frozenset) or not all(isinstance(key, str) for key in keys):
                _refuse(plugin, "session_opened", f"answered {keys!r}, not a list of keys")
                continue
            taken.update(keys)
        return taken

    def describe_session(self, session: Session) -> dict[str, Any]:
        """What the plugins say of a session, merged; the first one of a key wins."""
        told: dict[str, Any] = {}
        for plugin, call in self._describe_session:
            part = _guarded(plugin, "describe_session", call, session)
            if isinstance(part, dict):
                told = {**part, **told}
            elif part is not None:
                _refuse(plugin, "describe_session", f"answered {part!r}, not an object")
        return told

    # ------------------------------------------------------------------------------------------------------ observers
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        for plugin, call in self._response_end:
            observe(plugin, "response_end", call, exchange, outcome)


def observe(plugin: LoadedPlugin, hook: str, call: Callable[..., Any], *args: Any) -> bool:
    """Calls an observer; False when it raised, which is logged, counted, and otherwise without effect."""
    try:
        call(*args)
    except FAULTS as error:  # nothing depends on an observer
        plugin.failed(hook, error)
        return False
    return True


def is_cancelled(error: BaseException) -> bool:
    """Whether this is a cancellation of the task that runs the hook, and not one that the plugin raised itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _guarded(plugin: LoadedPlugin, hook: str, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Reject:
        raise
    except FAULTS as error:
        failure = plugin.failed(hook, error)
        if plugin.on_error == "skip":
            return None
        raise failure from error


def _refuse(plugin: LoadedPlugin, hook: str, fault: str) -> None:
    failure = plugin.failed(hook, fault)
    if plugin.on_error != "skip":
        raise failure


def _score_fault(scores: object, workers: Mapping[Worker, float]) -> str | None:
    if not isinstance(scores, Mapping):
        return f"answered {scores!r}, not worker -> score"
    for worker, score in scores.items():
        if not isinstance(worker, Worker) or worker not in workers:
            return f"scored {worker!r}, which it was not given"
        if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score) or not 0 <= score <= 1:
            return f"scored {worker.url} {score!r}, not a number in [0, 1]"
    return None
