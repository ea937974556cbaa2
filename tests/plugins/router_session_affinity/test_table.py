"""The table of sessions against a plain model, and its rules one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from router_session_affinity.table import SessionTable, Turn

TTL_S, MAX_SESSIONS = 100.0, 5
keys = st.sampled_from("abcdefgh")
workers = st.sampled_from(["w1", "w2", "w3"])


def new_table(ttl_s: float = TTL_S, max_sessions: int = MAX_SESSIONS) -> SessionTable[str]:
    return SessionTable(ttl_s=ttl_s, max_sessions=max_sessions)


class Sessions(RuleBasedStateMachine):
    """Turns begin, are reserved, end well or badly, sessions are closed and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = new_table()
        self.now = 0.0
        self.turns: list[Turn[str]] = []

    @rule(key=keys, worker=workers)
    def begin(self, key: str, worker: str) -> None:
        turn = self.table.begin(key, self.now)
        self.table.reserve(turn, worker)
        assert turn.entry.worker == worker
        self.turns.append(turn)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), worker=workers)
    def retry_elsewhere(self, data: st.DataObject, worker: str) -> None:
        self.table.reserve(data.draw(st.sampled_from(self.turns)), worker)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), worker=workers)
    def succeed(self, data: st.DataObject, worker: str) -> None:
        turn = self._take(data)
        entry, bound, moves = turn.entry, turn.entry.bound, turn.entry.moves
        old = self.table.succeed(turn, worker, self.now)
        assert old is None or (old == bound and entry.bound == worker and entry.moves == moves + 1)
        if self.table.get(turn.key) is entry:
            assert entry.bound is not None

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        turn = self._take(data)
        bound = turn.entry.bound
        self.table.fail(turn, self.now)
        entry = self.table.get(turn.key)
        if entry is turn.entry:
            assert entry.bound == bound

    @rule(key=keys)
    def close(self, key: str) -> None:
        self.table.forget(key)
        assert self.table.get(key) is None

    @rule(seconds=st.sampled_from([1.0, 60.0, 150.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.table.sweep(self.now)

    def _take(self, data: st.DataObject) -> Turn[str]:
        return self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1)))

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.table) <= MAX_SESSIONS

    @invariant()
    def each_worker_has_as_many_sessions_as_belong_to_it(self) -> None:
        entries = [entry for key in "abcdefgh" if (entry := self.table.get(key)) is not None]
        counts = Counter(entry.worker for entry in entries)
        assert {worker: self.table.sessions_of(worker) for worker in ("w1", "w2", "w3")} == {
            worker: counts[worker] for worker in ("w1", "w2", "w3")
        }

    @invariant()
    def what_nobody_uses_and_nobody_answered_is_not_kept(self) -> None:
        for key in "abcdefgh":
            entry = self.table.get(key)
            assert entry is None or entry.running or entry.bound is not None

    def teardown(self) -> None:
        for turn in self.turns:
            self.table.fail(turn, self.now)
        assert all(turn.entry.running == 0 for turn in self.turns)
        self.table.sweep(self.now + TTL_S)
        assert len(self.table) == 0
        assert [self.table.sessions_of(worker) for worker in ("w1", "w2", "w3")] == [0, 0, 0]


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def answered(table: SessionTable[str], key: str, worker: str, now: float = 0.0) -> str | None:
    turn = table.begin(key, now)
    table.reserve(turn, worker)
    return table.succeed(turn, worker, now)


def test_a_session_is_bound_by_its_first_successful_answer() -> None:
    table = new_table()
    turn = table.begin("s", 0.0)
    table.reserve(turn, "w1")
    assert (turn.entry.worker, turn.entry.bound) == ("w1", None)
    table.fail(turn, 1.0)
    assert table.get("s") is None
    assert table.sessions_of("w1") == 0
    answered(table, "s", "w2")
    assert table.sessions_of("w2") == 1


def test_turns_beside_the_first_follow_it() -> None:
    table = new_table()
    first, second = table.begin("s", 0.0), table.begin("s", 0.0)
    table.reserve(first, "w1")
    assert second.entry.worker == "w1"
    assert table.sessions_of("w1") == 1
    table.fail(first, 1.0)
    assert second.entry.worker == "w1", "it still runs there"


def test_a_session_moves_once_and_stays() -> None:
    table = new_table()
    answered(table, "s", "w1")
    assert answered(table, "s", "w2") == "w1"
    assert answered(table, "s", "w2") is None
    entry = table.get("s")
    assert entry is not None
    assert (entry.bound, entry.moves) == ("w2", 1)


def test_a_failed_turn_elsewhere_does_not_move_a_session() -> None:
    table = new_table()
    answered(table, "s", "w1")
    turn = table.begin("s", 1.0)
    table.reserve(turn, "w2")
    assert (table.sessions_of("w1"), table.sessions_of("w2")) == (0, 1)
    table.fail(turn, 2.0)
    assert (table.sessions_of("w1"), table.sessions_of("w2")) == (1, 0)


def test_an_older_turn_that_ends_late_does_not_take_the_session_back() -> None:
    table = new_table()
    answered(table, "s", "w1")
    old = table.begin("s", 1.0)
    assert answered(table, "s", "w2", 2.0) == "w1"
    assert table.succeed(old, "w1", 3.0) is None
    assert old.entry.bound == "w2"


def test_a_late_answer_of_a_closed_session_touches_nothing() -> None:
    table = new_table()
    late = table.begin("s", 0.0)
    table.reserve(late, "w1")
    table.forget("s")
    answered(table, "s", "w2")
    assert table.succeed(late, "w1", 1.0) is None
    entry = table.get("s")
    assert entry is not None
    assert (entry.bound, entry.running) == ("w2", 0)
    assert table.sessions_of("w1") == 0


def test_idle_sessions_are_forgotten_and_running_ones_are_not() -> None:
    table = new_table()
    answered(table, "idle", "w1")
    running = table.begin("running", 0.0)
    table.reserve(running, "w1")
    table.sweep(TTL_S + 1)
    assert table.get("idle") is None
    assert table.get("running") is not None
    assert table.expired == 1


def test_a_hundred_thousand_sessions_stay_within_the_bound_and_go_when_idle() -> None:
    table = new_table(max_sessions=10_000)
    for number in range(100_000):
        answered(table, f"s{number}", f"w{number % 8}", now=number / 1000)
    assert len(table) == 10_000
    assert table.evicted == 90_000
    assert sum(table.sessions_of(f"w{number}") for number in range(8)) == 10_000
    table.sweep(100.0 + TTL_S)
    assert len(table) == 0
