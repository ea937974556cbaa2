from __future__ import annotations

import numpy as np
import orjson
import pytest
from router_routed_experts.plugin import RoutedExpertsPlugin
from router_routed_experts.rows import Layout

from router_core import ConfigError
from router_core.app import Application
from router_core.config import load
from router_core.testing import Experts, Faults, exchange_once, reply
from router_core.testing.clock import TurnedClock

from .over_http import EXPERTS, LAYERS, TOP_K, Joined, routed, rows_of

PROMPT, SAMPLED = [11, 12, 13, 14, 15], [21, 22, 23]
MESSAGES = [{"role": "user", "content": "hi"}]


def events_of(body: bytes) -> list[dict]:
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [orjson.loads(part) for part in parts if part != b"[DONE]"]


def without(value: object, *keys: str) -> object:
    if isinstance(value, list):
        return [without(part, *keys) for part in value]
    if isinstance(value, dict):
        return {key: without(part, *keys) for key, part in value.items() if key not in keys}
    return value


# ------------------------------------------------------------------------------------- what is asked and what is shown
@pytest.mark.parametrize("is_stream", [False, True])
async def test_generate_is_asked_for_experts_that_the_client_does_not_see(is_stream: bool) -> None:
    async with routed() as router:
        shown = await router.generate(PROMPT, SAMPLED, rid="r1", stream=is_stream)
        assert router.sent["return_routed_experts"] is True
        assert b"routed_experts" not in shown.body
        if is_stream:
            assert len(events_of(shown.body)) == len(SAMPLED)
        else:
            direct = await exchange_once(router.worker.port, json={"input_ids": PROMPT, "rid": "r1"})
            assert shown.json()["meta_info"].keys() == direct.json()["meta_info"].keys()
        assert (await router.rows("r1") == rows_of(PROMPT + SAMPLED)).all()


async def test_a_client_that_asks_itself_gets_the_workers_bytes() -> None:
    async with routed() as router:
        shown = await router.generate(PROMPT, SAMPLED, rid="r1", return_routed_experts=True)
        router.worker.say("xxx", ids=SAMPLED)
        direct = await exchange_once(
            router.worker.port, json={"input_ids": PROMPT, "rid": "r1", "return_routed_experts": True}
        )
        assert shown.body == direct.body
        assert shown.get("content-length") == str(len(direct.body))
        assert (await router.rows("r1") == rows_of(PROMPT + SAMPLED)).all()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_of_sglang_shows_no_trace_of_what_was_asked(is_stream: bool) -> None:
    async with routed() as router:
        router.worker.say("hello", times=2)
        asked = {"messages": MESSAGES, "rid": "r1", "stream": is_stream}
        shown = await router.ask("/v1/chat/completions", **asked)
        router.worker.engine.experts = None
        direct = await exchange_once(router.worker.port, target="/v1/chat/completions", json=asked)
        assert shown.body == direct.body
        ids = [*router.worker.requests[0].json()["messages"][0]["content"]]
        assert ids
        rows = await router.rows("r1")
        assert rows.shape == (len(rows), LAYERS, TOP_K)


async def test_a_chat_of_sglang_that_is_asked_for_other_extensions_keeps_those() -> None:
    async with routed() as router:
        asked = {"messages": MESSAGES, "rid": "r1", "stream": True, "return_output_ids_in_sglext": True}
        router.worker.say("hello")
        shown = await router.ask("/v1/chat/completions", **asked)
        [extension] = [event["sglext"] for event in events_of(shown.body) if "sglext" in event]
        assert extension.keys() == {"output_ids"}
        await router.rows("r1")


