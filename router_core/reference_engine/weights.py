"""The weights of a model: drawn from a seed, or read from a Hugging Face checkpoint of a Qwen3MoE model."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from router_core.reference_engine.kv_cache import FloatArray
from router_core.reference_engine.options import ModelConfig
from router_core.reference_engine.safetensors_file import read_safetensors

_HEAD_SPREAD = 2.5
"""Standard deviation of the logits of seeded weights: about 4 of the 6.9 nats that 1024 even choices have."""

_END_OF_TURN_SPREAD = 2.0
"""How many times wider the logit of the end of a turn is, so that seeded answers end by themselves now and then."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are [in, out], so a row is multiplied from the left."""

    input_norm: FloatArray
    qkv: FloatArray
    q_norm: FloatArray
    k_norm: FloatArray
    output: FloatArray
    post_attention_norm: FloatArray
    router: FloatArray
    gate_up: FloatArray
    """float32[num_experts, hidden_size, 2 * moe_intermediate_size], the gate first."""
    down: FloatArray
    """float32[num_experts, moe_intermediate_size, hidden_size]."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights; ``head`` is float32[hidden_size, vocab_size]."""

    embedding: FloatArray
    layers: tuple[LayerWeights, ...]
    norm: FloatArray
    head: FloatArray


def seeded_weights(config: ModelConfig, seed: int, eos_id: int | None = None) -> Weights:
    """Return weights that are the same for the same seed; ``eos_id`` gets a wider logit than other ids."""
    generator = np.random.Generator(np.random.PCG64(seed))

    def draw(*shape: int, fan_in: int) -> FloatArray:
        drawn = generator.standard_normal(shape, dtype=np.float32) * np.float32(fan_in**-0.5)
        return np.ascontiguousarray(drawn, dtype=np.float32)

    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    attended = config.num_attention_heads * config.head_dim

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=np.ones(hidden, dtype=np.float32),
            qkv=draw(hidden, heads * config.head_dim, fan_in=hidden),
            q_norm=np.full(config.head_dim, 1.5, dtype=np.float32),
            k_norm=np.full(config.head_dim, 1.5, dtype=np.float32),
            output=draw(attended, hidden, fan_in=attended),
            post_attention_norm=np.ones(hidden, dtype=np.float32),
            router=draw(hidden, experts, fan_in=hidden),
            gate_up=draw(experts, hidden, 2 * inner, fan_in=hidden),
            down=draw(experts, inner, hidden, fan_in=inner) * np.float32(2.0),
        )

    embedding = draw(config.vocab_size, hidden, fan_in=1)
    layers = tuple(layer() for _ in range(config.num_hidden_layers))
    head = draw(hidden, config.vocab_size, fan_in=hidden) * np.float32(_HEAD_SPREAD)
    if eos_id is not None:
        head[:, eos_id] *= np.float32(_END_OF_TURN_SPREAD)
    return Weights(embedding, layers, np.ones(hidden, dtype=np.float32), head)


def read_config(directory: Path) -> ModelConfig:
    """Read ``config.json``; a key that is missing or a model that is no Qwen3MoE is a ValueError naming the file."""
    path = directory / "config.json"
    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if written.get("model_type") != "qwen3_moe":
        raise ValueError(f"{path}: model_type is {written.get('model_type')}; only qwen3_moe can be computed here")
    if written.get("tie_word_embeddings"):
        raise ValueError(f"{path}: tie_word_embeddings is true; an untied head is needed")
    if written.get("mlp_only_layers") or written.get("decoder_sparse_step", 1) != 1:
        raise ValueError(
            f"{path}: has dense layers (mlp_only_layers, decoder_sparse_step); every layer must be a mixture"
        )
    rope = written.get("rope_parameters") or {}
    known = {field.name: written[field.name] for field in fields(ModelConfig) if field.name in written}
    known["rope_theta"] = float(written.get("rope_theta") or rope.get("rope_theta") or 10000.0)
    return ModelConfig(**known)


def load_weights(directory: Path, config: ModelConfig) -> Weights:
    """Read all ``*.safetensors`` of a checkpoint; a tensor that is missing is a ValueError naming it."""
    tensors: dict[str, FloatArray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= read_safetensors(path)

    def take(name: str) -> FloatArray:
        if name not in tensors:
            raise ValueError(f"{directory}: no tensor {name} in its safetensors files")
        return tensors[name]

    def matrix(*names: str) -> FloatArray:
        return np.ascontiguousarray(np.concatenate([take(name + ".weight") for name in names]).T)

    def layer(prefix: str) -> LayerWeights:
        attention, mixture = prefix + "self_attn.", prefix + "mlp."
        experts = [f"{mixture}experts.{number}." for number in range(config.num_experts)]
        return LayerWeights(
            input_norm=take(prefix + "input_layernorm.weight"),
            qkv=matrix(attention + "q_proj", attention + "k_proj", attention + "v_proj"),
            q_norm=take(attention + "q_norm.weight"),
            k_norm=take(attention + "k_norm.weight"),
            output=matrix(attention + "o_proj"),
            post_attention_norm=take(prefix + "post_attention_layernorm.weight"),
            router=matrix(mixture + "gate"),
            gate_up=np.stack([matrix(expert + "gate_proj", expert + "up_proj") for expert in experts]),
            down=np.stack([matrix(expert + "down_proj") for expert in experts]),
        )

    layers = tuple(layer(f"model.layers.{index}.") for index in range(config.num_hidden_layers))
    return Weights(take("model.embed_tokens.weight"), layers, take("model.norm.weight"), matrix("lm_head"))
