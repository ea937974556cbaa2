"""An answer: a stream until somebody reads it, with a right length where there is one."""

import json
from collections.abc import AsyncIterator

import pytest

from router_core import Answer, Headers, Reject
from router_core.types.answer import Arriving


class Stream:
    """Chunks that say whether they were closed."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)
        self.is_closed = False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> bytes:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop(0)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_stream_is_read_once_and_kept() -> None:
    answer = Answer(200, chunks=Stream(b"a", b"b"))
    assert answer.ready_body is None
    assert (await answer.body(), await answer.body(), answer.ready_body) == (b"ab", b"ab", b"ab")
    assert [chunk async for chunk in answer.chunks] == [b"ab"]


async def test_chunks_that_are_none_are_an_error() -> None:
    with pytest.raises(NotImplementedError):
        await Answer(200, chunks=Arriving()).body()
    with pytest.raises(TypeError, match="asynchronous iterator"):
        Answer(200, chunks=b"chunks")  # type: ignore[arg-type]


async def test_an_answer_too_long_to_keep_is_closed() -> None:
    stream = Stream(b"abc", b"def")
    with pytest.raises(Reject, match="longer than 4 bytes") as refused:
        await Answer(200, chunks=stream).body(max_bytes=4)
    assert (refused.value.status, refused.value.code, stream.is_closed) == (502, "answer_too_large", True)


async def test_a_wrapped_stream_has_no_length() -> None:
    async def louder(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk + b"!"

    answer = Answer(200, Headers([(b"content-length", b"2")]), chunks=Stream(b"a", b"b"))
    answer.chunks = louder(answer.chunks)
    assert "content-length" not in answer.headers
    assert await answer.body() == b"a!b!"
    answer.set_body(b"new")
    assert (answer.headers.get_all("content-length"), answer.ready_body) == (["3"], b"new")


async def test_an_answer_without_a_body_is_empty() -> None:
    answer = Answer(204)
    assert (await answer.body(), answer.headers.get("content-length")) == (b"", "0")
    assert [chunk async for chunk in answer.chunks] == []
    await answer.aclose()


async def test_json_of_anything() -> None:
    assert Answer.json(200, {"a": [1, None]}).ready_body == b'{"a":[1,null]}'
    odd = Answer.json(200, {"half": "\ud800", "huge": 10**40, "thing": ValueError("x")})
    assert json.loads(odd.ready_body or b"") == {"half": "\ud800", "huge": 10**40, "thing": "x"}
    assert odd.headers.get("content-length") == str(len(odd.ready_body or b""))


def test_an_error_is_an_envelope() -> None:
    answer = Answer.error(Reject(503, "no_worker", "nobody", "url", retry_after_s=0.2), workers={})
    assert (answer.status, answer.error_code) == (503, "no_worker")
    assert (answer.headers.get("x-router-error"), answer.headers.get("retry-after")) == ("no_worker", "1")
    error = {"message": "nobody", "type": "router_error", "code": "no_worker", "workers": {}, "param": "url"}
    assert json.loads(answer.ready_body or b"") == {"error": error}
    assert json.loads(Answer.error(Reject(404, "x", "m")).ready_body or b"")["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("chunks", [b"x", [b"x"], (piece for piece in [b"x"]), 5])
def test_what_is_no_asynchronous_iterator_is_no_stream(chunks: object) -> None:
    with pytest.raises(TypeError, match="asynchronous iterator"):
        Answer(200, chunks=chunks)  # type: ignore[arg-type]
    answer = Answer(200, body=b"as it was")
    with pytest.raises(TypeError, match="asynchronous iterator"):
        answer.chunks = chunks  # type: ignore[assignment]
    assert answer.ready_body == b"as it was"


@pytest.mark.parametrize(
    ("told", "is_encoded"), [(None, False), ("", False), ("Identity", False), ("gzip", True), ("br, gzip", True)]
)
def test_compressed_bytes_are_known_by_the_head(told: str | None, is_encoded: bool) -> None:
    headers = Headers([(b"content-type", b"application/json")])
    if told is not None:
        headers.add("content-encoding", told)
    assert Answer(200, headers, body=b"x").is_encoded is is_encoded
