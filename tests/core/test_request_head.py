"""What is read from a client's fields: passed on, framed, or kept for the router."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core.headers import HOP_BY_HOP, decimal, named_by_connection
from router_core.request_head import RequestHead, SessionHeaders

NAMES = st.sampled_from(
    [
        b"x-a",
        b"connection",
        b"host",
        b"te",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"x-session-id",
        b"x-router-profile",
        b"x-router-plugins",
        b"x-router-debug",
        b"accept",
    ]
)
VALUES = st.sampled_from([b"close", b"x-a", b"7", b"8", b"chunked", b"10.0.0.1", b"s-1", b"+a", b""])
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
OURS = (b"host", b"content-length", b"expect", b"x-router-plugins", b"x-router-profile", b"x-router-debug")
ADDED = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")


@given(FIELDS, st.none() | st.sampled_from(["10.0.0.9", "::1"]))
def test_what_goes_on_is_what_came_but_for_this_hop(raw: list[tuple[bytes, bytes]], host: str | None) -> None:
    before = list(raw)
    head = RequestHead(raw, host, "http")
    assert raw == before
    dropped = HOP_BY_HOP | named_by_connection(raw) | set(OURS) | {b"x-forwarded-for"}
    kept = [pair for pair in raw if pair[0] not in dropped]
    assert head.fields[: len(kept)] == kept
    assert {name for name, _ in head.fields[len(kept) :]} <= set(ADDED)
    hops = [value for name, value in raw if name == b"x-forwarded-for"] + ([host.encode()] if host else [])
    told = [value for name, value in head.fields if name == b"x-forwarded-for"]
    assert told == ([b", ".join(hops)] if hops else [])
    names = [name for name, _ in raw]
    assert ((b"x-forwarded-proto", b"http") in head.fields[len(kept) :]) is (b"x-forwarded-proto" not in names)
    first_host = next((value for name, value in raw if name == b"host"), None)
    states_host = first_host is not None and b"x-forwarded-host" not in names
    assert ((b"x-forwarded-host", first_host) in head.fields[len(kept) :]) is states_host


@given(FIELDS)
def test_the_framing_is_that_of_the_fields(raw: list[tuple[bytes, bytes]]) -> None:
    head = RequestHead(raw, None, "http")
    names = [name for name, _ in raw]
    is_chunked = b"transfer-encoding" in names
    assert head.is_declared is (is_chunked or b"content-length" in names)
    lengths = {decimal(value.strip()) for name, value in raw if name == b"content-length"}
    is_one = len(lengths) == 1 and not is_chunked and -1 not in lengths
    assert head.content_length == (lengths.pop() if is_one else None)


@given(FIELDS)
def test_of_what_is_for_the_router_the_first_holds(raw: list[tuple[bytes, bytes]]) -> None:
    head = RequestHead(raw, None, "http")

    def first(name: bytes) -> str | None:
        return next((value.decode() for field, value in raw if field == name), None)

    told = (head.profile, head.plugins, head.debug)
    assert told == (first(b"x-router-profile"), first(b"x-router-plugins"), first(b"x-router-debug"))


@pytest.mark.parametrize(
    ("raw", "session_id"),
    [
        ([], None),
        ([(b"x-b", b"2")], "2"),
        ([(b"x-b", b"2"), (b"x-a", b"1")], "1"),
        ([(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")], "1"),
        ([(b"x-session-id", b"9")], None),
    ],
)
def test_a_session_is_named_by_the_first_header_of_the_setting(
    raw: list[tuple[bytes, bytes]], session_id: str | None
) -> None:
    head = RequestHead(raw, None, "http", SessionHeaders(("X-A", "x-b")))
    assert head.session_id == session_id
    assert [pair for pair in head.fields if pair[0] in (b"x-a", b"x-b")] == raw or raw[0][0] == b"x-session-id"


def test_one_header_may_be_two_things() -> None:
    head = RequestHead([(b"x-router-profile", b"p")], None, "http", SessionHeaders(("x-router-profile",)))
    assert (head.profile, head.session_id) == ("p", "p")
