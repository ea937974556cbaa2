"""How the answers of one model are parsed: the form of its tool calls, and which of its tokens are no text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from router_tito.errors import RenderError
from router_tito.node import RenderContext
from router_tito.parsers import FORMS, AnswerParser, SpecialTextFilter, detect_form
from router_tito.parsers.answer import THINK_START
from router_tito.template import ChatTemplate
from router_tito.tokenizer import Tokenizer

from .interface import Ask, EngineServices

log = logging.getLogger(__name__)

TAIL_TOKENS = 16
"""Tokens at the end of a prompt that are looked at for thinking that it opened."""
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_fn",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "probe question"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "call00001", "function": {"name": "probe_fn", "arguments": '{"probe_key": "v"}'}}
        ],
    },
]


class Parsing:
    """Makes the parsers of answers; what it has to know of the model is found out once."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._form: str | None = None
        self._special: frozenset[str] = frozenset()
        self._known_for: Tokenizer | None = None
        self._finding = asyncio.Lock()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The one that prompts are rendered with."""
        return self._services.find_tokenizer()

    async def prepare(self) -> None:
        """Find out what parsing needs; quick once it is known."""
        if self._is_known:
            return
        async with self._finding:
            tokenizer = self.tokenizer
            if self._is_known or tokenizer is None:
                return
            self._form, self._special = await asyncio.to_thread(self._find, tokenizer)
            self._known_for = tokenizer

    @property
    def _is_known(self) -> bool:
        return self._known_for is not None and self._known_for is self.tokenizer

    def _find(self, tokenizer: Tokenizer) -> tuple[str | None, frozenset[str]]:
        special = frozenset(tokenizer.decode([token_id]) for token_id in tokenizer.special_ids)
        form = self._services.tool_form
        if form == "auto":
            form = _detect(tokenizer) or "none"
            log.info("tool calls are read in the form %s (plugins.tito.tool_form)", form)
        return form, special

    def parser(self, ask: Ask) -> AnswerParser:
        """For one answer."""
        is_open, parses = self._opens_thinking(ask), ask.body.get("separate_reasoning") is not False
        return self._parser(ask, is_thinking=is_open, parses_reasoning=parses)

    def parsers(self, ask: Ask, *, may_be_plain: bool) -> list[Callable[[], AnswerParser]]:
        """All ways to parse one answer: workers differ in what they take for thinking. Empty: calls cannot be read.

        ``may_be_plain``: the worker may have no parser for thinking at all.
        """
        if wants_calls(ask) and self._form not in FORMS:
            return []
        ways = [(self._opens_thinking(ask), True), (True, True), (False, False)]
        if ask.body.get("separate_reasoning") is False:
            ways = ways[2:]
        elif not may_be_plain:
            ways = ways[:2]
        return [partial(self._parser, ask, is_thinking=opened, parses_reasoning=parses) for opened, parses in ways]

    def _parser(self, ask: Ask, *, is_thinking: bool, parses_reasoning: bool) -> AnswerParser:
        form = FORMS.get(self._form or "") if wants_calls(ask) else None
        tools = ask.body.get("tools") or []
        return AnswerParser(form, tools, is_thinking=is_thinking, parses_reasoning=parses_reasoning)

    def visible(self, ask: Ask) -> SpecialTextFilter:
        """For one text of one answer: control tokens are no text, but for markers that a broken call left there."""
        if ask.body.get("skip_special_tokens") is False:
            return SpecialTextFilter(())
        form = FORMS.get(self._form or "")
        return SpecialTextFilter(self._special - frozenset(form.markers if form is not None else ()))

    def token_text(self, token_id: int) -> str:
        """Text of one token."""
        return self.tokenizer.decode([token_id]) if self.tokenizer is not None else ""

    def _opens_thinking(self, ask: Ask) -> bool:
        if self.tokenizer is None or not ask.prompt_ids:
            return False
        return self.tokenizer.decode(list(ask.prompt_ids[-TAIL_TOKENS:])).rstrip().endswith(THINK_START)


def wants_calls(ask: Ask) -> bool:
    """Whether the answer may hold tool calls."""
    return bool(ask.body.get("tools")) and ask.body.get("tool_choice") != "none"


def _detect(tokenizer: Tokenizer) -> str | None:
    template = ChatTemplate(tokenizer)
    try:
        return detect_form(template.render(PROBE, RenderContext((PROBE_TOOL,), {}), generation_prompt=False))
    except RenderError as error:
        log.warning("the form of tool calls cannot be told from the chat template: %s", error)
        return None
