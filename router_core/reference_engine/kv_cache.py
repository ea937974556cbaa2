"""The keys, values and expert choices of one sequence of tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from router_core.reference_engine.options import ModelConfig

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

_FIRST_CAPACITY = 64


class KvCache:
    """Grows by one position per token; positions below ``length`` are never changed, so others may copy them.

    ``token_ids``: int32[capacity];
    ``keys``, ``values``: float32[num_layers, num_key_value_heads, capacity, head_dim];
    ``experts``: int32[capacity, num_layers, top_k], the experts that the token at a position went through.
    """

    def __init__(self, config: ModelConfig, capacity: int = _FIRST_CAPACITY) -> None:
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim)
        self.token_ids: IntArray = np.zeros(capacity, dtype=np.int32)
        self.keys: FloatArray = np.zeros(shape, dtype=np.float32)
        self.values: FloatArray = np.zeros(shape, dtype=np.float32)
        experts_shape = (capacity, config.num_hidden_layers, config.num_experts_per_tok)
        self.experts: IntArray = np.zeros(experts_shape, dtype=np.int32)
        self.length = 0

    def append(self, token_id: int) -> int:
        """Take the next position for ``token_id`` and return it; the model fills in the rest."""
        position = self.length
        self.reserve(position + 1)
        self.token_ids[position] = token_id
        self.length = position + 1
        return position

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions."""
        capacity = self.keys.shape[2]
        if length <= capacity:
            return
        added = max(length, 2 * capacity) - capacity
        self.token_ids = np.pad(self.token_ids, (0, added))
        self.keys = np.pad(self.keys, ((0, 0), (0, 0), (0, added), (0, 0)))
        self.values = np.pad(self.values, ((0, 0), (0, 0), (0, added), (0, 0)))
        self.experts = np.pad(self.experts, ((0, added), (0, 0), (0, 0)))

    def common_prefix(self, token_ids: Sequence[int] | IntArray) -> int:
        """Return how many leading ids are the same here and in ``token_ids``."""
        length = min(self.length, len(token_ids))
        is_different = self.token_ids[:length] != np.asarray(token_ids[:length], dtype=np.int32)
        first = int(is_different.argmax()) if length else 0
        return first if length and is_different[first] else length

    def copy_prefix(self, other: "KvCache", length: int) -> None:
        """Take over the first ``length`` positions of ``other``; this cache must be empty."""
        self.reserve(length)
        self.token_ids[:length] = other.token_ids[:length]
        self.keys[:, :, :length] = other.keys[:, :, :length]
        self.values[:, :, :length] = other.values[:, :, :length]
        self.experts[:length] = other.experts[:length]
        self.length = length
