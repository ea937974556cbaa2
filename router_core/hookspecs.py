"""The hooks: every point where a plugin may see or change what the router does. A docstring is its hook's contract.

During a request, in this order:

    identify -> request_start -> around_upstream( filter_workers -> score_workers -> pick_worker -> attempt_start )
             -> response_start -> response_chunk ... -> response_end

A plugin implements a hook with a method of that name marked ``@hookimpl``, taking any of the hook's arguments by
name. Plain hooks are ``def``, async ones ``async def``; the wrong kind is an error at start. An async hook of a
request may be a ``def`` where it has nothing to await, which costs less. Order is the order of ``enabled``, nothing
else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from router_core.types import Answer, Attempt, Exchange, Identity, Outcome, Scores, Session, Worker, WorkerState

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from router_core.router import Router

PROJECT = "router_core"
API_VERSION = 1
"""Version of this hook API; a plugin states ``requires_api = ">=1,<2"``."""

DEPRECATED_HOOKS: dict[str, str] = {}
"""Old name of a hook -> the hook of the same arguments that took its place. The old name works until the next version
of the API; who uses it is warned, and told the new one."""
DEPRECATED_NAMES: dict[str, str] = {}
"""Old public name of ``router_core`` -> the one that took its place, likewise."""

CallNext = Callable[[Exchange], Awaitable[Answer]]

_F = TypeVar("_F", bound=Callable[..., Any])
hookspec = pluggy.HookspecMarker(PROJECT)
_mark = pluggy.HookimplMarker(PROJECT)
_marked: dict[int, Callable[..., Any]] = {}
"""Methods of compiled classes by their id: they take no attribute."""


def hookimpl(function: _F) -> _F:
    """Marks a method as a plugin's implementation of the hook of the same name."""
    try:
        return _mark(function)
    except AttributeError:
        _marked[id(function)] = function
        return function


def marks_of(function: object) -> Mapping[str, Any] | None:
    """What ``@hookimpl``, or pluggy's own marker, says of a function; None of one that is not marked."""
    marks: Mapping[str, Any] | None = getattr(function, f"{PROJECT}_impl", None)
    return {} if marks is None and id(function) in _marked else marks


# ------------------------------------------------------------------------------------------------- during a request
@hookspec
def identify(exchange: Exchange) -> Identity | None:
    """Says who the request belongs to beside its session: group, trajectory, version tag.

    Plain, in turn; of each field the first value that is not None wins, so that one plugin may know the group and
    another the version tag. Runs before everything else, headers are there, the body is not. May not change
    ``exchange.session``.
    """


@hookspec
async def request_start(exchange: Exchange) -> Answer | None:
    """Sees a request before any worker is chosen; may change it, answer it, or refuse it.

    Async, in turn. None lets it go on. An `Answer` ends it: no worker is asked, `response_start` and `response_end`
    still run. ``raise Reject(status, code, message, param)`` refuses it and is no failure of the plugin. Await
    ``exchange.request.body()`` or ``.json()`` for the body; change it by ``set_body`` or ``set_key``. Has a deadline
    (``[router] hook_timeout_s``).
    """


@hookspec
async def around_upstream(exchange: Exchange, call_next: CallNext) -> Answer:
    """Surrounds the way to the worker and back: retries, holds, caches, joined answers.

    Async onion, the first in ``enabled`` is the outermost. ``await call_next(exchange)`` any number of times: the
    innermost call is one attempt, with a worker selected anew (without ``exchange.excluded_workers``). It raises
    WorkerFault where the worker failed before its answer began, NoWorker where nobody may take the request. The answer
    may be wrapped: ``answer.chunks = wrapped(answer.chunks)``; who reads or wraps it calls
    ``exchange.request.accept_identity()`` before ``call_next``. An answer that is not returned is closed by the core.
    No deadline. A ``def`` that returns ``call_next(exchange)`` as it is costs the least: it is out of the answer's way.
    It runs when ``call_next`` is called, even if what that gives is never awaited (a task cancelled before it began):
    what has to be given back is taken in the coroutine.
    """
    raise NotImplementedError