async def test_a_chat_client_that_asks_itself_finds_the_experts_where_they_belong() -> None:
    async with routed() as router:
        for is_stream in (False, True):
            router.worker.say("hello", times=2)
            asked = {"messages": MESSAGES, "rid": "r1", "stream": is_stream, "return_routed_experts": True}
            shown = await router.ask("/v1/chat/completions", **asked)
            direct = await exchange_once(router.worker.port, target="/v1/chat/completions", json=asked)
            assert shown.body == direct.body
            await router.rows("r1")


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/completions"])
async def test_vllm_tells_experts_by_itself_and_they_are_taken_out(target: str) -> None:
    async with routed("vllm") as router:
        router.worker.say("hello", ids=SAMPLED, times=2)
        prompt = {"messages": MESSAGES} if "chat" in target else {"prompt": PROMPT}
        asked = {**prompt, "request_id": "q1", "model": "scripted"}
        shown = await router.ask(target, **asked)
        router.worker.engine.experts = None
        direct = await exchange_once(router.worker.port, target=target, json=asked)
        hidden = ("routed_experts", "token_ids", "prompt_token_ids")
        assert without(shown.json(), *hidden) == without(direct.json(), *hidden)
        assert "routed_experts" not in shown.json()["choices"][0]
        rows = await router.rows(shown.json()["id"])
        if "chat" not in target:
            assert (rows == rows_of(PROMPT + SAMPLED)).all()


async def test_a_stream_of_vllm_has_no_experts_and_is_marked() -> None:
    async with routed("vllm") as router:
        shown = await router.ask("/v1/completions", prompt=PROMPT, stream=True, request_id="q1", model="scripted")
        assert b"token_ids" not in shown.body
        assert await router.reason("cmpl-q1") == "missing: routed experts were asked for and none came"
        await router.ask("/v1/chat/completions", messages=MESSAGES, stream=True, request_id="q2", model="scripted")
        assert await router.reason("chatcmpl-q2") == "missing: routed experts were asked for and none came"


async def test_other_paths_errors_and_bodies_that_are_none_pass_as_they_are() -> None:
    async with routed() as router:
        for target, body in (
            ("/v1/embeddings", b'{"input" : "a"}'),
            ("/generate", b'{"text" :'),
            ("/generate", b'[{"text" : "a"}]'),
            ("/generate", b""),
        ):
            answer = await exchange_once(router.port, target=target, body=body)
            direct = await exchange_once(router.worker.port, target=target, body=body)
            assert router.worker.requests[-2].body == body
            assert (answer.status, answer.body) == (direct.status, direct.body)
        router.worker.fault(Faults.status(500, body=b'{"routed_experts":"AAAA"}'))
        answer = await exchange_once(router.port, json={"input_ids": PROMPT, "rid": "r1"})
        assert answer.body == b'{"routed_experts":"AAAA"}'
        await router.show("r1", 404)


async def test_a_batch_has_rows_for_each_of_its_answers() -> None:
    async with routed() as router:
        router.worker.say("x", ids=SAMPLED, times=2)
        shown = await router.ask("/generate", input_ids=[PROMPT, [*PROMPT, 1]])
        first, second = (part["meta_info"]["id"] for part in shown.json())
        assert (await router.rows(first) == rows_of(PROMPT + SAMPLED)).all()
        assert (await router.rows(second) == rows_of([*PROMPT, 1, *SAMPLED])).all()


# -------------------------------------------------------------------------------------------------------- in a session
async def test_a_session_asks_for_each_row_once() -> None:
    async with routed() as router:
        ids: list[int] = [5] * 10
        asked, moved = [], 0
        for turn in range(8):
            await router.generate(ids, SAMPLED, {"x-session-id": "s"}, rid=f"r{turn}")
            asked.append(router.sent.get("routed_experts_start_len", 0))
            ids = [*ids, *SAMPLED]
            moved += len(ids) - 1 - asked[-1]
            assert (await router.rows(f"r{turn}") == rows_of(ids)).all()
            ids += [30 + turn] * 4
        assert asked == [0, *(16 + 7 * turn - 4 for turn in range(7))]
        assert moved == len(ids) - 4 - 1
        assert f"router_routed_experts_rows_total {moved}\n" in router.metrics()


async def test_a_turn_that_leaves_the_trajectory_asks_from_where_it_left() -> None:
    async with routed() as router:
        headers = {"x-session-id": "s"}
        await router.generate(PROMPT, SAMPLED, headers, rid="a")
        await router.generate([*PROMPT[:3], 9, 9, 9], SAMPLED, headers, rid="b")
        assert router.sent["routed_experts_start_len"] == 3
        assert (await router.rows("b") == rows_of([*PROMPT[:3], 9, 9, 9, *SAMPLED])).all()
        await router.generate([*PROMPT, *SAMPLED, 8], SAMPLED, headers, rid="c")
        assert router.sent["routed_experts_start_len"] == 7
        assert (await router.rows("c") == rows_of([*PROMPT, *SAMPLED, 8, *SAMPLED])).all()


