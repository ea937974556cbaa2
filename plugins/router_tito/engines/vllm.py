"""Chat with exact ids at vLLM (0.32): ``kv_transfer_params.prompt_token_ids`` in, ``return_token_ids`` back.

Streams carry the ids in every event and routed experts never. Answers do not tell the weight version.
"""

from __future__ import annotations

import orjson

from router_core import Request, Worker

from .chat import ChatReader, Json, are_ids, blank
from .interface import Ask, EngineServices

IDS_FLAG = "return_token_ids"
TRANSFER = "kv_transfer_params"


class VllmChat:
    """Engine for the chat call of vLLM, with ids injected or only asked back."""

    def __init__(self, services: EngineServices) -> None:
        pass

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        request.set_key("logprobs", True)
        request.set_key(IDS_FLAG, True)
        if ask.prompt_ids is not None:  # last: each key copies the body, and these are most of it
            own = ask.body.get(TRANSFER)
            own = own if isinstance(own, dict) else {}
            request.set_key(TRANSFER, {**own, "prompt_token_ids": orjson.Fragment(ask.prompt_json)})

    def reader(self, ask: Ask, worker: Worker) -> VllmReader:
        return VllmReader(ask)


class VllmReader(ChatReader):
    """Reads ``prompt_token_ids`` beside the choice, ``token_ids`` and ``routed_experts`` in it."""

    prompt_key, prompt_flag = b"prompt_token_ids", IDS_FLAG

    def take(self, answer: Json, choice: Json | None) -> bool:
        if are_ids(answer.get("prompt_token_ids")):
            self.reading.prompt_ids = answer["prompt_token_ids"]
        is_changed = False
        if not self.ask.asks(IDS_FLAG):
            is_changed = blank(answer, "prompt_token_ids")
        if choice is None:
            return is_changed
        if are_ids(choice.get("token_ids")):
            self._ids += choice["token_ids"]
        if isinstance(choice.get("routed_experts"), str):
            self.reading.experts = choice["routed_experts"]
        if not self.ask.asks(IDS_FLAG):
            is_changed = blank(choice, "token_ids") or is_changed
        return blank(choice, "routed_experts") or is_changed
