from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from router_tito.errors import TraceError
from router_tito.experts import RoutedRows
from router_tito.matcher import Matcher
from router_tito.trace import Trace
from test_experts import rows_of
from tito_kit import answer, assistant, call, row, tool, user

ASK = [user("q \ud800 \u20ac")]
TOOLS = [{"name": "f", "parameters": {"default": 1.0}}]


def build() -> Trace:
    trace = Trace(expects_routed_experts=True)
    reply = assistant(None, tool_calls=[call("f", '{"x": 123456789012345678901234567890}')])
    rows = RoutedRows(rows_of(0, 3, np.uint16))
    result = answer([2**31 - 1, 11], reply, [1, 2], logprobs=[-0.1, -1e-300], routed_experts=rows)
    trace.mark_delivered(trace.commit(trace.prepare_turn(ASK, TOOLS), result).node_id)
    history = [*ASK, reply, tool("r")]
    versions = {"weight_version": "2", "weight_versions": (("1", 0, 1), ("2", 1, 2))}
    result = answer([12, 13], assistant("b"), [1, 2, 2**31 - 1, 11, 3], **versions)
    trace.commit(trace.prepare_turn(history, TOOLS), result)
    trace.abandon(trace.commit(trace.prepare_turn(ASK), answer([14], assistant("c"), [1])).node_id)
    trace.mark_untrainable(trace.prepare_turn(ASK), "no_ids", assistant("d"))
    trace.refuse("aborted")
    return trace


def test_a_trace_survives_json_and_goes_on() -> None:
    trace = build()
    dump = json.loads(json.dumps(trace.to_dict()))
    loaded = Trace.from_dict(dump)
    assert loaded.to_dict() == trace.to_dict()
    assert list(map(row, loaded.branches())) == list(map(row, trace.branches()))
    assert [list(b.logprobs) for b in loaded.branches()] == [list(b.logprobs) for b in trace.branches()]
    assert [b.reasons for b in loaded.branches()] == [b.reasons for b in trace.branches()]
    assert loaded.graph.node_bytes == trace.graph.node_bytes
    assert loaded.expects_routed_experts
    first, again = trace.prepare_turn(ASK, TOOLS), loaded.prepare_turn(ASK, TOOLS)
    assert (first.turn_id, first.path, first.request) == (again.turn_id, again.path, again.request)
    assert [node.node_id for node in loaded.answers(again)] == [node.node_id for node in trace.answers(first)]


def test_a_dump_shares_nothing_with_its_trace() -> None:
    trace = build()
    dump = trace.to_dict()
    expected = json.dumps(dump)
    dump["nodes"][0]["message"]["content"] = "changed"
    dump["contexts"][0]["tools"][0]["name"] = "changed"
    assert json.dumps(trace.to_dict()) == expected


def test_a_dump_of_another_version_or_other_matchers_is_refused() -> None:
    dump = build().to_dict()
    with pytest.raises(TraceError, match="version 2"):
        Trace.from_dict({**dump, "version": 2})
    with pytest.raises(TraceError, match="strict"):
        Trace.from_dict(dump, matcher=Matcher(["strict"]))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nodes",), None),
        (("nodes", 1, "parent"), 1),
        (("nodes", 1, "parent"), -2),
        (("nodes", 1, "context"), 1),
        (("nodes", 1, "context"), 9),
        (("nodes", 1, "logprobs"), "AAAAAAAAAAA="),
        (("nodes", 1, "sampled_start"), 2),
        (("nodes", 1, "token_ids"), "AA=="),
        (("nodes", 1, "turn"), {}),
        (("nodes", 0, "message"), {"content": "no role"}),
        (("nodes", 0, "experts", 0, "dtype"), "int64"),
        (("nodes", 0, "experts", 0, "shape"), [3, 2, 2]),
        (("nodes", 0, "experts", 0, "offset"), 1),
        (("untrainable", 0, "message_hash"), "xy"),
        (("untrainable", 0, "request"), "xy"),
    ],
)
def test_a_damaged_dump_is_refused(path: tuple[Any, ...], value: Any) -> None:
    dump = build().to_dict()
    part: Any = dump
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(TraceError):
        Trace.from_dict(dump)
