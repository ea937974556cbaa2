"""The renderer of the tokenizer that another plugin holds: made once, in that plugin's threads, and self-tested."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router_core import Clock, Reject

from .render import Renderer, Thinking
from .selftest import SelfTestReport, self_test
from .tokenizer import Tokenizer, TokenizerDoor

log = logging.getLogger(__name__)

LOADING_S = 1.0
"""Pause between two looks at a tokenizer that is being loaded."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A renderer, its tokenizer, and the way into that one's threads."""

    door: TokenizerDoor
    tokenizer: Tokenizer
    renderer: Renderer


class RendererSource:
    """Gives the renderer as soon as there is one. ``find`` asks for the tokenizer by its name."""

    def __init__(self, find: Callable[[str | None], Any], name: str | None, thinking: Thinking) -> None:
        self._find = find
        self._name = name
        self._thinking: Thinking = thinking
        self._made: Rendering | None = None
        self._making = asyncio.Lock()
        self.report: SelfTestReport | None = None
        """What the self-test of the template found; None before it has run."""
        self.fault: str | None = None
        """Why there is no renderer, as far as it was tried."""

    @property
    def is_offered(self) -> bool:
        """Whether a plugin has such a tokenizer, loaded or not."""
        return self._find(self._name) is not None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer once it is loaded."""
        return self._made.tokenizer if self._made else None

    @property
    def ready(self) -> Rendering | None:
        """The renderer if it is there at this moment."""
        return self._made

    async def get(self) -> Rendering:
        """The renderer. Raises Reject: 503 while its tokenizer is being loaded, 500 when there is none."""
        if self._made is None:
            async with self._making:
                if self._made is None:
                    self._made = await self._make()
        return self._made

    async def _make(self) -> Rendering:
        door: TokenizerDoor | None = self._find(self._name)
        if door is None:
            raise Reject(500, "tokenizer_missing", missing(self._name))
        tokenizer = await door.ready()
        return Rendering(door, tokenizer, await door.run(Renderer, tokenizer, thinking=self._thinking))

    async def warm(self, clock: Clock) -> None:
        """Make the renderer as soon as that is possible, and test its template."""
        while True:
            try:
                rendering = await self.get()
                break
            except Reject as error:
                self.fault = error.message
                if error.status != 503:
                    log.error("nothing can be rendered: %s", error.message)
                    return
                await clock.sleep(LOADING_S)
        self.fault = None
        self.report = await rendering.door.run(self_test, rendering.renderer)
        if not self.report.is_bridgeable or self.report.lost_roles or not self.report.renders_tool_calls:
            log.warning("the chat template is of limited use: %s", self.report.to_dict())


def missing(name: str | None) -> str:
    """What to do about a tokenizer that nobody offers."""
    asked = "no plugin offers a tokenizer" if name is None else f"no plugin offers the tokenizer {name!r}"
    return f"{asked}: enable one (hf_tokenizer, with its path), or set plugins.tito.mode to observe"
