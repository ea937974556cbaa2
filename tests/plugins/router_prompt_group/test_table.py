"""The table of groups against a plain model, and its rules one by one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from router_prompt_group.table import GroupTable

LINGER_S, MAX_GROUPS = 10.0, 3
ids = st.sampled_from("abcde")


class Member:
    """A request that has a worker once one was chosen."""

    def __init__(self, group: str = "g", worker: str | None = None) -> None:
        self.group = group
        self.worker = worker


class Groups(RuleBasedStateMachine):
    """Requests of several groups enter, get workers and leave; time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.table: GroupTable[str] = GroupTable(linger_s=LINGER_S, max_groups=MAX_GROUPS)
        self.now = 0.0
        self.members: list[Member] = []

    @rule(group_id=ids, worker=st.sampled_from(["w1", "w2"]), is_out=st.booleans())
    def enter(self, group_id: str, worker: str, is_out: bool) -> None:
        member = Member(group_id)
        group = self.table.enter(group_id, member, self.now)
        if group.worker is None or is_out:
            group.follow(member)
            member.worker = worker
        else:
            member.worker = group.worker
        assert group.worker == member.worker
        self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), has_served=st.booleans())
    def leave(self, data: st.DataObject, has_served: bool) -> None:
        member = self.members.pop(data.draw(st.integers(0, len(self.members) - 1)))
        before = self.table.get(member.group)
        is_of_it = before is not None and member in before.running
        self.table.leave(member.group, member, self.now, has_served=has_served)
        after = self.table.get(member.group)
        if is_of_it and before is not None and before.running:
            assert after is before, "others of the group still run"
        if is_of_it and before is not None and not before.running:
            assert (after is before) == before.has_served

    @rule(seconds=st.sampled_from([1.0, 6.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.table.sweep(self.now)

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.table) <= MAX_GROUPS

    def teardown(self) -> None:
        for member in self.members:
            self.table.leave(member.group, member, self.now, has_served=True)
        self.table.sweep(self.now + LINGER_S)
        assert len(self.table) == 0


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def new_table(linger_s: float = LINGER_S, max_groups: int = 100) -> GroupTable[str]:
    return GroupTable(linger_s=linger_s, max_groups=max_groups)


def test_a_group_goes_where_its_first_request_went() -> None:
    table, first = new_table(), Member()
    group = table.enter("g", first, 0.0)
    assert group.worker is None
    group.follow(first)
    assert group.worker is None, "nothing is chosen yet"
    first.worker = "w1"
    assert table.enter("g", Member(), 0.0).worker == "w1"


def test_a_request_that_never_got_a_worker_gives_the_lead_to_the_next() -> None:
    table, first, second = new_table(), Member(), Member()
    table.enter("g", first, 0.0).follow(first)
    group = table.enter("g", second, 0.0)
    table.leave("g", first, 1.0, has_served=False)
    assert group.worker is None
    group.follow(second)
    second.worker = "w2"
    assert group.worker == "w2"


def test_a_group_is_let_go_when_its_last_request_has_ended_and_its_linger_is_over() -> None:
    table, first, second = new_table(), Member(worker="w1"), Member()
    table.enter("g", first, 0.0).follow(first)
    table.enter("g", second, 0.0)
    table.leave("g", first, 1.0, has_served=True)
    table.sweep(100.0)
    assert table.get("g") is not None, "one still runs"
    table.leave("g", second, 100.0, has_served=True)
    table.sweep(109.0)
    assert table.enter("g", Member(), 109.0).worker == "w1"


def test_without_linger_a_group_is_let_go_at_once() -> None:
    table, member = new_table(linger_s=0.0), Member(worker="w1")
    table.enter("g", member, 0.0).follow(member)
    table.leave("g", member, 1.0, has_served=True)
    assert len(table) == 0


def test_a_group_that_was_never_served_does_not_linger() -> None:
    table, member = new_table(), Member(worker="w1")
    table.enter("g", member, 0.0).follow(member)
    table.leave("g", member, 1.0, has_served=False)
    assert len(table) == 0


def test_above_the_bound_idle_groups_go_first() -> None:
    table = new_table(max_groups=2)
    running, idle = Member("running", "w1"), Member("idle", "w2")
    for member in (running, idle):
        table.enter(member.group, member, 0.0).follow(member)
    table.leave("idle", idle, 0.0, has_served=True)
    table.enter("new", Member("new"), 0.0)
    assert table.get("idle") is None
    assert table.get("running") is not None
    table.enter("newer", Member("newer"), 0.0)
    assert len(table) == 2
    table.leave("running", running, 1.0, has_served=True)
    assert len(table) == 2, "a group that was forgotten is not brought back by its last request"
