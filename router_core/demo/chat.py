"""A conversation as any chat client has it: messages to ``/v1/chat/completions``, the answer streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from router_core.demo.cast import TurnFailed
from router_core.demo.failure import DemoFailure
from router_core.sse import EventSplitter, event_data

MAX_TOKENS = 48
SHOWN_CHARACTERS = 60


@dataclass(slots=True)
class ChatTurn:
    """One answered turn, as the events of its stream said it; ``logprobs`` (nats) are as long as ``output_ids``."""

    worker_url: str | None
    prompt_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    events: int = 0
    is_finished: bool = False

    def add(self, event: dict[str, Any]) -> str:
        """Takes one event in; returns its piece of the text."""
        self.events += 1
        self.prompt_tokens = (event.get("usage") or {}).get("prompt_tokens", self.prompt_tokens)
        piece = ""
        for choice in event["choices"]:
            piece += choice["delta"].get("content") or ""
            self.is_finished |= choice["finish_reason"] is not None
            for token in (choice.get("logprobs") or {}).get("content") or ():
                self.output_ids.append(token["id"])
                self.logprobs.append(token["logprob"])
        self.text += piece
        return piece

    def line(self, what: str, worker: str) -> str:
        """Who served it, tokens, mean logprob in nats, and how it begins."""
        mean = sum(self.logprobs) / len(self.logprobs)
        text = " ".join(self.text.split()).encode("ascii", "replace").decode()
        if len(text) > SHOWN_CHARACTERS:
            text = text[: SHOWN_CHARACTERS - 3] + "..."
        return (
            f"{what:<11}  {worker}  {self.prompt_tokens:>5}  {len(self.output_ids):>7}  {mean:>7.3f}"
            f"  {self.events:>6}  {text!r}"
        )


class ChatRollout:
    """One agent run, a session of its own. Every turn sends all messages so far."""

    def __init__(self, number: int, client: aiohttp.ClientSession, router_url: str, questions: Sequence[str]) -> None:
        self.name = f"r{number}"
        self.turns = 0
        self.first = ChatTurn(None)
        """The first turn, once it was answered."""
        self._client = client
        self._router_url = router_url
        self._questions = questions
        self._messages: list[dict[str, str]] = []

    @property
    def is_done(self) -> bool:
        return self.turns == len(self._questions)

    @property
    def question(self) -> str:
        """What is asked next."""
        return self._questions[self.turns]

    async def turn(self, on_text: Callable[[str], object] = lambda piece: None) -> ChatTurn:
        """Asks the next question; ``on_text`` gets the text as it comes. Raises TurnFailed: it may be asked again."""
        messages = [*self._messages, {"role": "user", "content": self.question}]
        turn = await self._ask(self._router_url, messages, on_text)
        if not self.turns:
            self.first = turn
        self._messages = [*messages, {"role": "assistant", "content": turn.text}]
        self.turns += 1
        return turn

    async def ask_first(self, url: str) -> ChatTurn:
        """The first question, asked once more at ``url``."""
        return await self._ask(url, self._messages[:1], lambda piece: None)

    async def _ask(self, url: str, messages: list[dict[str, str]], on_text: Callable[[str], object]) -> ChatTurn:
        body = {
            "messages": messages,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": len(messages) > 1,  # computed whole, a first turn is the same on each worker
        }
        headers = {"x-session-id": self.name}
        try:
            async with self._client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                if answer.status != 200:
                    raise TurnFailed(f"{answer.status} {answer.headers.get('x-router-error') or await answer.text()}")
                turn = ChatTurn(answer.headers.get("x-router-worker"))
                splitter = EventSplitter()
                async for chunk in answer.content.iter_any():
                    for event in splitter.feed(chunk):
                        if (data := event_data(event)) not in (None, b"[DONE]"):
                            on_text(turn.add(json.loads(data or b"")))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TurnFailed(f"the transfer broke ({type(error).__name__})") from error
        if not turn.is_finished or not turn.output_ids:
            raise DemoFailure(f"{self.name}: the stream ended whole and says neither why nor what was sampled")
        return turn
