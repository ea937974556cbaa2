"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field, model_validator

from router_core import PluginSettings
from router_routed_experts.layout import read_layout
from router_routed_experts.rows import Layout


class RoutedExpertsSettings(PluginSettings):
    """The model's layout, and how many rows are kept for how long."""

    model: str | None = None
    """Directory of the checkpoint: its ``config.json`` tells layers, experts and which layers have none."""
    layers: int | None = Field(default=None, ge=1)
    """Layers of the model, where ``model`` is not given."""
    top_k: int | None = Field(default=None, ge=1)
    """Experts a token is routed to in each layer, where ``model`` is not given."""
    num_experts: int | None = Field(default=None, ge=1)
    """Experts of each layer, where ``model`` is not given; ids are checked against it."""
    dense_layers: list[int] | None = None
    """Layers without experts, where ``model`` is not given; all others must have some for each token."""
    max_bytes: int = Field(default=4 << 30, ge=1)
    """Most bytes of rows kept; the answer used longest ago goes first."""
    ttl_s: float | None = Field(default=3600.0, gt=0)
    """Seconds without use after which an answer's rows go."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Most sessions of which is remembered what their next turn continues."""
    max_answer_bytes: int = Field(default=64 << 20, ge=1)
    """Most bytes of an answer, beside its routed experts, that are read to count its tokens."""

    @model_validator(mode="after")
    def _is_whole(self) -> RoutedExpertsSettings:
        told = {"layers", "top_k", "num_experts", "dense_layers"} & self.model_fields_set
        if self.model is not None and told:
            raise ValueError(f"model tells it already: {', '.join(sorted(told))}")
        if (self.layers is None) != (self.top_k is None) or (self.layers is None and told):
            raise ValueError("layers and top_k belong together")
        self.layout()
        return self

    def layout(self) -> Layout | None:
        """The model's layout, None where nothing is told. Raises ValueError for a model that cannot be read."""
        if self.model is not None:
            return read_layout(self.model)
        if self.layers is None or self.top_k is None:
            return None
        dense = None if self.dense_layers is None else frozenset(self.dense_layers)
        return Layout(self.layers, self.top_k, self.num_experts, dense)
