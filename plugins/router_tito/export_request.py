"""What a request for samples, or one with a reward, says: read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from starlette.requests import Request

from router_core import Reject, read_json

from .exporters import ENCODINGS, PICKERS, Reward, composer_names

MAX_REWARD_BYTES = 1 << 16
"""Longest reward, as JSON."""
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What ``POST /sessions/{id}/samples`` asks for, in its query or in a JSON object."""

    format: str = "neutral"
    picker: str = "drop_abandoned"
    encoding: str = "json"
    strict: bool = False
    auxiliary: bool = False
    """Whether auxiliary calls are samples too."""

    @classmethod
    async def read(cls, request: Request) -> SampleRequest:
        """Raises Reject (400) naming the key at fault."""
        given: dict[str, Any] = {}
        for key, value in request.query_params.multi_items():
            _put(given, key, value)
        for key, value in _object(await read_json(request)).items():
            _put(given, key, value)
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise Reject(400, "unknown_key", f"there is no {key!r}: {', '.join(known)}", key)
        for key, values in (("format", composer_names()), ("picker", PICKERS), ("encoding", tuple(ENCODINGS))):
            if key in given and given[key] not in values:
                raise _bad(key, f"must be one of {', '.join(values)}, not {given[key]!r}")
        for key in ("strict", "auxiliary"):
            if key in given:
                given[key] = _truth(key, given[key])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """What ``POST /sessions/{id}/reward`` brings."""

    reward: Reward
    branch_id: int | None = None
    trajectory_id: str | int | None = None
    """The session's own, or a branch under the name that ``GET /sessions/{id}`` gives it."""

    @classmethod
    async def read(cls, request: Request) -> RewardRequest:
        """Raises Reject (400) naming the key at fault."""
        body = _object(await read_json(request))
        for key in body:
            if key not in ("reward", "branch_id", "trajectory_id"):
                raise Reject(400, "unknown_key", f"there is no {key!r}: reward, branch_id, trajectory_id", key)
        branch_id, trajectory_id = body.get("branch_id"), body.get("trajectory_id")
        if branch_id is not None and (isinstance(branch_id, bool) or not isinstance(branch_id, int)):
            raise _bad("branch_id", f"must be a whole number, not {branch_id!r}")
        if trajectory_id is not None and (isinstance(trajectory_id, bool) or not isinstance(trajectory_id, int | str)):
            raise _bad("trajectory_id", f"must be a text or a whole number, not {trajectory_id!r}")
        return cls(_reward(body), branch_id, trajectory_id)

    def branch_of(self, own_trajectory_id: str, branch_ids: Sequence[int]) -> int | None:
        """The branch that is meant, None for the whole session. Raises Reject (400) where there is none."""
        branch_id, key = self.branch_id, "branch_id"
        if isinstance(self.trajectory_id, int):
            if branch_id is not None and branch_id != self.trajectory_id:
                raise _bad("trajectory_id", f"{self.trajectory_id} is another branch than branch_id {branch_id}")
            branch_id, key = self.trajectory_id, "trajectory_id"
        elif self.trajectory_id is not None and self.trajectory_id != own_trajectory_id:
            raise _bad("trajectory_id", f"must be {own_trajectory_id!r} or a branch, not {self.trajectory_id!r}")
        if branch_id is not None and branch_id not in branch_ids:
            known = ", ".join(map(str, branch_ids)) or "none"
            raise _bad(key, f"names no branch: {branch_id}; branches: {known}")
        return branch_id


def _put(given: dict[str, Any], key: str, value: Any) -> None:
    if key in given:
        raise _bad(key, "is given twice")
    given[key] = value


def _object(body: Any) -> Mapping[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        raise Reject(400, "malformed_body", f"the body must be a JSON object, not {type(body).__name__}")
    return body


def _truth(key: str, value: Any) -> bool:
    truth = value if isinstance(value, bool) else TRUTHS.get(value.lower()) if isinstance(value, str) else None
    if truth is None:
        raise _bad(key, f"must be true or false, not {value!r}")
    return truth


def _reward(body: Mapping[str, Any]) -> Reward:
    reward = body.get("reward")
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if not is_number and not (isinstance(reward, dict) and reward):
        raise _bad("reward", f"must be a number or an object with members, not {reward!r}"[:200])
    try:
        text = json.dumps(reward, allow_nan=False)
        kept: Reward = dict(reward) if isinstance(reward, dict) else float(reward or 0)
    except (ValueError, OverflowError, RecursionError):
        raise _bad("reward", "must be finite") from None
    if len(text) > MAX_REWARD_BYTES:
        raise _bad("reward", f"must be no longer than {MAX_REWARD_BYTES} bytes")
    return kept


def _bad(key: str, message: str) -> Reject:
    return Reject(400, "bad_value", f"{key} {message}", key)
