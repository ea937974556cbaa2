"""What becomes of a request at the door: refused, or given its seed and its room."""

import secrets
from collections.abc import Collection

from router_core.reference_engine.errors import ContextTooLongError, InvalidFieldError, RequestError
from router_core.reference_engine.generation import Generation, GenerationRequest
from router_core.reference_engine.model import Model
from router_core.reference_engine.options import EngineOptions
from router_core.reference_engine.tokenizer import Tokenizer


class Admission:
    """Counts requests, so that those without a seed get different ones that repeat with ``options.seed``."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._number = 0

    def check(self, request: GenerationRequest, vocabulary_size: int, taken_rids: Collection[str]) -> None:
        """Raise a RequestError for what can never be served, or would be a second request of one rid."""
        if not request.prompt_ids:
            raise RequestError("input_ids cannot be empty.")
        for token_id in request.script or ():
            if not 0 <= token_id < vocabulary_size:
                raise InvalidFieldError("script", f"The script's id {token_id} is outside the vocabulary.")
        wanted, limit = request.sampling.max_new_tokens or 0, self._options.context_length
        # vLLM cuts an answer that is too long, SGLang refuses it.
        needed = 1 if request.dialect == "vllm" else max(wanted, 1)
        if len(request.prompt_ids) + needed > limit:
            raise ContextTooLongError(len(request.prompt_ids), wanted, limit, request.dialect)
        if request.rid in taken_rids:
            raise RequestError(f"Duplicate request ID detected: {request.rid}")

    def admit(self, request: GenerationRequest, model: Model, tokenizer: Tokenizer) -> Generation:
        """Return the generation of a request that was checked."""
        seed, most = request.sampling.sampling_seed, request.sampling.max_new_tokens
        room = self._options.context_length - len(request.prompt_ids)
        return Generation(
            request,
            self._next_seed() if seed is None else seed,
            room if most is None else min(most, room),
            model.new_cache(),
            tokenizer,
        )

    def _next_seed(self) -> int:
        self._number += 1
        if self._options.seed is None:
            return secrets.randbits(63)
        return (self._options.seed * 1_000_003 + self._number) & (2**63 - 1)
