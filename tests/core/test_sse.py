"""Events are cut the same, whatever the chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core import EventSplitter, event_data

LINES = st.sampled_from(
    [
        b"data: 1",
        b"data:2",
        b"data",
        b"",
        b"",
        b": ping",
        b"id: 7",
        b"event: x",
        b"data:  two",
        b"\xef\xbb\xbf",
        b"\xe4\xbd\xa0",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=16).map(b"".join)


def split_by_hand(stream: bytes) -> tuple[list[bytes], bytes]:
    """Line by line, as the standard says it: an event ends with an empty line."""
    events, event, line, at = [], b"", b"", 0
    while at < len(stream):
        byte = stream[at : at + 1]
        at += 1
        if byte not in b"\r\n":
            line += byte
            continue
        end = byte
        if byte == b"\r" and stream[at : at + 1] == b"\n":
            end, at = b"\r\n", at + 1
        event += line + end
        if not line and len(event) > len(end):
            events.append(event)
            event = b""
        line = b""
    return events, event + line


@given(STREAMS, st.data())
def test_events_do_not_depend_on_the_cuts(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter = EventSplitter()
    events: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += splitter.feed(stream[start:end])
    rest = splitter.rest()
    assert b"".join(events) + rest == stream

    whole = EventSplitter()
    assert (whole.feed(stream), whole.rest()) == (events, rest)
    one_by_one = EventSplitter()
    bytewise = [event for at in range(len(stream)) for event in one_by_one.feed(stream[at : at + 1])]
    assert (bytewise, one_by_one.rest()) == (events, rest)


@given(STREAMS)
def test_events_end_where_the_standard_says(stream: bytes) -> None:
    wanted, rest = split_by_hand(stream)
    splitter = EventSplitter()
    events = splitter.feed(stream + b"x")
    assert events == wanted
    assert splitter.rest() == rest + b"x"


def test_a_carriage_return_at_the_end_waits_for_its_line_feed() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == []
    assert splitter.feed(b"\n") == [b"data: 1\r\n\r\n"]
    assert splitter.feed(b"data: 2\r\r") == []
    assert splitter.feed(b"data: 3\n\n") == [b"data: 2\r\r", b"data: 3\n\n"]


def test_rest_is_what_no_empty_line_has_ended() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: 1\n\ndata: 2\n")
    assert splitter.rest() == b"data: 2\n"
    assert splitter.rest() == b""
    assert splitter.feed(b"data: 3\n\n") == [b"data: 3\n\n"]


def test_an_event_above_the_bound_is_an_error() -> None:
    splitter = EventSplitter(max_event_bytes=8)
    with pytest.raises(ValueError, match="8 bytes"):
        splitter.feed(b"data: 123456789")


def test_many_small_chunks_of_one_large_event_cost_linear_time() -> None:
    splitter = EventSplitter()
    for _ in range(100_000):
        assert splitter.feed(b"data: 0123456789\n") == []
    assert len(splitter.feed(b"\n")) == 1


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: 1\n\n", b"1"),
        (b"data:1\r\n\r\n", b"1"),
        (b"data:  1\n\n", b" 1"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b": ping\n\n", None),
        (b"id: 1\n\n", None),
        (b"database: 1\n\n", None),
        (b"\xef\xbb\xbfdata: 1\n\n", b"1"),
        (b"event: x\rdata: 1\r\r", b"1"),
        (b"data: [DONE]\n\n", b"[DONE]"),
    ],
)
def test_data_of_an_event(event: bytes, data: bytes | None) -> None:
    assert event_data(event) == data
