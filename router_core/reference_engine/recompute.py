"""What the model alone says of a sequence, without an engine: the truth that answers are held against.

A process that knows the model seed can compute the same: ``first_model(EngineOptions(model_seed=...))``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router_core.reference_engine.kv_cache import IntArray
from router_core.reference_engine.model import Model, Row
from router_core.reference_engine.sampling import log_softmax


@dataclass(frozen=True, slots=True)
class Recomputed:
    """``logprobs``: float64[len(token_ids), vocab_size], row i is that of token i + 1, in nats;
    ``experts``: int32[len(token_ids), num_layers, top_k]."""

    logprobs: npt.NDArray[np.float64]
    experts: IntArray

    def logprob(self, position: int, token_id: int) -> float:
        """Return the logprob of ``token_id`` at ``position`` of the sequence, rounded as the wires give it."""
        return float(np.float32(self.logprobs[position - 1, token_id]))


def recompute(model: Model, token_ids: Sequence[int], temperature: float = 1.0) -> Recomputed:
    """Feed ``token_ids`` one by one; SGLang's logprobs are those at the sampling ``temperature``, vLLM's at 1."""
    cache = model.new_cache()
    rows = [model.logits(model.forward([Row(token_id, cache)]))[0] for token_id in token_ids]
    logits = np.stack(rows)
    if temperature not in (0.0, 1.0):
        logits = logits / np.float32(temperature)
    return Recomputed(log_softmax(logits), cache.experts[: cache.length])
