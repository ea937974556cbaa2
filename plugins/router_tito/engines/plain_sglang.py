"""SGLang's chat call with nothing parsed: an aborted turn is continued in it, since only it knows the model's defaults.

``/generate`` samples by SGLang's defaults where the client says nothing, chat by those of the model's
``generation_config``.
"""

from __future__ import annotations

import orjson

from router_core import Request, Worker

from .chat import Json
from .interface import AbortedPart, Ask, EngineServices
from .sglang import EXPERTS_FLAG, INPUT_FLAG, OUTPUT_FLAG
from .translate_parsing import Parsing
from .translate_sglang import SglangGenerateReader
from .versions import told_spans

PATH = b"/v1/chat/completions"
PARSED = frozenset({"tools", "tool_choice", "parallel_tool_calls", "stream_reasoning"})


class SglangPlainChat:
    """`TokenEngine`; who joins its answers brings them into the shape of ``/generate``."""

    path = PATH

    def __init__(self, services: EngineServices) -> None:
        self.parsing = Parsing(services)

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        request.set_body(orjson.dumps(self.call(ask, worker)))

    def call(self, ask: Ask, worker: Worker) -> Json:
        """The request."""
        call: Json = {
            **{key: value for key, value in ask.body.items() if key not in PARSED},
            "input_ids": list(ask.prompt_ids or ()),
            "logprobs": True,
            "separate_reasoning": False,
            "skip_special_tokens": False,
            INPUT_FLAG: True,
            OUTPUT_FLAG: True,
        }
        return {**call, EXPERTS_FLAG: True} if ask.wants_experts else call

    def so_far(self, part: AbortedPart) -> Json:
        """What this call would have answered."""
        reading, ids = part.reading, part.ids
        meta: Json = {
            "id": part.head.get("id"),
            "finish_reason": {"type": "abort"},
            "prompt_tokens": len(part.prompt_ids),
            "completion_tokens": len(ids),
            "cached_tokens": reading.cached_tokens,
            "output_token_logprobs": [[told, token, None] for told, token in zip(part.logprobs, ids, strict=True)],
            "routed_experts": reading.experts,
            "weight_version": reading.weight_version,
            "weight_versions": told_spans(reading.weight_versions) or None,
        }
        return {
            "text": part.text,
            "output_ids": ids,
            "prompt_token_ids": part.prompt_ids,
            "meta_info": {key: value for key, value in meta.items() if value is not None},
        }

    def reader(self, ask: Ask, worker: Worker) -> SglangGenerateReader:
        return SglangGenerateReader(ask, self.parsing, reasoning_key="reasoning_content", stop_key="matched_stop")
