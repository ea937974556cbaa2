"""One trajectory as the arrays a training loop starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from router_tito.errors import ExportError, IncompleteError
from router_tito.experts import Rows
from router_tito.trace import Trace

from .composer import ExportOptions, export
from .outcome import TraceOutcome
from .row import SampleRow


class TrainingArrays(NamedTuple):
    """A prompt and all that came behind it; the three ``response_`` arrays and the logprobs are equally long."""

    prompt_ids: NDArray[np.int64]
    """What the first call was given."""
    response_ids: NDArray[np.int64]
    """Answers, and the context between them."""
    response_mask: NDArray[np.uint8]
    """1 where the token was sampled and is trained here."""
    rollout_log_probs: NDArray[np.float64]
    """Nats, 0.0 where the mask is 0."""
    num_turns: int
    """Calls."""
    routed_experts: Rows | None
    """``[len(prompt_ids) + len(response_ids) - 1, num_layers, top_k]``, None where there are none."""


def build_training_arrays(session: Any, *, branch_id: int | None = None, strict: bool = True) -> TrainingArrays:
    """The arrays of one trajectory of ``session``, after PSRL's ``build_training_data`` (psrl/utils/tito).

    ``session`` is a trace or what has one as ``.trace`` (a session of the router, a ``TraceOutcome``), a row, or the
    JSON object of ``GET /sessions/{id}`` or of a neutral row of ``POST /sessions/{id}/samples``. ``branch_id`` says
    which trajectory, and may be left out where there is one (abandoned answers and auxiliary calls do not count).
    Raises ExportError, and IncompleteError if ``strict`` and something is missing.
    """
    if isinstance(session, Mapping):
        return _from_row(session, strict) if "tokens" in session else _from_description(session, branch_id, strict)
    row = session if isinstance(session, SampleRow) else _row_of(session, branch_id)
    if strict and row.reasons:
        raise IncompleteError(row.reasons)
    return arrays_of(row)


def arrays_of(row: SampleRow) -> TrainingArrays:
    """The arrays of a row, complete or not."""
    tokens, mask, logprobs = row.arrays()
    return _split(tokens, mask, logprobs, row.prompt_length, len(row.turns), row.routed_experts)


def _split(
    tokens: NDArray[Any],
    mask: NDArray[Any],
    logprobs: NDArray[Any],
    prompt_length: int,
    num_turns: int,
    routed_experts: Rows | None,
) -> TrainingArrays:
    ids = tokens.astype(np.int64)
    return TrainingArrays(
        ids[:prompt_length],
        ids[prompt_length:],
        mask[prompt_length:].astype(np.uint8),
        logprobs[prompt_length:].astype(np.float64),
        num_turns,
        routed_experts,
    )


def _row_of(session: Any, branch_id: int | None) -> SampleRow:
    if isinstance(session, TraceOutcome):
        outcome = session
    else:
        trace = session if isinstance(session, Trace) else getattr(session, "trace", None)
        if not isinstance(trace, Trace):
            raise ExportError(f"{type(session).__name__} is neither a trace nor a session")
        outcome = TraceOutcome(trace, None)
    rows = {row.branch_id: row for row in export(outcome, ExportOptions()).rows}
    return rows[_one_of(list(rows), branch_id)]


def _one_of(branch_ids: Sequence[int], wanted: int | None) -> int:
    known = ", ".join(map(str, branch_ids)) or "none"
    if wanted is not None:
        if wanted not in branch_ids:
            raise ExportError(f"there is no branch {wanted}; branches: {known}")
        return wanted
    if len(branch_ids) != 1:
        raise ExportError(f"the session has {len(branch_ids)} branches ({known}): say which by branch_id")
    return branch_ids[0]


def _from_row(row: Mapping[str, Any], strict: bool) -> TrainingArrays:
    if strict and row["reasons"]:
        raise IncompleteError(row["reasons"])
    experts = row["routed_experts"]
    return _split(
        np.asarray(row["tokens"]),
        np.asarray(row["loss_mask"]),
        np.asarray(row["logprobs"]),
        row["turns"][0]["start"],
        len(row["turns"]),
        None if experts is None else np.asarray(experts),
    )


def _from_description(session: Mapping[str, Any], branch_id: int | None, strict: bool) -> TrainingArrays:
    """From ``GET /sessions/{id}``, which holds no experts. A turn that an earlier trajectory has is masked."""
    if session.get("metadata", {}).get("tokens_left_out"):
        raise ExportError(f"the session was shown without its tokens: {session['metadata']['tokens_left_out']}")
    try:
        trajectories = {entry["trajectory_id"]: entry for entry in session["trajectories"]}
    except (KeyError, TypeError) as error:
        raise ExportError(f"no session of the router, and no row: {error!r} is missing") from None
    wanted = _one_of(list(trajectories), branch_id)
    chosen, earlier = trajectories[wanted], set()
    for trajectory_id, entry in trajectories.items():
        if trajectory_id == wanted:
            break
        earlier |= {record["turn_id"] for record in entry["records"]}
    if strict and chosen["reasons"]:
        raise IncompleteError(chosen["reasons"])
    tokens = np.asarray(chosen["accumulated_token_ids"], np.int64)
    mask, logprobs = np.zeros(len(tokens), np.uint8), np.zeros(len(tokens))
    for record in chosen["records"]:
        pairs = record["output_logprobs"]
        if record["turn_id"] not in earlier:
            span = slice(record["prompt_token_count"], record["prompt_token_count"] + len(pairs))
            mask[span], logprobs[span] = 1, [logprob for logprob, _ in pairs]
    first = chosen["records"][0]["prompt_token_count"]
    return _split(tokens, mask, logprobs, first, len(chosen["records"]), None)
