"""Many sessions at once, agents that edit, retry, fork and leave: every branch is what a worker had, to the token."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
from capture_kit import CHAT, Capturing, capturing, trained_tokenizer
from tito_kit import system, tool, user

from router_core.testing import ScriptedRequest, ScriptedWorker, ToolCall

SESSIONS = 256
TURNS = 10
WORDS = ["the weather", " in the city", " is fine", "<think>x</think>", "get", " user", "{", "}", "\n", "é", " 12"]


class Truth:
    """What each worker was given and said, by the marker that each prompt's question carries."""

    def __init__(self, workers: list[ScriptedWorker]) -> None:
        self._workers = workers

    def calls(self) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt, completion) of every call that was made."""
        return {
            (tuple(injected(request)), tuple(said_of(request)))
            for worker in self._workers
            for request in worker.requests
            if request.path == CHAT
        }


def injected(request: ScriptedRequest) -> list[int]:
    body = request.json()
    return body["input_ids"] if "input_ids" in body else body["kv_transfer_params"]["prompt_token_ids"]


def said_of(request: ScriptedRequest) -> list[int]:
    """What the worker says to a request: drawn from its last message, so that it is known without a record."""
    return draw(request.json())[1]


def draw(body: dict[str, Any]) -> tuple[str, list[int], list[ToolCall]]:
    """Text, ids and tool calls of the answer to a body."""
    dice = random.Random(repr(body["messages"]) + str(body.get("seed")))
    text = "".join(dice.choices(WORDS, k=dice.randint(1, 12)))
    pieces = trained_tokenizer().encode_batch([*(text[at : at + 3] for at in range(0, len(text), 3)), "<|im_end|>"])
    calls = [ToolCall("get", {"n": dice.randint(0, 99)})] if dice.random() < 0.4 else []
    return text, [token for ids in pieces for token in ids], calls


def answer_by_dice(worker: ScriptedWorker) -> None:
    """Each request gets the answer that its messages draw."""
    engine_answer = worker.engine.answer

    async def handler(request: ScriptedRequest, connection: Any) -> bool | None:
        if request.path == CHAT:
            text, ids, calls = draw(request.json())
            worker.say(text, ids=ids, tool_calls=calls)  # taken at once: nothing is awaited in between
        return await engine_answer(request, connection)

    worker.handler = handler


class Agent:
    """One session: it goes on, compacts, forks, retries, and loses its connection."""

    def __init__(self, http: aiohttp.ClientSession, made: Capturing, number: int) -> None:
        self.http = http
        self.made = made
        self.session_id = f"stress{number}"
        self.dice = random.Random(number)
        self.messages: list[dict[str, Any]] = [system(f"S{number}."), user(f"q0 of {number}")]

    async def run(self) -> None:
        await self._post("/sessions", {"session_id": self.session_id})
        for turn in range(TURNS):
            await self._turn(turn)

    async def _turn(self, number: int) -> None:
        body = {"model": "m", "messages": list(self.messages), "seed": self.dice.randint(0, 3)}
        fate = self.dice.random()
        if fate < 0.1:
            await self._leave(body)
        message = await self._ask(body, retry=fate < 0.1)
        if fate > 0.9:
            message = await self._ask(body, retry=True)
        if fate < 0.2 and number:
            self.messages = [self.messages[0], user(f"summary {number}")]
            return
        self.messages = [*self.messages, message]
        for call in message.get("tool_calls") or ():
            self.messages.append(tool(f"result {number}", call["id"]))
        if not message.get("tool_calls") or self.dice.random() < 0.3:
            self.messages.append(user(f"q{number + 1}"))

    async def _ask(self, body: dict[str, Any], *, retry: bool) -> dict[str, Any]:
        headers = {"x-stainless-retry-count": "1"} if retry else {}
        answer = await self._post(f"/sessions/{self.session_id}{CHAT}", body, headers)
        message = answer["choices"][0]["message"]
        return {key: value for key, value in message.items() if value is not None}

    async def _leave(self, body: dict[str, Any]) -> None:
        """Ask, and close the connection as soon as the request is out."""
        asked = asyncio.create_task(self._post(f"/sessions/{self.session_id}{CHAT}", body))
        await asyncio.sleep(self.dice.random() / 100)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        async with self.http.post(self.made.router.url + path, json=body, headers=headers) as answer:
            told = await answer.json()
            assert answer.status == 200, told
            return told


async def test_many_sessions_of_restless_agents_are_kept_to_the_token() -> None:
    async with ScriptedWorker("sglang") as one, ScriptedWorker("vllm") as other, capturing(one, other) as made:
        for worker in (one, other):
            answer_by_dice(worker)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            agents = [Agent(http, made, number) for number in range(SESSIONS)]
            await asyncio.gather(*(agent.run() for agent in agents))
        await made.settle()
        truth = Truth([one, other]).calls()
        kept = set()
        for agent in agents:
            trace = made.trace(agent.session_id)
            assert trace.uncaptured == {} and trace.drift == {}
            trained = 0
            for branch in made.branches(agent.session_id):
                for view in branch.transitions:
                    call = (tuple(view.prompt_ids), tuple(view.completion_ids))
                    assert call in truth
                    kept.add(call)
                assert len(branch.token_ids) == len(branch.loss_mask) == len(branch.logprobs)
                trained += sum(branch.loss_mask)
            sampled = [node for node in trace.trace.nodes if node.is_sampled]
            assert trained == sum(len(node.sampled_ids) for node in sampled)
            assert len(sampled) >= TURNS - 1
        assert len(kept) >= SESSIONS * (TURNS - 1)
        table = made.tito.capture.traces
        assert table.nodes == sum(len(trace.trace.nodes) for trace in table)
