"""Writes a model as a Hugging Face checkpoint, so that SGLang, vLLM and transformers can compute the same."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np

from router_core.reference_engine.kv_cache import FloatArray
from router_core.reference_engine.model import Model
from router_core.reference_engine.safetensors_file import write_safetensors
from router_core.reference_engine.tokenizer import ASSETS, Tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_checkpoint(model: Model, directory: Path) -> None:
    """Write config, weights and the shipped tokenizer into ``directory``."""
    tokenizer = Tokenizer()
    config = asdict(model.config) | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "intermediate_size": model.config.moe_intermediate_size,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.id_of("<|endoftext|>"),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.id_of("<|endoftext|>")}
    (directory / "generation_config.json").write_text(json.dumps(generation) + "\n", encoding="utf-8")
    write_safetensors(directory / "model.safetensors", named_tensors(model))
    for name in _TOKENIZER_FILES:
        shutil.copy(ASSETS / name, directory / name)


def named_tensors(model: Model) -> dict[str, FloatArray]:
    """Return the weights under Hugging Face's names; its matrices are [out, in]."""
    config, weights = model.config, model.weights
    query = config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    tensors = {"model.embed_tokens.weight": weights.embedding}
    for index, layer in enumerate(weights.layers):
        attention, mixture = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
        q, k, v = np.split(layer.qkv.T, [query, query + key])
        tensors |= {
            f"model.layers.{index}.input_layernorm.weight": layer.input_norm,
            attention + "q_proj.weight": q,
            attention + "k_proj.weight": k,
            attention + "v_proj.weight": v,
            attention + "q_norm.weight": layer.q_norm,
            attention + "k_norm.weight": layer.k_norm,
            attention + "o_proj.weight": layer.output.T,
            f"model.layers.{index}.post_attention_layernorm.weight": layer.post_attention_norm,
            mixture + "gate.weight": layer.router.T,
        }
        for expert in range(config.num_experts):
            gate, up = np.split(layer.gate_up[expert].T, 2)
            prefix = f"{mixture}experts.{expert}."
            tensors |= {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up}
            tensors[prefix + "down_proj.weight"] = layer.down[expert].T
    return tensors | {"model.norm.weight": weights.norm, "lm_head.weight": weights.head.T}
