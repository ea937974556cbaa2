from hypothesis import given, settings
from hypothesis import strategies as st
from router_engine_control.rids import RidTable


def test_a_rid_may_have_several_holders():
    table = RidTable(10)
    table.add("r", "first")
    table.add("r", "second")
    assert table.get("r") == ["first", "second"]
    table.remove("r", "first")
    assert table.get("r") == ["second"]
    table.remove("r", "second")
    assert (table.get("r"), len(table)) == ([], 0)


def test_what_is_above_the_bound_is_not_known():
    table = RidTable(1)
    table.add("a", 1)
    table.add("b", 2)
    table.add("a", 3)
    assert (table.get("a"), table.get("b")) == ([1, 3], [])
    table.remove("b", 2)


def test_holders_are_found_by_the_beginning_of_their_rid():
    table = RidTable(10)
    for rid in ("ab_0", "ab_1", "b"):
        table.add(rid, rid)
    assert table.starting_with("ab") == ["ab_0", "ab_1"]


@settings(deadline=None, database=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 2))))
def test_when_every_holder_has_gone_nothing_is_left(steps):
    table = RidTable(2)
    for adds, rid, holder in steps:
        (table.add if adds else table.remove)(rid, holder)
        assert len(table) <= 2
    for rid in "abc":
        for holder in table.get(rid):
            table.remove(rid, holder)
    assert len(table) == 0
