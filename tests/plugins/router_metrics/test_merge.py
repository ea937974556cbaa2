"""One metrics page out of several."""

from router_metrics.merge import merge_pages

ONE = b"""# HELP router_a_total How many.
# TYPE router_a_total counter
router_a_total{x="a b"} 1.0
# TYPE router_worker_state gauge
router_worker_state{state="ready"} 1.0
# MERGE mine_epoch max
# TYPE mine_epoch gauge
mine_epoch 4
"""
OTHER = b"""# HELP router_a_total How many.
# TYPE router_a_total counter
router_a_total{x="a b"} 2.0
router_a_total{x="c"} 0.5
# TYPE router_worker_state gauge
router_worker_state{state="ready"} 1.0
# MERGE mine_epoch max
# TYPE mine_epoch gauge
mine_epoch 3
# TYPE other gauge
other +Inf
"""


def test_samples_are_summed_and_states_are_not() -> None:
    assert merge_pages([ONE, OTHER]).decode().splitlines() == [
        "# HELP router_a_total How many.",
        "# TYPE router_a_total counter",
        'router_a_total{x="a b"} 3.0',
        'router_a_total{x="c"} 0.5',
        "# TYPE router_worker_state gauge",
        'router_worker_state{state="ready"} 1.0',
        "# TYPE mine_epoch gauge",
        "mine_epoch 4.0",
        "# TYPE other gauge",
        "other +Inf",
    ]
