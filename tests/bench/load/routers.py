"""This router in the configurations that are compared, by name.

``bare`` has no plugin, ``default`` the default set, ``all`` every plugin that is shipped; ``hooks`` is ``bare`` with
three plugins that do nothing at eight hooks each, ``hook:ResponseEnd`` with three at that hook, ``plugin:tito`` with
that plugin and what it needs. ``/asgi`` behind a name is the plain ASGI front.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from router_core.config import DEFAULT_ENABLED
from router_core.reference_engine.tokenizer import ASSETS
from tests.bench.load.bodies import LAYERS, TOP_K
from tests.bench.load.noop_plugins import HOOKS, paths

ALL = (
    *("metrics", "engine_control", "session_control", "tito", "hf_tokenizer", "radix_cache", "routed_experts"),
    *("partial_rollout", "weight_version", "admission", "health", "retry", "prompt_group", "prefix_affinity"),
    *("session_affinity", "least_inflight", "power_of_two", "round_robin"),
)
"""Every plugin that is shipped, in an order that their READMEs allow."""
NEEDS = {"tito": ("hf_tokenizer",), "radix_cache": ("hf_tokenizer",)}
SETTINGS = {
    "hf_tokenizer": (f"plugins.hf_tokenizer.path={ASSETS}",),
    "routed_experts": (f"plugins.routed_experts.layers={LAYERS}", f"plugins.routed_experts.top_k={TOP_K}"),
}

HOOK_NAMES = ("bare", "hooks", *(f"hook:{hook.__name__}" for hook in HOOKS))
PLUGIN_NAMES = ("bare", *(f"plugin:{name}" for name in ALL), "all")


def enabled_by(name: str) -> Sequence[str]:
    kind, _, plugin = name.partition(":")
    match kind:
        case "default":
            return DEFAULT_ENABLED
        case "all":
            return ALL
        case "plugin" if plugin in ALL:
            return (*NEEDS.get(plugin, ()), plugin)
        case "bare" | "hooks" | "hook":
            return ()
    raise ValueError(f"there is no configuration {name!r}: bare, default, all, hooks, hook:NAME or plugin:NAME")


def command(name: str, directory: Path, port: int, workers: Sequence[str], settings: Sequence[str] = ()) -> list[str]:
    """The command line that serves a configuration; what it needs is written to ``directory``."""
    name, _, front = name.partition("/")
    enabled = enabled_by(name)
    config = directory / "plugins.toml"
    config.write_text(f"enabled = {json.dumps(list(enabled))}\n", encoding="utf-8")
    settings = [*(line for plugin in enabled for line in SETTINGS.get(plugin, ())), *settings]
    if front:
        settings.append(f"router.front={front}")
    return [
        *(sys.executable, "-m", "router_core", "serve", "--config", str(config), "--port", str(port)),
        *("--log-level", "error"),
        *(part for url in workers for part in ("--worker", url)),
        *(part for setting in settings for part in ("--set", setting)),
        *(("--middleware-paths", *paths("All")) if name == "hooks" else ()),
        *(("--middleware-paths", *paths(name.partition(":")[2])) if name.startswith("hook:") else ()),
    ]
