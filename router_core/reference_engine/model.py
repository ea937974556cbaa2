"""The forward pass of a Qwen3-MoE-like decoder.

The result of a row depends on its token, its position and the keys and values before it, and on nothing else: not on
the other rows of the batch, not on how a prompt was cut, not on what was cached. Matrix products are therefore done
row by row (numpy's stacked ``matmul``, so the loop is C), and attention position by position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from router_core.reference_engine.kv_cache import FloatArray, IntArray, KvCache
from router_core.reference_engine.options import ModelConfig
from router_core.reference_engine.weights import LayerWeights, Weights


@dataclass(slots=True)
class Row:
    """One token to compute: its id and the cache it is appended to; rows of one cache are in order."""

    token_id: int
    cache: KvCache


class Model:
    """Weights and their forward pass; keeps no state of a sequence."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
        frequencies = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
        angles = np.arange(config.max_position_embeddings, dtype=np.float32)[:, None] * frequencies
        self._cos = np.concatenate([np.cos(angles)] * 2, axis=1)
        self._sin = np.concatenate([np.sin(angles)] * 2, axis=1)

    def new_cache(self) -> KvCache:
        """Return the empty cache of a new sequence."""
        return KvCache(self.config)

    def forward(self, rows: Sequence[Row]) -> FloatArray:
        """Append each row to its cache and return its last hidden state: float32[len(rows), hidden_size].

        Keys, values and experts land in the caches.
        """
        positions = [row.cache.append(row.token_id) for row in rows]
        hidden = self.weights.embedding[[row.token_id for row in rows]]
        for index, layer in enumerate(self.weights.layers):
            normed = self._norm(hidden, layer.input_norm)
            hidden = hidden + self._attention(index, layer, normed, rows, positions)
            normed = self._norm(hidden, layer.post_attention_norm)
            mixed, experts = self._experts(layer, normed)
            hidden = hidden + mixed
            for row, position, chosen in zip(rows, positions, experts, strict=True):
                row.cache.experts[position, index] = chosen
        return hidden

    def logits(self, hidden: FloatArray) -> FloatArray:
        """Return the logits of the token after each row: float32[rows, vocab_size]."""
        return _rows_times(self._norm(hidden, self.weights.norm), self.weights.head)

    def _norm(self, rows: FloatArray, weight: FloatArray) -> FloatArray:
        """RMSNorm over the last axis."""
        squares = np.matmul(rows[..., None, :], rows[..., :, None])[..., 0]
        mean = squares / np.float32(rows.shape[-1]) + np.float32(self.config.rms_norm_eps)
        normed: FloatArray = rows / np.sqrt(mean) * weight
        return normed

    def _rotate(self, heads: FloatArray, positions: list[int]) -> FloatArray:
        """Apply the rotary embedding to float32[rows, heads, head_dim]; the halves of a head are paired."""
        half = heads.shape[-1] // 2
        turned = np.concatenate([-heads[..., half:], heads[..., :half]], axis=-1)
        rotated: FloatArray = heads * self._cos[positions][:, None] + turned * self._sin[positions][:, None]
        return rotated

    def _attention(
        self, index: int, layer: LayerWeights, normed: FloatArray, rows: Sequence[Row], positions: list[int]
    ) -> FloatArray:
        config = self.config
        count, groups = len(rows), config.num_key_value_heads
        projected = _rows_times(normed, layer.qkv).reshape(count, -1, config.head_dim)
        queries, keys, values = np.split(
            projected, [config.num_attention_heads, config.num_attention_heads + groups], axis=1
        )
        queries = self._rotate(self._norm(queries, layer.q_norm), positions)
        keys = self._rotate(self._norm(keys, layer.k_norm), positions)
        queries = (queries * np.float32(config.head_dim**-0.5)).reshape(count, groups, -1, config.head_dim)
        attended = np.empty_like(queries)
        for row, position, key, value in zip(rows, positions, keys, values, strict=True):
            row.cache.keys[index, :, position] = key
            row.cache.values[index, :, position] = value
        for number, (row, position) in enumerate(zip(rows, positions, strict=True)):
            past_keys = row.cache.keys[index, :, : position + 1]
            past_values = row.cache.values[index, :, : position + 1]
            weights = _softmax(np.matmul(queries[number], past_keys.transpose(0, 2, 1)))
            np.matmul(weights, past_values, out=attended[number])
        return _rows_times(attended.reshape(count, -1), layer.output)

    def _experts(self, layer: LayerWeights, normed: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the mixture of experts of each row, and which experts it went through, the strongest first."""
        shares = _softmax(_rows_times(normed, layer.router))
        chosen = np.argsort(-shares, axis=-1, kind="stable")[:, : self.config.num_experts_per_tok]
        weights = np.take_along_axis(shares, chosen, axis=-1)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        inner = np.matmul(normed[:, None, None, :], layer.gate_up[chosen])[:, :, 0]
        gate, up = np.split(inner, 2, axis=-1)
        active = gate / (np.float32(1.0) + np.exp(-gate)) * up
        outputs = np.matmul(active[:, :, None, :], layer.down[chosen])[:, :, 0]
        mixed = outputs[:, 0] * weights[:, :1]
        for slot in range(1, self.config.num_experts_per_tok):
            mixed = mixed + outputs[:, slot] * weights[:, slot : slot + 1]
        return mixed, chosen.astype(np.int32)


def _rows_times(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Multiply each row by itself, so that its result is the same bits in any batch."""
    products: FloatArray = np.matmul(rows[:, None, :], matrix)[:, 0]
    return products


def _softmax(scores: FloatArray) -> FloatArray:
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: FloatArray = exponents / exponents.sum(axis=-1, keepdims=True)
    return shares
