"""The prompt of one turn: which ids a worker is to generate from, and whether it did."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from router_core import Exchange, Reject

from .canonical import has_media
from .chat_request import ChatRequest
from .drift import classify_drift, compare_anew, to_mismatches
from .engines import RENDERED_ELSEWHERE
from .errors import TemplateRefusedError, UnrenderableError
from .limits import check_prompt
from .packed import Ids
from .render import RenderedPrompt
from .renderers import Rendering
from .session_trace import SessionTrace
from .turn import PendingTurn

if TYPE_CHECKING:
    from .capture import Capture
    from .settings import TitoSettings

log = logging.getLogger(__name__)

OBSERVE = "observe"


class TurnPrompt:
    """Renders a turn's messages where that can be done; else the worker does it, and is observed.

    ``mode`` is the one that the turn is put to a worker in. ``rendered`` is also there where it is only to be compared.
    """

    def __init__(
        self,
        capture: Capture,
        exchange: Exchange,
        settings: TitoSettings,
        session: SessionTrace,
        chat: ChatRequest,
        pending: PendingTurn,
    ) -> None:
        self._capture = capture
        self._exchange = exchange
        self._settings = settings
        self._session = session
        self._chat = chat
        self._pending = pending
        self._rendering: Rendering | None = None
        self.mode = settings.mode
        self.rendered: RenderedPrompt | None = None

    @property
    def ids(self) -> Ids | None:
        """What the worker is given to generate from; None: it renders."""
        return self.rendered.ids if self.rendered is not None and self.mode not in RENDERED_ELSEWHERE else None

    @property
    def is_continued(self) -> bool:
        """Whether the ids begin with some of the trace."""
        return self.rendered is not None and self.rendered.how != "render"

    async def render(self) -> None:
        """Find the ids. Raises Reject where the messages cannot be rendered, or leave no room for an answer."""
        path = self._pending.path
        self._check_room(self._pending.graph.nodes[path[-1]].end if path else 0)
        messages = self._chat.messages if self._pending.graph.has_media else self._pending.tail
        if why := self._chat.renders_itself or ("media" if any(map(has_media, messages)) else ""):
            self._observe(why)
        elif self.mode in RENDERED_ELSEWHERE:
            await self._render_for_comparison()
        else:
            await self._render_for_injection()

    async def _render_for_injection(self) -> None:
        self._rendering = await self._capture.renderers.get()
        try:
            prompt = await self._rendering.door.run(self._rendering.renderer.render_turn, self._pending)
        except UnrenderableError:
            self._observe("media")
            return
        except TemplateRefusedError as error:
            raise Reject(400, "template_refused", str(error), "messages") from None
        self._capture.counts.bridges[prompt.no_bridge or prompt.how] += 1
        self._check_room(len(prompt.ids))
        self.rendered = prompt

    async def _render_for_comparison(self) -> None:
        """What would have been injected: to measure drift, if there is a tokenizer to do it with."""
        self._rendering = self._capture.renderers.ready
        if self._rendering is None:
            return
        try:
            self.rendered = await self._rendering.door.run(self._rendering.renderer.render_turn, self._pending)
        except (UnrenderableError, TemplateRefusedError) as error:
            log.debug("%r: not compared: %s", self._exchange, error)

    def _check_room(self, prompt_tokens: int) -> None:
        """Raise a stop if a prompt of at least so many tokens leaves no room for an answer."""
        try:
            check_prompt(self._session.options, prompt_tokens)
        except Reject as error:
            self._session.end_status = error.param
            raise

    def _observe(self, why: str) -> None:
        self.mode = OBSERVE
        self._capture.counts.observed[why] += 1

    async def look_back(self, prompt_ids: Ids | None, node_id: int | None) -> None:
        """Once the client has its answer: did the worker generate from the ids that were meant? Were those right?

        ``prompt_ids`` are those it says it used, ``node_id`` is its answer in the trace. Raises nothing.
        """
        rendering, rendered = self._rendering, self.rendered
        if rendering is None or rendered is None or prompt_ids is None:
            return
        try:
            if prompt_ids != rendered.ids:
                await self._count_drift(rendering, rendered, prompt_ids)
            elif self._settings.debug and node_id is not None:
                await self._compare_anew(rendering, rendered, node_id)
        except Exception as error:  # noqa: BLE001  # the turn is served and committed: a comparison may fail
            log.warning("%r: its prompt could not be compared: %r", self._exchange, error)

    async def _count_drift(self, rendering: Rendering, rendered: RenderedPrompt, prompt_ids: Ids) -> None:
        kind = await rendering.door.run(
            classify_drift, self._pending, rendered.ids, prompt_ids, rendering.renderer, rendering.tokenizer
        )
        self._session.drift[kind] += 1
        self._capture.counts.drift[kind] += 1
        log.warning("%r: the worker's prompt is not the one that was meant: %s", self._exchange, kind)

    async def _compare_anew(self, rendering: Rendering, rendered: RenderedPrompt, node_id: int) -> None:
        found = await rendering.door.run(compare_anew, self._pending, rendered, rendering.renderer, rendering.tokenizer)
        self._session.note(to_mismatches(node_id, found))
        self._capture.counts.mismatches.update(kind for kind, _, _ in found)
