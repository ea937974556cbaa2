"""What goes to the worker and what comes back to the client: capture adds a few keys, and the client sees none."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson
import pytest
from capture_kit import CHAT, Capturing, captured_worker, capturing, events, trained_tokenizer, turns
from router_tito.engines import ENGINES
from tito_kit import assistant, system, user

from router_core.testing import (
    Connection,
    Faults,
    RawAnswer,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_json,
    reply_pieces,
)

START = [system("S."), user("q1")]
DIALECTS = ["sglang", "vllm"]
ENDED = "two files<|im_end|>"


def ids(text: str = ENDED) -> list[int]:
    return trained_tokenizer().encode(text)


def said(worker: ScriptedWorker, text: str = "two files", **words: Any) -> list[int]:
    sampled = ids()
    worker.say(text, ids=sampled, **words)
    return sampled


def sampled(made: Capturing) -> list[list[int]]:
    return [list(view.completion_ids) for branch in made.branches() for view in branch.transitions]


# -------------------------------------------------------------------------------------------------------- to the worker
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_clients_bytes_reach_the_worker_and_keys_are_only_added(dialect: str) -> None:
    sent = b'{ "messages":[{"role":"user","content":"h\\u00e9"}],\n "x": -1E-05, "dup": 1, "dup": 2, "model":"m" }'
    async with captured_worker(dialect) as (worker, made):
        said(worker)
        await exchange_once(made.port, target=f"/sessions/s{CHAT}", body=sent)
        body = worker.requests[0].body
        assert body.startswith(sent.rstrip(b" }"))
        added = set(orjson.loads(body)) - {"messages", "x", "dup", "model"}
        assert (
            added
            == {
                "sglang": {"input_ids", "logprobs", "return_input_ids_in_sglext", "return_output_ids_in_sglext"},
                "vllm": {"kv_transfer_params", "logprobs", "return_token_ids"},
            }[dialect]
        )


async def test_a_clients_own_transfer_parameters_stay_beside_the_ids() -> None:
    async with captured_worker("vllm") as (worker, made):
        said(worker)
        await made.chat(START, kv_transfer_params={"do_remote_decode": False})
        transfer = turns(worker)[0]["kv_transfer_params"]
        assert transfer["do_remote_decode"] is False and transfer["prompt_token_ids"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_bodies_that_cannot_be_read_get_the_workers_own_answer(dialect: str) -> None:
    async with captured_worker(dialect) as (worker, made):
        bodies: Sequence[bytes] = (b"{", b"[]", b'{"messages":[]}', b'{"messages":null}', b"")
        for body in bodies:
            answer = await exchange_once(made.port, target=f"/sessions/s{CHAT}", body=body)
            straight = await exchange_once(worker.port, target=CHAT, body=body)
            assert (answer.status, answer.body) == (400, straight.body)
            assert answer.get("x-router-error") is None
        assert [request.body for request in worker.requests[::2]] == [request.body for request in worker.requests[1::2]]
        assert made.trace().turns == 0


async def test_messages_that_only_the_worker_can_read_make_a_turn_that_is_missed_visibly() -> None:
    async with captured_worker() as (worker, made):
        worker.handler = reply_json({"choices": []})
        answer = await made.chat([{"role": "assistant", "content": "x", "tool_calls": "none"}, user("q")])
        assert (answer.status, answer.get("x-router-untrainable")) == (200, "unreadable_request")
        assert made.trace().uncaptured == {"unreadable_request": 1}
        assert "input_ids" not in worker.requests[0].json()


async def test_a_compressed_body_passes_and_is_not_captured() -> None:
    async with captured_worker() as (worker, made):
        worker.handler = reply_json({"choices": []})
        body = gzip.compress(orjson.dumps({"messages": START}))
        answer = await exchange_once(
            made.port, target=f"/sessions/s{CHAT}", headers=[("Content-Encoding", "gzip")], body=body
        )
        assert answer.get("x-router-untrainable") == "unreadable_request"
        assert worker.requests[0].body == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"echo": True}, "echo"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [*START, assistant("The answer is")]}, "messages"),
    ],
)
@pytest.mark.parametrize(("mode", "dialect"), [(mode, kind) for mode, kinds in ENGINES.items() for kind in kinds])
async def test_what_no_record_can_represent_is_a_400_naming_the_field(
    mode: str, dialect: str, body: dict[str, Any], param: str
) -> None:
    async with captured_worker(dialect, mode=mode) as (worker, made):
        for stream in (False, True):
            refused = await made.chat(**{"messages": START, "stream": stream, **body})
            error = refused.json()["error"]
            assert (refused.status, error["param"], error["code"]) == (400, param, "not_capturable")
            assert (error["type"], set(error)) == ("invalid_request_error", {"message", "type", "param", "code"})
        assert worker.requests == []
        assert made.trace().turns == 0


async def test_the_values_that_ask_for_nothing_pass() -> None:
    async with captured_worker() as (worker, made):
        said(worker)
        nothing = {"n": 1, "best_of": 1, "use_beam_search": False, "echo": False, "continue_final_message": False}
        assert (await made.chat(START, **nothing, add_generation_prompt=True)).status == 200


# -------------------------------------------------------------------------------------------------------- to the client
def comparable(answer: RawAnswer, *, stream: bool) -> Any:
    """What a client can tell, without what differs from call to call."""
    told = events(answer) if stream else answer.json()
    return orjson.loads(orjson.dumps(told))


def has_content(event: dict[str, Any], wishes: dict[str, Any]) -> bool:
    """Whether vLLM sends this event: none for a token whose text is not there yet, which the scripted one does."""
    return bool(wishes.get("logprobs")) or all(c["delta"] or c["finish_reason"] for c in event["choices"])


@pytest.mark.parametrize("wishes", [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_reply_is_the_one_without_capture(dialect: str, stream: bool, wishes: dict[str, Any]) -> None:
    async with captured_worker(dialect) as (worker, made):
        worker.engine.experts = None if dialect == "vllm" else worker.engine.experts
        wishes = {**wishes, "stream": stream, "rid": "r", "request_id": "r"}
        if stream:
            wishes["stream_options"] = {"include_usage": True}
        replies = []
        for session_id in ("s", None):
            said(worker, reasoning="why")
            replies.append(await made.chat(START, session_id=session_id, **wishes))
        captured, plain = (comparable(reply, stream=stream) for reply in replies)
        if stream and dialect == "vllm":
            plain = [event for event in plain if has_content(event, wishes)]
            for event in captured:
                assert event.pop("prompt_token_ids", None) is None
                assert event.pop("prompt_text", None) is None
                assert all(choice.pop("token_ids", None) is None for choice in event["choices"])
        for told in (captured, plain):
            for holder in told if stream else [told]:
                usage = holder.get("usage") or {}
                usage.pop("prompt_tokens", None), usage.pop("total_tokens", None)
        assert captured == plain
        assert sampled(made) == [ids()]


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_the_client_asked_for_itself_stay_in_its_reply(stream: bool) -> None:
    async with captured_worker("vllm") as (worker, made):
        said(worker)
        answer = await made.chat(START, return_token_ids=True, stream=stream)
        told = events(answer) if stream else [answer.json()]
        assert told[0]["prompt_token_ids"] == turns(worker)[0]["kv_transfer_params"]["prompt_token_ids"]
        given = [choice.get("token_ids") or [] for event in told for choice in event["choices"]]
        assert list(chain.from_iterable(given)) == ids()
    async with captured_worker("sglang") as (worker, made):
        said(worker)
        answer = await made.chat(START, return_output_ids_in_sglext=True, stream=stream)
        told = events(answer) if stream else [answer.json()]
        assert [event["sglext"] for event in told if "sglext" in event] == [{"output_ids": [ids()]}]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_events_pass_while_the_worker_still_generates(dialect: str) -> None:
    async with captured_worker(dialect) as (worker, made), RawClient(made.port) as client:
        words = worker.say("two files", ids=ids("two files"), finish="stop", hold_after=3)
        request = {"messages": START, "stream": True}
        await client.send(build_request(target=f"/sessions/s{CHAT}", json=request))
        answer = await client.read_head()
        while b'"t' not in answer.body:
            await client.read_piece(answer)
        assert b'finish_reason":"stop' not in answer.body
        assert sampled(made) == []
        words.release()
        await client.read_body(answer)
        assert answer.clean is True and sampled(made) == [ids("two files")]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_last_event_leaves_only_when_the_turn_is_in_the_trace(dialect: str) -> None:
    seen: list[tuple[bool, int]] = []

    class Watch:
        from router_core import hookimpl

        @hookimpl
        def response_chunk(self, chunk: bytes) -> None:
            is_last = b'"finish_reason":"stop"' in chunk or b"[DONE]" in chunk
            seen.append((is_last, len(sampled(made))))

    async with captured_worker(dialect, classes=[Watch]) as (worker, made):
        words = worker.say("two files", ids=ids(), hold_after=2)
        async with RawClient(made.port) as client:
            await client.send(build_request(target=f"/sessions/s{CHAT}", json={"messages": START, "stream": True}))
            answer = await client.read_head()
            await client.read_piece(answer)
            words.release()
            await client.read_body(answer)
        assert answer.clean is True
    assert {count for is_last, count in seen if is_last} == {1}
    assert seen[0] == (False, 0)


# ------------------------------------------------------------------------------------------------- answers without end
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_that_breaks_off_breaks_off_for_the_client_and_is_not_kept(dialect: str, stream: bool) -> None:
    async with captured_worker(dialect) as (worker, made):
        said(worker)
        worker.fault(Faults.close_amid(after_bytes=120))
        answer = await made.chat(START, stream=stream)
        if stream:
            assert (answer.status, answer.clean) == (200, False)
        else:
            assert (answer.status, answer.json()["error"]["code"]) == (502, "worker_lost")
        assert sampled(made) == [] and made.trace().trace.refused == {"failed": 1}
        kept = said(worker)
        assert (await made.chat(START, stream=stream)).status == 200
        assert sampled(made) == [kept]


async def test_done_alone_is_no_success() -> None:
    start = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}\n\n'
    async with captured_worker() as (worker, made):
        worker.handler = reply_pieces([start, b"data: [DONE]\n\n"])
        answer = await made.chat(START, stream=True)
        assert (answer.clean, answer.body) == (True, start + b"data: [DONE]\n\n")
        assert made.trace().trace.refused == {"unfinished": 1}
        assert sampled(made) == []


async def test_an_error_event_in_a_stream_passes_and_the_turn_counts_as_failed() -> None:
    pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"h"}}]}\n\n', b'data: {"error":{"message":"x"}}\n\n']
    async with captured_worker() as (worker, made):
        worker.handler = reply_pieces([*pieces, b"data: [DONE]\n\n"])
        answer = await made.chat(START, stream=True)
        assert answer.body == b"".join(pieces) + b"data: [DONE]\n\n"
        assert made.trace().trace.refused == {"failed": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_workers_error_passes_verbatim_and_leaves_no_turn(stream: bool) -> None:
    async with captured_worker() as (worker, made):
        worker.fault(Faults.status(503, body=b'{"error":"busy"}'))
        answer = await made.chat(START, stream=stream)
        assert (answer.status, answer.body) == (503, b'{"error":"busy"}')
        assert answer.get("x-router-error") is None
        assert made.trace().trace.refused == {"status_503": 1} and made.trace().turns == 0


# ------------------------------------------------------------------------------------------- answers that are not whole
async def without(request: ScriptedRequest, connection: Connection, worker: ScriptedWorker, *keys: str) -> bool | None:
    """Answer as the engine would that never heard of these keys."""
    body = request.json()
    for key in keys:
        body.pop(key, None)
    request.body = orjson.dumps(body)
    return await worker.engine.answer(request, connection)


def deaf(worker: ScriptedWorker, *keys: str) -> None:
    async def handler(request: ScriptedRequest, connection: Connection) -> bool | None:
        return await without(request, connection, worker, *keys)

    worker.handler = handler


@pytest.mark.parametrize(
    ("dialect", "key", "reason"),
    [
        ("sglang", "logprobs", "logprobs_missing"),
        ("sglang", "return_output_ids_in_sglext", "completion_ids_missing"),
        ("sglang", "return_input_ids_in_sglext", "prompt_ids_missing"),
        ("vllm", "logprobs", "logprobs_missing"),
        ("vllm", "return_token_ids", "completion_ids_missing"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_ids_or_logprobs_is_marked_untrainable(
    dialect: str, key: str, reason: str, stream: bool
) -> None:
    async with captured_worker(dialect) as (worker, made):
        deaf(worker, key)
        said(worker)
        answer = await made.chat(START, stream=stream)
        assert answer.status == 200 and answer.clean is True
        assert answer.get("x-router-untrainable") == (None if stream else reason)
        trace = made.trace()
        assert trace.uncaptured == {reason: 1} and trace.turns == 1 and sampled(made) == []
        assert f'router_tito_untrainable_total{{reason="{reason}"}} 1' in (made.tito.metrics() or "")
        described = (await made.get("/sessions/s")).json()["metadata"]
        assert described["untrainable"] == {reason: 1}


def miscounting(worker: ScriptedWorker, true: ScriptedWorker, *, is_less: bool) -> None:
    """Answer as ``true`` does, with a logprob less or more than there are ids."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool | None:
        told = await exchange_once(true.port, target=CHAT, body=request.body)
        entries = re.findall(rb'"content":\[(\{"token".*?\})\]', told.body)
        first = entries[0].split(b',{"token"')[0]
        other = entries[0][len(first) + 1 :] if is_less else first + b"," + entries[0]
        body = told.body.replace(entries[0], other, 1)
        assert body != told.body
        return await reply(body, content_type=told.get("content-type"))(request, connection)

    worker.handler = handler


