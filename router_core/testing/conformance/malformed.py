"""Fields nobody knows, bodies that are nonsense, and workers that answer nonsense."""

from __future__ import annotations

import orjson

from router_core.testing.answer import RawAnswer
from router_core.testing.client import exchange_once
from router_core.testing.conformance.passing import TARGETS, bodies, replay
from router_core.testing.conformance.subject import Bench, Nonconformance, Subject
from router_core.testing.faults import Faults

NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{not json",
    "a JSON list": b"[1, 2]",
    "a JSON number": b"7",
    "null": b"null",
    "bytes that are no UTF-8": b'{"text": "\xff\xfe", "prompt": "\xff", "messages": "\xff"}',
    "an escaped lone surrogate": b'{"text": "\\ud800", "prompt": "\\ud800"}',
    "brackets, 3000 deep": b'{"text": ' + b"[" * 3000,
    "a number of 400 digits": b'{"text": "x", "n": ' + b"9" * 400 + b"}",
    "NaN": b'{"text": "x", "prompt": "x", "n": NaN}',
    "a key twice": b'{"text": "x", "text": 5, "prompt": "x", "prompt": 5}',
}
WRONG: tuple[object, ...] = (None, 5, "x", [], {}, [[]], [None], [{}], True, -1.5, "\x00")
KEYS = ("text", "prompt", "messages", "input_ids", "stream", "sampling_params", "model", "rid", "tools", "logprobs")
ANSWERS = {"garbage": Faults.garbage, "odd bytes": Faults.odd_bytes}


async def unknown_fields_pass(subject: Subject) -> None:
    """Keys and headers that nobody knows reach the worker, and the request is served."""
    async with subject.bench() as bench:
        asked = bodies(subject.engine, future_key={"deep": [1, None, "ü"]})
        for target, body in asked:
            answer = await bench.ask(target, [("x-future-header", "1")], json=body)
            if answer.status != 200:
                raise Nonconformance(f"a request for {target} with an unknown key got {answer.status}")
            got = bench.worker.requests[-1]
            if got.get("x-future-header") != "1":
                raise Nonconformance(f"a header that nobody knows does not reach the worker of {target}")
            if got.path == target and b"future_key" not in got.body:
                raise Nonconformance(f"a key that nobody knows does not reach the worker of {target}")
        await bench.settle(len(asked), "after unknown fields")
        bench.check_errors("after unknown fields")


async def nonsense_is_no_failure(subject: Subject) -> None:
    """Malformed bodies are the client's fault: a 4xx, or passed on; never a failing hook or a 500 of the router."""
    async with subject.bench() as bench:
        count = 0
        for target in TARGETS[subject.engine]:
            tried = {**NONSENSE}
            base = next(body for asked, body in bodies(subject.engine) if asked == target)
            bench.worker.handler = replay(await exchange_once(bench.worker.port, "POST", target, json=base))
            for key in KEYS:
                for value in WRONG:
                    tried[f"{key} = {value!r}"] = orjson.dumps({**base, key: value})
            for what, body in tried.items():
                answer = await bench.ask(target, [("content-type", "application/json")], body=body)
                count += 1
                _check(bench, answer, f"{what} as the body for {target}")
        await bench.settle(count, "after malformed bodies")
        bench.check_errors("after malformed bodies")


async def a_worker_may_answer_nonsense(subject: Subject) -> None:
    """What a worker answers may be no JSON, of the wrong shape or cut short: no hook fails for it."""
    async with subject.bench() as bench:
        count = 0
        for target, body in bodies(subject.engine):
            for what, fault in (
                *((name, make()) for name, make in ANSWERS.items()),
                ("no JSON", Faults.status(200, body=b"{half")),
                ("a JSON list", Faults.status(200, body=b"[]")),
                ("null", Faults.status(200, body=b"null")),
                ("an empty object", Faults.status(200, body=b"{}")),
                (
                    "wrong types",
                    Faults.status(200, body=b'{"text": 5, "meta_info": [], "choices": {}, "output_ids": 1}'),
                ),
                ("an empty body", Faults.status(200, body=b"")),
                ("a broken stream", Faults.close_amid(after_bytes=20)),
            ):
                bench.worker.fault(fault)
                answer = await bench.ask(target, json=body)
                bench.worker.clear_faults()
                count += 1
                _check(bench, answer, f"an answer for {target} that is {what}")
        await bench.settle(count, "after a worker's nonsense")
        bench.check_errors("after a worker's nonsense")


def _check(bench: Bench, answer: RawAnswer, what: str) -> None:
    if answer.get("x-router-error") in ("plugin_error", "internal_error"):
        raise Nonconformance(f"{what} ends in a 500 of the router: {answer.body[:300]!r}")