async def test_no_row_behind_the_prompts_last_but_one_is_left_out() -> None:
    async with routed("vllm") as router:
        headers = {"x-session-id": "s"}

        async def complete(prompt: list[int], request_id: str) -> int:
            router.worker.say("x", ids=SAMPLED)
            await router.ask("/v1/completions", headers, prompt=prompt, request_id=request_id, model="scripted")
            return router.sent.get("routed_experts_prompt_start", 0)

        whole = [*PROMPT, *SAMPLED]
        assert await complete(PROMPT, "a") == 0
        assert await complete(whole, "b") == len(whole) - 1  # the whole prompt was seen: vLLM dies of its length
        assert await complete(PROMPT, "c") == len(PROMPT) - 1
        assert (await router.rows("cmpl-b") == rows_of([*whole, *SAMPLED])).all()
        assert (await router.rows("cmpl-c") == rows_of([*PROMPT, *SAMPLED])).all()


async def test_rows_made_while_decoding_stay_where_a_later_full_answer_has_others() -> None:
    async with routed() as router:
        headers = {"x-session-id": "s"}
        await router.generate(PROMPT, SAMPLED, headers, rid="a")
        whole = [*PROMPT, *SAMPLED]
        router.worker.engine.experts = others = Experts(LAYERS, TOP_K, 7)
        await router.generate([*whole, 9], SAMPLED, headers, rid="b", return_routed_experts=True)
        rows = await router.rows("b")
        assert (rows[:7] == rows_of(whole)).all()
        assert rows[7:].reshape(len(rows) - 7, -1).tolist() == others.rows([*whole, 9, *SAMPLED], 7)


async def test_a_session_that_lost_an_answer_stays_incomplete() -> None:
    async with routed() as router:
        headers = {"x-session-id": "s"}
        router.worker.engine.experts = None
        await router.generate(PROMPT, SAMPLED, headers, rid="a")
        router.worker.engine.experts = EXPERTS
        await router.generate([*PROMPT, *SAMPLED, 8], SAMPLED, headers, rid="b")
        assert "missing" in await router.reason("b")
        assert (await router.rows("b", "?partial=1") == rows_of([*PROMPT, *SAMPLED, 8, *SAMPLED])).all()


async def test_layers_that_change_within_a_session_are_marked() -> None:
    async with routed(settings={}) as router:
        headers = {"x-session-id": "s"}
        ids = PROMPT
        for rid, layers in (("a", 2), ("b", 3)):
            experts = Experts(layers, TOP_K, 8)
            value = {"data": experts.to_sglang([*ids, *SAMPLED]), "shape": [len(ids) + 2, layers, TOP_K], "start": 0}
            meta = {"id": rid, "prompt_tokens": len(ids), "completion_tokens": 3, "routed_experts": value}
            body = orjson.dumps({"text": "x", "output_ids": SAMPLED, "meta_info": meta})
            router.worker.handler = reply(body)
            await exchange_once(router.port, headers=headers, json={"input_ids": ids})
            ids = [*ids, *SAMPLED, 9]
        assert (await router.reason("b")).startswith("shape: ")


async def test_a_dtype_that_changes_within_a_session_is_marked() -> None:
    async with routed() as router:
        headers = {"x-session-id": "s"}
        ids = PROMPT
        for rid, form in (("a", EXPERTS.to_sglang), ("b", EXPERTS.to_sglang), ("c", EXPERTS.to_vllm)):
            whole = [*ids, *SAMPLED]
            meta = {"id": rid, "prompt_tokens": len(ids), "completion_tokens": 3, "routed_experts": form(whole)}
            body = orjson.dumps({"text": "x", "output_ids": SAMPLED, "meta_info": meta})
            router.worker.handler = reply(body)
            asked = {"input_ids": ids, "rid": rid, "return_routed_experts": True}
            assert (await exchange_once(router.port, headers=headers, json=asked)).body == body
            ids = [*whole, 9]
            if rid != "c":
                assert (await router.rows(rid) == rows_of(whole)).all()
        assert await router.reason("c") == "dtype_changed: uint8 behind rows that came as int32"
        assert f'incomplete_total{{reason="dtype_changed",worker="{router.worker.url}"}} 1' in router.metrics()


