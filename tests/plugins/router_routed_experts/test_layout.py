from __future__ import annotations

import json

import pytest
from router_routed_experts.layout import layout_of, read_layout
from router_routed_experts.rows import Layout

QWEN = {
    "num_hidden_layers": 4,
    "num_experts_per_tok": 2,
    "num_experts": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK = {"num_hidden_layers": 4, "num_experts_per_tok": 8, "n_routed_experts": 256, "first_k_dense_replace": 3,
            "moe_layer_freq": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (QWEN, Layout(4, 2, 8, frozenset())),
        ({**QWEN, "mlp_only_layers": [1]}, Layout(4, 2, 8, frozenset({1}))),
        ({**QWEN, "decoder_sparse_step": 2}, Layout(4, 2, 8, frozenset({0, 2}))),
        (DEEPSEEK, Layout(4, 8, 256, frozenset({0, 1, 2}))),
        ({**DEEPSEEK, "moe_layer_freq": 2}, Layout(4, 8, 256, frozenset({0, 1, 2, 3}))),
        ({"text_config": QWEN, "num_hidden_layers": 99}, Layout(4, 2, 8, frozenset())),
        ({"num_hidden_layers": 2, "num_experts_per_tok": 2, "num_local_experts": 8}, Layout(2, 2, 8, frozenset())),
    ],
)
def test_layers_experts_and_layers_without_any_are_told_by_the_configuration(config, layout, tmp_path) -> None:
    assert layout_of(config) == layout
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_layout(str(tmp_path)) == layout


@pytest.mark.parametrize("config", [{}, [], {"num_hidden_layers": 4}, {"num_experts_per_tok": "2"}])
def test_a_configuration_without_experts_is_refused(config) -> None:
    with pytest.raises(ValueError, match="set layers and top_k"):
        layout_of(config)


def test_a_directory_that_is_no_checkpoint_is_told(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .* name a checkpoint's directory"):
        read_layout(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        read_layout(str(tmp_path))
