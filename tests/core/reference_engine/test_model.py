from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_core.reference_engine.model import Model, Row
from router_core.reference_engine.options import ModelConfig
from router_core.reference_engine.weights import seeded_weights

CONFIG = ModelConfig()
MODEL = Model(CONFIG, seeded_weights(CONFIG, seed=0))
IDS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 80).tolist()


def computed(cuts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and experts of IDS, computed in pieces that end at ``cuts``."""
    cache = MODEL.new_cache()
    logits = [
        MODEL.logits(MODEL.forward([Row(token_id, cache) for token_id in IDS[start:end]]))
        for start, end in zip([0, *cuts], [*cuts, len(IDS)], strict=True)
    ]
    return np.concatenate(logits), cache.experts[: cache.length].copy()


ONE_BY_ONE = computed(list(range(1, len(IDS))))


@settings(max_examples=20)
@given(st.sets(st.integers(1, len(IDS) - 1), max_size=6))
def test_the_same_bits_come_out_however_a_prompt_is_cut(cuts: set[int]) -> None:
    logits, experts = computed(sorted(cuts))
    assert np.array_equal(logits, ONE_BY_ONE[0])
    assert np.array_equal(experts, ONE_BY_ONE[1])


def test_the_same_bits_come_out_whatever_else_is_in_the_batch() -> None:
    caches = [MODEL.new_cache() for _ in range(5)]
    for position, token_id in enumerate(IDS):
        others = [Row((token_id + number) % CONFIG.vocab_size, caches[number]) for number in range(1, 5)]
        logits = MODEL.logits(MODEL.forward([*others[:2], Row(token_id, caches[0]), *others[2:]]))
        assert np.array_equal(logits[2], ONE_BY_ONE[0][position])
    assert np.array_equal(caches[0].experts[: len(IDS)], ONE_BY_ONE[1])


def test_a_copied_prefix_is_as_good_as_a_computed_one() -> None:
    first, second = MODEL.new_cache(), MODEL.new_cache()
    MODEL.forward([Row(token_id, first) for token_id in IDS])
    second.copy_prefix(first, 50)
    logits = MODEL.logits(MODEL.forward([Row(token_id, second) for token_id in IDS[50:]]))
    assert np.array_equal(logits, ONE_BY_ONE[0][50:])


def test_other_seeds_give_other_weights_and_the_same_seed_the_same() -> None:
    again, other = seeded_weights(CONFIG, seed=0), seeded_weights(CONFIG, seed=1)
    assert np.array_equal(again.head, MODEL.weights.head)
    assert not np.array_equal(other.head, MODEL.weights.head)


def test_choices_are_neither_certain_nor_even() -> None:
    logits = ONE_BY_ONE[0].astype(np.float64)
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(axis=-1).mean()
    assert 1.0 < entropy < np.log(CONFIG.vocab_size) - 1.0
    used = np.bincount(ONE_BY_ONE[1].ravel(), minlength=CONFIG.num_experts)
    assert (used > 0).all()


def plain_forward(model: Model, token_ids: list[int]) -> np.ndarray:
    """Return the logits in float64, written as the paper formulas are: no cache, one mask, loops over experts."""
    config, weights = model.config, model.weights

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    n, dim, groups = len(token_ids), config.head_dim, config.num_key_value_heads
    angles = np.arange(n)[:, None] / config.rope_theta ** (np.arange(0, dim, 2) / dim)

    def rotate(x: np.ndarray) -> np.ndarray:
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = weights.embedding[token_ids].astype(np.float64)
    for layer in weights.layers:
        heads = (norm(x, layer.input_norm) @ layer.qkv).reshape(n, -1, dim)
        q = rotate(norm(heads[:, : config.num_attention_heads], layer.q_norm))
        k = rotate(norm(heads[:, config.num_attention_heads : -groups], layer.k_norm))
        v = heads[:, -groups:]
        out = np.empty_like(q)
        for head in range(config.num_attention_heads):
            group = head * groups // config.num_attention_heads
            scores = q[:, head] @ k[:, group].T / np.sqrt(dim)
            out[:, head] = softmax(np.where(np.tri(n), scores, -np.inf)) @ v[:, group]
        x = x + out.reshape(n, -1) @ layer.output
        y = norm(x, layer.post_attention_norm)
        shares = softmax(y @ layer.router)
        for row in range(n):
            chosen = np.argsort(-shares[row])[: config.num_experts_per_tok]
            for expert in chosen:
                gate, up = np.split(y[row] @ layer.gate_up[expert], 2)
                share = shares[row, expert] / shares[row, chosen].sum()
                x[row] += share * ((gate / (1 + np.exp(-gate)) * up) @ layer.down[expert])
    return norm(x, weights.norm) @ weights.head


def test_the_forward_pass_is_that_of_the_formulas() -> None:
    assert np.allclose(plain_forward(MODEL, IDS), ONE_BY_ONE[0], atol=1e-3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    from router_core.reference_engine.checkpoint import write_checkpoint

    write_checkpoint(MODEL, tmp_path)
    return tmp_path


def test_a_written_checkpoint_is_read_back_the_same(checkpoint: Path) -> None:
    from router_core.reference_engine.weights import load_weights, read_config

    config = read_config(checkpoint)
    assert config == CONFIG
    read = Model(config, load_weights(checkpoint, config))
    cache = read.new_cache()
    assert np.array_equal(read.logits(read.forward([Row(token_id, cache) for token_id in IDS])), ONE_BY_ONE[0])


def test_a_checkpoint_without_a_tensor_is_refused_by_name(checkpoint: Path) -> None:
    from router_core.reference_engine.weights import load_weights

    (checkpoint / "model.safetensors").rename(checkpoint / "elsewhere")
    with pytest.raises(ValueError, match=r"no tensor model\.layers\.0"):
        load_weights(checkpoint, CONFIG)
