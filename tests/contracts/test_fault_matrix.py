"""Each plugin that comes with the router x each of its hooks x each kind of fault: nobody else notices.

One router serves faulty and healthy exchanges at the same time. What a fault hits is named by a header (or by the id of
a session), so one plugin's own hook fails for one exchange and works for all others.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import pytest

from router_core import Answer, Exchange, Identity, PluginError, Session, hookimpl, hookspecs
from router_core.config import DEFAULT_ENABLED
from router_core.hookspecs import ASYNC, IN_REQUEST, OUTSIDE_REQUEST
from router_core.loaded_plugin import LoadedPlugin
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once
from router_core.testing.answer import RawAnswer
from router_core.testing.conformance.passing import replay
from router_core.testing.conformance.subject import Ends
from router_core.testing.router import RunningRouter, running_router

OURS = {
    point.name: point
    for point in sorted(entry_points(group="router_core.plugins"), key=lambda point: point.name)
    if point.dist and point.dist.name == "router-core"
}
NEEDS_TOKENIZER = {"tito", "radix_cache"}
HOOK_TIMEOUT_S = 1.0
WITHIN_S = 20.0
HUGE = 4 << 20
OBSERVERS = {"response_chunk", "response_end", "worker_changed", "session_closed", "session_moved"}
AT_START = {"startup", "shutdown", "routes", "tokenizer"}
"""Hooks that stop a start, or are asked for by a plugin: tried below, and in tests/core."""
SESSION_HOOKS = ("session_opened", "describe_session")
HOOKS = [hook for hook in IN_REQUEST if hook != "tokenizer"]
KINDS = ("raises", "exits", "cancels", "hangs", "wrong type", "huge")


def hooks_of(name: str) -> list[str]:
    cls = OURS[name].load()
    return [hook for hook in (*IN_REQUEST, *OUTSIDE_REQUEST) if hasattr(cls, hook)]


# ------------------------------------------------------------------------------------------------------ what goes wrong
WRONG: dict[str, Any] = {"session_opened": 5, "describe_session": [1], "score_workers": {"http://nobody": 0.5}}
"""What a hook answers that no hook may answer; an `object()` where nothing else stands here."""


def huge(hook: str, args: Sequence[Any]) -> Any:
    """An answer, or a change of what the hook was given, of megabytes."""
    text = "x" * HUGE
    match hook:
        case "identify":
            return Identity(group=text, trajectory=text)
        case "request_start":
            return Answer(200, body=text.encode())
        case "filter_workers":
            return [*args[1]] * 10_000
        case "score_workers":
            return {**dict.fromkeys(args[1], 1.0), **{text[:number]: 0.5 for number in range(10_000)}}
        case "attempt_start":
            args[1].request.set_body(text.encode())
        case "around_upstream":
            return Answer(200, body=text.encode())
        case "response_start":
            args[1].headers.set("x-huge", text)
        case "session_opened":
            return [text]
        case "describe_session":
            return {text: text}
        case "metrics":
            return f"# {text}\n"
    return None


async def faulty(hook: str, kind: str, args: Sequence[Any]) -> Any:
    """What an async hook does instead of its work."""
    if kind == "hangs":
        await asyncio.Event().wait()
    if hook == "around_upstream" and kind == "wrong type":
        await args[1](args[0])  # its worker's answer has come, and nobody takes it
    return plainly_faulty(hook, kind, args)


def plainly_faulty(hook: str, kind: str, args: Sequence[Any]) -> Any:
    match kind:
        case "raises":
            raise ValueError(f"{hook} is meant to fail")
        case "exits":
            raise SystemExit(3)
        case "cancels":
            raise asyncio.CancelledError
        case "hangs":
            time.sleep(0.02)  # nothing can stop a plain hook; all wait for it, and that is all
            return None
        case "huge":
            return huge(hook, args)
    return WRONG.get(hook, object())


@dataclass
class Faults:
    """Has hooks of one plugin fail where an exchange or a session says so."""

    plugin: str
    reached: set[tuple[str, str]] = field(default_factory=set)

    def wrap(self, plugin: LoadedPlugin, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if plugin.name != self.plugin:
            return call

        async def waiting(*args: Any) -> Any:
            kind = self._kind(hook, args)
            return await (call(*args) if kind is None else faulty(hook, kind, args))

        def plain(*args: Any) -> Any:
            kind = self._kind(hook, args)
            told = None if kind is None else plainly_faulty(hook, kind, args)
            return call(*args) if kind in (None, "hangs") else told

        return waiting if hook in ASYNC else plain

    def _kind(self, hook: str, args: Sequence[Any]) -> str | None:
        about = args[0]
        wanted = about.request.headers.get("x-fault") if isinstance(about, Exchange) else about.id
        if (kind := kind_of(wanted, hook)) is not None:
            self.reached.add((hook, kind))
        return kind


def fault(hook: str, kind: str) -> str:
    return f"{hook}:{KINDS.index(kind)}"


# ------------------------------------------------------------------------------------ a neighbour that fails everywhere
def make_beside() -> type[Any]:
    """A plugin with every hook, each of which fails where an exchange or a session says so; outside, as `kind` says."""

    def method(hook: str) -> Any:
        spec = getattr(hookspecs, hook)
        arguments = ", ".join(["self", *inspect.signature(spec).parameters])
        head = "async def" if hook in ASYNC else "def"
        call = f"self.act({hook!r}, [{', '.join(inspect.signature(spec).parameters)}])"
        names: dict[str, Any] = {}
        exec(f"{head} {hook}({arguments}):\n    return {'await ' if hook in ASYNC else ''}{call}", names)
        if hook in ASYNC:
            names[hook].__globals__["__builtins__"] = builtins
        return hookimpl(names[hook])

    def act(self: Any, hook: str, args: Sequence[Any]) -> Any:
        about = args[0] if args else None
        kind = self.kind
        if isinstance(about, Exchange):
            kind = kind_of(about.request.headers.get("x-beside"), hook)
        elif isinstance(about, Session) and hook in SESSION_HOOKS:
            kind = kind_of(about.id, hook)
        self.reached.add((hook, kind))
        if hook in ASYNC:
            return _acting(hook, kind, args)
        return None if kind is None else plainly_faulty(hook, kind, args)

    hooks = {hook: method(hook) for hook in (*IN_REQUEST, *OUTSIDE_REQUEST) if hook not in AT_START}
    return type("Beside", (), {**hooks, "act": act, "kind": None, "reached": set()})


async def _acting(hook: str, kind: str | None, args: Sequence[Any]) -> Any:
    if kind is not None:
        return await faulty(hook, kind, args)
    return await args[1](args[0]) if hook == "around_upstream" else None


def kind_of(wanted: str | None, hook: str) -> str | None:
    where, _, number = (wanted or "").partition(":")
    return KINDS[int(number)] if where == hook else None


# -------------------------------------------------------------------------------------------------- who must not notice
@dataclass
class Stage:
    """A router with the plugin on trial in front, and what its healthy exchanges got before anything failed."""

    plugin: str
    router: RunningRouter
    worker: ScriptedWorker
    ends: Ends
    faults: Faults
    expected: list[tuple[int, bytes]] = field(default_factory=list)

    async def healthy(self) -> list[tuple[int, bytes]]:
        """Status and body of an exchange of each kind: alone, in a session, chat, another path."""
        asked = [
            ("/generate", [], {"text": "hi", "sampling_params": {"max_new_tokens": 4}}),
            ("/generate", [("x-session-id", "steady")], {"input_ids": [1, 2, 3]}),
            ("/v1/chat/completions", [("x-session-id", "other")], {"messages": [{"role": "user", "content": "hi"}]}),
            ("/some/path", [], {"what": "ever"}),
        ]
        answers = await asyncio.gather(*(self.ask(target, headers, body) for target, headers, body in asked))
        return [(answer.status, answer.body) for answer in answers]

    async def ask(self, target: str, headers: Sequence[tuple[str, str]], body: Any) -> RawAnswer:
        return await exchange_once(self.router.port, "POST", target, headers, json=body, timeout_s=WITHIN_S)

    async def failing(self, hook: str, kind: str, header: str = "x-fault") -> RawAnswer | None:
        """The exchange that is hit; None where its client gave up: on a layer that hangs, on a head of megabytes."""
        headers = [(header, fault(hook, kind))]
        body = {"text": "hit", "sampling_params": {"max_new_tokens": 4}}
        if (hook, kind) == ("around_upstream", "hangs"):
            async with RawClient(self.router.port) as client:
                await client.send(build_request("POST", "/generate", headers, json=body))
                await asyncio.sleep(HOOK_TIMEOUT_S / 10)
            return None
        try:
            return await self.ask("/generate", headers, body)
        except NoAnswerError:
            assert (hook, kind) == ("response_start", "huge")
            return None

    async def outside(self) -> bytes:
        """A worker comes and goes, a session too, and the metrics page is read; returns the page."""
        port = self.router.port
        added = await exchange_once(port, "POST", "/workers", json={"url": "http://127.0.0.1:9"})
        gone = await exchange_once(port, "POST", "/remove_worker?url=http://127.0.0.1:9")
        opened = await exchange_once(port, "POST", "/sessions", json={"session_id": "brief"})
        closed = await exchange_once(port, "DELETE", "/sessions/brief")
        page = await exchange_once(port, "GET", "/metrics")
        assert [one.status for one in (added, gone, opened, closed, page)] == [202, 200, 200, 204, 200]
        return page.body

    def check_others(self, what: str, guilty: str | None = None) -> None:
        """Nobody's hook has failed but those of the plugin that is to blame."""
        blamed = {plugin for plugin, _ in self.router.router.plugin_errors()}
        assert blamed <= {guilty or self.plugin}, f"{what}: {self.router.router.plugin_errors()}"

    async def settle(self, exchanges: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            await self.ends.signal.wait_until(lambda: len(self.ends) >= exchanges)
        assert all(len(outcomes) == 1 for outcomes in self.ends.outcomes.values())
        assert all(worker.inflight == 0 for worker in self.router.router.workers)
        assert not self.router.router.exchanges


@asynccontextmanager
async def stage(name: str, *classes: type[Any]) -> Any:
    first = ["hf_tokenizer"] if name in NEEDS_TOKENIZER else []
    enabled = list(dict.fromkeys([*first, name, *DEFAULT_ENABLED]))
    tables = {"hf_tokenizer": {"path": str(ASSETS)}} if "hf_tokenizer" in enabled else {}
    ends = Ends()
    async with ScriptedWorker() as worker:
        recorded = await exchange_once(worker.port, json={"text": "hi", "sampling_params": {"max_new_tokens": 4}})
        async with running_router(
            [worker.url],
            enabled=enabled,
            plugins=tables,
            classes=[*classes, ends.plugin()],
            router={"hook_timeout_s": HOOK_TIMEOUT_S},
        ) as router:
            worker.handler = replay(recorded)
            faults = Faults(name)
            made = Stage(name, router, worker, ends, faults)
            if name in NEEDS_TOKENIZER:
                await router.router.find_tokenizer(None).ready()
            made.expected = await made.healthy()
            router.application.plans.watch_hooks(faults.wrap)
            yield made


def expected_status(hook: str, kind: str) -> int | None:
    """What the exchange that is hit gets; None where it depends on what the others make of it."""
    if hook in OBSERVERS or (kind == "hangs" and hook not in ASYNC):
        return 200
    if kind == "huge" or (kind == "wrong type" and hook in ("attempt_start", "response_start")):
        return None
    return 500


# ----------------------------------------------------------------------------------------------------------- the matrix
@pytest.mark.parametrize("name", [name for name in OURS if {*hooks_of(name)} & {*HOOKS}])
async def test_a_hook_that_fails_in_an_exchange_touches_no_other(name: str) -> None:
    mine = [hook for hook in hooks_of(name) if hook in HOOKS]
    async with stage(name) as made:
        count = len(made.expected)
        for kind in KINDS:
            hit = [made.failing(hook, kind) for hook in mine]
            answers, *others = await asyncio.gather(asyncio.gather(*hit), *(made.healthy() for _ in range(3)))
            count += len(hit) + sum(len(other) for other in others)
            await made.settle(count)
            for hook, answer in zip(mine, answers, strict=True):
                _check_hit(name, hook, kind, answer)
            assert others == [made.expected] * len(others), f"{name}, whose hooks {kind}"
            made.check_others(f"{name}, whose hooks {kind}")
            assert await made.healthy() == made.expected, f"{name}, after its hooks {kind}"
            count += len(made.expected)
        missing = set(itertools.product(mine, KINDS)) - made.faults.reached
        assert not missing, f"never called: {missing}"


@pytest.mark.parametrize("name", OURS)
async def test_a_neighbour_that_fails_at_every_hook_is_not_noticed(name: str) -> None:
    beside = make_beside()
    hooks = [hook for hook in HOOKS if hook not in SESSION_HOOKS]
    async with stage(name, beside) as made:
        count = len(made.expected)
        for kind in KINDS:
            hit = [made.failing(hook, kind, "x-beside") for hook in hooks]
            beside.kind = kind
            answers, outside, *others = await asyncio.gather(
                asyncio.gather(*hit), made.outside(), *(made.healthy() for _ in range(3))
            )
            beside.kind = None
            count += len(hit) + sum(len(other) for other in others)
            await made.settle(count)
            for hook, answer in zip(hooks, answers, strict=True):
                if (hook, kind) in beside.reached or hook != "pick_worker":  # a pick before its own is the last word
                    _check_hit("beside", hook, kind, answer)
            assert others == [made.expected] * len(others), f"{name}, beside one whose hooks {kind}"
            assert b"router_requests_total" in outside
            made.check_others(f"{name}, beside one whose hooks {kind}", "beside")
            assert await made.healthy() == made.expected
            count += len(made.expected)


def _check_hit(name: str, hook: str, kind: str, answer: RawAnswer | None) -> None:
    status = expected_status(hook, kind)
    if answer is None or status is None:
        return
    assert answer.status == status, f"{name}.{hook} {kind}: {answer.status} {answer.body[:300]!r}"
    if status == 500:
        assert answer.get("x-router-error") == "plugin_error", f"{name}.{hook} {kind}: {answer.body[:300]!r}"
        error = answer.json()["error"]
        assert (error["plugin"], error["hook"]) == (name, hook)


@pytest.mark.parametrize("name", [name for name in OURS if {*hooks_of(name)} & {*SESSION_HOOKS}])
async def test_a_hook_that_fails_for_a_session_touches_no_other(name: str) -> None:
    mine = [hook for hook in SESSION_HOOKS if hook in hooks_of(name)]
    async with stage(name) as made:
        for hook, kind in itertools.product(mine, KINDS):
            body = {"session_id": fault(hook, kind)}
            opened, steady = await asyncio.gather(
                made.ask("/sessions", [], body), made.ask("/sessions", [], {"session_id": f"fine.{hook}.{body}"[:9]})
            )
            assert steady.status in (200, 409)
            if hook == "session_opened":
                assert opened.status in ((200,) if kind == "huge" else (500,)), f"{kind}: {opened.body!r}"
            described = await exchange_once(made.router.port, "GET", f"/sessions/{fault(hook, kind)}")
            if hook == "describe_session":
                assert described.status == (200 if kind in ("huge", "hangs") else 500), f"{kind}: {described.body!r}"
            made.check_others(f"{hook} {kind}")
            assert await made.healthy() == made.expected
        assert set(itertools.product(mine, KINDS)) <= made.faults.reached


OUTSIDE = ("worker_changed", "session_closed", "session_moved", "metrics")


@pytest.mark.parametrize("name", [name for name in OURS if {*hooks_of(name)} & {*OUTSIDE}])
async def test_a_hook_that_fails_outside_of_exchanges_touches_no_other(name: str) -> None:
    mine = [hook for hook in OUTSIDE if hook in hooks_of(name)]
    async with stage(name) as made:
        (plugin,) = [plugin for plugin in made.router.application.registry.plugins if plugin.name == name]
        former = dict(plugin.hooks)
        for kind in KINDS:
            for hook in mine:
                plugin.hooks[hook] = lambda *args, hook=hook, kind=kind: plainly_faulty(hook, kind, args)
            page = await made.outside()
            for worker in made.router.router.workers:
                made.router.router.session_moved("s", worker, worker)
            assert b"router_requests_total" in page
            assert await made.healthy() == made.expected
            made.check_others(f"{name}, whose hooks {kind}")
            plugin.hooks.update(former)


async def test_a_tokenizer_that_fails_is_told_to_who_asked(name: str = "hf_tokenizer") -> None:
    async with stage("tito") as made:
        (plugin,) = [plugin for plugin in made.router.application.registry.plugins if plugin.name == name]
        for kind in ("raises", "exits", "cancels"):
            plugin.hooks["tokenizer"] = lambda *args, kind=kind: plainly_faulty("tokenizer", kind, args)
            with pytest.raises(PluginError, match="'hf_tokenizer', hook 'tokenizer'"):
                made.router.router.find_tokenizer(None)
            assert await made.healthy() == made.expected
        made.check_others("a tokenizer that fails", name)
