"""Settings of the plugin."""

from __future__ import annotations

from router_core import PluginSettings


class PowerOfTwoSettings(PluginSettings):
    """Where the draws come from."""

    seed: int | None = None
    """Makes the draws repeatable; None takes one from the system."""
