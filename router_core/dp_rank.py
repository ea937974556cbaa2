"""Hands the data-parallel rank of a worker ``http://host:port@rank`` to the engine behind it, by the engine's means.

vLLM reads the header ``X-data-parallel-rank``. SGLang reads it on some of its ``/v1`` routes only, on ``/generate`` not
at all; there it wants a body key: ``routed_dp_rank``, before 2026 ``data_parallel_rank`` (its PRs 19268 and 33565: the
older one was silently dropped for a while; the newer one wins where both stand). So header and both keys are set: each
engine passes over what it does not know. A worker's label ``engine = "vllm"`` leaves the body alone.

In the core and no plugin: a rank that was registered and is not handed over would be a wrong proxy, quietly.
"""

from __future__ import annotations

from router_core.types import Attempt, Request

RANK_HEADER = "x-data-parallel-rank"
SGLANG_OVERRIDE_HEADER = "x-override-routed-dp-rank"
"""A client's own wish, which SGLang would put above the body: it must not steer past the chosen rank."""
SGLANG_KEYS = ("routed_dp_rank", "data_parallel_rank")
ENGINE_LABEL = "engine"


def hand_over_rank(attempt: Attempt) -> None:
    """Sets the worker's rank on the attempt's request; nothing changes for a worker without one."""
    worker, request = attempt.worker, attempt.request
    if worker.dp_rank is None:
        return
    request.headers.set(RANK_HEADER, str(worker.dp_rank))
    request.headers.remove(SGLANG_OVERRIDE_HEADER)
    if worker.labels.get(ENGINE_LABEL) != "vllm" and _may_be_json(request):
        for key in SGLANG_KEYS:
            request.set_key(key, worker.dp_rank)


def _may_be_json(request: Request) -> bool:
    """Whether a key can be set: a plain JSON object is tried later, a body of another type is left to stream."""
    if request.method != "POST" or "content-encoding" in request.headers:
        return False
    kind = request.headers.get("content-type")
    return kind is None or "json" in kind.lower()
