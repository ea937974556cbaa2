"""The radix tree: token sequences found by their text, token-exact, bounded in bytes and tokens.

Two things are kept apart. *Segments* hold text and ids; they branch where token sequences branch, so a text that is a
prefix of another's keeps its own tokens, and equal texts with different ids are two branches. *Trajectories* mark
where a stored sequence ends and hold what belongs to that sample alone: rid, session, mask, logprobs, weight
versions.

A look-up follows every branch whose text agrees with the text asked for: it costs the length of that text and a
look-up per branching point, whatever the number of trajectories. The tree is owned by one event loop and takes no
locks.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable

from router_radix_cache.hold import Hold
from router_radix_cache.leaves import LeafQueue
from router_radix_cache.match import Match
from router_radix_cache.paths import Paths
from router_radix_cache.registry import Registry
from router_radix_cache.search import Candidate, as_match, choose, follow, measure, path_to, root_of
from router_radix_cache.segments import Segment
from router_radix_cache.stats import TreeStats
from router_radix_cache.tokens import PackedTokens, encode_text
from router_radix_cache.trajectory import TRAJECTORY_BYTES, SampledRuns, Trajectory, drop_runs, runs_beyond, take_runs
from router_radix_cache.versions import VersionLog

SIBLINGS_COMPARED = 16
"""How many earlier trajectories are tried as the one that a new trajectory continues."""


class RadixTree:
    """Stores trajectories under their text and gives back the exact tokens.

    Bounds count packed sizes; None is unbounded. Above a bound the leaf used longest ago goes first; a trajectory
    that another one continues is no leaf, so it lives at least as long. What a ``Hold`` covers is never evicted, and
    sizes may stand above the bounds by that much. ``ttl_s`` counts from the last use of a leaf.
    ``keep_weight_versions`` keeps trajectories whose last sampled token is of one of the K versions that were first
    seen last; a trajectory without a version is not touched by it.
    """

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        max_tokens: int | None = None,
        ttl_s: float | None = None,
        keep_weight_versions: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_tokens = max_tokens
        self._ttl_s = ttl_s
        self._clock = clock
        self._versions = VersionLog(keep_weight_versions)
        self._texted = Paths()
        self._untexted = Paths()  # sequences without a text: their packed ids stand in for it
        self._leaves = LeafQueue()
        self._registry = Registry()
        self._dropped: dict[str, int] = {}
        self._own_bytes = 0  # of trajectories and their runs, beside the segments
        self._serial = 0
        self._tick = 0

    @property
    def token_count(self) -> int:
        """Tokens stored; a token that several trajectories share counts once."""
        return self._texted.tokens + self._untexted.tokens

    @property
    def byte_count(self) -> int:
        """Packed bytes stored: texts, tokens, logprobs and a fixed sum for each segment and trajectory."""
        return self._texted.bytes + self._untexted.bytes + self._own_bytes

    def insert(
        self,
        text: str | None,
        tokens: PackedTokens,
        *,
        rid: str | None = None,
        session_id: str | None = None,
        continued: Trajectory | None = None,
    ) -> Trajectory | None:
        """Store ``tokens`` under ``text``, which they cover exactly, or raise ``ValueError``.

        With ``text`` None (or empty) the sequence is found by ``rid`` alone. A rid that is used again names the newer
        trajectory from then on. ``continued`` is the trajectory whose tokens these begin with, if it is known: what it
        stores of them need not be stored again. Returns None when nothing was kept: no tokens at all, larger than the
        bounds allow, or of a weight version that is not kept any more.
        """
        if not tokens.ids:
            return None
        encoded = encode_text(text) if text else b""
        if encoded and tokens.byte_length != len(encoded):
            raise ValueError(
                f"the tokens cover {tokens.byte_length} of {len(encoded)} bytes of the text; nothing was stored"
            )
        self.expire()
        self._serial += 1
        trajectory = Trajectory(rid, session_id, self._serial, tokens)
        paths, key, ids, ends = self._keyed(encoded, tokens)
        packed_ends = ends.tobytes()  # until all is made that stays: else that lands in its place and leaves holes
        path = paths.place(key, ids, ends, packed_ends)
        self._enter(trajectory, path, self._runs_for(path, tokens, continued))
        is_news = self._versions.see(trajectory.weight_version)
        self._drop_stale(self._registry if is_news else [trajectory])
        self._enforce_bounds()
        return trajectory if trajectory.is_stored else None

    def match(
        self, text: str, *, rid: str | None = None, session_id: str | None = None, weight_version: str | None = None
    ) -> Match:
        """The longest stored prefix of ``text``; an empty match when there is none.

        Of equally long ones a trajectory that ends there is taken before one that goes on, then the newest. ``rid``,
        ``session_id`` and ``weight_version`` (of the last sampled token) narrow the choice to trajectories that have
        them.
        """
        self.expire()
        encoded = encode_text(text)
        if rid is None and session_id is None:
            candidates = follow(self._texted.root, encoded, weight_version)
        else:
            candidates = self._measured(encoded, rid, session_id, weight_version)
        chosen, is_ambiguous = choose(candidates)
        if chosen is None:
            return Match(encoded)
        self._touch(chosen.trajectory)
        return as_match(chosen, encoded, is_ambiguous=is_ambiguous)

    def match_tokens(self, text: str | None, tokens: PackedTokens) -> Match:
        """The longest stored beginning of this very sequence, token by token; an empty match when there is none.

        ``text`` is what it would be stored under. Of trajectories that go on the newest is taken.
        """
        self.expire()
        encoded = encode_text(text) if text else b""
        paths, key, ids, ends = self._keyed(encoded, tokens)
        segment, count = paths.follow(key, ids, ends)
        if not count or segment.newest is None:
            return Match(encoded)
        newest = segment.trajectories[-1] if segment.trajectories else None  # all of them end where the segment does
        is_whole = newest is not None and newest.token_count == count
        trajectory = newest if newest is not None and is_whole else segment.newest
        self._touch(trajectory)
        size = ends[count - 1] if encoded else 0
        return Match(encoded, trajectory, segment, count, size, is_whole=is_whole)

    def by_rid(self, rid: str) -> Match | None:
        """The whole trajectory stored for ``rid``, with or without a text; None when there is none (any more)."""
        self.expire()
        trajectory = self._registry.by_rid(rid)
        if trajectory is None:
            return None
        self._touch(trajectory)
        path = path_to(trajectory)
        has_text = path[0].parent is self._texted.root
        text = b"".join(segment.label for segment in path) if has_text else b""
        return Match(text, trajectory, trajectory.segment, trajectory.token_count, len(text), is_whole=True)

    def hold(self, match: Match) -> Hold:
        """Protect the matched trajectory from eviction until the hold is released; an empty match holds nothing."""
        trajectory = match.trajectory
        return Hold(trajectory if trajectory is not None and trajectory.segment is not None else None, self._released)

    def expire(self) -> None:
        """Drop what was not used for ``ttl_s``; every call that reads or writes does so, an idle tree needs a timer."""
        if self._ttl_s is None:
            return
        limit = self._clock() - self._ttl_s
        while (leaf := self._leaves.oldest()) is not None and leaf.last_used_s < limit:
            self._evict(leaf, "ttl")

    def clear(self) -> int:
        """Drop everything that no request holds; how many trajectories went."""
        before = len(self._registry)
        self._drop_all(list(self._registry), "cleared")
        return before - len(self._registry)

    def stats(self) -> TreeStats:
        return TreeStats(
            trajectories=len(self._registry),
            sessions=self._registry.session_count,
            segments=self._texted.segments + self._untexted.segments,
            tokens=self.token_count,
            bytes=self.byte_count,
            dropped=dict(self._dropped),
        )

    def _measured(
        self, text: bytes, rid: str | None, session_id: str | None, weight_version: str | None
    ) -> list[Candidate]:
        found: list[Candidate] = []
        longest = 0
        for trajectory in self._registry.newest_first(rid, session_id):  # in a growing session it covers the most
            if trajectory.byte_length < longest or weight_version not in (None, trajectory.weight_version):
                continue
            candidate = measure(trajectory, text)
            if candidate is not None:
                found.append(candidate)
                longest = max(longest, candidate.matched_bytes)
        return found

    def _keyed(self, encoded: bytes, tokens: PackedTokens) -> tuple[Paths, bytes, bytes, array[int]]:
        """Where a sequence stands: its paths, the bytes that key it, its packed ids, and its ends in those bytes."""
        ids = tokens.ids.tobytes()
        if encoded:
            return self._texted, encoded, ids, tokens.ends
        return self._untexted, ids, ids, _ends_of_ids(len(tokens.ids))

    def _runs_for(self, path: list[Segment], tokens: PackedTokens, continued: Trajectory | None) -> SampledRuns:
        """Runs for a new trajectory, as a continuation of an earlier one that was sampled alike."""
        token_count = len(tokens.ids)
        if (
            continued is not None
            and continued.segment is not None
            and continued.token_count < token_count
            and continued.runs.are_start_of(tokens, continued.token_count)
        ):
            return runs_beyond(continued.runs, continued.token_count, tokens)
        tried = 0
        for segment in reversed(path):
            for earlier in reversed(segment.trajectories):
                if earlier.runs.are_start_of(tokens, earlier.token_count):
                    if earlier.token_count == token_count:
                        return earlier.runs
                    return runs_beyond(earlier.runs, earlier.token_count, tokens)
                tried += 1
                if tried == SIBLINGS_COMPARED:
                    return runs_beyond(None, 0, tokens)
        return runs_beyond(None, 0, tokens)

    def _enter(self, trajectory: Trajectory, path: list[Segment], runs: SampledRuns) -> None:
        trajectory.runs = runs
        trajectory.segment = path[-1]
        path[-1].trajectories.append(trajectory)
        segment: Segment | None = path[-1]
        while segment is not None:
            segment.newest = trajectory
            segment = segment.parent
        self._own_bytes += TRAJECTORY_BYTES + take_runs(runs)
        self._registry.add(trajectory)
        self._touch(trajectory)
        self._leaves.offer(path[-1])

    def _remove(self, trajectory: Trajectory, cause: str) -> None:
        segment = trajectory.segment
        if segment is None:
            return
        trajectory.segment = None
        segment.trajectories.remove(trajectory)
        self._own_bytes -= TRAJECTORY_BYTES + drop_runs(trajectory.runs)
        self._registry.discard(trajectory)
        paths = self._texted if root_of(segment) is self._texted.root else self._untexted
        lowest, removed = paths.prune(segment, trajectory)
        for gone in removed:
            self._leaves.withdraw(gone)
        if lowest.parent is not None and not lowest.children:
            self._leaves.renew(lowest)
        self._dropped[cause] = self._dropped.get(cause, 0) + 1

    def _evict(self, leaf: Segment, cause: str) -> None:
        for trajectory in list(leaf.trajectories):
            self._remove(trajectory, cause)

    def _enforce_bounds(self) -> None:
        while self._is_over_bounds() and (leaf := self._leaves.oldest()) is not None:
            self._evict(leaf, "lru")

    def _is_over_bounds(self) -> bool:
        is_over_bytes = self._max_bytes is not None and self.byte_count > self._max_bytes
        return is_over_bytes or (self._max_tokens is not None and self.token_count > self._max_tokens)

    def _drop_stale(self, trajectories: Iterable[Trajectory]) -> None:
        if self._versions.keeps_all:
            return
        self._drop_all(
            [found for found in trajectories if self._versions.is_stale(found.weight_version)], "weight_version"
        )

    def _drop_all(self, trajectories: Iterable[Trajectory], cause: str) -> None:
        for trajectory in trajectories:
            if not trajectory.holds:
                self._remove(trajectory, cause)

    def _released(self, trajectory: Trajectory) -> None:
        if trajectory.holds or trajectory.segment is None:
            return
        self._leaves.offer(trajectory.segment)
        self._drop_stale([trajectory])
        self._enforce_bounds()

    def _touch(self, trajectory: Trajectory) -> None:
        self._tick += 1
        trajectory.tick = self._tick
        if self._ttl_s is not None:
            trajectory.used_s = self._clock()


_ENDS_OF_IDS = array("I")


def _ends_of_ids(count: int) -> array[int]:
    """4, 8, 12 ...: where each of so many packed ids ends. Made once, since every look-up of ids needs them."""
    if count > len(_ENDS_OF_IDS):
        _ENDS_OF_IDS.extend(range(4 * len(_ENDS_OF_IDS) + 4, 8 * count + 1, 4))
    return _ENDS_OF_IDS[:count]
