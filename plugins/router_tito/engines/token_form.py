"""An aborted chat answer in its worker's call for tokens, so that somebody can have the rest generated.

The worker's own parser is lost with its answer: what it said of the beginning must be what one of ours says, and that
one then reads the whole. Where that cannot be told for sure, there is no token form, and the abort is the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from router_core import InTokens, Reject, Request, StateKey, Worker
from router_tito.parsers import AnswerParser, Delta

from .chat import ChatReader, Json
from .detect import Kind
from .interface import AbortedPart, Ask, Engine, EngineServices
from .shown import Shown
from .translate_parsing import Parsing
from .translate_reader import TranslatedReader
from .translate_request import top_logprobs

log = logging.getLogger(__name__)

NO_CHARACTER = "\ufffd"
REASONING: dict[Kind, str] = {"sglang": "reasoning_content", "vllm": "reasoning"}
"""What workers call reasoning in a message."""
PARSERS_OF_SGLANG = "/get_model_info"
PARSERS_OF_VLLM = "/server_info?config_format=json"
"""The pages that name the parsers a server was started with."""


PAGE = StateKey[tuple[int, Json]]("tito page of parsers")


class TokenEngine(Protocol):
    """An engine whose call generates from ids and parses nothing."""

    path: bytes
    parsing: Parsing

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None: ...

    def call(self, ask: Ask, worker: Worker) -> Json: ...

    def so_far(self, part: AbortedPart) -> Json: ...

    def reader(self, ask: Ask, worker: Worker) -> TranslatedReader: ...


class ChatInTokens:
    """`TokenForm` of one attempt of a captured turn: ``chat`` put it to ``worker``, ``tokens`` would go on with it."""

    def __init__(
        self, services: EngineServices, chat: Engine, tokens: TokenEngine, ask: Ask, worker: Worker, kind: Kind
    ) -> None:
        self.is_taken = False
        self.kind = kind
        self._services = services
        self._chat = chat
        self._tokens = tokens
        self._ask = ask
        self._worker = worker
        self._reasoning_key = REASONING[kind]
        self._head: Json = {}
        self._make_parser: Callable[[], AnswerParser] | None = None

    async def of(self, told: bytes, *, is_stream: bool) -> InTokens | None:
        """The answer in the other call; None, and a line in the log, where there is a doubt."""
        try:
            return await self._of(told, is_stream)
        except _Doubt as doubt:
            log.warning("an aborted answer of %s cannot be continued: %s", self._worker.url, doubt)
            return None

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        """Write a further attempt, which is at another worker of this kind perhaps, in the call for tokens."""
        await self._tokens.write(ask, request, worker)

    def reader(self, shown_by: ChatReader | None) -> TranslatedReader:
        """Reads the whole answer in the call for tokens, behind what another reader gave the client of it."""
        if self._make_parser is None:
            raise RuntimeError("nothing was put into the token form")
        reader = self._tokens.reader(self._ask, self._worker)
        had = None
        if shown_by is not None and shown_by.head:
            had = Shown(shown_by.message, self._reasoning_key, shown_by.told_tokens)
        reader.go_on(self._make_parser(), self._head, had)
        return reader

    async def _of(self, told: bytes, is_stream: bool) -> InTokens:
        ask = self._ask
        if top_logprobs(ask.body):
            raise _Doubt("the ids of its top logprobs are not told")
        if any(_is_strict(tool) for tool in ask.body.get("tools") or ()):
            raise _Doubt("a strict tool is a grammar, whose state is lost")
        part, message = await self._read(told, is_stream)
        try:
            call = self._tokens.call(ask, self._worker)
        except Reject as error:
            raise _Doubt(error.message) from None
        if part.ids:
            self._make_parser = await self._parser_like(message, part)
        self._head = dict(part.head)
        return InTokens(self._tokens.path.decode(), call, self._tokens.so_far(part))

    async def _read(self, told: bytes, is_stream: bool) -> tuple[AbortedPart, Json]:
        reader = self._chat.reader(self._ask, self._worker)
        if not isinstance(reader, ChatReader):
            raise _Doubt("it is no chat answer")
        if is_stream:
            await reader.feed(told)
            await reader.end()
        else:
            await reader.whole(told)
        reading, message = reader.reading, reader.reading.message
        ids = list(reading.completion_ids or ())
        said = any(message.get(key) for key in (self._reasoning_key, "content", "tool_calls"))
        logprobs = [value for value in reading.logprobs or () if value is not None]
        if reading.fault or reading.finish_reason != "abort":
            raise _Doubt(reading.fault or "it is no abort")
        if len(logprobs) != len(ids) or (said and not ids):
            raise _Doubt(f"{len(ids)} ids and {len(logprobs)} logprobs were told")
        prompt_ids = list(self._ask.prompt_ids or ())
        if ids and list(reading.prompt_ids or ()) != prompt_ids:
            raise _Doubt("its prompt is not the one that was meant")
        await self._tokens.parsing.prepare()
        tokenizer = self._services.find_tokenizer()
        if tokenizer is None:
            raise _Doubt("there is no tokenizer")
        text = await asyncio.to_thread(tokenizer.decode, ids) if ids else ""
        return AbortedPart(reading, reader.head, prompt_ids, ids, logprobs, text), message

    async def _parser_like(self, message: Json, part: AbortedPart) -> Callable[[], AnswerParser]:
        """How to parse the whole as the worker parsed the beginning."""
        ask, may_be_plain = await self._as_parsed()
        parsing = self._tokens.parsing
        text = part.text.rstrip(NO_CHARACTER)
        found = []
        for make in parsing.parsers(ask, may_be_plain=may_be_plain):
            parser = make()
            so_far = parser.feed(text)
            rest = parser.end()
            shown = [parsing.visible(ask) for _ in range(2)]
            reasoning, content = (
                filter_.feed(said) + filter_.end()
                for filter_, said in zip(
                    shown, (so_far.reasoning + rest.reasoning, so_far.content + rest.content), strict=True
                )
            )
            whole = Delta(reasoning, content, (*so_far.calls, *rest.calls))
            if self._is_like(message, whole):
                found.append((make, whole))
        if not found or any(_key(whole) != _key(found[0][1]) for _, whole in found) or not text.strip():
            raise _Doubt("how its worker parses answers cannot be told from its beginning")
        return found[0][0]

    def _is_like(self, message: Json, whole: Delta) -> bool:
        """Whether a message is the beginning of another one; nothing but white space may differ around texts."""
        reasoning, content = (_words(message.get(key)) for key in (self._reasoning_key, "content"))
        names = [str((call.get("function") or {}).get("name")) for call in message.get("tool_calls") or ()]
        due = [call.name for call in whole.calls]
        are_calls_alike = names[: len(due)] == due[: len(names)] and len(names) <= len(due) + 1
        return (
            are_calls_alike
            and _words(whole.reasoning).startswith(reasoning)
            and _words(whole.content).startswith(content)
            and not (_words(whole.reasoning) and not reasoning)
        )

    async def _as_parsed(self) -> tuple[Ask, bool]:
        """The ask without what the worker has no parser for, and whether it may have none for thinking."""
        is_vllm = self.kind == "vllm"
        path = PARSERS_OF_VLLM if is_vllm else PARSERS_OF_SGLANG
        found = await self._page(path)
        if is_vllm:
            # Tools it cannot parse it has refused. Its page is there in development mode only.
            config = (found.get("vllm_config") or {}).get("reasoning_config")
            known = None if not isinstance(config, dict) else bool(config.get("reasoning_parser"))
            return self._without(calls=False, reasoning=known is False), known is None
        if not {"tool_call_parser", "reasoning_parser"} <= found.keys():
            raise _Doubt("it does not say with which parsers it was started")
        return self._without(calls=not found["tool_call_parser"], reasoning=not found["reasoning_parser"]), False

    async def _page(self, path: str) -> Json:
        """What the worker says of itself, asked once; nothing where it does not answer."""
        worker = self._worker
        known = worker.state_of.get(PAGE)
        if known is not None and known[0] == worker.generation:
            return known[1]
        generation = worker.generation
        answer = await self._services.control.call(worker, "GET", path, timeout_s=self._services.timeout_s)
        told = answer.json() if answer.is_ok else None
        page: Json = told if isinstance(told, dict) else {}
        if answer.status and generation == worker.generation:
            worker.state_of[PAGE] = (generation, page)
        return page

    def _without(self, *, calls: bool, reasoning: bool) -> Ask:
        less: Json = {"tool_choice": "none"} if calls else {}
        if reasoning:
            less["separate_reasoning"] = False
        return replace(self._ask, body={**self._ask.body, **less})


class _Doubt(Exception):
    """Why there is no exact token form."""


def _key(whole: Delta) -> tuple[Any, ...]:
    return whole.reasoning, whole.content, [(call.name, call.arguments) for call in whole.calls]


def _words(text: Any) -> str:
    """A text without white space, which workers drop here and there, and without half a character at its end."""
    return "".join(str(text or "").split()).rstrip(NO_CHARACTER)


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and bool(function.get("strict"))
