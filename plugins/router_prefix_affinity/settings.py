"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings


class PrefixAffinitySettings(PluginSettings):
    """When a hit counts, how much is remembered, and who else is asked."""

    weight: float = Field(default=2.0, ge=0)
    """Factor of this plugin's scores: a whole hit counts twice as much as an idle worker."""
    min_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the prompt below which a match is a miss."""
    overload_absolute: int = Field(default=8, ge=0)
    """Requests in flight above the least loaded worker's that a worker with a hit may have..."""
    overload_relative: float = Field(default=1.5, ge=1)
    """...or times as many; above both its hits do not count."""
    max_body_bytes: int = Field(default=1 << 20, ge=0)
    """Longest body that is read for its prompt; a longer one is balanced by load and streams."""
    block_bytes: int = Field(default=512, ge=16)
    """Bytes of a prompt that are known or unknown together: text, JSON of messages, or 4 a token id."""
    max_blocks: int = Field(default=262_144, ge=1)
    """Most blocks remembered, shared equally by the workers; about 150 bytes of memory each."""
    off_gpu_provider: str | None = None
    """``pkg.mod:name`` of an async function that tells what caches outside the GPUs hold (see README)."""
    off_gpu_factor: float = Field(default=0.5, ge=0, le=1)
    """What an off-GPU hit is worth beside one on the GPU."""
    off_gpu_timeout_s: float = Field(default=0.05, gt=0)
    """Seconds the provider may take; late is as good as no hit."""
