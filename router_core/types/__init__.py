"""The nouns of the router: what hooks are given and what they give back.

Everything here belongs to one event loop. Plugins read these objects and change them only by their methods or where
a hook's contract says so.
"""

from router_core.types.answer import MAX_COLLECTED_BYTES, Answer
from router_core.types.attempt import Attempt, Outcome, OutcomeKind
from router_core.types.continued import KEPT_VERSION, TOKEN_FORM, InTokens, TokenForm
from router_core.types.exchange import Decision, Exchange, Identity, Session
from router_core.types.experts import ROUTED_EXPERTS, RoutedExperts
from router_core.types.request import BodySource, Request
from router_core.types.state import State, StateKey
from router_core.types.worker import Scores, Worker, WorkerState

__all__ = [
    "KEPT_VERSION",
    "MAX_COLLECTED_BYTES",
    "ROUTED_EXPERTS",
    "TOKEN_FORM",
    "Answer",
    "Attempt",
    "BodySource",
    "Decision",
    "Exchange",
    "Identity",
    "InTokens",
    "Outcome",
    "OutcomeKind",
    "Request",
    "RoutedExperts",
    "Scores",
    "Session",
    "State",
    "StateKey",
    "TokenForm",
    "Worker",
    "WorkerState",
]
