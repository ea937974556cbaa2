"""Looking up a text: which trajectories share how much of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from router_radix_cache.match import Match
from router_radix_cache.segments import Segment, common_length, is_character_start
from router_radix_cache.trajectory import Trajectory


class Candidate(NamedTuple):
    """One token sequence that fits: ``token_count`` tokens of ``trajectory``, the last of them in ``segment``.

    ``is_whole``: the trajectory ends there. ``has_twin``: another one ends there too, with other logprobs, mask or
    versions.
    """

    matched_bytes: int
    is_whole: bool
    trajectory: Trajectory
    segment: Segment
    token_count: int
    has_twin: bool = False


class Visit(NamedTuple):
    """A segment whose text agrees up to byte ``limit``; ``tokens_before`` tokens lie above it."""

    limit: int
    segment: Segment
    tokens_before: int
    is_full: bool


def follow(root: Segment, text: bytes, weight_version: str | None = None) -> list[Candidate]:
    """The candidates that cover the most of ``text``, over all branches that agree with it."""
    best: list[Candidate] = []
    visits = _visits(root, text, keeps_all=weight_version is not None)
    if len(visits) > 1:
        visits.sort(key=itemgetter(0), reverse=True)
    for visit in visits:
        if best and visit.limit < best[0].matched_bytes:
            break
        candidate = _candidate(visit, text, weight_version)
        if candidate is None or (best and candidate.matched_bytes < best[0].matched_bytes):
            continue
        if best and candidate.matched_bytes > best[0].matched_bytes:
            best.clear()
        best.append(candidate)
    return best


def measure(trajectory: Trajectory, text: bytes) -> Candidate | None:
    """What ``trajectory`` alone covers of ``text``."""
    path = path_to(trajectory)
    at, tokens = 0, 0
    fitting = 0
    for segment in path:
        label = segment.label
        if not text.startswith(label, at):
            break
        at += len(label)
        tokens += len(segment.ends)
        fitting += 1
    if fitting < len(path):
        limit = at + common_length(text, at, path[fitting].label)
        if count := path[fitting].tokens_within(text, limit):
            end = path[fitting].ends[count - 1]
            return Candidate(end, False, trajectory, path[fitting], tokens + count) if end else None
    for segment in reversed(
        path[:fitting]
    ):  # the last one that fits has no boundary here only if it is within a character
        tokens -= len(segment.ends)
        if count := segment.tokens_within(text, at):
            end, total = segment.ends[count - 1], tokens + count
            return Candidate(end, total == trajectory.token_count, trajectory, segment, total) if end else None
    return None


def choose(candidates: list[Candidate]) -> tuple[Candidate | None, bool]:
    """The best candidate and whether another token sequence (or another sample of the same one) fits as well."""
    if not candidates:
        return None, False
    if len(candidates) == 1:
        return candidates[0], candidates[0].has_twin
    chosen = max(candidates, key=lambda candidate: (candidate[0], candidate[1], candidate[2].serial))
    rivals = [candidate for candidate in candidates if candidate[:2] == chosen[:2]]
    places = {(id(candidate.segment), candidate.token_count) for candidate in rivals}
    samples = {candidate.trajectory.digest for candidate in rivals} if chosen.is_whole else set()
    return chosen, len(places) > 1 or len(samples) > 1 or any(candidate.has_twin for candidate in rivals)


def as_match(candidate: Candidate, text: bytes, *, is_ambiguous: bool) -> Match:
    return Match(
        text,
        candidate.trajectory,
        candidate.segment,
        candidate.token_count,
        candidate.matched_bytes,
        is_whole=candidate.is_whole,
        is_ambiguous=is_ambiguous,
    )


def path_to(trajectory: Trajectory) -> list[Segment]:
    """The segments of a stored trajectory, from below the root down."""
    path = []
    segment = trajectory.segment
    while segment is not None and segment.parent is not None:
        path.append(segment)
        segment = segment.parent
    path.reverse()
    return path


def root_of(segment: Segment) -> Segment:
    """The root a segment of the tree hangs on."""
    while segment.parent is not None:
        segment = segment.parent
    return segment


def _visits(root: Segment, text: bytes, *, keeps_all: bool) -> list[Visit]:
    """Where the branches that agree with ``text`` end or part from it; with ``keeps_all`` also each segment on the
    way."""
    visits = []
    stack = [(root, 0, 0)]
    size = len(text)
    while stack:
        parent, at, tokens = stack.pop()
        children = parent.children
        is_covered = parent is root  # by a child that fits and reaches further
        for length in parent.key_lengths:
            if at + length > size:
                break
            for child in children.get(text[at : at + length], ()):
                label = child.label
                if text.startswith(label, at):
                    limit = at + len(label)
                    stack.append((child, limit, tokens + len(child.ends)))
                    if limit > at and (limit == size or text[limit] & 0xC0 != 0x80):
                        is_covered = is_covered or not keeps_all
                else:
                    visits.append(Visit(at + common_length(text, at, label), child, tokens, False))
        if not is_covered:
            visits.append(Visit(at, parent, tokens - len(parent.ends), True))
    return visits


def _candidate(visit: Visit, text: bytes, weight_version: str | None) -> Candidate | None:
    segment = visit.segment
    if visit.is_full and is_character_start(text, visit.limit):
        count, end = segment.token_count, visit.limit
        ended = segment.trajectories if weight_version is None else _of_version(segment.trajectories, weight_version)
        if ended and end:
            newest = ended[-1]
            has_twin = len(ended) > 1 and any(trajectory.digest != newest.digest for trajectory in ended)
            return Candidate(end, True, newest, segment, visit.tokens_before + count, has_twin)
        passing = _newest_beyond(segment, weight_version)
    else:
        count = segment.tokens_within(text, visit.limit)
        end = segment.ends[count - 1] if count else 0
        passing = segment.newest if weight_version is None else _newest(_all_below(segment), weight_version)
    if passing is None or not count or not end:
        return None
    return Candidate(end, False, passing, segment, visit.tokens_before + count)


def _newest_beyond(segment: Segment, weight_version: str | None) -> Trajectory | None:
    """The newest trajectory that goes on behind ``segment`` with a token that has text.

    One that goes on with a token without text covers the same text by one token more, and is a candidate of its own.
    """
    if weight_version is None and b"" not in segment.children:
        return segment.newest  # nothing ends here, or it would have been taken
    children = [child for key, bucket in segment.children.items() if key for child in bucket]
    if weight_version is None:
        return _newest((child.newest for child in children if child.newest), None)
    return _newest((found for child in children for found in _all_below(child)), weight_version)


def _newest(trajectories: Iterable[Trajectory], weight_version: str | None) -> Trajectory | None:
    return max(_of_version(trajectories, weight_version), key=_serial, default=None)


def _of_version(trajectories: Iterable[Trajectory], weight_version: str | None) -> list[Trajectory]:
    if weight_version is None:
        return list(trajectories)
    return [found for found in trajectories if found.weight_version == weight_version]


def _serial(trajectory: Trajectory) -> int:
    return trajectory.serial


def _all_below(segment: Segment) -> Iterator[Trajectory]:
    stack = [segment]
    while stack:
        below = stack.pop()
        yield from below.trajectories
        stack.extend(below.each_child())
