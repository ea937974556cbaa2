"""Versions of an answer's tokens, however they are told."""

from __future__ import annotations

from typing import Any

import pytest
from router_tito.engines import Reading
from router_tito.engines.versions import read_versions

SEGMENTS = [
    {"start": 0, "end": 3, "worker": "a", "weight_version": "8"},
    {"start": 3, "end": 5, "worker": "b", "weight_version": None},
]
SPANS = [{"version": "9", "start": 3, "end": 5}]


@pytest.mark.parametrize(
    ("told", "due"),
    [
        ({}, ()),
        ({"weight_versions": SPANS}, (("9", 3, 5),)),
        ({"weight_versions": SPANS, "segments": SEGMENTS}, (("8", 0, 3), (None, 3, 5))),
        ({"segments": [{"start": 0}]}, ()),
        ({"segments": "x", "weight_versions": SPANS}, (("9", 3, 5),)),
    ],
)
def test_segments_say_more_than_the_newest_workers_own_spans(told: dict[str, Any], due: Any) -> None:
    reading = Reading()
    read_versions({"weight_version": 9, **told}, reading)
    assert reading.weight_versions == due
    assert reading.weight_version == "9"
