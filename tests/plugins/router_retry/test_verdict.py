"""When another try may follow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from router_retry.verdict import Tries, Why

faults = st.lists(
    st.fixed_dictionaries({"was_sent": st.booleans(), "is_loss": st.booleans(), "can_be_sent": st.booleans()}),
    max_size=10,
)


@given(faults, st.integers(1, 5), st.booleans())
def test_a_request_is_never_sent_twice_unless_nothing_was_sent_or_the_setting_allows_one_more(
    faults: list[dict[str, bool]], max_attempts: int, retry_suspects: bool
) -> None:
    tries = Tries(max_attempts, retry_suspects)
    sent = 0
    for fault in faults:
        tries.made += 1
        sent += fault["was_sent"]
        why = tries.after_fault(**fault)
        if why is None:
            break
        assert fault["can_be_sent"]
        assert tries.made < max_attempts
        assert why is Why.UNREACHABLE or (fault["was_sent"] and fault["is_loss"] and retry_suspects)
        assert sent <= (1 if retry_suspects else 0)


@given(faults)
def test_a_loss_after_sending_makes_it_suspect_for_good(faults: list[dict[str, bool]]) -> None:
    tries = Tries(100, retry_suspects=True)
    for fault in faults:
        tries.after_fault(**fault)
    assert tries.is_suspect == any(fault["was_sent"] and fault["is_loss"] for fault in faults)