@hookspec
def filter_workers(exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
    """Leaves out workers that must not take this request. None keeps them all.

    Plain; folded in order, each sees what the former left. The result is a subset of ``workers`` (the same objects);
    an empty one names the plugin in the 503. ``exchange.leave_out(worker, reason)`` says why; with ``for_now=True`` the
    exchange is held, and selected for again later, where it would be refused.
    """


@hookspec
def score_workers(exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
    """Says how good each worker is for this request: worker -> [0, 1], a missing one counts as 0.

    Plain; every answer is multiplied by its plugin's ``weight`` (a setting of each, default 1) and summed. A value
    outside [0, 1], or not a number, is a plugin error.
    """


@hookspec(firstresult=True)
def pick_worker(exchange: Exchange, workers: Sequence[Worker], scores: Scores) -> Worker | None:
    """Chooses one of ``workers``; the first answer that is not None wins.

    Plain; there is no await between this and counting the worker's inflight. Without an answer the core takes the
    highest score; ties rotate.
    """


@hookspec
async def attempt_start(exchange: Exchange, attempt: Attempt) -> None:
    """The worker is known and nothing is sent: the last change to the request, for this attempt alone.

    Async, in turn, once per attempt. Change ``attempt.request``, not ``exchange.request``. ``raise AttemptWithdrawn``
    has a worker selected anew. Has a deadline.
    """


@hookspec
async def response_start(exchange: Exchange, answer: Answer) -> None:
    """The final answer, before its head leaves: status and headers may change.

    Async, in reversed order, once per exchange, also for answers and refusals of the router itself. Has a deadline.
    """


@hookspec
def response_chunk(exchange: Exchange, chunk: bytes) -> None:
    """A piece of the body as the client gets it. Plain observer; it must be quick and cannot change anything."""


@hookspec
def response_end(exchange: Exchange, outcome: Outcome) -> None:
    """The exchange is over: exactly once, after its inflight is released, whatever happened.

    Plain observer; also after refusals, without a worker, when the client left, at shutdown. For longer work use
    ``exchange.spawn()``.
    """


# ------------------------------------------------------------------------------------------------ outside a request
@hookspec
async def startup(router: Router) -> None:
    """Before the first request: keep ``router``, start background work with ``router.spawn``.

    Async, in turn. A raise stops the start of the router. No deadline: a tokenizer may take its time to load.
    """


@hookspec
async def shutdown() -> None:
    """After the last request: give back what `startup` took. Async, reversed; background work has ended.

    Has a deadline.
    """


@hookspec
def routes() -> Sequence[BaseRoute]:
    """Starlette routes of the plugin's own.

    Plain, once at start. Allowed: below ``/plugins/NAME/``, ``/sessions/{id}/NOUN``, and the top-level names that
    belong to the plugin by design. A path that another claims is an error at start.
    """
    raise NotImplementedError


@hookspec
def worker_changed(worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
    """A worker was registered (``old`` is None), changed its state, or is gone (``new`` is REMOVED). Plain observer.

    Also when one is registered again: ``new`` is READY, ``old`` what it was, be it READY too.
    """


@hookspec
async def session_opened(session: Session, body: dict[str, Any]) -> Sequence[str] | None:
    """A session is about to open; answer with the keys of ``body`` that this plugin takes.

    Async, in turn. ``raise Reject`` refuses the session. A key that neither the core nor a plugin takes is a 400. Has a
    deadline.
    """


@hookspec
def describe_session(session: Session) -> dict[str, Any] | None:
    """What the plugin adds to ``GET /sessions/{id}``; the answers are merged, the first one of a key wins. Plain."""


@hookspec
def session_closed(session: Session, reason: str) -> None:
    """A session is gone: forget what was kept for it. Plain observer. ``reason``: ``deleted`` or why it was evicted."""


@hookspec
def session_moved(session_id: str, old: Worker, new: Worker) -> None:
    """A session that was served by ``old`` is served by ``new`` from now on. Plain observer, called by affinity."""


@hookspec(firstresult=True)
def tokenizer(name: str | None) -> Any:
    """The one door to a tokenizer: ``name`` is a model's, None the default one. Plain; the first answer wins.

    Answer None for a name that is not yours. May be called before `startup`. What is answered may still be loading:
    ``await found.ready()`` gives the tokenizer, or raises Reject (503 ``warming``) after a while. A tokenizer's methods
    are for threads; ``await found.run(tokenizer.encode_batch, texts)`` calls one there. They are

    - ``encode_batch(texts) -> list[ids]``, control tokens typed in a text read as such and none added;
    - ``encode_with_ends(texts, add_special_tokens=False) -> list[(ids, ends)]``, an end being the offset behind the
      token in bytes of the UTF-8 text;
    - ``decode(ids) -> text``, ``token_bytes(ids) -> list[bytes | None]``, both with control tokens; ``special_ids``;
    - ``apply_chat_template(messages, tools=, add_generation_prompt=, template_kwargs=) -> text``.
    """


@hookspec
def metrics() -> str | None:
    """Lines in Prometheus text format that the plugin adds to ``GET /metrics``. Plain."""


@hookspec
async def told(message: Any) -> Any:
    """The plugin's part in this process is told what ``await router.tell_all(self, message)`` said in one of them.

    Async, no deadline. Every process is told, the one that said it too, and all in the same order (of the calls, each
    up to its first real wait); what this returns is one of the answers that ``tell_all`` gives, a Reject is raised
    there. Messages and answers are plain values: texts, bytes, numbers, lists, dicts. In a router of one process
    ``tell_all`` calls this and nothing else.
    """


@hookspec
def hand_over() -> Any:
    """What a process that takes the place of a lost one has to know: state that is alike in all of them.

    Plain, asked of a process that runs (``--processes``); a plain value, as in `told`. Not what belongs to sessions
    or running requests: these are lost with their process.
    """


@hookspec
def take_over(state: Any) -> None:
    """Takes what `hand_over` of another process answered. Plain, after `startup` and before the first request."""


IN_REQUEST = (
    "identify",
    "request_start",
    "around_upstream",
    "filter_workers",
    "score_workers",
    "pick_worker",
    "attempt_start",
    "response_start",
    "response_chunk",
    "response_end",
)
"""The hooks of one request in the order in which they run."""

OUTSIDE_REQUEST = (
    "startup",
    "shutdown",
    "routes",
    "worker_changed",
    "session_opened",
    "describe_session",
    "session_closed",
    "session_moved",
    "tokenizer",
    "metrics",
    "told",
    "hand_over",
    "take_over",
)

ASYNC = frozenset(
    (
        "request_start",
        "around_upstream",
        "attempt_start",
        "response_start",
        "startup",
        "shutdown",
        "session_opened",
        "told",
    )
)
"""Hooks that are ``async def``; all others are plain."""
MAY_BE_PLAIN = frozenset(("request_start", "around_upstream", "attempt_start", "response_start"))
"""Async hooks that may be a ``def``: one that answers at once or, `around_upstream`, with what is to be awaited."""

__all__ = [
    "API_VERSION",
    "ASYNC",
    "IN_REQUEST",
    "MAY_BE_PLAIN",
    "OUTSIDE_REQUEST",
    "CallNext",
    "hookimpl",
    "hookspec",
]
