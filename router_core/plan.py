"""The compiled hooks of one set of enabled plugins, and the rules by which they run.

pluggy registers and validates; here each hook is a flat tuple of calls which the core makes itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from router_core.begun_hooks import (
    COROUTINE,
    ENDED,
    Turn,
    Waits,
    ask_in_turn,
    awaited,
    begun,
    coroutine_of,
    next_given,
    raising,
)
from router_core.deadline import finish_within
from router_core.hookspecs import MAY_BE_PLAIN, CallNext
from router_core.loaded_plugin import FAULTS, PASSING, Call, HookWrap, LoadedPlugin, failed, is_cancelled, refuse
from router_core.types import Answer, Attempt, Exchange, Identity, Outcome, Scores, Session, Worker

_READ_ONLY: Final[Any] = MappingProxyType


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
        self._overrides = overrides or {}
        self.settings = {id(plugin.instance): self._overrides.get(plugin.name, plugin.settings) for plugin in plugins}
        """By the ``id`` of each plugin what holds for this plan's exchanges."""
        self._identify = self._calls("identify")
        self._request_start = self._calls("request_start")
        self._around = self._calls("around_upstream")
        self._filter = self._calls("filter_workers")
        self._score = [
            (plugin, call, float(getattr(self.settings[id(plugin.instance)], "weight", 1.0)))
            for plugin, call in self._calls("score_workers")
        ]
        self._pick = self._calls("pick_worker")
        self._attempt_start = self._calls("attempt_start")
        self._response_start = self._calls("response_start")[::-1]
        self.starts_requests = bool(self._request_start)
        """Whether anybody implements the hook: a coroutine that does nothing costs, too."""
        self.starts_attempts = bool(self._attempt_start)
        self.starts_responses = bool(self._response_start)
        self.has_layers = bool(self._around)
        self.chunk_observers = self._calls("response_chunk")
        self._response_end = self._calls("response_end")
        self._session_opened = self._calls("session_opened")
        self._describe_session = self._calls("describe_session")
        self.twins: dict[str, Plan] = {}
        """The same plan with its hooks wrapped, by what for."""

    def wrapped(self, wrap: HookWrap) -> Plan:
        """The same plan, with ``wrap`` outermost around every call."""
        wraps = (*self._wraps, wrap)
        return Plan(self.plugins, hook_timeout_s=self._timeout_s, overrides=self._overrides, wraps=wraps)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(plugin.name for plugin in self.plugins)

    def _calls(self, hook: str) -> tuple[Call, ...]:
        return tuple((plugin, self._wrapped(plugin, hook)) for plugin in self.plugins if hook in plugin.hooks)

    def _wrapped(self, plugin: LoadedPlugin, hook: str) -> Callable[..., Any]:
        call = plugin.hooks[hook]
        if self._wraps and hook in MAY_BE_PLAIN:
            call = awaited(call)
        for wrap in self._wraps:
            call = wrap(plugin, hook, call)
        return call

    # ---------------------------------------------------------------------------------------------------- plain hooks
    def identify(self, exchange: Exchange) -> Identity | None:
        known: Identity | None = None
        for plugin, call in self._identify:
            try:
                found = call(exchange)
            except FAULTS as error:
                found = failed(plugin, "identify", error)
            if isinstance(found, Identity) and found.is_text:
                known = found if known is None else known.completed_by(found)
            elif found is not None:
                refuse(plugin, "identify", f"answered {found!r}, not an Identity of texts")
        return known

    def filter_workers(
        self, exchange: Exchange, workers: tuple[Worker, ...]
    ) -> tuple[tuple[Worker, ...], dict[str, str]]:
        """What every filter leaves, and for each worker's url the plugin that left it out."""
        out: dict[str, str] = {}
        for plugin, call in self._filter:
            try:
                kept = call(exchange, workers)
            except FAULTS as error:
                kept = failed(plugin, "filter_workers", error)
            if kept is None:
                continue
            try:
                kept = list(kept)
                alien = [worker for worker in kept if worker not in workers]
            except TypeError:
                refuse(plugin, "filter_workers", f"answered {kept!r}, not workers")
                continue
            if alien:
                refuse(plugin, "filter_workers", f"answered {alien[0]!r}, which it was not given")
                continue
            if len(kept) < len(workers):
                left_out = f"left out by plugin {plugin.name}"
                out.update((worker.url, left_out) for worker in workers if worker not in kept)
            workers = tuple(kept)  # a plugin that keeps or spoils its list spoils nothing
        return workers, out

    def score_workers(self, exchange: Exchange, workers: tuple[Worker, ...]) -> dict[Worker, float]:
        """The weighted sum of all scores: of every one of ``workers``, or of none where nobody scores or picks."""
        total: dict[Worker, float] | None = None
        for plugin, call, weight in self._score:
            try:
                scores = call(exchange, workers)
            except FAULTS as error:
                scores = failed(plugin, "score_workers", error)
            if scores is None:
                continue
            if not isinstance(scores, dict) and isinstance(scores, Mapping):
                scores = dict(scores)  # whose items are the quickest to go through
            if total is None:
                if weight == 1.0 and (whole := _whole_scores(scores, workers)) is not None:
                    total = whole
                    continue
                total = dict.fromkeys(workers, 0.0)
            if not _add_scores(total, scores, weight):
                refuse(plugin, "score_workers", _score_fault(scores, total))
        if total is None:
            total = dict.fromkeys(workers, 0.0) if self._pick else {}
        return total

    def pick_worker(self, exchange: Exchange, workers: Sequence[Worker], scores: Scores) -> Worker | None:
        scores = _READ_ONLY(scores)  # the core still needs them
        for plugin, call in self._pick:
            try:
                picked = call(exchange, workers, scores)
            except FAULTS as error:
                picked = failed(plugin, "pick_worker", error)
            if picked is None:
                continue
            if not isinstance(picked, Worker) or picked not in workers:
                refuse(plugin, "pick_worker", f"answered {picked!r}, which is none of its workers")
                continue
            return picked
        return None

    # ---------------------------------------------------------------------------------------------------- async hooks
    def request_start(self, exchange: Exchange) -> Answer | Awaitable[Answer | None] | None:
        """An answer, None, or what is to be awaited for either, where a plugin waits."""
        return self._ask(iter(self._request_start), exchange)

    def _ask(self, hooks: Iterator[Call], exchange: Exchange) -> Answer | Awaitable[Answer | None] | None:
        if (given := next_given(hooks, exchange)) is None:
            return None
        turn = Turn()
        asking = ask_in_turn(turn, hooks, exchange, given[0], given[1])
        waits_for = next(asking.__await__(), ENDED)
        return turn.answer if waits_for is ENDED else self._ask_on(turn, hooks, exchange, asking, waits_for)

    async def _ask_on(
        self,
        turn: Turn,
        hooks: Iterator[Call],
        exchange: Exchange,
        asking: Coroutine[Any, Any, None],
        waits_for: Any,
    ) -> Answer | None:
        """The same from a plugin that waits on."""
        assert turn.plugin is not None
        turn.has_waited = True
        await self._rest(turn.plugin, "request_start", Waits(asking, waits_for))
        if turn.answer is not None:
            return turn.answer
        rest = self._ask(hooks, exchange)
        return rest if rest is None or isinstance(rest, Answer) else await rest

    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> Awaitable[None] | None:
        """What is to be awaited, where a plugin waits."""
        return self._tell(iter(self._attempt_start), "attempt_start", exchange, attempt)

    def response_start(self, exchange: Exchange, answer: Answer) -> Awaitable[None] | None:
        """What is to be awaited, where a plugin waits."""
        return self._tell(iter(self._response_start), "response_start", exchange, answer)

    def _tell(self, hooks: Iterator[Call], hook: str, exchange: Exchange, subject: Any) -> Awaitable[None] | None:
        """Calls hooks that answer nothing, without the exception that a coroutine's answer comes by."""
        for plugin, call in hooks:
            try:
                work = call(exchange, subject)
                if work is None or (type(work) is not COROUTINE and (work := coroutine_of(work)) is None):
                    continue  # of a plain function
                for waits_for in work.__await__():
                    return self._tell_on(hooks, hook, exchange, subject, plugin, Waits(work, waits_for))
            except FAULTS as error:
                failed(plugin, hook, error)
        return None

    async def _tell_on(
        self,
        hooks: Iterator[Call],
        hook: str,
        exchange: Exchange,
        subject: Any,
        plugin: LoadedPlugin,
        waits: Waits,
    ) -> None:
        """The same from a plugin that waits on."""
        await self._rest(plugin, hook, waits)
        if (rest := self._tell(hooks, hook, exchange, subject)) is not None:
            await rest

    async def _rest(self, plugin: LoadedPlugin, hook: str, waits: Waits) -> Any:
        """What a hook answers that waits for something: in time, or it has failed."""
        try:
            return await finish_within(self._timeout_s, waits.work, waits.waits_for)
        except FAULTS as error:
            return failed(plugin, hook, error)

    def around_upstream(self, exchange: Exchange, attempt: CallNext) -> Awaitable[Answer]:
        """The onion around ``attempt``."""
        return self.inner(0, exchange, attempt)

    def inner(self, depth: int, exchange: Exchange, attempt: CallNext) -> Awaitable[Answer]:
        """The layers from ``depth`` on, and the attempt in the middle."""
        return attempt(exchange) if depth == len(self._around) else self._layer(depth, exchange, attempt)

    def _layer(self, depth: int, exchange: Exchange, attempt: CallNext) -> Awaitable[Answer]:
        """A plugin that passes the request straight on is not in the way of the answer."""
        plugin, call = self._around[depth]
        inner: list[Awaitable[Answer] | None] = [None]

        def call_next(_: Exchange) -> Awaitable[Answer]:  # a function: an object that is called costs more
            inner[0] = work = self.inner(depth + 1, exchange, attempt)
            return work

        try:
            work = call(exchange, call_next)
        except FAULTS as error:
            work = raising(error)  # where it is awaited
        if (passed := inner[0]) is not None and work is passed:
            return passed
        return self._surrounded(plugin, exchange, work, call_next, inner)

    async def _surrounded(
        self,
        plugin: LoadedPlugin,
        exchange: Exchange,
        work: Awaitable[Any],
        call_next: CallNext,
        inner: Sequence[Awaitable[Answer] | None],
    ) -> Answer:
        """What a layer answers, or that its plugin failed."""
        try:
            answer = await work
            if isinstance(answer, Answer):
                return answer
            failure = plugin.failed("around_upstream", f"answered {answer!r}, not an Answer")
        except PASSING:
            raise
        except FAULTS as error:
            if error is exchange.attempt_error or is_cancelled(error):
                raise
            failure = plugin.failed("around_upstream", error)
            failure.__cause__ = error
        if plugin.on_error == "skip" and inner[0] is None:
            return await call_next(exchange)
        raise failure

    # ------------------------------------------------------------------------------------------------------- sessions
    async def session_opened(self, session: Session, body: dict[str, Any]) -> set[str]:
        """The keys of the body that plugins take. Raises Reject where one refuses the session."""
        taken: set[str] = set()
        for plugin, call in self._session_opened:
            try:
                keys = call(session, body)
            except FAULTS as error:
                keys = failed(plugin, "session_opened", error)
            keys = begun(plugin, "session_opened", keys)
            if isinstance(keys, Waits):
                keys = await self._rest(plugin, "session_opened", keys)
            if keys is None:
                continue
            if not isinstance(keys, list | tuple | set | frozenset) or not all(isinstance(key, str) for key in keys):
                refuse(plugin, "session_opened", f"answered {keys!r}, not a list of keys")
                continue
            taken.update(keys)
        return taken

    def describe_session(self, session: Session) -> dict[str, Any]:
        """What the plugins say of a session, merged; the first one of a key wins."""
        told: dict[str, Any] = {}
        for plugin, call in self._describe_session:
            try:
                part = call(session)
            except FAULTS as error:
                part = failed(plugin, "describe_session", error)
            if isinstance(part, dict):
                told = {**part, **told}
            elif part is not None:
                refuse(plugin, "describe_session", f"answered {part!r}, not an object")
        return told

    # ------------------------------------------------------------------------------------------------------ observers
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        for plugin, call in self._response_end:
            try:
                call(exchange, outcome)
            except FAULTS as error:  # nothing depends on an observer
                plugin.failed("response_end", error)


