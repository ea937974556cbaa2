"""Chat with exact ids at SGLang (0.5.23): ``input_ids`` in the body, ids back in ``sglext``.

``return_token_ids`` and its kin are refused when streaming; the two ``sglext`` flags work both ways. Weight versions
come with whole answers only.
"""

from __future__ import annotations

import orjson

from router_core import Request, Worker

from .chat import ChatReader, Json, are_ids
from .interface import Ask, EngineServices
from .versions import read_versions

INPUT_FLAG = "return_input_ids_in_sglext"
OUTPUT_FLAG = "return_output_ids_in_sglext"
EXPERTS_FLAG = "return_routed_experts"


class SglangChat:
    """Engine for the chat call of SGLang, with ids injected or only asked back."""

    def __init__(self, services: EngineServices) -> None:
        pass

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        request.set_key("logprobs", True)
        request.set_key(INPUT_FLAG, True)
        request.set_key(OUTPUT_FLAG, True)
        if ask.wants_experts:
            request.set_key(EXPERTS_FLAG, True)
        if ask.prompt_ids is not None:  # last: each key copies the body, and these are most of it
            request.set_key("input_ids", orjson.Fragment(ask.prompt_json))

    def reader(self, ask: Ask, worker: Worker) -> SglangReader:
        return SglangReader(ask)


class SglangReader(ChatReader):
    """Reads ``sglext`` and ``metadata``."""

    prompt_key, prompt_flag = b"input_ids", INPUT_FLAG

    def take(self, answer: Json, choice: Json | None) -> bool:
        metadata = answer.get("metadata")
        if isinstance(metadata, dict):
            read_versions(metadata, self.reading)
        extension = answer.get("sglext")
        if not isinstance(extension, dict):
            return False
        if are_ids(extension.get("input_ids")):
            self.reading.prompt_ids = extension["input_ids"]
        outputs = extension.get("output_ids")
        if isinstance(outputs, list) and len(outputs) == 1 and are_ids(outputs[0]):
            self._ids = outputs[0]
        if isinstance(extension.get("routed_experts"), str):
            self.reading.experts = extension["routed_experts"]
        return self._strip(answer, extension)

    def _strip(self, answer: Json, extension: Json) -> bool:
        is_changed = False
        for key, flag in (("input_ids", INPUT_FLAG), ("output_ids", OUTPUT_FLAG), ("routed_experts", EXPERTS_FLAG)):
            if key in extension and not self.ask.asks(flag):
                del extension[key]
                is_changed = True
        if is_changed and not any(value is not None for value in extension.values()):
            del answer["sglext"]
        return is_changed
