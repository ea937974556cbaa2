from __future__ import annotations

from router_routed_experts.sglext import MAX_HELD_BYTES, SglextFilter

EVENTS = [
    b'data: {"id":"a","choices":[{"delta":{"content":"sglext"}}]}\n\n',
    b'data: {"id":"a","choices":[],"usage":null,"sglext":{"input_ids":[1]}}\n\n',
    b'data: {"id":"a","choices":[],"usage":{"total_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]


def passed(chunks: list[bytes]) -> bytes:
    events = SglextFilter()
    return b"".join([*(events.feed(chunk) for chunk in chunks), events.rest()])


def test_the_event_that_says_only_what_nobody_asked_for_is_left_out_whatever_the_cuts() -> None:
    stream, wanted = b"".join(EVENTS), b"".join(EVENTS[:1] + EVENTS[2:])
    for size in range(1, len(stream) + 1):
        assert passed([stream[at : at + size] for at in range(0, len(stream), size)]) == wanted


def test_an_event_with_a_choice_stays_whatever_it_says() -> None:
    event = b'data: {"choices":[{"index":0}],"sglext":{}}\n\n'
    assert passed([event]) == event


def test_whole_events_pass_as_the_same_object_and_are_not_held() -> None:
    events = SglextFilter()
    assert events.feed(EVENTS[2]) is EVENTS[2]
    assert events.feed(EVENTS[2][:-1]) == b""
    assert events.feed(b"\n") == EVENTS[2]


def test_an_event_above_the_bound_is_not_held() -> None:
    events = SglextFilter()
    large = b"data: " + b"x" * MAX_HELD_BYTES
    assert events.feed(large) == large
    assert events.rest() == b""
