"""Settings of the plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router_core import PluginSettings, per_exchange


class PartialRolloutSettings(PluginSettings):
    """Which aborted answers are continued, and how often."""

    weight: float = Field(default=2.0, ge=0)
    """Factor of this plugin's scores: the rest goes to the worker that has the beginning in its cache."""
    when: Literal["window", "always", "never"] = per_exchange("window")
    """Which aborts are continued: those inside a pause or weight update, all, or none. A request's own header
    ``x-partial-rollout: true`` means all, ``false`` none."""
    window_grace_s: float = per_exchange(10.0, ge=0)
    """Seconds after the end of a window in which an abort still counts as its effect."""
    max_dispatches: int = per_exchange(256, ge=1)
    """Most workers' answers that one answer is joined of; those without a token count."""
    max_idle_dispatches: int = per_exchange(8, ge=1)
    """Most aborts without a token and outside a window, one after another, after which it is asked for again."""
    continue_lost: bool = per_exchange(False)
    """Whether a stream whose worker was lost after tokens came goes on at another worker. It may have been the
    request that killed the worker."""
    call_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds a worker gets to turn ids into text, or a text into ids, where no tokenizer is loaded."""
