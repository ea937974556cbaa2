"""The table that ``router-core plugins`` prints."""

from __future__ import annotations

from collections.abc import Collection

from router_core.registry import Registry, installed


def plugin_table(registry: Registry, enabled: Collection[str]) -> str:
    """One line a plugin: loaded ones in request order with their hooks, then what else is installed."""
    rows = [("ORDER", "NAME", "STATE", "VERSION", "DISTRIBUTION", "HOOKS")]
    for order, plugin in enumerate(registry.plugins, 1):
        state = "on" if plugin.name in enabled else "available"
        hooks = ", ".join(plugin.hooks)
        rows.append((str(order), plugin.name, state, plugin.version, plugin.distribution, hooks))
    loaded = {plugin.name for plugin in registry.plugins}
    for name, source in sorted(installed().items()):
        if name not in loaded:
            rows.append(("-", name, "off", source.version, source.distribution, "(not imported)"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
