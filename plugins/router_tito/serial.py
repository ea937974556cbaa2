"""A trace as JSON values and back. Version 1: packed arrays and expert rows are base64 of little-endian bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from .canonical import is_plain_message
from .errors import MessageError, TraceError
from .experts import DTYPES, NodeRows
from .graph import MessageGraph, request_key
from .matcher import Matcher, context_hash
from .node import ROOT, MessageNode, RenderContext, TurnFacts, UntrainableTurn
from .packed import ids_from_text, logprobs_from_text, to_text
from .trace import Trace

VERSION = 1


def dump_trace(trace: Trace) -> dict[str, Any]:
    """See ``Trace.to_dict``."""
    graph = trace.graph
    places = {context: place for place, context in enumerate(graph.contexts)}
    return {
        "version": VERSION,
        "matchers": list(trace.matcher.names),
        "expects_routed_experts": trace.expects_routed_experts,
        "is_sealed": trace.is_sealed,
        "next_turn_id": trace.next_turn_id,
        "refused": dict(trace.refused),
        "untrainable": [
            {**asdict(turn), "message_hash": turn.message_hash.hex(), "request": turn.request.hex()}
            for turn in trace.untrainable
        ],
        "contexts": [
            {"tools": deepcopy(list(context.tools)), "template_kwargs": deepcopy(dict(context.template_kwargs))}
            for context in graph.contexts.values()
        ],
        "nodes": [_dump_node(node, places[node.context]) for node in graph.nodes],
    }


def _dump_node(node: MessageNode, context: int) -> dict[str, Any]:
    dump: dict[str, Any] = {
        "parent": node.parent_id,
        "context": context,
        "message": deepcopy(node.message),
        "token_ids": to_text(node.token_ids),
        "experts": [_dump_rows(offset, rows) for offset, rows in node.experts.chunks],
    }
    if node.turn is not None:
        facts = asdict(node.turn)
        del facts["request"]  # it follows from the path
        dump |= {
            "sampled_start": node.sampled_start,
            "logprobs": to_text(node.logprobs),
            "is_delivered": node.is_delivered,
            "is_abandoned": node.is_abandoned,
            "turn": {**facts, "weight_versions": [list(span) for span in node.turn.weight_versions]},
        }
    return dump


def _dump_rows(offset: int, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    little = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"offset": offset, "dtype": rows.dtype.name, "shape": list(rows.shape), "rows": data}


def load_trace(dump: Mapping[str, Any], matcher: Matcher) -> Trace:
    """See ``Trace.from_dict``."""
    if dump.get("version") != VERSION:
        raise TraceError(f"a dump of version {dump.get('version')!r} cannot be read, only version {VERSION}")
    if list(matcher.names) != dump.get("matchers"):
        raise TraceError(f"the dump was made with matchers {dump.get('matchers')}, not {list(matcher.names)}")
    try:
        return _load(dump, matcher)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, MessageError) as error:
        raise TraceError(f"the dump is damaged: {type(error).__name__}: {error}") from error


def _load(dump: Mapping[str, Any], matcher: Matcher) -> Trace:
    trace = Trace(matcher=matcher, expects_routed_experts=bool(dump["expects_routed_experts"]))
    contexts = [RenderContext(tuple(deepcopy(c["tools"])), deepcopy(c["template_kwargs"])) for c in dump["contexts"]]
    hashes = [context_hash(context.tools, context.template_kwargs) for context in contexts]
    for entry in dump["nodes"]:
        place = entry["context"]
        trace.graph.append([_load_node(trace.graph, matcher, entry, hashes[place])], contexts[place])
    trace.untrainable += [
        UntrainableTurn(**{**turn, **{key: bytes.fromhex(turn.get(key, "")) for key in ("message_hash", "request")}})
        for turn in dump["untrainable"]
    ]
    trace.refused.update(dump["refused"])
    trace.next_turn_id = int(dump["next_turn_id"])
    trace.is_sealed = bool(dump["is_sealed"])
    return trace


def _load_node(graph: MessageGraph, matcher: Matcher, entry: Mapping[str, Any], context: bytes) -> MessageNode:
    node_id, parent_id = len(graph.nodes), int(entry["parent"])
    if not ROOT <= parent_id < node_id:
        raise TraceError(f"node {node_id} of the dump has the parent {parent_id}")
    parent = None if parent_id == ROOT else graph.nodes[parent_id]
    if parent and parent.context != context:
        raise TraceError(f"node {node_id} of the dump has another render context than its parent")
    token_ids = ids_from_text(entry["token_ids"])
    message = deepcopy(entry["message"])
    node = MessageNode(
        node_id=node_id,
        parent_id=parent_id,
        message=message,
        key=matcher.key(message),
        context=context,
        is_plain=is_plain_message(message),
        depth=parent.depth + 1 if parent else 1,
        start=parent.end if parent else 0,
        token_ids=token_ids,
        sampled_start=len(token_ids),
        anchor_id=parent.anchor_id if parent else ROOT,
    )
    if "turn" in entry:
        _load_answer(graph, node, entry)
    node.experts = _load_rows(graph, node, entry["experts"])
    return node


def _load_answer(graph: MessageGraph, node: MessageNode, entry: Mapping[str, Any]) -> None:
    node.anchor_id = node.node_id
    node.sampled_start = int(entry["sampled_start"])
    node.logprobs = logprobs_from_text(entry["logprobs"])
    if not 0 <= node.sampled_start < len(node.token_ids) or len(node.logprobs) != len(node.sampled_ids):
        raise TraceError(f"node {node.node_id} of the dump has {len(node.logprobs)} logprobs, not one a sampled token")
    node.is_delivered = bool(entry["is_delivered"])
    node.is_abandoned = bool(entry["is_abandoned"])
    facts = {field.name: entry["turn"][field.name] for field in fields(TurnFacts) if field.name != "request"}
    facts["weight_versions"] = tuple((version, start, end) for version, start, end in facts["weight_versions"])
    keys = [graph.nodes[on_path].key for on_path in graph.path(node.parent_id)]
    node.turn = TurnFacts(request=request_key(keys, node.context), **deepcopy(facts))


def _load_rows(graph: MessageGraph, node: MessageNode, entries: list[Mapping[str, Any]]) -> NodeRows:
    stored = NodeRows()
    for entry in entries:
        dtype = np.dtype(entry["dtype"])
        if dtype not in DTYPES:
            raise TraceError(f"node {node.node_id} of the dump has routed experts of type {dtype}")
        raw = base64.b64decode(entry["rows"], validate=True)
        rows = np.frombuffer(raw, dtype=dtype.newbyteorder("<")).reshape(entry["shape"]).astype(dtype)
        shape = graph.expert_shape = graph.expert_shape or rows.shape[1:]
        if rows.ndim != 3 or rows.shape[1:] != shape or not 0 <= entry["offset"] <= len(node.token_ids) - len(rows):
            raise TraceError(f"node {node.node_id} of the dump has routed experts of shape {rows.shape}")
        graph.node_bytes += stored.fill(entry["offset"], rows, len(node.token_ids))
    return stored
