"""Weight versions: decimal texts compare as numbers, any other text is unknown."""

from __future__ import annotations

from collections.abc import Iterable

MAX_DIGITS = 32


def parse_version(text: str | None) -> int | None:
    """The number a version stands for; None for SGLang's ``default``, for nothing, and for anything else."""
    if text is None or not 0 < len(text) <= MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def newest_of(versions: Iterable[str | None]) -> int | None:
    """The highest of those that are known."""
    return max((number for text in versions if (number := parse_version(text)) is not None), default=None)


def why_too_old(
    version: str | None,
    pending: str | None,
    *,
    tag: int | None,
    newest: int | None = None,
    max_staleness: int | None = None,
) -> tuple[str, bool] | None:
    """Why a worker of this version may not serve a request; None if it may.

    The second value: whether it will once its sync is through, which is what ``pending`` says. ``tag`` is the oldest
    version that may serve, ``max_staleness`` how far behind ``newest`` that may be.
    """
    oldest, bound = tag, "the request's tag"
    if max_staleness is not None and newest is not None and (oldest is None or newest - max_staleness > oldest):
        oldest, bound = newest - max_staleness, f"max_staleness {max_staleness}"
    if oldest is None:
        return None
    number, coming = parse_version(version), parse_version(pending)
    if number is not None and number >= oldest:
        return None
    what = "unknown" if number is None else str(number)
    if coming is not None and coming >= oldest:
        return f"weight version {what}, {coming} is pending; {oldest} or newer may serve ({bound})", True
    return f"weight version {what}; {oldest} or newer may serve ({bound})", False
