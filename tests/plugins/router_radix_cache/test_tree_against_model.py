from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_radix_cache.tokens import PackedTokens, encode_text
from router_radix_cache.tree import RadixTree

from .model import Model, Sample
from .rollout import remaining_text, tokens_from_lists
from .structure import check_structure

# few letters and short pieces, so that prefixes, twins and cuts inside a token or a character are the rule
PIECES = ["a", "b", "ab", "aab", "", "é", "你", "你好", "🦀", "b🦀a"]
TEXTS = "ab你é🦀"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """The tree and the model, driven by the same operations, compared after each."""

    def __init__(self, source: random.Random, **bounds) -> None:
        self.source = source
        self.clock = Clock()
        self.model = Model(bounds.get("max_tokens"), bounds.get("ttl_s"), bounds.get("keep_weight_versions"))
        self.tree = RadixTree(clock=self.clock, **bounds)
        self.holds = []
        self.matches = []
        self.rid = 0

    def tokenise(self, start: int, pieces: list[str]) -> tuple[list[int], list[int]]:
        """Ids and ends; a character may be cut into tokens, told by true offsets or by its end."""
        ids, ends, size = [], [], start
        for piece in pieces:
            encoded = encode_text(piece)
            if len(encoded) > 2 and self.source.random() < 0.3:
                cut = self.source.randrange(1, len(encoded))
                first = cut if self.source.random() < 0.5 else len(encoded)
                ids.append(100 + cut)
                ends.append(size + first)
            size += len(encoded)
            ids.append(1000 + PIECES.index(piece) if self.source.random() < 0.9 else 7)
            ends.append(size)
        return ids, ends

    def some_pieces(self, most: int) -> list[str]:
        return [self.source.choice(PIECES) for _ in range(self.source.randrange(most))]

    def insert(self) -> None:
        source = self.source
        earlier = source.choice(self.model.samples) if self.model.samples and source.random() < 0.7 else None
        text, ids, ends, mask, logprobs, versions = b"", [], [], [], [], []
        if earlier is not None and earlier.text is not None:
            count = source.randrange(len(earlier.ids)) if source.random() < 0.5 else len(earlier.ids)
            kept = earlier.ends[count - 1] if count else 0
            while count and kept < len(earlier.text) and earlier.text[kept] & 0xC0 == 0x80:
                count -= 1
                kept = earlier.ends[count - 1] if count else 0
            text, ids, ends = earlier.text[:kept], earlier.ids[:count], earlier.ends[:count]
            mask, logprobs, versions = earlier.mask[:count], earlier.logprobs[:count], earlier.versions[:count]
        for is_sampled in (0, 1):
            pieces = self.some_pieces(4)
            new_ids, new_ends = self.tokenise(len(text), pieces)
            version = source.choice([None, "v1", "v2", "v3", "v4"]) if source.random() < 0.1 else f"v{self.rid // 40}"
            for token_id, end in zip(new_ids, new_ends, strict=True):
                ids, ends = [*ids, token_id], [*ends, end]
                mask = [*mask, is_sampled]
                logprobs = [*logprobs, -source.choice([0.25, 0.5]) if is_sampled else 0.0]
                versions = [*versions, version if is_sampled else None]
            text += encode_text("".join(pieces))
        stored = None if source.random() < 0.05 else text.decode()
        self.rid += 1
        rid = f"r{self.rid if source.random() < 0.95 else self.rid - 1}"
        session = source.choice(["s1", "s2", "s3", None])
        if not stored:
            ends = [0] * len(ids)
        tokens = tokens_from_lists(ids, ends, mask, logprobs, versions)
        hint = source.choice([earlier, *self.model.samples[:1]]) if earlier and source.random() < 0.5 else None
        trajectory = self.tree.insert(stored, tokens, rid=rid, session_id=session, continued=self.stored(hint))
        sample = self.model.insert(
            encode_text(stored or ""), list(ids), list(ends), mask, logprobs, versions, rid, session
        )
        assert (trajectory is None) == (sample is None)

    def stored(self, sample):
        """The tree's trajectory of a sample of the model."""
        serial = sample.serial if sample else None
        return next((found for found in self.tree._registry if found.serial == serial), None)

    def ask_by_tokens(self) -> None:
        source = self.source
        if not self.model.samples:
            return
        sample = source.choice(self.model.samples)
        count = source.randrange(len(sample.ids) + 1) if source.random() < 0.5 else len(sample.ids)
        text = (sample.text or b"")[: sample.ends[count - 1] if count else 0]
        if sample.text is not None and (not text or text != text.decode("utf-8", "ignore").encode()):
            return
        ids, ends = list(sample.ids[:count]), list(sample.ends[:count])
        if ids and source.random() < 0.3:
            ids[source.randrange(len(ids))] = 7
        if source.random() < 0.5:
            more, more_ends = self.tokenise(len(text), pieces := self.some_pieces(3))
            ids, ends = ids + more, ends + (more_ends if text else [0] * len(more))
            text += encode_text("".join(pieces)) if text else b""
        if not ids:
            return
        tokens = PackedTokens()
        tokens.add_context(ids, ends)
        wanted = Sample(text or None, ids, ends, [], [], [], None, None, 0)
        match = self.tree.match_tokens(text.decode() or None, tokens)
        found = self.model.match_tokens(wanted.path)
        assert (match.token_count, match.is_whole) == (found.count, found.is_whole)
        assert match.token_ids == ids[: found.count]
        if found.sample:
            assert match.trajectory.serial == found.sample.serial
            assert match.loss_mask == found.sample.mask[: found.count]
            assert match.logprobs == found.sample.logprobs[: found.count]

    def ask(self) -> None:
        source = self.source
        if self.model.samples and source.random() < 0.8:
            text = (source.choice(self.model.samples).text or b"").decode()
            text = text[: source.randrange(len(text) + 1)] if source.random() < 0.4 else text
            text += "".join(self.some_pieces(3)) if source.random() < 0.5 else ""
        else:
            text = "".join(source.choice(TEXTS) for _ in range(source.randrange(6)))
        narrow = {"rid": None, "session_id": None, "weight_version": None}
        if source.random() < 0.5:
            narrow["rid"] = source.choice([*self.model.rids, "unknown"]) if source.random() < 0.4 else None
            narrow["session_id"] = source.choice(["s1", "s2", "s3"]) if source.random() < 0.4 else None
            narrow["weight_version"] = f"v{source.randrange(5)}" if source.random() < 0.4 else None
        match = self.tree.match(text, **narrow)
        found = self.model.match(encode_text(text), **narrow)
        self.check(match, found, text)
        if source.random() < 0.1:
            self.matches.append((match, found, text))
        if match.trajectory is not None and source.random() < 0.1:
            self.holds.append((self.tree.hold(match), found.sample))
            found.sample.holds += 1

    def check(self, match, found, text) -> None:
        sample, count = found.sample, found.count
        assert match.matched_bytes == found.size
        assert match.matched_characters == len(encode_text(text)[: found.size].decode())
        assert match.token_ids == (sample.ids[:count] if sample else [])
        assert match.ends == (sample.ends[:count] if sample else [])
        assert match.loss_mask == (sample.mask[:count] if sample else [])
        assert match.logprobs == (sample.logprobs[:count] if sample else [])
        assert match.weight_versions == (sample.versions[:count] if sample else [])
        assert match.is_whole == found.is_whole
        assert match.is_ambiguous == found.is_ambiguous
        assert match.is_complete == (sample is not None and found.size == len(encode_text(text)))
        assert encode_text(text)[: found.size] + encode_text(remaining_text(match)) == encode_text(text)
        if sample:
            assert match.trajectory.rid == sample.rid
        again = match.packed()
        assert (again.ids.tolist(), again.ends.tolist()) == (match.token_ids, match.ends)
        assert len(again.logprobs) == sum(match.loss_mask)

    def ask_by_rid(self) -> None:
        rid = f"r{self.source.randrange(max(1, self.rid - 30), self.rid + 2)}"
        match, sample = self.tree.by_rid(rid), self.model.by_rid(rid)
        assert (match is None) == (sample is None)
        if match is not None:
            assert match.token_ids == sample.ids
            assert match.logprobs == sample.logprobs
            assert match.weight_versions == sample.versions

    def release(self) -> None:
        if self.holds:
            hold, sample = self.holds.pop(self.source.randrange(len(self.holds)))
            hold.release()
            hold.release()
            sample.holds -= 1
            if not sample.holds:
                self.model.drop_stale()
                self.model.enforce()

    def pass_time(self) -> None:
        self.clock.now += self.source.random() * 3
        self.model.now = self.clock.now

    def step(self) -> None:
        ways = [self.insert, self.ask, self.ask_by_tokens, self.ask_by_rid, self.release, self.pass_time]
        self.source.choices(ways, weights=[30, 42, 8, 8, 8, 4])[0]()

    def check_all(self) -> None:
        assert sorted(t.serial for t in self.tree._registry) == sorted(s.serial for s in self.model.samples)
        assert self.tree.token_count == self.model.token_count()
        check_structure(self.tree)
        for match, found, text in self.matches:  # whatever became of the tree, an old match reads the same
            self.check(match, found, text)
        self.matches = self.matches[-20:]


@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_random_operations_agree_with_the_model(seed: int) -> None:
    bounds = {"max_tokens": 60, "ttl_s": 20.0, "keep_weight_versions": 3} if seed % 2 else {"max_tokens": 120}
    pair = Pair(random.Random(seed), **bounds)
    for step in range(10_000):
        pair.step()
        if step % 50 == 0:
            pair.check_all()
    while pair.holds:
        pair.release()
    assert pair.tree.token_count <= bounds["max_tokens"]
    pair.check_all()


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_short_histories_agree_with_the_model_without_bounds(source: random.Random, steps: int) -> None:
    pair = Pair(source)
    for _ in range(steps):
        pair.step()
    pair.check_all()
    pair.tree.clear()
    while pair.holds:
        pair.holds.pop()[0].release()
    pair.tree.clear()
    assert (pair.tree.token_count, pair.tree.byte_count, len(pair.tree._registry)) == (0, 0, 0)
