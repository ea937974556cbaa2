"""Capture inside the generator's own process: one router in its loop, a trace of its own for each agent.

async with TITOProxy(worker_urls, tokenizer="/models/Qwen3-8B").serving() as proxy:
    trace = Trace()
    async with proxy.register(trace) as handle:
        await run_agent(base_url=handle.base_url)
    outcome = handle.outcome(reward=1.0)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from router_core import RunningRouter, Session, serving

from .export_routes import outcome_of
from .exporters import Reward, TraceOutcome
from .session_trace import SessionTrace
from .trace import Trace
from .traces import TRACE

ENABLED = ("tito", "hf_tokenizer", "health", "retry", "session_affinity", "least_inflight")


@dataclass(frozen=True, slots=True)
class ProxyHandle:
    """Where one agent talks to: any OpenAI client takes ``base_url``. Good until its ``register`` block ends."""

    base_url: str
    session_id: str
    _session: Session = field(repr=False)
    _kept: SessionTrace = field(repr=False)

    def outcome(
        self, *, reward: Reward | None = None, stop_reason: str | None = None, trajectory_id: Any = None
    ) -> TraceOutcome:
        """What composers take, before or after the block has ended.

        ``stop_reason`` and ``trajectory_id`` are the session's where they are not given.
        """
        known = outcome_of(self._session, self._kept)
        return TraceOutcome(
            known.trace,
            known.trajectory_id if trajectory_id is None else trajectory_id,
            known.reward if reward is None else reward,
            stop_reason or known.stop_reason,
            known.generation_time,
            session_id=self.session_id,
            branch_rewards=known.branch_rewards,
            missed=known.missed,
        )


class TITOProxy:
    """A router with token-exact capture in front of ``workers``, to be served in the running loop.

    ``tokenizer`` is what ``[plugins.hf_tokenizer] path`` would be. ``config`` has further tables of plugins.toml
    (``enabled``, ``router``, ``plugins``, ``profiles``); what is given in it holds. Everything is checked when serving
    begins: ConfigError.
    """

    def __init__(
        self,
        workers: Sequence[str] = (),
        *,
        tokenizer: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(config or {})
        plugins = {name: dict(table) for name, table in given.get("plugins", {}).items()}
        if tokenizer is not None:
            plugins.setdefault("hf_tokenizer", {}).setdefault("path", tokenizer)
        router = {"workers": list(workers), **given.get("router", {})}
        self._config = {"enabled": list(ENABLED), **given, "router": router, "plugins": plugins}
        self._lock = asyncio.Lock()
        self._users = 0
        self._stack = AsyncExitStack()
        self._running: RunningRouter | None = None

    @property
    def running(self) -> RunningRouter:
        """The router that is served. Raises RuntimeError outside of ``serving``."""
        if self._running is None:
            raise RuntimeError("the proxy is not served: enter `async with proxy.serving()` first")
        return self._running

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[TITOProxy]:
        """Serve until the block ends; blocks of one proxy that overlap share one server, and the last one ends it."""
        async with self._lock:
            if self._running is None:
                self._running = await self._stack.enter_async_context(serving(self._config))
            self._users += 1
        try:
            yield self
        finally:
            async with self._lock:
                self._users -= 1
                if not self._users:
                    self._running = None
                    await self._stack.aclose()

    @asynccontextmanager
    async def register(
        self, trace: Trace, *, session_id: str | None = None, cache_salt: str | None = None, **keys: Any
    ) -> AsyncIterator[ProxyHandle]:
        """A session whose turns go into ``trace``; ``keys`` are further ones of ``POST /sessions`` (``model``, limits).

        Raises Reject for a value that ``POST /sessions`` would refuse. When the block ends, running turns are waited
        for (``router.session_close_timeout_s``), the trace is sealed and late answers touch nothing.
        """
        if trace.is_sealed:
            raise ValueError("the trace is sealed: it was registered before")
        running = self.running
        body = {"session_id": session_id, "cache_salt": cache_salt, **keys}
        session = await running.router.open_session({key: value for key, value in body.items() if value is not None})
        sessions = running.router.sessions
        try:
            kept = session.state.get(TRACE)
            if kept is None:
                raise ValueError("sessions of this proxy are not captured: 'tito' is not enabled")
            kept.trace = trace
            yield ProxyHandle(f"{running.url}/sessions/{session.id}/v1", session.id, session, kept)
        finally:
            try:
                await sessions.close(session, timeout_s=running.router.settings.session_close_timeout_s)
            finally:  # where waiting was cancelled
                await sessions.close(session, timeout_s=0.0)
