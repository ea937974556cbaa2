"""What it has no part in passes byte for byte, in any pieces, and many requests at once are not mixed up."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence

from router_core.testing.answer import RawAnswer, build_request
from router_core.testing.client import RawClient, exchange_once
from router_core.testing.conformance.subject import Bench, Nonconformance, Subject
from router_core.testing.connection import Connection
from router_core.testing.request import ScriptedRequest
from router_core.testing.worker import Fault, Handler

ODD = bytes(range(256)) * 5 + "héllo 🙂 \u2028".encode()
PIECES = (1, 2, 3, 5, 16, 61)
ROUNDS = 3
"""Rounds of the event loop in which the router, in the same loop, has read what was sent."""
CROWD = 24
TARGETS = {
    "sglang": ("/generate", "/v1/chat/completions"),
    "vllm": ("/v1/completions", "/v1/chat/completions"),
}
VOLATILE = (b"date", b"x-request-id", b"traceparent")


def bodies(engine: str, mark: str = "m0", **more: object) -> list[tuple[str, dict[str, object]]]:
    """A target and a body for each kind of generation, whole and streamed."""
    asked: list[tuple[str, dict[str, object]]] = []
    for target in TARGETS[engine]:
        body: dict[str, object] = {"model": "scripted", "user": mark, **more}
        if target == "/generate":
            body = {"text": f"say {mark}", "sampling_params": {"max_new_tokens": 8}, "mark": mark, **more}
        elif target == "/v1/completions":
            body |= {"prompt": f"say {mark}", "max_tokens": 8}
        else:
            body |= {"messages": [{"role": "user", "content": f"say {mark}"}], "max_tokens": 8}
        asked += [(target, body), (target, {**body, "stream": True})]
    return asked


# --------------------------------------------------------------------------------------------------- switched off
async def switched_off_it_leaves_no_trace(subject: Subject) -> None:
    """Loaded but off, the worker and the client get the very bytes they would get without it."""
    seen = []
    for on in (False, True):
        async with subject.bench(on=on) as bench:
            bench.worker.handler = _fixed
            off = [("x-router-plugins", f"-{subject.name}")] if on else []
            answers = [
                await exchange_once(bench.port, "POST", target, [*off, ("x-odd", "1")], body)
                for target, body in (("/generate", b'{"text":  "hi"}'), ("/opaque?x=%20", ODD), ("/stream", b""))
            ]
            requests = [[*_comparable(request.headers), request.body] for request in bench.worker.requests[-3:]]
            seen.append((requests, [[*_comparable(a.headers), a.body, a.status] for a in answers]))
    for what, without, loaded in zip(("requests: the worker", "answers: the client"), *seen, strict=True):
        for was, is_now in zip(without, loaded, strict=True):
            if was != is_now:
                raise Nonconformance(f"switched off, it changes {what} got {is_now!r}, not {was!r}"[:900])


def _comparable(headers: Sequence[tuple[bytes, bytes]]) -> list[object]:
    left = [(name.lower(), value) for name, value in headers]
    return [pair for pair in left if pair[0] not in (*VOLATILE, b"host", b"x-forwarded-host", b"x-router-worker")]


async def _fixed(request: ScriptedRequest, connection: Connection) -> bool:
    if request.path == "/stream":
        await connection.begin(200, content_type="text/event-stream")
        for number in range(3):
            await connection.write(b"data: %d\r\n\r\n" % number)
        return await connection.end()
    return await connection.answer(ODD, 200 if request.path == "/generate" else 418, content_type="x/odd")


async def what_it_does_not_know_passes(subject: Subject) -> None:
    """Switched on, a body and an answer of a path nobody knows pass byte for byte."""
    if subject.changes_everything:
        return
    async with subject.bench() as bench:
        bench.worker.handler = _fixed
        answer = await bench.ask("/nobody/knows/this", body=ODD)
        got = bench.worker.requests[-1].body if bench.worker.requests else b""
        if got != ODD:
            raise Nonconformance("it changes the body of a request for a path it cannot know (/nobody/knows/this)")
        if (answer.status, answer.body) != (418, ODD):
            raise Nonconformance(
                f"it changes the answer of a path it cannot know: status {answer.status}, {len(answer.body)} bytes"
            )
        await bench.settle(1, "after a path it cannot know")
        bench.check_errors("after a path it cannot know")


# ------------------------------------------------------------------------------------------------------- in pieces
async def pieces_make_no_difference(subject: Subject) -> None:
    """However an answer is cut, and a request, the other side gets the same."""
    async with subject.bench() as bench:
        count = 0
        for target, body in bodies(subject.engine):
            recorded = await exchange_once(bench.worker.port, "POST", target, json=body)
            bench.worker.handler = replay(recorded)
            whole = await bench.ask(target, json=body)
            sent = bench.worker.requests[-1].body
            for size in PIECES:
                bench.worker.fault(_one_by_one(size))
                cut = await bench.ask(target, json=body)
                if (cut.status, cut.body) != (whole.status, whole.body):
                    raise Nonconformance(
                        f"an answer of {target} that comes in chunks of {size} bytes reaches the client changed: "
                        f"{_difference(whole.body, cut.body)}"
                    )
            await _upload_in_pieces(bench, target, body, sent)
            count += 2 + len(PIECES)
            bench.worker.handler = bench.worker.engine.answer
        await bench.settle(count, "after answers in pieces")
        bench.check_errors("after answers in pieces")


def replay(recorded: RawAnswer) -> Handler:
    """A handler that gives this answer again, whatever it is asked."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        kind = (recorded.get("content-type") or "application/json").split(";")[0]
        return await connection.answer(recorded.body, recorded.status, content_type=kind)

    return handler


