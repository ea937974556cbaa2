"""``POST /sessions/{id}/samples`` and ``POST /sessions/{id}/reward``."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core import Reject, Router, Session, StateKey

from .errors import ExportError, IncompleteError
from .export_request import RewardRequest, SampleRequest
from .export_settings import ExportSettings
from .exporters import ENCODINGS, ExportOptions, Reward, TraceOutcome, composer_names, encode, find_composer
from .session_trace import SessionTrace
from .traces import TRACE

log = logging.getLogger(__name__)

BRANCH_REWARDS = StateKey[dict[int, Reward]]("tito rewards of branches")
TRAJECTORY_HEADER = b"x-smg-tito-trajectory-id"
"""Under which the core binds a session's ``trajectory_id``."""
MAX_TOLD_REASONS = 20
"""Most reasons in the message of a refusal."""


class ExportRoutes:
    """The two routes, over the router they were started with."""

    def __init__(self, settings: ExportSettings) -> None:
        composer_names()  # reads what is installed: not while something is served
        self._rules = settings.make_rules()
        self._places = asyncio.Semaphore(settings.max_exports)
        self.router: Router | None = None

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/sessions/{session_id}/samples", self.samples, methods=["POST"]),
            Route("/sessions/{session_id}/reward", self.reward, methods=["POST"]),
        ]

    async def samples(self, request: Request) -> Response:
        session, kept = self._find(request)
        wanted = await SampleRequest.read(request)
        options = ExportOptions(wanted.picker, wanted.strict, self._rules, wanted.auxiliary)
        outcome = outcome_of(session, kept)
        async with self._places:
            body = await asyncio.to_thread(_export, outcome, wanted, options, session.inflight)
        return Response(body, media_type=ENCODINGS[wanted.encoding])

    async def reward(self, request: Request) -> Response:
        session, kept = self._find(request)
        wanted = await RewardRequest.read(request)
        branch_id = wanted.branch_of(trajectory_id(session), [branch.branch_id for branch in kept.trace.branches()])
        give_reward(session, kept, wanted.reward, branch_id)
        return JSONResponse({"session_id": session.id, "branch_id": branch_id, "reward": wanted.reward})

    def _find(self, request: Request) -> tuple[Session, SessionTrace]:
        """The session and what is kept of it. Raises Reject: 404 and 410 by the core, 409 for one without capture."""
        if self.router is None:
            raise RuntimeError("samples are made once the router has started")
        session = self.router.sessions.require(request.path_params["session_id"])
        kept = session.state.get(TRACE)
        if kept is None:
            raise Reject(409, "not_captured", f"session {session.id!r} is not captured: its profile has tito off")
        return session, kept


def trajectory_id(session: Session) -> str:
    """What the session was opened for: its ``trajectory_id``, else its own id."""
    return dict(session.bound_headers).get(TRAJECTORY_HEADER, session.id.encode()).decode()


def give_reward(session: Session, kept: SessionTrace, reward: Reward, branch_id: int | None) -> None:
    """Attach a reward to a branch, or to the whole session; a later one takes the place of an earlier one."""
    if branch_id is not None:
        rewards = session.state.get(BRANCH_REWARDS)
        if rewards is None:
            rewards = session.state[BRANCH_REWARDS] = {}
        rewards[branch_id] = reward
    elif isinstance(reward, dict):
        score = reward.get("score")
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        kept.reward, kept.reward_extra = score if is_number else None, reward
    else:
        kept.reward, kept.reward_extra = reward, {}


def outcome_of(session: Session, kept: SessionTrace) -> TraceOutcome:
    """The session as composers take it, as far as it has come."""
    known = Counter(turn.reason for turn in kept.trace.untrainable)
    branch_rewards = session.state.get(BRANCH_REWARDS)
    return TraceOutcome(
        kept.trace,
        trajectory_id(session),
        kept.reward_extra or kept.reward,
        kept.end_status,
        kept.generation_time_s,
        session_id=session.id,
        branch_rewards={} if branch_rewards is None else dict(branch_rewards),
        missed=dict(kept.uncaptured - known),
    )


def _export(outcome: TraceOutcome, wanted: SampleRequest, options: ExportOptions, inflight: int) -> bytes:
    """The body of an answer; runs in a thread. Raises Reject."""
    try:
        composer = find_composer(wanted.format)(options)
        made = composer.export(outcome)
        if options.strict and made.reasons:
            raise IncompleteError(made.reasons)
        samples = composer.pack([outcome])
        told = {
            "format": wanted.format,
            "session_id": outcome.session_id,
            "picker": wanted.picker,
            "complete": not made.reasons,
            "reasons": made.reasons,
            "left_out": [{"branch_id": left.branch_id, "why": left.why} for left in made.left_out],
            "inflight": inflight,
            "samples": samples,
        }
        return encode(told, wanted.encoding)
    except IncompleteError as error:
        raise Reject(409, "incomplete", _told(error.reasons), "strict") from None
    except ExportError as error:
        raise Reject(409, "unsuitable_format", str(error), "format") from None
    except Exception as error:
        log.exception("the composer of format %r failed", wanted.format)
        raise Reject(500, "composer_failed", f"the composer of format {wanted.format!r} failed: {error!r}") from error


def _told(reasons: list[str]) -> str:
    more = [f"and {len(reasons) - MAX_TOLD_REASONS} more"] if len(reasons) > MAX_TOLD_REASONS else []
    return "something is missing: " + "; ".join([*reasons[:MAX_TOLD_REASONS], *more])
