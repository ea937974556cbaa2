"""How many layers and experts a model has, from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router_routed_experts.rows import Layout

TOP_K_KEYS = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_top_k")
EXPERTS_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def read_layout(directory: str) -> Layout:
    """The layout of a checkpoint; raises ValueError that says what is missing."""
    file = Path(directory).expanduser() / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read ({error.strerror}): name a checkpoint's directory") from None
    except ValueError as error:
        raise ValueError(f"{str(file)!r} is no JSON: {error}") from None
    try:
        return layout_of(config)
    except ValueError as error:
        raise ValueError(f"{str(file)!r}: {error}") from None


def layout_of(config: Any) -> Layout:
    """The layout that a configuration tells; raises ValueError where it tells none."""
    if isinstance(config, Mapping) and isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]  # a model that sees: its language model has the experts
    layers, top_k = _number(config, "num_hidden_layers"), _number(config, *TOP_K_KEYS)
    if layers is None or top_k is None:
        raise ValueError("it tells no num_hidden_layers and num_experts_per_tok: set layers and top_k")
    return Layout(layers, top_k, _number(config, *EXPERTS_KEYS), _dense_layers(config, layers))


def _dense_layers(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    """The layers without experts: the first ones, those that are named, and those between sparse steps."""
    dense = set(range(min(layers, _number(config, "first_k_dense_replace") or 0)))
    named = config.get("mlp_only_layers")
    dense.update(layer for layer in named if isinstance(layer, int)) if isinstance(named, list) else None
    step = _number(config, "decoder_sparse_step", "moe_layer_freq") or 1
    first = 1 if "decoder_sparse_step" in config else 0  # Qwen counts layers from one, DeepSeek from zero
    dense.update(layer for layer in range(layers) if (layer + first) % step)
    return frozenset(dense)


def _number(config: Any, *keys: str) -> int | None:
    if not isinstance(config, Mapping):
        return None
    return next((config[key] for key in keys if type(config.get(key)) is int), None)
