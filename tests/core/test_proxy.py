"""What passes through unchanged, and what is added or taken away on the way."""

import asyncio
import gzip
import hashlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import OutcomeKind
from router_core.testing import (
    ODD_JSON,
    Connection,
    Faults,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_pieces,
)

Serve = Callable[..., Awaitable[Any]]
BODIES = [
    b"",
    b"{}",
    ODD_JSON,
    b' {"a":1}',
    b"[]",
    b'{"meta_info":{"output_token_logprobs":[[-Infinity,5,null],[NaN,6,null],[-0.25,7,null]]}}',
    b'{"lp": -1E-05, "z": -0, "p": 0.30000000000000004, "a":1, "a":2}',
    bytes(range(256)) * 300,
    gzip.compress(b'{"text":"' + b"abc" * 900 + b'"}', mtime=0),
]


# ------------------------------------------------------------------------------------------------------------- bodies
@pytest.mark.parametrize("body", BODIES)
async def test_bodies_pass_byte_for_byte_both_ways(serve: Serve, body: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(body, headers=[("Content-Encoding", "gzip")])
        sent = [("Content-Type", "application/json"), ("Content-Encoding", "x-odd")]
        answer = await exchange_once(router.port, headers=sent, body=body)
        assert (answer.status, answer.body, answer.clean) == (200, body, True)
        assert (answer.get("content-length"), answer.get("content-encoding")) == (str(len(body)), "gzip")
        request = worker.requests[0]
        assert (request.body, request.get("content-length")) == (body, str(len(body)))
        assert request.get("content-encoding") == "x-odd"


async def test_a_chunked_upload_arrives_whole_with_one_framing(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        parts = [random.randbytes(70_000), b"x", random.randbytes(1000)]
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=[("Transfer-Encoding", "chunked")], framed=False))
            for part in parts:
                await client.send(b"%X;ext=1\r\n" % len(part) + part + b"\r\n")
            await client.send(b"0\r\nX-Trailer: 1\r\n\r\n")
            assert (await client.read_answer()).status == 200
        request = worker.requests[0]
        assert request.body == b"".join(parts)
        assert len(request.values("content-length")) + len(request.values("transfer-encoding")) == 1