@pytest.mark.parametrize("is_less", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_with_another_number_of_logprobs_than_ids_is_marked_untrainable(
    dialect: str, stream: bool, is_less: bool
) -> None:
    async with ScriptedWorker(dialect) as true, captured_worker(dialect) as (worker, made):
        miscounting(worker, true, is_less=is_less)
        said(true)
        answer = await made.chat(START, stream=stream)
        assert answer.status == 200 and answer.clean is True
        assert (b"data: [DONE]" if stream else b"two files") in answer.body
        assert answer.get("x-router-untrainable") == (None if stream else "logprobs_missing")
        assert made.trace().uncaptured == {"logprobs_missing": 1} and sampled(made) == []


async def test_a_branch_that_goes_on_from_an_untrainable_answer_is_incomplete() -> None:
    async with captured_worker() as (worker, made):
        deaf(worker, "logprobs")
        said(worker)
        first = (await made.chat(START)).json()["choices"][0]["message"]
        worker.handler = worker.engine.answer
        said(worker)
        await made.chat([*START, first, user("q2")])
        assert made.branches()[0].reasons == ["turn 1 was not captured: logprobs_missing"]


async def test_an_untrainable_turn_fails_where_that_is_set() -> None:
    async with captured_worker(on_uncapturable="fail") as (worker, made):
        deaf(worker, "logprobs")
        said(worker)
        answer = await made.chat(START)
        assert (answer.status, answer.json()["error"]["code"]) == (502, "untrainable")
        assert "logprobs_missing" in answer.json()["error"]["message"]
        said(worker)
        broken = await made.chat(START, stream=True)
        assert (broken.status, broken.clean) == (200, False)
        assert b"[DONE]" not in broken.body and b'"finish_reason":"stop"' not in broken.body
        worker.handler = worker.engine.answer
        kept = said(worker)
        assert (await made.chat(START)).status == 200
        assert sampled(made) == [kept]


async def test_several_choices_are_answered_and_not_captured() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    async with captured_worker() as (worker, made):
        worker.handler = reply_json({"choices": [choice, {**choice, "index": 1}]})
        answer = await made.chat(START)
        assert answer.get("x-router-untrainable") == "many_choices"
        assert len(answer.json()["choices"]) == 2


@pytest.mark.parametrize("body", [b"no json", b"[1]", b"{}", b'{"choices":[]}', b'{"choices":[5]}'])
async def test_an_answer_that_is_no_chat_passes_and_is_marked(body: bytes) -> None:
    async with captured_worker() as (worker, made):
        worker.handler = await _json_reply(body)
        answer = await made.chat(START)
        assert (answer.status, answer.body, answer.get("x-router-untrainable")) == (200, body, "unreadable_answer")


async def _json_reply(body: bytes) -> Any:
    from router_core.testing import reply

    return reply(body)


async def test_a_compressed_answer_passes_and_is_marked() -> None:
    from router_core.testing import reply

    body = gzip.compress(b'{"choices":[]}')
    async with captured_worker() as (worker, made):
        worker.handler = reply(body, headers=[("Content-Encoding", "gzip")])
        answer = await made.chat(START)
        assert (answer.body, answer.get("x-router-untrainable")) == (body, "encoded_answer")
        assert worker.requests[0].get("accept-encoding") == "identity"


# ------------------------------------------------------------------------------------------------- what is not injected
async def test_content_that_is_not_text_is_observed() -> None:
    async with captured_worker() as (worker, made):
        kept = said(worker)
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
        answer = await made.chat([{"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
        assert answer.status == 200 and "input_ids" not in turns(worker)[0]
        assert sampled(made) == [kept]
        assert made.tito.capture.counts.observed == {"media": 1}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_ids_that_the_client_brings_are_left_to_it(dialect: str) -> None:
    own = ids("hello")
    keys = {"sglang": {"input_ids": own}, "vllm": {"kv_transfer_params": {"prompt_token_ids": own}}}
    async with captured_worker(dialect) as (worker, made):
        kept = said(worker)
        await made.chat(START, **keys[dialect])
        view = made.branches()[0].transitions[0]
        assert (list(view.prompt_ids), list(view.completion_ids)) == (own, kept)
        assert made.tito.capture.counts.observed == {"client_ids": 1}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_observing_asks_for_ids_and_gives_none(dialect: str) -> None:
    async with captured_worker(dialect, mode="observe") as (worker, made):
        await made.tito.capture.renderers.get()
        kept = said(worker)
        first = (await made.chat(START)).json()["choices"][0]["message"]
        said(worker)
        await made.chat([*START, first, user("q2")])
        assert all("input_ids" not in body and "kv_transfer_params" not in body for body in turns(worker))
        assert sampled(made) == [kept, kept]
        await made.settle()
        assert sum(made.trace().drift.values()) == 2  # the scripted worker has a tokenizer of its own


async def test_observing_needs_no_tokenizer() -> None:
    async with ScriptedWorker() as worker:
        from router_core.testing.router import running_router

        async with running_router([worker.url], enabled=["tito"], plugins={"tito": {"mode": "observe"}}) as running:
            await exchange_once(running.port, target="/sessions", json={"session_id": "s"})
            said(worker)
            answer = await exchange_once(running.port, target=f"/sessions/s{CHAT}", json={"messages": START})
            assert answer.status == 200
            shown = await exchange_once(running.port, "GET", "/sessions/s")
            assert shown.json()["trajectories"][0]["accumulated_token_ids"][-len(ids()) :] == ids()


# ---------------------------------------------------------------------------------------------------------------- drift
def change_prompt_ids(worker: ScriptedWorker, change: Any) -> None:
    """The worker says that it generated from other ids than it was given."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool | None:
        body = request.json()
        if "input_ids" in body:
            body["input_ids"] = change(body["input_ids"])
            request.body = orjson.dumps(body)
        return await worker.engine.answer(request, connection)

    worker.handler = handler


async def drift_of(change: Any, messages: Sequence[dict[str, Any]] = START) -> dict[str, int]:
    async with captured_worker() as (worker, made):
        said(worker)
        first = (await made.chat(START)).json()["choices"][0]["message"]
        change_prompt_ids(worker, change)
        said(worker)
        await made.chat([*START, first, user("q2")])
        await made.settle()
        assert sampled(made)[-1] == ids() and len(made.branches()) in (1, 2)
        return dict(made.trace().drift)


async def test_ids_that_the_worker_cut_otherwise_count_as_retokenised() -> None:
    tokenizer = trained_tokenizer()

    def recut(given: list[int]) -> list[int]:
        text = tokenizer.decode(given)
        at = text.index("system") + 2
        return [*tokenizer.encode(text[:at]), *tokenizer.encode(text[at:])]

    assert await drift_of(recut) == {"retokenised": 1}


async def test_other_ids_count_as_other_drift() -> None:
    assert await drift_of(lambda given: [*given, 5]) == {"other": 1}


async def test_a_prompt_by_the_workers_template_counts_as_template_drift() -> None:
    tokenizer = trained_tokenizer()
    text = "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n"
    text += "<|im_start|>assistant\nsame<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n"
    async with captured_worker() as (worker, made):
        worker.say("same", ids=tokenizer.encode("<think>\nwhy\n</think>\n\nsame<|im_end|>"))
        await made.chat(START)
        change_prompt_ids(worker, lambda given: tokenizer.encode(text))
        said(worker)
        await made.chat([*START, assistant("same"), user("q2")])
        await made.settle()
        assert made.trace().drift == {"template": 1}
        assert len(made.branches()) == 2


async def test_prompts_without_drift_are_not_counted() -> None:
    assert await drift_of(lambda given: given) == {}


# ------------------------------------------------------------------------------------------------------ kinds of worker
async def test_a_worker_that_does_not_say_what_it_is_is_passed_to_and_marked() -> None:
    async with captured_worker() as (worker, made):
        worker.health.status = 404
        said(worker)
        answer = await made.chat(START)
        assert (answer.status, answer.get("x-router-untrainable")) == (200, "unknown_worker")
        assert "input_ids" not in turns(worker)[0] and answer.json()["choices"][0]["logprobs"] is None
        said(worker)
        streamed = await made.chat(START, stream=True)
        assert (streamed.clean, streamed.get("x-router-untrainable")) == (True, "unknown_worker")
        assert sampled(made) == []
        worker.health.status = 200
        kept = said(worker)
        await made.chat(START)
        assert sampled(made) == [kept]


async def test_a_worker_that_does_not_say_what_it_is_gets_nothing_where_that_fails() -> None:
    async with captured_worker(on_uncapturable="fail") as (worker, made):
        worker.health.status = 404
        answer = await made.chat(START)
        assert (answer.status, answer.json()["error"]["code"]) == (502, "untrainable")
        assert turns(worker) == []


async def test_the_kind_of_a_worker_can_be_set() -> None:
    async with captured_worker("vllm", worker_kind="vllm") as (worker, made):
        kept = said(worker)
        await made.chat(START)
        assert sampled(made) == [kept]


async def test_each_worker_is_asked_once_and_written_to_in_its_dialect() -> None:
    async with ScriptedWorker("sglang") as one, ScriptedWorker("vllm") as other, capturing(one, other) as made:
        for number in range(6):
            await made.open(f"s{number}")
        for worker in (one, other):
            worker.say("two files", ids=ids(), times=None)
        await asyncio.gather(*(made.chat(START, session_id=f"s{number}") for number in range(6)))
        assert {"input_ids" in body for body in turns(one)} == {True}
        assert {"kv_transfer_params" in body for body in turns(other)} == {True}
        assert [len(worker.health_requests) for worker in (one, other)] == [1, 1]
        assert all(len(made.branches(f"s{number}")) == 1 for number in range(6))


async def test_a_turn_that_is_tried_on_another_worker_is_written_in_that_ones_dialect() -> None:
    async with ScriptedWorker("sglang") as gone, ScriptedWorker("vllm") as worker:
        chain = ("tito", "retry", "round_robin")
        async with capturing(gone, worker, enabled=chain, on_uncapturable="fail") as made:
            await made.open()
            gone.refuse()
            for number in range(2):
                kept = said(worker)
                answer = await made.chat([user(f"q{number}")])
                assert (answer.status, answer.get("x-router-worker")) == (200, worker.url)
                assert sampled(made)[number] == kept
            assert {answer.get("x-router-attempts")} <= {"1", "2"}
            assert all("kv_transfer_params" in body and "input_ids" not in body for body in turns(worker))
            assert made.tito.capture.counts.untrainable == {}
