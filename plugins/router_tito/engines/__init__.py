"""How a turn is put to a worker and how its answer is read, by mode and kind of worker.

    capture --Ask--> Engine.write(attempt's request)      at attempt_start, when the worker is known
    worker's bytes --> AnswerReader --> client's bytes    as they come; the last event waits for the commit
                            `--Reading--> commit

To add a mode: write a module here with a class that has `Engine`'s two methods (interface.py is the contract), and
enter a factory for each kind of worker it serves in ``ENGINES``. ``MODES`` then knows it, and so do the setting
``mode`` and ``GET /sessions/capabilities``. A mode that takes no prompt ids from us (it renders elsewhere) is entered
in ``RENDERED_ELSEWHERE``, and its `Ask` then has ``prompt_ids = None``.
"""

from __future__ import annotations

from collections.abc import Callable

from router_core import Worker

from .chat import ChatReader
from .detect import KINDS, Detector, Kind, WorkerFacts
from .interface import AnswerReader, Ask, Engine, EngineFactory, EngineServices, Reading
from .plain_sglang import SglangPlainChat
from .render_vllm import VllmRender
from .sglang import SglangChat
from .token_form import ChatInTokens, TokenEngine
from .translate_sglang import SglangGenerate
from .translate_vllm import VllmCompletions
from .vllm import VllmChat

ENGINES: dict[str, dict[Kind, EngineFactory]] = {
    "inject": {"sglang": SglangChat, "vllm": VllmChat},
    "translate": {"sglang": SglangGenerate, "vllm": VllmCompletions},
    "render": {"vllm": VllmRender},
    "observe": {"sglang": SglangChat, "vllm": VllmChat},
}
"""Mode -> kind of worker -> how its engine is made."""
MODES = tuple(ENGINES)
INJECT = "inject"
TOKEN_ENGINES: dict[Kind, Callable[[EngineServices], TokenEngine]] = {
    "sglang": SglangPlainChat,
    "vllm": VllmCompletions,
}
"""Kind of worker -> how the rest of an aborted turn of mode ``inject`` is asked for."""
RENDERED_ELSEWHERE = frozenset({"observe"})
"""Modes in which we give the worker no ids to generate from."""


class UnknownEngineError(LookupError):
    """There is no engine for this mode and kind of worker."""


class Engines:
    """The engines of one process, each made when it is first needed."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._made: dict[tuple[str, str], Engine] = {}
        self._token_engines: dict[Kind, TokenEngine] = {}

    def get(self, mode: str, kind: Kind) -> Engine:
        """The engine for a mode at a kind of worker. Raises UnknownEngineError."""
        made = self._made.get((mode, kind))
        if made is None:
            factory = ENGINES.get(mode, {}).get(kind)
            if factory is None:
                raise UnknownEngineError(f"mode {mode!r} is not there for {kind} workers")
            made = self._made[mode, kind] = factory(self._services)
        return made

    def token_form(self, ask: Ask, worker: Worker, kind: Kind) -> ChatInTokens:
        """The turn in the worker's call for tokens."""
        tokens = self._token_engines.get(kind)
        if tokens is None:
            tokens = self._token_engines[kind] = TOKEN_ENGINES[kind](self._services)
        return ChatInTokens(self._services, self.get(INJECT, kind), tokens, ask, worker, kind)


__all__ = [
    "ENGINES",
    "INJECT",
    "KINDS",
    "MODES",
    "RENDERED_ELSEWHERE",
    "AnswerReader",
    "Ask",
    "ChatInTokens",
    "ChatReader",
    "Detector",
    "Engine",
    "EngineFactory",
    "EngineServices",
    "Engines",
    "Kind",
    "Reading",
    "UnknownEngineError",
    "WorkerFacts",
]
