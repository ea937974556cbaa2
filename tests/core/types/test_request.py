"""A request: unchanged bytes stay, changes apply once and to the right copy."""

import json
from typing import Any

import pytest

from router_core import Headers, MalformedBody, Request


class Body:
    """A body source that has everything already, or not yet."""

    def __init__(self, body: bytes, *, is_here: bool = True) -> None:
        self._body, self._is_here = body, is_here
        self.reads = 0
        self.is_declared, self.length, self.is_streamed = True, len(body), False

    @property
    def whole(self) -> bytes | None:
        return self._body if self._is_here else None

    async def read_all(self) -> bytes:
        self.reads += 1
        self._is_here = True
        return self._body

    def stream(self) -> Any:
        raise NotImplementedError


def request(body: bytes, *, is_here: bool = True) -> Request:
    return Request("POST", b"/generate", b"", Headers([(b"content-encoding", b"x")]), Body(body, is_here=is_here))


async def test_what_nobody_changes_is_the_clients_body() -> None:
    asked = request(b' {"a" :1}')
    assert asked.ready_body is await asked.body()
    assert not asked.has_edits


async def test_changes_wait_until_the_body_is_there() -> None:
    asked = request(b'{"a" :1, "n": 1e-05}', is_here=False)
    assert asked.ready_body is None
    asked.set_key("a", [1, 2])
    asked.set_key("b", None)
    assert (asked.ready_body, asked.has_edits) == (None, True)
    assert await asked.body() == b'{"a" :[1,2], "n": 1e-05, "b": null}'
    assert asked.ready_body == await asked.body()
    assert await asked.json() == {"a": [1, 2], "n": 1e-05, "b": None}


async def test_a_new_body_takes_the_place_of_body_and_changes() -> None:
    asked = request(b'{"a":1}')
    asked.set_key("a", 2)
    asked.set_body(b'{"c":3}')
    assert "content-encoding" not in asked.headers
    assert await asked.body() == b'{"c":3}'
    asked.set_key("c", 4)
    assert asked.ready_body == b'{"c":4}'


async def test_a_copy_is_changed_alone() -> None:
    asked = request(b'{"a":1}')
    asked.set_key("a", 2)
    copy = asked.fork()
    copy.set_key("a", 3)
    copy.headers.set("x", "1")
    copy.method, copy.path, copy.query = "PUT", b"/other", b"q"
    assert (await copy.body(), await asked.body()) == (b'{"a":3}', b'{"a":2}')
    assert "x" not in asked.headers
    assert (asked.method, asked.path, asked.query) == ("POST", b"/generate", b"")
    second = asked.fork()
    second.set_body(b"{}")
    assert await asked.body() == b'{"a":2}'


async def test_what_is_no_json_object_is_left_alone() -> None:
    asked = request(b"not json")
    asked.set_key("a", 1)
    assert await asked.body() == b"not json"
    with pytest.raises(MalformedBody, match="not JSON"):
        await asked.json()


async def test_values_that_are_no_json_are_refused_at_once() -> None:
    asked = request(b"{}")
    with pytest.raises(TypeError):
        asked.set_key("a", object())
    assert await asked.body() == b"{}"


async def test_an_identity_is_asked_for_once() -> None:
    asked = request(b"{}")
    asked.headers.add("accept-encoding", "gzip")
    asked.headers.add("Accept-Encoding", "br")
    asked.accept_identity()
    assert asked.headers.get_all("accept-encoding") == ["identity"]


async def test_numbers_keep_their_value_through_json() -> None:
    text = b'{"big": 12345678901234567890123, "nan": NaN, "inf": -Infinity}'
    value = await request(text).json()
    assert value["big"] == 12345678901234567890123
    assert json.dumps(value) == text.decode()


async def test_a_body_is_parsed_once_for_all_who_only_read_it() -> None:
    asked = request(b'{"a":[1]}')
    shared = await asked.shared_json()
    assert await asked.shared_json() is shared
    attempt = asked.fork()
    assert await attempt.shared_json() is shared
    assert await asked.json() is not shared


async def test_a_changed_body_is_parsed_anew_and_only_there() -> None:
    asked = request(b'{"a":1}')
    await asked.shared_json()
    attempt = asked.fork()
    attempt.set_key("a", 2)
    assert await attempt.shared_json() == {"a": 2}
    assert await asked.shared_json() == {"a": 1}
    asked.set_body(b"[]")
    assert await asked.shared_json() == []


async def test_what_was_parsed_is_not_kept_while_the_worker_answers() -> None:
    asked = request(b'{"a":[1]}')
    shared = await asked.shared_json()
    attempt = asked.fork()
    attempt.forget_json()
    assert await attempt.shared_json() is not shared
    assert await asked.shared_json() is not shared


async def test_the_json_of_a_body_that_is_here_needs_no_waiting() -> None:
    asked, later = request(b'{"a":[1]}'), request(b'{"a":[1]}', is_here=False)
    shared = asked.ready_json()
    assert shared == {"a": [1]}
    assert asked.ready_json() is shared is await asked.shared_json()
    assert later.ready_json() is None
    await later.body()
    assert later.ready_json() == {"a": [1]}
    with pytest.raises(MalformedBody):
        request(b"{").ready_json()


async def test_it_is_that_of_the_body_as_it_would_be_sent() -> None:
    asked = request(b'{"a":1}')
    assert asked.ready_json() == {"a": 1}
    attempt = asked.fork()
    assert attempt.ready_json() == {"a": 1}
    attempt.set_key("a", 2)
    assert attempt.ready_json() is None
    await attempt.body()
    assert attempt.ready_json() == {"a": 2}
    attempt.set_body(b'{"a":3}')
    assert attempt.ready_json() == {"a": 3}
    assert asked.ready_json() == {"a": 1}


def test_an_uncompressed_answer_is_asked_for_once() -> None:
    asked = request(b"{}")
    asked.headers.raw[:] = [(b"accept-encoding", b"gzip"), (b"host", b"a"), (b"accept-encoding", b"br")]
    asked.accept_identity()
    asked.accept_identity()
    assert asked.headers.raw == [(b"host", b"a"), (b"accept-encoding", b"identity")]
    asked.headers.add("accept-encoding", "br")
    asked.accept_identity()
    assert asked.headers.raw == [(b"host", b"a"), (b"accept-encoding", b"identity")]


def test_an_uncompressed_answer_is_asked_for_whatever_else_the_client_takes() -> None:
    asked = request(b"{}")
    asked.headers.raw[:] = [(b"accept-encoding", b"gzip"), (b"host", b"a"), (b"accept-encoding", b"identity")]
    asked.accept_identity()
    assert asked.headers.raw == [(b"host", b"a"), (b"accept-encoding", b"identity")]
