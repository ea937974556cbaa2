"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings


class RadixCacheSettings(PluginSettings):
    """The tokenizer, and how much is kept for how long."""

    tokenizer: str | None = None
    """Name of the tokenizer; None is the default one."""
    add_special_tokens: bool = True
    """Whether a text from its start on gets what the tokenizer puts before or behind a prompt (a BOS), as it does
    when an engine encodes the text."""
    max_bytes: int | None = Field(default=2 << 30, ge=1)
    """Most packed bytes stored: texts, ids, logprobs. Above it the trajectory used longest ago goes first."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens stored; shared ones count once."""
    ttl_s: float | None = Field(default=None, gt=0)
    """Seconds without use after which a trajectory goes."""
    keep_weight_versions: int | None = Field(default=None, ge=1)
    """How many weight versions are kept, the newest ones; trajectories of older ones go."""
    max_answer_bytes: int = Field(default=64 << 20, ge=1)
    """Longest answer that is read, in bytes, without its routed experts; a longer one passes and is not stored."""
    prompt_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes of texts encoded lately whose ids are remembered, and as many of ids whose text is: siblings send one
    prompt many times."""
