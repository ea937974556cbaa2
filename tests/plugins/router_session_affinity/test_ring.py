"""The ring: one key one member, everywhere; a change of members moves few keys."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from router_session_affinity.ring import HashRing

KEYS = [f"session-{number}" for number in range(2000)]
names = st.sets(st.text(min_size=1, max_size=20), min_size=2, max_size=12)


def ring_of(members: object, virtual_nodes: int = 128) -> HashRing:
    ring = HashRing(virtual_nodes)
    for member in members:  # type: ignore[attr-defined]  # any iterable of texts
        ring.add(member)
    return ring


def owner(ring: HashRing, key: str) -> str:
    return next(ring.walk(key))


@given(members=names, keys=st.lists(st.text(max_size=30), max_size=30), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_order_in_which_members_came_and_went_does_not_matter(
    members: set[str], keys: list[str], data: st.DataObject
) -> None:
    straight = ring_of(sorted(members), virtual_nodes=16)
    shuffled = ring_of(data.draw(st.permutations(sorted(members))), virtual_nodes=16)
    shuffled.add("a member that leaves again, longer than any")
    shuffled.remove("a member that leaves again, longer than any")
    for key in keys:
        assert list(straight.walk(key)) == list(shuffled.walk(key))


@given(members=names, key=st.text(max_size=30))
@settings(max_examples=50, deadline=None)
def test_a_walk_meets_every_member_once(members: set[str], key: str) -> None:
    walked = list(ring_of(members, virtual_nodes=8).walk(key))
    assert sorted(walked) == sorted(members)


@given(members=names, newcomer=st.text(min_size=21, max_size=25))
@settings(max_examples=30, deadline=None)
def test_a_newcomer_takes_keys_and_no_key_moves_between_the_others(members: set[str], newcomer: str) -> None:
    ring = ring_of(members, virtual_nodes=32)
    before = {key: owner(ring, key) for key in KEYS[:300]}
    ring.add(newcomer)
    after = {key: owner(ring, key) for key in KEYS[:300]}
    assert all(after[key] in (before[key], newcomer) for key in before)
    ring.remove(newcomer)
    assert {key: owner(ring, key) for key in before} == before


def test_one_worker_more_moves_about_its_share_of_the_keys() -> None:
    for count in (2, 4, 8, 16):
        members = [f"http://10.0.0.{number}:30000" for number in range(count + 1)]
        ring = ring_of(members[:count])
        before = {key: owner(ring, key) for key in KEYS}
        ring.add(members[count])
        moved = sum(owner(ring, key) != before[key] for key in KEYS) / len(KEYS)
        assert 0.5 / (count + 1) < moved < 1.5 / (count + 1)


def test_keys_spread_over_the_members() -> None:
    members = [f"http://10.0.0.{number}:30000" for number in range(8)]
    ring = ring_of(members)
    counts = Counter(owner(ring, key) for key in KEYS)
    assert set(counts) == set(members)
    assert max(counts.values()) < 1.5 * len(KEYS) / 8
    assert min(counts.values()) > 0.5 * len(KEYS) / 8


def test_a_lost_members_keys_go_to_several_others() -> None:
    members = [f"http://10.0.0.{number}:30000" for number in range(8)]
    ring = ring_of(members)
    seconds = Counter(list(ring.walk(key))[1] for key in KEYS if owner(ring, key) == members[0])
    assert len(seconds) == 7


def test_the_place_of_a_key_is_fixed_for_ever() -> None:
    """Replicas of different versions must agree: these values may never change."""
    ring = ring_of(["http://a:1", "http://b:1", "http://c:1"])
    assert "".join(owner(ring, f"s{number}")[7] for number in range(12)) == "ababbbcbcccc"


def test_an_empty_ring_has_no_member_for_a_key() -> None:
    ring = HashRing(8)
    assert list(ring.walk("k")) == []
    ring.add("a")
    ring.add("a")
    ring.remove("b")
    assert list(ring.walk("k")) == ["a"]
    assert len(ring) == 1
    ring.remove("a")
    assert list(ring.walk("k")) == []