async def test_a_session_says_what_is_kept_of_it_until_it_is_closed() -> None:
    async with routed() as router:
        await exchange_once(router.port, target="/sessions", json={"session_id": "s1"})
        router.worker.say("x", ids=SAMPLED)
        await router.ask("/sessions/s1/generate", input_ids=PROMPT, rid="r1")
        told = (await exchange_once(router.port, "GET", "/sessions/s1")).json()["routed_experts"]
        assert told == [{"rid": "r1", "rows": 7, "first_row": 0, "complete": True, "reasons": []}]
        await exchange_once(router.port, "DELETE", "/sessions/s1")
        assert len(await router.rows("r1")) == 7


# --------------------------------------------------------------------------------------------------- what goes wrong
async def test_an_answer_that_breaks_off_is_marked_and_breaks_for_the_client() -> None:
    async with routed() as router:
        router.worker.say("x", ids=SAMPLED)
        router.worker.fault(Faults.close_amid(after_bytes=200))
        answer = await exchange_once(
            router.port, json={"input_ids": PROMPT, "rid": "r1", "return_routed_experts": True}
        )
        assert answer.clean is False
        assert (await router.reason("r1")).startswith("broken: ")


async def test_without_the_models_layout_raw_values_are_marked() -> None:
    async with routed(settings={}) as router:
        await router.generate(PROMPT, SAMPLED, rid="r1")
        assert (await router.reason("r1")).startswith("layout_unknown: ")


async def test_an_expert_that_the_model_does_not_have_and_rows_of_zeros_are_marked() -> None:
    async with routed() as router:
        router.worker.engine.experts = Experts(LAYERS, TOP_K, 9)
        await router.generate([8, 8, 8], [8, 8], rid="r1")
        assert (await router.reason("r1")).startswith("id_range: ")
        meta = {"id": "r2", "prompt_tokens": 3, "completion_tokens": 1, "routed_experts": "AAAA" * 16}
        router.worker.handler = reply(orjson.dumps({"text": "x", "meta_info": meta}))
        await exchange_once(router.port, json={"input_ids": [1, 2, 3]})
        assert (await router.reason("r2")).startswith("zero_rows: ")


async def test_an_answer_that_does_not_count_its_tokens_is_marked() -> None:
    async with routed() as router:
        meta = {"id": "r1", "routed_experts": "AQID" * 16}
        router.worker.handler = reply(orjson.dumps({"text": "x", "meta_info": meta}))
        await exchange_once(router.port, json={"text": "a"})
        assert await router.reason("r1") == "tokens_unknown: the answer does not say how many tokens it has"


async def test_an_answer_that_is_no_json_passes_and_is_marked() -> None:
    async with routed() as router:
        router.worker.handler = reply(b'{"text": "routed_experts')
        answer = await exchange_once(router.port, json={"text": "a", "rid": "r1"})
        assert answer.body == b'{"text": "routed_experts'
        assert (await router.reason("r1")).startswith("unreadable: ")


# -------------------------------------------------------------------------------------------------------- what is kept
async def test_the_oldest_rows_go_above_the_bound_and_all_go_after_their_time() -> None:
    clock = TurnedClock()
    settings = {"layers": LAYERS, "top_k": TOP_K, "max_bytes": 3000, "ttl_s": 100}
    async with routed(settings=settings, clock=clock) as router:
        for number in range(3):
            await router.generate(PROMPT, SAMPLED, rid=f"r{number}")
        await router.show("r0", 404)
        assert len(await router.rows("r2")) == 7
        assert "router_routed_experts_dropped_total 1\n" in router.metrics()
        await clock.turn(200)
        assert "router_routed_experts_entries 0\n" in router.metrics()
        await router.show("r2", 404)


