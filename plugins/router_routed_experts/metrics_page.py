"""The plugin's lines of the metrics page."""

from __future__ import annotations

from router_routed_experts.capture import Counts
from router_routed_experts.store import RowStore


def render(counts: Counts, store: RowStore) -> str:
    """Prometheus text of what was counted and what is kept."""
    lines = [
        "# HELP router_routed_experts_complete_total Answers whose routed experts are whole.",
        "# TYPE router_routed_experts_complete_total counter",
        f"router_routed_experts_complete_total {counts.complete}",
        "# HELP router_routed_experts_incomplete_total Answers whose routed experts are not, by reason and worker.",
        "# TYPE router_routed_experts_incomplete_total counter",
        *(
            f'router_routed_experts_incomplete_total{{reason="{reason}",worker="{worker}"}} {count}'
            for (reason, worker), count in sorted(counts.incomplete.items())
        ),
        "# HELP router_routed_experts_rows_total Rows that workers sent and that were kept.",
        "# TYPE router_routed_experts_rows_total counter",
        f"router_routed_experts_rows_total {counts.rows}",
        "# HELP router_routed_experts_bytes Bytes of rows kept.",
        "# TYPE router_routed_experts_bytes gauge",
        f"router_routed_experts_bytes {store.byte_count}",
        "# HELP router_routed_experts_entries Answers whose rows are kept.",
        "# TYPE router_routed_experts_entries gauge",
        f"router_routed_experts_entries {len(store)}",
        "# HELP router_routed_experts_dropped_total Answers whose rows were dropped: too many, or too old.",
        "# TYPE router_routed_experts_dropped_total counter",
        f"router_routed_experts_dropped_total {store.dropped}",
    ]
    return "\n".join(lines) + "\n"
