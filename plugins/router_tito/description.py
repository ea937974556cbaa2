"""A session's trace in the words of the stacks that ask for it: miles' and PSRL's fields of ``GET /sessions/{id}``.

``trajectories`` has one entry per branch that is kept, each with its ids once and a record per turn; ``records`` and
``metadata.accumulated_token_ids`` are those of the first. A turn's prompt is the beginning of the ids that is
``prompt_token_count`` long. Nothing needs to be trimmed from it: ``max_trim_tokens`` is 0.
"""

from __future__ import annotations

from typing import Any

from .session_trace import Mismatch, SessionTrace
from .views import BranchView, TransitionView

PATH = "/v1/chat/completions"


def describe(session: SessionTrace, *, max_tokens: int) -> dict[str, Any]:
    """The fields, as JSON values; without ids and logprobs where they were more than ``max_tokens``."""
    branches = session.trace.branches(drop_abandoned=True)
    is_whole = sum(branch.nodes[-1].end for branch in branches) <= max_tokens
    trajectories = [_trajectory(session, branch, with_tokens=is_whole) for branch in branches]
    first = trajectories[0] if trajectories else {"accumulated_token_ids": [], "records": []}
    metadata: dict[str, Any] = {
        "accumulated_token_ids": first["accumulated_token_ids"],
        "max_trim_tokens": 0,
        **_counts(session),
    }
    if not is_whole:
        metadata["tokens_left_out"] = f"more than {max_tokens} tokens (plugins.tito.max_described_tokens)"
    return {
        "records": first["records"],
        "accumulated_token_ids": first["accumulated_token_ids"],
        "max_trim_tokens": 0,
        "trajectories": trajectories,
        "metadata": metadata,
    }


def _counts(session: SessionTrace) -> dict[str, Any]:
    trace = session.trace
    return {
        "turns": session.turns,
        "nodes": len(trace.nodes),
        "nbytes": session.nbytes,
        "model": session.options.model,
        "refused": dict(trace.refused),
        "untrainable": dict(session.uncaptured),
        "drift": dict(session.drift),
        "mismatches": dict(session.debugged),
        "generation_time_s": session.generation_time_s,
        "reward": session.reward,
        "end_status": session.end_status,
    }


def _trajectory(session: SessionTrace, branch: BranchView, *, with_tokens: bool) -> dict[str, Any]:
    mismatches: dict[int, list[Mismatch]] = {}
    for mismatch in session.mismatches:
        mismatches.setdefault(mismatch.node_id, []).append(mismatch)
    return {
        "trajectory_id": branch.branch_id,
        "accumulated_token_ids": branch.token_ids.tolist() if with_tokens else [],
        "is_complete": branch.is_complete,
        "reasons": branch.reasons,
        "records": [
            _record(session, turn, mismatches.get(turn.node.node_id, []), with_tokens=with_tokens)
            for turn in branch.transitions
        ],
    }


def _record(
    session: SessionTrace, turn: TransitionView, mismatches: list[Mismatch], *, with_tokens: bool
) -> dict[str, Any]:
    """One turn, under the keys of both."""
    node, facts = turn.node, turn.facts
    pairs = list(zip(node.logprobs.tolist(), node.sampled_ids.tolist(), strict=True)) if with_tokens else []
    prompt_tokens = node.end - len(node.sampled_ids)
    choice = {
        "index": 0,
        "message": node.message,
        "finish_reason": facts.finish_reason,
        "meta_info": {
            "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
            "weight_version": facts.weight_version,
            "weight_versions": [
                {"version": version, "start": start, "end": end} for version, start, end in facts.weight_versions
            ],
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(node.sampled_ids),
            "cached_tokens": facts.cached_tokens,
            "finish_reason": {"type": facts.finish_reason},
        },
    }
    return {
        "timestamp": session.finished_at.get(node.node_id),
        "method": "POST",
        "path": PATH,
        "status_code": 200,
        "request": {"model": facts.model, **facts.sampling_params},
        "response": {"object": "chat.completion", "model": facts.model, "choices": [choice]},
        "turn_id": facts.turn_id,
        "prompt_token_count": prompt_tokens,
        "output_logprobs": [list(pair) for pair in pairs],
        "finish_reason": facts.finish_reason,
        "weight_version": facts.weight_version,
        "is_delivered": node.is_delivered,
        "how": facts.how,
        "reused_tokens": facts.reused_tokens,
        "mismatch_report": [mismatch.to_dict() for mismatch in mismatches],
    }