async def test_a_long_upload_and_a_long_answer_pass_unchanged(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        up, down = random.randbytes(1 << 20) * 24, random.randbytes(1 << 20) * 24
        worker.handler = reply(down, content_type="application/octet-stream")
        answer = await exchange_once(router.port, body=up, timeout_s=30)
        assert answer.body == down
        assert hashlib.sha256(worker.requests[0].body).digest() == hashlib.sha256(up).digest()


async def test_a_request_without_a_body_has_none_at_the_worker(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        for method in ("GET", "DELETE", "OPTIONS", "HEAD"):
            assert (await exchange_once(router.port, method, "/v1/thing")).status == 200
            request = worker.requests[-1]
            assert (request.method, request.body_framing) == (method, "none")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST", "GET", "PROPFIND", "PURGE", "REPORT"])
async def test_every_method_passes_with_its_body(serve: Serve, method: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        answer = await exchange_once(router.port, method, "/v1/thing", body=b'{"a":1}')
        assert answer.status == 200
        assert (worker.requests[0].method, worker.requests[0].body) == (method, b'{"a":1}')


# ------------------------------------------------------------------------------------------------------------ targets
@pytest.mark.parametrize(
    "target",
    [
        b"/generate?level=2&mode=a&tags=x&tags=y",
        b"/v1/x%2Fy%3A%20z/%E4%BD%A0;p=1?x=%2F&y=a+b&y=2&z=%25s3&e=&f&q=%27%27",
        b"/v1/a%7Eb/~c/%41?u=https%3A%2F%2Fh%2Fp%3Fq%3D1",
        b"/generate/",
        b"/v1//chat///completions",
        b"//workers",
        b"/%",
        b"/%zz/%FF/%00",
        b"/a/../b/./c",
        b"/workersx",
        b"/",
        b"/?",
        b"/x?a=\"'<>|\\^`{}",
    ],
)
async def test_a_target_reaches_the_worker_as_it_was_sent(serve: Serve, target: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        answer = await exchange_once(router.port, target=target)
        assert answer.status == 200
        assert worker.requests[0].target in (target, target.removesuffix(b"?"))


@pytest.mark.parametrize("target", [b"/caf\xc3\xa9", b"/\xff\xfe?q=\xe9", b"/x?\xe4\xbd\xa0"])
async def test_target_bytes_that_are_not_ascii_are_refused(serve: Serve, target: bytes) -> None:
    """A target is ASCII (RFC 9112, section 3.2); percent-encoded it may be anything."""
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        answer = await exchange_once(router.port, target=target)
        assert answer.status == 400
        assert worker.requests == []


async def test_an_absolute_target_is_cut_to_its_path(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        assert (await exchange_once(router.port, target=b"http://elsewhere/generate?x=1")).status == 200
        assert worker.requests[0].target == b"/generate?x=1"


@pytest.mark.parametrize(
    "line", [b"OPTIONS * HTTP/1.1", b"CONNECT h:443 HTTP/1.1", b"GET http://h HTTP/1.1", b"GET  HTTP/1.1"]
)
async def test_odd_request_lines_get_an_answer_and_harm_nobody(serve: Serve, line: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        async with RawClient(router.port) as client:
            await client.send(line + b"\r\nHost: h\r\n\r\n")
            answer = await client.read_head()
            assert answer.status < 500
        assert (await exchange_once(router.port)).status == 200


# ------------------------------------------------------------------------------------------------------------ headers
async def test_request_fields_pass_in_order_and_repeated(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        fields = [("X-Tag", "a"), ("Cookie", "s=1"), ("x-tag", "b"), ("Authorization", "Bearer sk-test"), ("X-Tag", "")]
        await exchange_once(router.port, headers=fields)
        names = {name.lower() for name, _ in fields}
        got = [(k.decode().lower(), v.decode()) for k, v in worker.requests[0].headers if k.decode().lower() in names]
        assert got == [(name.lower(), value) for name, value in fields]


async def test_no_field_is_invented(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        await exchange_once(router.port, body=b"x")
        names = {name.decode().lower() for name, _ in worker.requests[0].headers}
        assert names == {"host", "content-length", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"}


async def test_hop_by_hop_fields_and_those_connection_names_stay_on_their_hop(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        hop = [
            ("Connection", "keep-alive, X-Hop"),
            ("connection", "x-other"),
            ("X-Hop", "1"),
            ("X-Other", "1"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic x"),
            ("Trailer", "X-T"),
            ("X-End", "2"),
        ]
        worker.handler = reply(b"{}", headers=[*hop, ("Upgrade", "h2c"), ("Proxy-Authenticate", "Basic")])
        answer = await exchange_once(router.port, headers=hop)
        assert answer.status == 200
        for message in (worker.requests[0], answer):
            names = {name.decode().lower() for name, _ in message.headers}
            assert "x-end" in names
            assert not names & {"x-hop", "x-other", "keep-alive", "te", "proxy-connection", "proxy-authorization"}
            assert not names & {"trailer", "upgrade", "proxy-authenticate"}


async def test_answers_fields_pass_in_order_and_repeated(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        cookies = ["a=1; Expires=Tue, 25 Aug 2026 08:13:41 GMT; Path=/", "b=2; Path=/", "csrf=3"]
        worker.handler = reply(b"{}", headers=[("Set-Cookie", c) for c in cookies] + [("X-M", "1"), ("X-M", "2")])
        answer = await exchange_once(router.port)
        assert answer.values("set-cookie") == cookies
        assert answer.values("x-m") == ["1", "2"]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("Server", "uvicorn"), ("Date", "Tue, 01 Sep 2026 00:00:00 GMT")],
        [("Server", "uvicorn"), ("Server", "b"), ("Date", "Tue, 01 Sep 2026 00:00:00 GMT"), ("date", "x")],
    ],
)
async def test_an_answer_has_exactly_one_date_and_server(serve: Serve, fields: list[tuple[str, str]]) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}", headers=fields)
        answer = await exchange_once(router.port)
        assert [len(answer.values(name)) for name in ("date", "server", "content-length", "content-type")] == [1] * 4
        if fields:
            assert (answer.get("server"), answer.get("date")) == ("uvicorn", "Tue, 01 Sep 2026 00:00:00 GMT")
        refused = await exchange_once(router.port, target="/health/x")
        assert [len(refused.values(name)) for name in ("date", "server", "content-length")] == [1] * 3


async def test_field_bytes_that_are_not_utf_8_pass_both_ways(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        odd: list[tuple[str | bytes, str | bytes]] = [
            (b"X-Note", b"caf\xe9"),
            (b"X-Utf8", b"\xe4\xbd\xa0"),
            (b"X-Bad", b"\xff\xfe"),
        ]
        worker.handler = reply(b"{}", headers=odd)
        answer = await exchange_once(router.port, headers=odd)
        assert answer.status == 200
        for message in (worker.requests[0], answer):
            assert [value for name, value in message.headers if name.lower() in (b"x-note", b"x-utf8", b"x-bad")] == [
                b"caf\xe9",
                b"\xe4\xbd\xa0",
                b"\xff\xfe",
            ]


async def test_a_large_request_field_passes(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        answer = await exchange_once(router.port, headers=[("X-Trace", "t" * 65_000)])
        assert answer.status == 200
        assert worker.requests[0].get("x-trace") == "t" * 65_000


async def test_the_hop_is_appended_to_what_was_forwarded(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        await exchange_once(router.port, headers=[("Host", "public.test")])
        request = worker.requests[0]
        assert request.get("host") == f"127.0.0.1:{worker.port}"
        assert request.get("x-forwarded-for") == "127.0.0.1"
        assert request.get("x-forwarded-proto") == "http"
        assert request.get("x-forwarded-host") == "public.test"
        earlier = [
            ("X-Forwarded-For", "10.0.0.1"),
            ("X-Forwarded-For", "10.0.0.2"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "first.test"),
        ]
        await exchange_once(router.port, headers=earlier)
        request = worker.requests[1]
        assert request.values("x-forwarded-for") == ["10.0.0.1, 10.0.0.2, 127.0.0.1"]
        assert request.values("x-forwarded-proto") == ["https"]
        assert request.values("x-forwarded-host") == ["first.test"]


async def test_fields_for_the_router_reach_no_worker(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, profiles={"p": {}})
        worker.handler = reply()
        fields = [("X-Router-Plugins", "-ends,+ends"), ("X-Router-Profile", "p"), ("X-Router-Debug", "1")]
        assert (await exchange_once(router.port, headers=fields)).status == 200
        assert not [name for name, _ in worker.requests[0].headers if name.lower().startswith(b"x-router")]


async def test_the_answer_names_the_worker_that_served(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker.url + "/")
        assert (await exchange_once(router.port, target="/x")).get("x-router-worker") == worker.url + "/"


@pytest.mark.parametrize("content_type", ["text/event-stream", "audio/wav", "text/plain; version=0.0.4", None])
async def test_a_content_type_is_kept_and_not_invented(serve: Serve, content_type: str | None) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"x", content_type=content_type)
        answer = await exchange_once(router.port)
        assert answer.get("content-type") == content_type


# ----------------------------------------------------------------------------------------------------------- statuses
@pytest.mark.parametrize(
    "status", [200, 201, 299, 302, 307, 400, 404, 405, 413, 422, 429, 499, 500, 502, 503, 504, 599]
)
async def test_a_workers_status_passes_with_body_and_fields_and_is_asked_once(serve: Serve, status: int) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.status(status, [("Retry-After", "7")], b'{"error":{"message":"maximum context length"}}'))
        answer = await exchange_once(router.port)
        assert (answer.status, answer.body) == (status, b'{"error":{"message":"maximum context length"}}')
        assert (answer.get("retry-after"), answer.get("x-router-error")) == ("7", None)
        assert len(worker.requests) == 1
        (outcome,) = await router.ends.wait()
        assert outcome.kind is (OutcomeKind.WORKER_ERROR if status >= 500 else OutcomeKind.OK)


async def test_a_workers_own_error_header_passes(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b"{}", 400, [("X-Router-Error", "of_another_router")])
        assert (await exchange_once(router.port)).get("x-router-error") == "of_another_router"


async def test_malformed_json_for_a_worker_passes_and_its_400_comes_back(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b'{"detail":"no JSON"}', 400)
        answer = await exchange_once(router.port, body=b'{"text": ')
        assert (answer.status, answer.body) == (400, b'{"detail":"no JSON"}')
        assert worker.requests[0].body == b'{"text": '


async def test_without_a_worker_a_request_is_refused_with_the_reason(serve: Serve) -> None:
    router = await serve()
    answer = await exchange_once(router.port)
    assert (answer.status, answer.get("x-router-error"), answer.get("retry-after")) == (503, "no_worker", "1")
    assert answer.json()["error"]["type"] == "router_error"
    assert answer.json()["error"]["workers"] == {}
    (outcome,) = await router.ends.wait()
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.REJECTED, 503, "no_worker")


# ----------------------------------------------------------------------------------------------------------- smuggling
@pytest.mark.parametrize(
    "head",
    [
        b"POST /generate HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: xchunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nTransfer-Encoding : chunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nContent-Length: 5\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nX: a\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nX: a\rTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: p\r\nConnection: content-length\r\nContent-Length: %d\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\nX-L: %d\r\n\r\n",
    ],
)
async def test_no_framing_makes_a_second_request_at_the_worker(serve: Serve, head: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: p\r\n\r\n"
        async with RawClient(router.port) as client:
            await client.send(head % len(body) + body)
            answer = await client.read_answer()
            client.end_sending()
        await router.settle()
        assert (await exchange_once(router.port, target="/last")).status == 200
        targets = [request.target for request in worker.requests]
        if b"Connection: transfer" not in head:
            assert b"/smuggled" not in targets
        else:  # chunked is the only framing here: what follows the last chunk is a request of the client's own
            assert targets[:2] == [b"/generate", b"/smuggled"]
        for request in worker.requests:
            assert not (request.values("content-length") and request.values("transfer-encoding"))
            assert request.clean is True
        if answer.status != 200:
            assert answer.status == 400


async def test_a_header_with_a_null_byte_is_refused(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        answer = await exchange_once(router.port, headers=[("X", "a\0b")])
        assert answer.status == 400
        assert worker.requests == []


# --------------------------------------------------------------------------------------------------- client's habits
async def test_one_connection_serves_many_requests(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)

        async def count(request: ScriptedRequest, connection: Connection) -> bool:
            return await connection.answer(b"%d" % len(request.body))

        worker.handler = count
        async with RawClient(router.port) as client:
            for i in range(10):
                method, body = ("GET", b"") if i % 3 == 0 else ("POST", b"z" * (i * 700))
                answer = await client.request(method, "/generate", body=body)
                assert (answer.status, answer.body) == (200, b"%d" % len(body))


async def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)

        async def echo(request: ScriptedRequest, connection: Connection) -> bool:
            return await connection.answer(request.body)

        worker.handler = echo
        async with RawClient(router.port) as client:
            await client.send(*[build_request(body=b"%d" % i) for i in range(8)])
            assert [(await client.read_answer()).body for _ in range(8)] == [b"%d" % i for i in range(8)]


async def test_a_client_of_http_1_0_gets_a_length_and_no_chunks(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply_pieces([b"hel", b"lo"], content_type="text/plain")
        async with RawClient(router.port) as client:
            await client.send(b"GET /v1/thing HTTP/1.0\r\nHost: p\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.body, answer.get("content-length")) == (200, b"hello", "5")
            assert answer.get("transfer-encoding") is None
            await client.wait_closed()


async def test_an_answer_too_long_to_collect_for_http_1_0_is_a_502(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply_pieces([b"x" * (1 << 20)] * 17)
        async with RawClient(router.port) as client:
            await client.send(b"GET /v1/thing HTTP/1.0\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.get("x-router-error")) == (502, "answer_too_large")
            assert "max_collected_bytes" in answer.json()["error"]["message"]
        await worker.wait_until_idle()


async def test_an_answer_cut_short_while_collected_for_http_1_0_is_a_502(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply_pieces([b"one", b"two"])
        worker.fault(Faults.close_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(b"GET /v1/thing HTTP/1.0\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.get("x-router-error")) == (502, "worker_lost")
        await router.ends.wait()
        assert router.ends.kinds == ["worker_lost"]


async def test_expect_gets_its_continue_and_is_not_forwarded(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        body = b"e" * 5000
        async with RawClient(router.port) as client:
            head = build_request(headers=[("Expect", "100-continue")], body=body).removesuffix(body)
            await client.send(head)
            answering = asyncio.create_task(client.read_answer())
            # the body follows only once 100 has come: read_answer keeps interim answers aside
            await client.send(body)
            answer = await answering
        assert [interim.status for interim in answer.interim] == [100]
        assert answer.status == 200
        assert (worker.requests[0].body, worker.requests[0].get("expect")) == (body, None)


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
async def test_an_upgrade_passes_as_plain_http_and_the_connection_stays_usable(serve: Serve, upgrade: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply(b'{"e":"no"}', 426)
        fields = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", upgrade), ("HTTP2-Settings", "AAMAAABk")]
        async with RawClient(router.port) as client:
            answer = await client.request("GET", "/v1/realtime", fields)
            assert (answer.status, answer.body) == (426, b'{"e":"no"}')
            worker.handler = reply(b"after")
            if answer.get("connection") != "close":
                again = await client.request(body=b"x")
                assert (again.status, again.body) == (200, b"after")
        assert not [name for name, _ in worker.requests[0].headers if name.lower() in (b"upgrade", b"http2-settings")]
        assert (await exchange_once(router.port)).body == b"after"