def _one_by_one(size: int) -> Fault:
    """The answer chunked, each piece read by the router before the next one is sent."""

    def fault(handler: Handler) -> Handler:
        async def paced(data: bytes, send: Callable[[bytes], Awaitable[None]]) -> None:
            for at in range(0, len(data), size):
                await send(data[at : at + size])
                for _ in range(ROUNDS):
                    await asyncio.sleep(0)

        async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
            return await handler(request, connection.bent(gate=paced, framing="chunked"))

        return faulty

    return fault


async def _upload_in_pieces(bench: Bench, target: str, body: object, sent: bytes) -> None:
    raw, pieces, at = build_request("POST", target, json=body), [], 0
    chance = random.Random(target)
    while at < len(raw):
        step = chance.choice((1, 2, 7, 40))
        pieces.append(raw[at : at + step])
        at += step
    async with RawClient(bench.port) as client:
        await client.send(*pieces)
        await client.read_answer()
    if len(bench.worker.requests[-1].body) != len(sent):
        raise Nonconformance(f"a request for {target} that comes in pieces reaches the worker changed")


def _difference(whole: bytes, cut: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(whole, cut, strict=False)) if a != b), min(len(whole), len(cut)))
    return f"from byte {at} on {cut[at : at + 60]!r}, not {whole[at : at + 60]!r}"


# --------------------------------------------------------------------------------------------------------- a crowd
async def a_crowd_is_not_mixed_up(subject: Subject) -> None:
    """Many requests at once: each gets its own answer."""
    async with subject.bench() as bench:
        bench.worker.handler = _marked(bench)
        asked = [bodies(subject.engine, f"m{number}q")[number % 4] for number in range(CROWD)]
        answers = await asyncio.gather(*(bench.ask(target, json=body) for target, body in asked))
        for number, (answer, (target, _)) in enumerate(zip(answers, asked, strict=True)):
            if answer.status != 200:
                raise Nonconformance(
                    f"of {CROWD} good requests at once, one for {target} got {answer.status}: {answer.body[:200]!r}"
                )
            if (mark := answer.get("x-mark")) != f"m{number}q":
                raise Nonconformance(f"of {CROWD} requests at once, one got the answer of another (of {mark})")
        await bench.settle(CROWD, "after many requests at once")
        bench.check_errors("after many requests at once")


def _marked(bench: Bench) -> Handler:
    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        mark = re.search(rb"m\d+q", request.body)
        marked = connection.bent(extra=[("x-mark", mark[0].decode() if mark else "none")])
        return await bench.worker.engine.answer(request, marked)

    return handler
