"""Is this request a retry of one that was answered or is being answered? By evidence only, never by likeness alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from router_core import Headers

if TYPE_CHECKING:
    from .call import Call

RetryRule: TypeAlias = Literal["auto", "coalesce", "record"]

RETRY_COUNT = "x-stainless-retry-count"
IDEMPOTENCY_KEY = "idempotency-key"
REQUEST_ID = "x-request-id"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a request says of itself. A request id that the session binds to each turn says nothing."""

    is_retry: bool = False
    """It says that it is one."""
    idempotency_key: str | None = None
    request_id: str | None = None

    @classmethod
    def read(cls, headers: Headers, bound: Iterable[bytes] = ()) -> Evidence:
        """From a request's fields; ``bound`` are those that its session sets."""
        count = (headers.get(RETRY_COUNT) or "").strip()
        return cls(
            is_retry=count.isdigit() and int(count) > 0,
            idempotency_key=headers.get(IDEMPOTENCY_KEY) or None,
            request_id=None if REQUEST_ID.encode() in bound else headers.get(REQUEST_ID) or None,
        )

    def shares_a_name_with(self, other: Evidence) -> bool:
        """Whether both carry the same idempotency key or request id."""
        keys = ((self.idempotency_key, other.idempotency_key), (self.request_id, other.request_id))
        return any(mine is not None and mine == theirs for mine, theirs in keys)


def find_retried(rule: RetryRule, evidence: Evidence, calls: Sequence[Call]) -> Call | None:
    """The newest of ``calls``, all made for an equal body, that this request is a retry of; None if it is none."""
    if rule == "record":
        return None
    for call in reversed(calls):
        if call.is_joinable and (
            rule == "coalesce" or evidence.is_retry or call.is_broken or evidence.shares_a_name_with(call.evidence)
        ):
            return call
    return None
