"""Header lists: ordered, repeated, raw; what passes a hop and what does not."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router_core import Headers, headers
from router_core.headers import (
    HOP_BY_HOP,
    SERVER,
    decimal,
    end_to_end,
    fields_to_send,
    http_date,
    is_fit_to_send,
    named_by_connection,
    one_date_and_server,
)

NAMES = st.sampled_from(
    [b"X-A", b"x-b", b"Connection", b"Host", b"TE", b"Keep-Alive", b"Date", b"server", b"Set-Cookie"]
)
VALUES = st.binary(max_size=12).filter(lambda value: not set(value) & set(b"\r\n\0"))
PAIRS = st.lists(st.tuples(NAMES, VALUES | st.sampled_from([b"close", b"x-a, X-B", b"keep-alive,x-b"])), max_size=10)


@given(PAIRS)
def test_end_to_end_fields_keep_order_repetition_and_value(pairs: list[tuple[bytes, bytes]]) -> None:
    raw = [(name.lower(), value) for name, value in pairs]
    passed = end_to_end(raw)
    dropped = HOP_BY_HOP | named_by_connection(raw)
    assert passed == [(name, value) for name, value in raw if name not in dropped]
    assert end_to_end(passed) == passed


@given(PAIRS)
def test_there_is_exactly_one_date_and_server(pairs: list[tuple[bytes, bytes]]) -> None:
    raw = [(name.lower(), value) for name, value in pairs]
    sent = one_date_and_server(raw)
    for name, ours in ((b"date", http_date()), (b"server", SERVER)):
        values = [value for field, value in raw if field == name]
        assert [value for field, value in sent if field == name] == (values[:1] or [ours])
    others = [pair for pair in raw if pair[0] not in (b"date", b"server")]
    assert [pair for pair in sent if pair[0] not in (b"date", b"server")] == others


@given(st.lists(st.tuples(st.sampled_from(["A", "a", "b"]), st.text("xyz", max_size=3)), max_size=8))
def test_reading_and_writing_agree(pairs: list[tuple[str, str]]) -> None:
    headers = Headers()
    for name, value in pairs:
        headers.add(name, value)
    lowered = [(name.lower(), value) for name, value in pairs]
    assert list(headers) == lowered
    for name in ("a", "B"):
        wanted = [value for field, value in lowered if field == name.lower()]
        assert headers.get_all(name) == wanted
        assert headers.get(name) == (wanted[0] if wanted else None)
        assert (name in headers) is bool(wanted)
    copy = headers.copy()
    copy.set("A", "one")
    assert copy.get_all("a") == ["one"]
    assert list(headers) == lowered
    copy.remove("a")
    assert "a" not in copy


@pytest.mark.parametrize(
    ("name", "value"), [("", "x"), ("a b", "x"), ("a:", "x"), ("a\r", "x"), ("a", "x\r\ny"), ("a", "x\0"), ("a", "\n")]
)
def test_a_field_that_would_break_the_message_is_refused(name: str, value: str) -> None:
    headers = Headers()
    with pytest.raises(ValueError, match="not a header field"):
        headers.add(name, value)
    assert headers.raw == []


@pytest.mark.parametrize(
    ("raw", "is_fit"),
    [
        ([], True),
        ([(b"a", b"")], True),
        ([(b"a-b_c.d~e!#$%&'*+^`|1", b"\t x \xff")], True),
        ([(b"", b"x")], False),
        ([(b"a b", b"x")], False),
        ([(b"a\xff", b"x")], False),
        ([(b"a", b"x\r")], False),
        ([(b"a", b"x\x7f")], False),
        ([(b"a", b"x\x00")], False),
    ],
)
def test_what_may_be_sent(raw: list[tuple[bytes, bytes]], is_fit: bool) -> None:
    assert is_fit_to_send(raw) is is_fit


def test_the_date_is_that_of_rfc_9110() -> None:
    assert http_date().endswith(b" GMT")
    assert len(http_date()) == 29


def test_the_date_is_that_of_this_second_whichever_way_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (1_000.0, 1_000.999, 1_001.0, 5_000.5, 1_000.2, 0.0):
        monkeypatch.setattr(headers, "_NOW", lambda now=now: now)
        assert parsedate_to_datetime(http_date().decode()) == datetime.fromtimestamp(int(now), UTC)


@given(st.binary(max_size=24) | st.text("0123456789", max_size=24).map(str.encode))
@example(b"00000000000000000007")
@example(b"1" * 21)
@example(b"9" * 20)
@example(b"0" * 30)
@example(b"0" * 30 + b"7")
def test_a_decimal_is_what_int_says_of_digits_alone(digits: bytes) -> None:
    is_one = digits.isdigit() and int(digits) < 10**20
    assert decimal(digits) == (int(digits) if is_one else -1)


def test_names_that_pass_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_PASSING", set(headers._PASSING))
    raw = [(b"X-%d" % number, b"v") for number in range(headers.MAX_PASSING + 50)]
    for _ in range(2):
        fields, length = fields_to_send([*raw, (b"Date", b"now"), (b"TE", b"x")], may_have_length=True)
        assert fields == [*((name.lower(), value) for name, value in raw), (b"date", b"now"), (b"server", SERVER)]
        assert length is None
    assert len(headers._PASSING) <= headers.MAX_PASSING