async def test_a_rid_that_is_used_again_names_the_newer_answer() -> None:
    async with routed() as router:
        await router.generate(PROMPT, SAMPLED, rid="same")
        await router.generate([1, 2], [3], rid="same")
        assert (await router.rows("same") == rows_of([1, 2, 3])).all()


async def test_wrong_questions_are_told() -> None:
    async with routed() as router:
        await router.generate(PROMPT, SAMPLED, rid="a/b c")
        assert len(await router.rows("a%2Fb%20c")) == 7
        refused = await router.show("r", 404)
        assert refused.json()["error"]["param"] == "rid"
        refused = await router.show("a%2Fb%20c", 400, "?partial=maybe")
        assert refused.json()["error"]["param"] == "partial"
        assert (await exchange_once(router.port, "POST", "/routed_experts/r")).status == 405


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "/no/such"}, "name a checkpoint's directory"),
        ({"layers": 2}, "layers and top_k belong together"),
        ({"num_experts": 8}, "layers and top_k belong together"),
        ({"model": "/no/such", "layers": 2, "top_k": 2}, "model tells it already: layers, top_k"),
        ({"layers": 0, "top_k": 2}, "layers"),
    ],
)
def test_wrong_settings_are_errors_at_start(settings, said) -> None:
    tables = {"enabled": ["routed_experts"], "plugins": {"routed_experts": settings}}
    with pytest.raises(ConfigError) as error:
        Application(load(tables, file="", environment={}))
    assert said in str(error.value)
    assert "plugins.routed_experts" in str(error.value)


def test_the_layout_may_come_from_a_checkpoint(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers":2,"num_experts_per_tok":2,"num_experts":8}')
    assert RoutedExpertsPlugin.Settings(model=str(tmp_path)).layout() == Layout(2, 2, 8, frozenset())
    assert RoutedExpertsPlugin.Settings().layout() is None


# --------------------------------------------------------------------------------------------- joined, switched on, off
async def test_another_plugin_finds_the_rows_of_an_answer_on_its_exchange() -> None:
    joined = Joined()
    trace = joined.plugin()
    async with routed(enabled=(), classes=[trace], router={"available": ["routed_experts"]}) as router:
        on = {"x-router-plugins": "+routed_experts", "x-session-id": "s"}
        await router.generate(PROMPT, SAMPLED, on)
        await router.generate([*PROMPT, *SAMPLED, 8], SAMPLED, on, stream=True)
        router.worker.engine.experts = None
        await router.generate(PROMPT, SAMPLED, {"x-router-plugins": "+routed_experts"})
        await router.generate(PROMPT, [], {"x-router-plugins": "+routed_experts"}, finish="abort")
        await router.generate(PROMPT, SAMPLED)
    first, second, missing, aborted, off = joined.found
    assert (first.start, first.fault) == (0, "")
    assert (first.rows == rows_of(PROMPT + SAMPLED)).all()
    assert not first.rows.flags.writeable
    assert second.start == 7
    assert (second.rows == rows_of([*PROMPT, *SAMPLED, 8, *SAMPLED])[7:]).all()
    assert (missing.rows, missing.fault) == (None, "missing: routed experts were asked for and none came")
    assert (aborted.rows, aborted.fault) == (None, "")
    assert off is None


@pytest.mark.parametrize("headers", [{"x-router-plugins": "-routed_experts"}, {"x-router-profile": "plain"}])
async def test_switched_off_it_leaves_no_trace(headers) -> None:
    async with routed(profiles={"plain": {"disable": ["routed_experts"]}}) as router:
        asked = b'{"input_ids" : [1,2,3],"rid":"r1", "return_routed_experts":true}'
        router.worker.say("x", ids=SAMPLED, times=2)
        answer = await exchange_once(router.port, headers=headers, body=asked)
        direct = await exchange_once(router.worker.port, body=asked)
        assert router.worker.requests[0].body == asked
        assert answer.body == direct.body
        assert answer.get("content-length") == str(len(direct.body))
        await router.show("r1", 404)


def test_the_rows_of_the_scripted_worker_differ_from_token_to_token() -> None:
    rows = rows_of(PROMPT + SAMPLED)
    assert len(np.unique(rows.reshape(len(rows), -1), axis=0)) > 4
