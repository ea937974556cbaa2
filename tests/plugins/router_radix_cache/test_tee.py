from __future__ import annotations

import pytest
from router_radix_cache.tee import AnswerTee
from router_radix_cache.unusable import Unusable, UnusableError


def kept(chunks: list[bytes], *, is_stream: bool, max_bytes: int = 10_000) -> bytes:
    tee = AnswerTee(is_stream=is_stream, max_bytes=max_bytes)
    for chunk in chunks:
        tee.feed(chunk)
    return tee.body()


def cuts(body: bytes) -> list[list[bytes]]:
    return [[body[at : at + size] for at in range(0, len(body), size)] for size in range(1, len(body) + 1)]


def test_of_a_stream_the_last_event_with_data_is_kept_whatever_the_cuts() -> None:
    stream = b'data: {"text":"a"}\n\n: ping\n\ndata: {"text":"ab"}\n\ndata: [DONE]\n\n'
    assert {kept(chunks, is_stream=True) for chunks in cuts(stream)} == {b'{"text":"ab"}'}


def test_a_stream_that_breaks_off_keeps_its_last_whole_event() -> None:
    assert kept([b'data: {"text":"a"}\n\ndata: {"te'], is_stream=True) == b'{"text":"a"}'
    assert kept([], is_stream=True) == b""


def test_routed_experts_are_not_kept() -> None:
    body = b'{"text":"a","meta_info":{"routed_experts":"' + b"A" * 500 + b'","id":"r"}}'
    wanted = b'{"text":"a","meta_info":{"routed_experts":null,"id":"r"}}'
    assert {kept(chunks, is_stream=False, max_bytes=100) for chunks in cuts(body)} == {wanted}
    event = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    assert {kept(chunks, is_stream=True, max_bytes=100) for chunks in cuts(event)} == {wanted}


def test_an_answer_that_is_too_large_is_let_go() -> None:
    for is_stream in (False, True):
        with pytest.raises(UnusableError) as error:
            kept([b"data: " + b"x" * 60, b"x" * 60, b"\n\n"], is_stream=is_stream, max_bytes=100)
        assert error.value.reason is Unusable.TOO_LARGE


def test_many_events_are_within_the_bound_of_one() -> None:
    events = [b'data: {"text":"' + b"a" * number + b'"}\n\n' for number in range(80)]
    assert kept(events, is_stream=True, max_bytes=200) == b'{"text":"' + b"a" * 79 + b'"}'
