"""A brute-force model of the radix tree: a list of trajectories, every rule by its definition."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(eq=False)
class Sample:
    """One stored trajectory: per token its id, end, mask, logprob and weight version."""

    text: bytes | None
    ids: list[int]
    ends: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[str | None]
    rid: str | None
    session_id: str | None
    serial: int
    tick: int = 0
    used_s: float = 0.0
    holds: int = 0

    @property
    def weight_version(self):
        sampled = [version for version, mask in zip(self.versions, self.mask, strict=True) if mask]
        return sampled[-1] if sampled else None

    @cached_property
    def path(self):
        text = self.text if self.text is not None else b""
        starts = [0, *self.ends[:-1]]
        pieces = [text[start:end] for start, end in zip(starts, self.ends, strict=True)]
        return (self.text is None, *zip(self.ids, self.ends, pieces, strict=True))

    @property
    def content(self):
        return (self.mask, self.logprobs, self.versions)

    def covered(self, text: bytes) -> tuple[int, int]:
        """Bytes and tokens of ``text`` this sample covers."""
        if self.text is None:
            return 0, 0
        same = 0
        while same < min(len(text), len(self.text)) and text[same] == self.text[same]:
            same += 1
        fits = [end for end in self.ends if end <= same and (end >= len(text) or text[end] & 0xC0 != 0x80)]
        size = max(fits, default=0)
        # ends do not decrease, so the tokens that end at or before ``size`` are the first ones
        return (size, sum(1 for end in self.ends if end <= size)) if size else (0, 0)


@dataclass
class Found:
    sample: Sample | None = None
    size: int = 0
    count: int = 0
    is_whole: bool = False
    is_ambiguous: bool = False


@dataclass
class Model:
    max_tokens: int | None = None
    ttl_s: float | None = None
    kept_versions: int | None = None
    samples: list[Sample] = field(default_factory=list)
    rids: dict[str, Sample] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    now: float = 0.0
    serial: int = 0
    tick: int = 0

    def insert(self, text, ids, ends, mask, logprobs, versions, rid, session_id):
        if not ids:
            return None
        self.expire()
        self.serial += 1
        sample = Sample(text or None, ids, ends, mask, logprobs, versions, rid, session_id, self.serial)
        if sample.text is None:
            sample.ends = [0] * len(ids)
        self.samples.append(sample)
        if rid is not None:
            self.rids[rid] = sample
        self.touch(sample)
        if sample.weight_version is not None:
            self.see(sample.weight_version)
        self.drop_stale()
        self.enforce()
        return sample if sample in self.samples else None

    def match(self, text: bytes, rid, session_id, weight_version) -> Found:
        self.expire()
        chosen = self.samples if rid is None else [sample for key, sample in self.rids.items() if key == rid]
        chosen = [
            s for s in chosen if session_id in (None, s.session_id) and weight_version in (None, s.weight_version)
        ]
        ranked = []
        for sample in chosen:
            size, count = sample.covered(text)
            if size:
                ranked.append((size, count == len(sample.ids), sample.serial, sample, count))
        if not ranked:
            return Found()
        best = max(ranked, key=lambda entry: entry[:3])
        rivals = [entry for entry in ranked if entry[:2] == best[:2]]
        answers = {repr(entry[3].path[: entry[4] + 1]) for entry in rivals}
        if best[1]:
            answers = {repr((entry[3].path, entry[3].content)) for entry in rivals}
        self.touch(best[3])
        return Found(best[3], best[0], best[4], best[1], len(answers) > 1)

    def match_tokens(self, path) -> Found:
        """The longest stored beginning of a sequence, given as a sample's path."""
        self.expire()
        ranked = []
        for sample in self.samples:
            count = 0
            while sample.path[0] == path[0] and count + 1 < min(len(sample.path), len(path)):
                if sample.path[count + 1] != path[count + 1]:
                    break
                count += 1
            if count:
                ranked.append((count, count == len(sample.ids), sample.serial, sample))
        if not ranked:
            return Found()
        best = max(ranked, key=lambda entry: entry[:3])
        self.touch(best[3])
        return Found(best[3], 0, best[0], best[1])

    def by_rid(self, rid):
        self.expire()
        sample = self.rids.get(rid)
        if sample is not None:
            self.touch(sample)
        return sample

    def touch(self, sample):
        self.tick += 1
        sample.tick, sample.used_s = self.tick, self.now

    def see(self, version):
        if version not in self.seen:
            self.seen.append(version)

    def remove(self, sample):
        self.samples.remove(sample)
        if self.rids.get(sample.rid) is sample:
            del self.rids[sample.rid]

    def drop_stale(self):
        if self.kept_versions is not None:
            current = self.seen[-self.kept_versions :]
            for sample in list(self.samples):
                if not sample.holds and sample.weight_version is not None and sample.weight_version not in current:
                    self.remove(sample)

    def oldest_leaves(self) -> list[Sample]:
        """The samples that end where the leaf used longest ago ends; empty when all leaves are held."""
        groups: dict[object, list[Sample]] = {}
        for sample in self.samples:
            groups.setdefault(sample.path, []).append(sample)
        leaves = [
            group
            for path, group in groups.items()
            if not any(other[: len(path)] == path for other in groups if other != path)
            and not any(sample.holds for sample in group)
        ]
        return min(leaves, key=lambda group: max(sample.tick for sample in group), default=[])

    def token_count(self) -> int:
        known: dict[object, int] = {}
        for sample in self.samples:
            place = -1
            for token in sample.path:
                place = known.setdefault((place, token), len(known))
        return sum(1 for _, token in known if not isinstance(token, bool))

    def enforce(self):
        while self.max_tokens is not None and self.token_count() > self.max_tokens:
            leaves = self.oldest_leaves()
            if not leaves:
                break
            for sample in leaves:
                self.remove(sample)

    def expire(self):
        while self.ttl_s is not None and (leaves := self.oldest_leaves()):
            if max(sample.used_s for sample in leaves) >= self.now - self.ttl_s:
                break
            for sample in leaves:
                self.remove(sample)
