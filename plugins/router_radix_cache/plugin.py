"""Exact tokens behind a text interface: /generate is sent ids, and what it answered is found again by its text."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from starlette.routing import BaseRoute

from router_core import (
    Answer,
    CallNext,
    ConfigError,
    Exchange,
    MalformedBody,
    MemberStripper,
    PluginSettings,
    Router,
    StateKey,
    hookimpl,
)
from router_radix_cache.cache import IN_LOOP_BYTES, TextCache, Turn
from router_radix_cache.hold import Hold
from router_radix_cache.passing import passing
from router_radix_cache.request import Prompt, read_prompt
from router_radix_cache.routes import CacheRoutes
from router_radix_cache.settings import RadixCacheSettings
from router_radix_cache.tee import AnswerTee, whole_body
from router_radix_cache.tokenizer import Door
from router_radix_cache.tree import RadixTree
from router_radix_cache.unusable import Unusable, UnusableError

log = logging.getLogger(__name__)

TARGET = b"/generate"
LOGPROBS = (b"input_token_logprobs", b"output_token_logprobs", b"output_token_logprobs_length")
"""What an answer says because it was asked for logprobs."""
EXPECTED = (Unusable.ABORTED, Unusable.UNFINISHED, Unusable.EMPTY)


@dataclass(slots=True)
class Kept:
    """A request whose answer is to be stored. ``hides_logprobs``: the client did not ask for those in it."""

    turn: Turn
    is_stream: bool
    hides_logprobs: bool


KEPT = StateKey[Kept]("radix cache turn")
HOLD = StateKey[Hold]("radix cache hold")


class RadixCache:
    """Encodes each text once, sends ids, and stores text, ids, logprobs, mask and weight versions of what came back."""

    requires_api: ClassVar[str] = ">=1,<2"
    Settings: ClassVar[type[PluginSettings]] = RadixCacheSettings

    def __init__(self, settings: RadixCacheSettings) -> None:
        self._settings = settings
        self._router: Router
        self._tree = RadixTree(
            max_bytes=settings.max_bytes,
            max_tokens=settings.max_tokens,
            ttl_s=settings.ttl_s,
            keep_weight_versions=settings.keep_weight_versions,
            clock=lambda: self._router.clock.now(),
        )
        self._cache = TextCache(
            self._tree, add_special_tokens=settings.add_special_tokens, prompt_bytes=settings.prompt_bytes
        )

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        door: Door | None = router.find_tokenizer(self._settings.tokenizer)
        if door is None:
            named = f" named {self._settings.tokenizer!r}" if self._settings.tokenizer else ""
            raise ConfigError(
                f"it needs a tokenizer, and no plugin has one{named}: enable hf_tokenizer and set its path",
                key="plugins.radix_cache.tokenizer",
            )
        self._cache.use(door)
        if self._settings.ttl_s is not None:
            router.spawn(self._expire_forever(self._settings.ttl_s), name="radix cache: idle trajectories")

    async def _expire_forever(self, ttl_s: float) -> None:
        while True:
            await self._router.clock.sleep(min(60.0, ttl_s / 4))
            self._tree.expire()

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        bounds = {"max_tokens": self._settings.max_tokens, "max_bytes": self._settings.max_bytes}
        return CacheRoutes(self._cache, bounds).routes()

    @hookimpl
    def metrics(self) -> str:
        stats, counts = self._tree.stats(), self._cache.counts
        return metric_lines(
            {
                "trajectories": ("gauge", "Trajectories kept.", stats.trajectories),
                "tokens": ("gauge", "Tokens kept; shared ones count once.", stats.tokens),
                "bytes": ("gauge", "Packed bytes kept.", stats.bytes),
                "stored_total": ("counter", "Answers stored.", counts.stored),
                "not_stored_total": ("counter", "Answers that were not stored, by reason.", counts.not_stored),
                "dropped_total": ("counter", "Trajectories that went, by reason.", stats.dropped),
                "reused_tokens_total": ("counter", "Prompt tokens that were known.", counts.reused_tokens),
                "encoded_tokens_total": ("counter", "Tokens encoded.", self._cache.encodings.encoded_tokens),
            }
        )

    # ----------------------------------------------------------------------------------------------- during a request
    @hookimpl
    def request_start(self, exchange: Exchange) -> Awaitable[None] | None:
        request = exchange.request
        if request.path != TARGET or request.method not in ("POST", "PUT"):
            return None
        try:
            body = request.ready_json()
        except MalformedBody:
            return None  # the worker says what is wrong with it
        return self._read_later(exchange) if body is None else self._read(exchange, body)

    async def _read_later(self, exchange: Exchange) -> None:
        try:
            body = await exchange.request.shared_json()
        except MalformedBody:
            return
        if (beginning := self._read(exchange, body)) is not None:
            await beginning

    def _read(self, exchange: Exchange, body: object) -> Awaitable[None] | None:
        prompt = read_prompt(body)
        if prompt is None or (prompt.text is None and not prompt.asks_logprobs):
            return None
        if prompt.token_ids is not None:
            try:
                turn = self._cache.begin_short(prompt.token_ids)
            except ValueError as error:
                _pass(exchange, error)
                return None
            if turn is not None:
                self._begin(exchange, prompt, turn)
                return None
        return self._begin_later(exchange, prompt)

    async def _begin_later(self, exchange: Exchange, prompt: Prompt) -> None:
        try:
            if prompt.text is None:
                turn = await self._cache.begin_ids(prompt.token_ids or ())
            else:
                known = self._cache.match(prompt.text, exchange.session_id)
                exchange.state[HOLD] = self._tree.hold(known)  # before it is waited for a thread
                turn = await self._cache.begin_text(prompt.text, known)
        except ValueError as error:
            _pass(exchange, error)
            return
        self._begin(exchange, prompt, turn)

    def _begin(self, exchange: Exchange, prompt: Prompt, turn: Turn) -> None:
        if prompt.text is None:
            exchange.state[HOLD] = self._tree.hold(turn.known)
        if not turn.tokens.ids:
            return
        exchange.state[KEPT] = Kept(turn, prompt.is_stream, hides_logprobs=not prompt.asks_logprobs)
        if prompt.text is None:
            return  # whoever sends ids gets what it asks for, and nothing is changed
        request = exchange.request
        request.remove_key("text")
        request.set_key("input_ids", turn.tokens.ids.tolist())
        if not prompt.asks_logprobs:
            request.set_key("return_logprob", True)

    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        kept = exchange.state.get(KEPT)
        if kept is None:
            return call_next(exchange)
        exchange.request.accept_identity()
        return self._answer(exchange, kept, call_next)

    async def _answer(self, exchange: Exchange, kept: Kept, call_next: CallNext) -> Answer:
        answer = await call_next(exchange)
        if answer.status != 200:
            return answer
        if kept.is_stream or (body := answer.arrived_body()) is None:
            answer.chunks = self._passing(exchange, kept, answer.chunks)
            return answer
        if len(body) <= IN_LOOP_BYTES:
            self._store_short(exchange, kept, body)
        else:
            await self._store(exchange, kept, lambda: whole_body(body, self._settings.max_answer_bytes))
        if kept.hides_logprobs:
            stripper = MemberStripper(*LOGPROBS)
            answer.set_body(stripper.feed(body) + stripper.rest())
        return answer

    def _passing(self, exchange: Exchange, kept: Kept, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        tee = AnswerTee(is_stream=kept.is_stream, max_bytes=self._settings.max_answer_bytes)
        stripper = MemberStripper(*LOGPROBS) if kept.hides_logprobs else None
        return passing(chunks, tee, stripper, lambda: self._store(exchange, kept, tee.body))

    async def _store(self, exchange: Exchange, kept: Kept, told: Callable[[], bytes]) -> None:
        try:
            await self._cache.store(kept.turn, told(), session_id=exchange.session_id)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self._lose(exchange, error)

    def _store_short(self, exchange: Exchange, kept: Kept, body: bytes) -> None:
        try:
            told = whole_body(body, self._settings.max_answer_bytes)
            self._cache.store_short(kept.turn, told, session_id=exchange.session_id)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self._lose(exchange, error)

    def _lose(self, exchange: Exchange, error: Exception) -> None:
        """The client has its answer: a fault here must not break what has passed."""
        if isinstance(error, UnusableError):
            self._cache.counts.not_stored[str(error.reason)] += 1
            worker = exchange.worker.url if exchange.worker else "none"
            level = logging.DEBUG if error.reason in EXPECTED else logging.WARNING
            log.log(level, "%r is not stored, worker %s: %s", exchange, worker, error)
        else:
            self._cache.counts.not_stored[str(Unusable.FAULT)] += 1
            log.error("%r is not stored", exchange, exc_info=error)

    @hookimpl
    def response_end(self, exchange: Exchange) -> None:
        if (hold := exchange.state.get(HOLD)) is not None:
            hold.release()


def _pass(exchange: Exchange, error: ValueError) -> None:
    log.info("%r passes as it is: its prompt is none: %s", exchange, error)


def metric_lines(metrics: Mapping[str, tuple[str, str, int | Mapping[str, int]]]) -> str:
    """Prometheus' text of metrics by name: kind, help, and a number or one for each reason."""
    lines = []
    for name, (kind, told, value) in metrics.items():
        lines += [f"# HELP router_radix_cache_{name} {told}", f"# TYPE router_radix_cache_{name} {kind}"]
        if isinstance(value, Mapping):
            lines += [f'router_radix_cache_{name}{{reason="{why}"}} {count}' for why, count in value.items()]
        else:
            lines.append(f"router_radix_cache_{name} {value}")
    return "\n".join(lines) + "\n"