def _whole_scores(scores: object, workers: tuple[Worker, ...]) -> dict[Worker, float] | None:
    """The first scores of a selection where they are simply one for each worker, in order: nothing to add them to."""
    if type(scores) is not dict or len(scores) != len(workers):
        return None
    total: dict[Worker, float] = scores.copy()  # the plugin may change its own
    place = 0
    for worker, score in cast("dict[Any, Any]", total).items():
        if worker is not workers[place] or type(score) is not float:
            return None
        share: float = score
        if not 0.0 <= share <= 1.0:
            return None
        place += 1  # noqa: SIM113  # enumerated, the items would be made one by one
    return total


def _add_scores(total: dict[Worker, float], scores: object, weight: float) -> bool:
    """Adds what a plugin answered, weighted; nothing of it where one is no share of a worker that it was given."""
    if not isinstance(scores, dict):
        return False
    sums: dict[Worker, float] = {}
    for worker, score in scores.items():
        if not isinstance(worker, Worker) or (so_far := total.get(worker)) is None:
            return False
        if type(score) is not float and not _is_share(score):
            return False
        share: float = score
        if not 0.0 <= share <= 1.0:
            return False
        sums[worker] = so_far + weight * share
    total.update(sums)
    return True


def _score_fault(scores: object, workers: Mapping[Worker, float]) -> str:
    if isinstance(scores, dict):
        for worker, score in scores.items():
            if not isinstance(worker, Worker) or worker not in workers:
                return f"scored {worker!r}, which it was not given"
            if not _is_share(score):
                return f"scored {worker.url} {score!r}, not a number in [0, 1]"
    return f"answered {scores!r}, not worker -> score"


def _is_share(score: object) -> bool:
    """Whether it is a number in [0, 1]. (An int may be too long for a float; numpy's floats compare to no bool.)"""
    if isinstance(score, bool):
        return False
    if isinstance(score, int):
        return score in (0, 1)
    return isinstance(score, float) and 0.0 <= float(score) <= 1.0
