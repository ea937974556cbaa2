from __future__ import annotations

import gzip
import logging
from pathlib import Path

import orjson
import pytest

from router_core import ConfigError
from router_core.app import Application
from router_core.config import load
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import Faults, RawClient, ScriptedWorker, build_request, exchange_once, reply, reply_json
from router_core.testing.clock import TurnedClock

from .over_http import QUESTION, ids_of, reference, rollouts

HELLO = [" ", "he", "llo"]
LOGPROB_KEYS = {"input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"}


def events_of(body: bytes) -> list[object]:
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [orjson.loads(part) for part in parts if part != b"[DONE]"]


# ------------------------------------------------------------------------------------------------- what the client gets
async def test_a_client_that_asks_for_logprobs_gets_the_workers_bytes() -> None:
    async with rollouts() as rollout:
        body = b'{ "text" : " ok","big": 1e-05, "meta_info":{"output_token_logprobs":[[-0.5 ,5,null]]},"n":NaN }\n'
        rollout.worker.handler = reply(body, headers={"X-Odd": "yes"})
        answer = await exchange_once(rollout.port, json={"text": "a", "return_logprob": True})
        assert answer.body == body
        assert answer.get("x-odd") == "yes"


async def test_logprobs_that_the_client_did_not_ask_for_are_stored_and_not_shown() -> None:
    async with rollouts() as rollout:
        shown = await rollout.generate(QUESTION, HELLO, return_logprob=False, rid="r1")
        assert rollout.last_request.json()["return_logprob"] is True
        assert not LOGPROB_KEYS & shown.json()["meta_info"].keys()
        whole = await rollout.generate(QUESTION, HELLO, rid="r1")
        meta = {key: value for key, value in whole.json()["meta_info"].items() if key not in LOGPROB_KEYS}
        assert shown.json() == {**whole.json(), "meta_info": meta}
        assert await rollout.has(("p", QUESTION), ("g", HELLO))


async def test_a_stream_passes_event_by_event_and_its_last_event_is_stored() -> None:
    async with rollouts() as rollout:
        streamed = await rollout.generate(QUESTION, HELLO, stream=True)
        direct = await exchange_once(
            rollout.worker.port, json={"input_ids": [1], "stream": True, "return_logprob": True}
        )
        assert streamed.get("content-type") == direct.get("content-type")
        events = events_of(streamed.body)
        assert len(events) == len(ids_of(("g", HELLO)))
        assert all(event["meta_info"]["output_token_logprobs"] for event in events)
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        assert await rollout.has(("p", QUESTION), ("g", HELLO))


async def test_a_stream_without_logprobs_asked_shows_none_and_holds_no_event_back() -> None:
    async with rollouts() as rollout:
        ids = ids_of(("g", HELLO))
        words = rollout.worker.say("".join(HELLO), ids=ids, hold_after=2)
        async with RawClient(rollout.port) as client:
            asked = {"text": QUESTION, "stream": True}
            await client.send(build_request("POST", "/generate", json=asked, host="h"))
            answer = await client.read_head()
            while answer.body.count(b"\n\n") < 2:
                await client.read_piece(answer)
            assert [event["output_ids"] for event in events_of(answer.body)] == [ids[:1], ids[:2]]
            words.release()
            await client.read_body(answer)
        assert answer.clean
        assert not any(LOGPROB_KEYS & event["meta_info"].keys() for event in events_of(answer.body))
        told = await rollout.retrieve(QUESTION + "".join(HELLO))
        assert told["tokens"] == ids_of(("p", QUESTION), ("g", HELLO))
        assert all(told["rollout_logp"][-len(ids) :])


async def test_what_was_answered_can_be_retrieved_as_soon_as_the_answer_has_ended() -> None:
    async with rollouts() as rollout:
        for number in range(30):
            await rollout.generate(f"prompt {number}:", HELLO, stream=bool(number % 2))
            assert (await rollout.retrieve(f"prompt {number}:" + "".join(HELLO)))["complete"] is True


async def test_a_large_answer_is_read_in_a_thread_and_stored() -> None:
    async with rollouts() as rollout:
        pieces = ["word ", "and "] * 2000
        await rollout.generate(QUESTION, pieces)
        assert await rollout.has(("p", QUESTION), ("g", pieces))


async def test_routed_experts_pass_and_are_not_read() -> None:
    async with rollouts(settings={"max_answer_bytes": 3000}) as rollout:
        ids = ids_of(("g", HELLO))
        told = {
            "text": "".join(HELLO),
            "output_ids": ids,
            "meta_info": {
                "routed_experts": "A" * 100_000,
                "finish_reason": {"type": "stop"},
                "output_token_logprobs": [[-0.5, one, None] for one in ids],
            },
        }
        rollout.worker.handler = reply_json(told)
        answer = await exchange_once(rollout.port, json={"text": QUESTION, "return_logprob": True})
        assert answer.body == orjson.dumps(told)
        assert (await rollout.retrieve(QUESTION + "".join(HELLO)))["complete"] is True


# --------------------------------------------------------------------------------------------------- what is not stored
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_breaks_off_is_not_stored(is_stream: bool) -> None:
    async with rollouts() as rollout:
        rollout.worker.say("".join(HELLO), ids=ids_of(("g", HELLO)))
        rollout.worker.fault(Faults.close_amid(after_pieces=1 if is_stream else 0, after_bytes=None))
        answer = await exchange_once(rollout.port, json={"text": QUESTION, "stream": is_stream})
        assert answer.clean is not True or answer.status == 502
        stats = await rollout.stats()
        assert (stats["trajectories"], stats["stored"]) == (0, 0)


async def test_a_client_that_leaves_stores_nothing_and_its_hold_ends() -> None:
    async with rollouts() as rollout:
        await rollout.generate(QUESTION, HELLO)
        rollout.worker.say("never", hold_after=1)
        async with RawClient(rollout.port) as client:
            asked = {"text": QUESTION + "".join(HELLO) + " more", "stream": True}
            await client.send(build_request("POST", "/generate", json=asked, host="h"))
            await client.read_piece(await client.read_head())
            assert (await exchange_once(rollout.port, target="/radix_cache/clear")).json() == {"cleared": 0, "kept": 1}
        await rollout.ended(2)
        assert (await exchange_once(rollout.port, target="/radix_cache/clear")).json() == {"cleared": 1, "kept": 0}
        assert (await rollout.stats())["stored"] == 1


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_a_workers_error_passes_and_is_not_stored(status: int) -> None:
    async with rollouts() as rollout:
        rollout.worker.fault(Faults.status(status, body=b'{"odd" :1}'))
        answer = await exchange_once(rollout.port, json={"text": QUESTION})
        assert (answer.status, answer.body) == (status, b'{"odd" :1}')
        assert (await rollout.stats())["stored"] == 0


async def test_an_answer_that_is_none_passes_is_counted_and_told_once(caplog) -> None:
    async with rollouts() as rollout:
        rollout.worker.handler = reply(b'{"text":')
        with caplog.at_level(logging.WARNING):
            answer = await exchange_once(rollout.port, json={"text": QUESTION, "return_logprob": True})
        assert answer.body == b'{"text":'
        assert (await rollout.stats())["not_stored"] == {"unreadable": 1}
        [record] = [record for record in caplog.records if record.name == "router_radix_cache.plugin"]
        assert rollout.worker.url in record.getMessage()
        metrics = rollout.router.application.outside.metrics()
        assert 'router_radix_cache_not_stored_total{reason="unreadable"} 1' in metrics


async def test_a_worker_that_counts_other_prompt_tokens_was_sent_something_else() -> None:
    async with rollouts() as rollout:
        meta = {"prompt_tokens": 1, "finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 5]]}
        rollout.worker.handler = reply_json({"text": "x", "output_ids": [5], "meta_info": meta})
        await exchange_once(rollout.port, json={"text": QUESTION})
        assert (await rollout.stats())["not_stored"] == {"prompt_differs": 1}


# ------------------------------------------------------------------------------------------------------------- sessions
async def test_siblings_with_equal_texts_continue_their_own_ids_by_session() -> None:
    async with rollouts() as rollout:
        outputs = {"a": [" he", "llo"], "b": [" hel", "lo"], "c": [" ", "hello"]}
        for session, output in outputs.items():
            await rollout.generate(QUESTION, output, headers={"x-session-id": session})
        for session, output in outputs.items():
            await rollout.generate(QUESTION + " hello\nagain:", [" yes"], headers={"x-smg-routing-key": session})
            parts = [("p", QUESTION), ("g", output), ("p", "\nagain:")]
            assert rollout.last_request.json()["input_ids"] == ids_of(*parts)
            assert await rollout.has(*parts, ("g", [" yes"]), session_id=session)


async def test_turns_below_a_session_are_turns_of_it() -> None:
    async with rollouts() as rollout:
        await exchange_once(rollout.port, target="/sessions", json={"session_id": "s1"})
        rollout.worker.say("".join(HELLO), ids=ids_of(("g", HELLO)))
        await exchange_once(rollout.port, target="/sessions/s1/generate", json={"text": QUESTION})
        assert (await rollout.retrieve(QUESTION + "".join(HELLO), session_id="s1"))["complete"] is True
        assert (await rollout.retrieve(QUESTION + "".join(HELLO), session_id="s2"))["complete"] is False


async def test_an_end_of_turn_that_the_text_hides_is_kept_where_the_next_text_spells_it() -> None:
    async with rollouts() as rollout:
        end = reference.eos_id
        ids = [*ids_of(("g", HELLO)), end]
        rollout.worker.say("".join(HELLO), ids=ids, logprobs=[-0.5] * len(ids))
        await exchange_once(rollout.port, json={"text": QUESTION})
        prompt = ids_of(("p", QUESTION))
        assert (await rollout.retrieve(QUESTION + "".join(HELLO)))["tokens"] == [*prompt, *ids]
        spelled = QUESTION + "".join(HELLO) + "<|im_end|>\nmore"
        await rollout.generate(spelled, [" ok"])
        assert rollout.last_request.json()["input_ids"] == [*prompt, *ids, *reference.encode("\nmore")]
        told = await rollout.retrieve(spelled + " ok")
        assert told["loss_mask"][: len(prompt) + len(ids)] == [0] * len(prompt) + [1] * len(ids)
        await rollout.generate(QUESTION + "".join(HELLO) + "\nmore", [" ok"])
        assert rollout.last_request.json()["input_ids"] == [*prompt, *ids[:-1], *reference.encode("\nmore")]


async def test_turns_of_ids_keep_the_mask_of_the_turns_before() -> None:
    async with rollouts() as rollout:
        prompt, sampled, observed = reference.encode(QUESTION), ids_of(("g", HELLO)), reference.encode("\nagain:")
        await rollout.generate(prompt, HELLO)
        await rollout.generate([*prompt, *sampled, *observed], [" yes"], rid="r2")
        parts = [("p", QUESTION), ("g", HELLO), ("p", "\nagain:"), ("g", [" yes"])]
        assert await rollout.has(*parts)
        assert rollout.lists(await rollout.retrieve(None, rid="r2")) == rollout.expected(*parts)


async def test_ids_that_spell_no_text_are_found_by_rid_alone() -> None:
    async with rollouts() as rollout:
        crab = reference.encode("🦀")
        await rollout.generate(crab[:1], HELLO, rid="half")
        await rollout.generate([*crab[:1], *ids_of(("g", HELLO)), 5], [" yes"], rid="more")
        told = await rollout.retrieve(None, rid="half")
        assert told["tokens"] == [*crab[:1], *ids_of(("g", HELLO))]
        assert (told["response"], told["complete"]) == (None, True)
        told = await rollout.retrieve(None, rid="more")
        assert told["loss_mask"] == [0, *[1] * len(ids_of(("g", HELLO))), 0, *[1] * len(ids_of(("g", [" yes"])))]
        refused = await rollout.retrieve(None, 404, rid="other")
        assert refused["error"]["param"] == "rid"


def with_start(directory: Path) -> Path:
    """A tokenizer that puts a token of its own before each prompt."""
    config = orjson.loads((ASSETS / "tokenizer.json").read_bytes())
    start = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    config["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1016], "tokens": ["<|im_start|>"]}},
    }
    (directory / "tokenizer.json").write_bytes(orjson.dumps(config))
    (directory / "tokenizer_config.json").write_bytes((ASSETS / "tokenizer_config.json").read_bytes())
    return directory


async def test_what_a_tokenizer_puts_before_a_prompt_is_sent_and_kept(tmp_path) -> None:
    plugins = {"hf_tokenizer": {"path": str(with_start(tmp_path))}}
    async with rollouts(plugins=plugins) as rollout:
        await rollout.generate(QUESTION, HELLO)
        assert rollout.last_request.json()["input_ids"] == [1016, *ids_of(("p", QUESTION))]
        await rollout.generate(QUESTION + "".join(HELLO) + " and", [" so"])
        sent = rollout.last_request.json()["input_ids"]
        assert sent == [1016, *ids_of(("p", QUESTION), ("g", HELLO), ("p", " and"))]
        told = await rollout.retrieve(QUESTION + "".join(HELLO) + " and so")
        assert (told["tokens"], told["complete"]) == ([*sent, *ids_of(("g", [" so"]))], True)
    async with rollouts(plugins=plugins, settings={"add_special_tokens": False}) as rollout:
        await rollout.generate(QUESTION, HELLO)
        assert rollout.last_request.json()["input_ids"] == ids_of(("p", QUESTION))


async def test_a_text_is_encoded_as_a_text_whoever_sent_its_ids_before(tmp_path) -> None:
    plugins = {"hf_tokenizer": {"path": str(with_start(tmp_path))}}
    async with rollouts(plugins=plugins) as rollout:
        odd = [token for letter in QUESTION for token in reference.encode(letter)]
        await rollout.generate(odd, HELLO)
        await rollout.generate(QUESTION, HELLO)
        assert rollout.last_request.json()["input_ids"] == [1016, *ids_of(("p", QUESTION))]
        await rollout.generate(QUESTION, HELLO)
        assert (await rollout.stats())["encoded_tokens"] == 1 + len(ids_of(("p", QUESTION)))


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_compressed_answer_passes_as_it_is_and_is_not_stored(is_shown: bool) -> None:
    async with rollouts() as rollout:
        body = gzip.compress(b'{"text": " ok", "output_ids": [1]}' * 100)
        rollout.worker.handler = reply(body, headers=[("content-encoding", "gzip")])
        answer = await exchange_once(rollout.port, json={"text": QUESTION, "return_logprob": is_shown})
        assert answer.body == body
        assert answer.get("content-encoding") == "gzip"
        assert (await rollout.stats())["not_stored"] == {"unreadable": 1}


async def test_a_stream_that_is_not_cumulative_is_not_stored() -> None:
    async with rollouts() as rollout:
        ids = ids_of(("g", HELLO))

        def event(start: int, stop: int, reason: object) -> bytes:
            meta = {
                "id": "r",
                "finish_reason": reason,
                "completion_tokens": stop,
                "prompt_tokens": len(ids_of(("p", QUESTION))),
            }
            meta["output_token_logprobs"] = [[-0.5, one, None] for one in ids[start:stop]]
            return orjson.dumps({"text": "x", "output_ids": ids[start:stop], "meta_info": meta})

        parts = [event(0, 1, None), event(1, len(ids), {"type": "stop"}), b"[DONE]"]
        rollout.worker.handler = reply(
            b"".join(b"data: " + part + b"\n\n" for part in parts), content_type="text/event-stream"
        )
        await exchange_once(rollout.port, json={"text": QUESTION, "stream": True, "return_logprob": True})
        assert (await rollout.stats())["not_stored"] == {"lengths_differ": 1}


# ------------------------------------------------------------------------------------------------ weight versions, time
async def test_only_the_newest_weight_versions_are_kept() -> None:
    async with rollouts(settings={"keep_weight_versions": 1}) as rollout:
        await rollout.generate(QUESTION, HELLO)
        rollout.worker.engine.weight_version = "v2"
        await rollout.generate("other", [" x"])
        assert (await rollout.retrieve(QUESTION + "".join(HELLO)))["complete"] is False
        assert (await rollout.stats())["dropped"] == {"weight_version": 1}


async def test_a_weight_version_narrows_the_choice_and_each_token_has_its_own() -> None:
    async with rollouts() as rollout:
        for version in ("v1", "v2"):
            rollout.worker.engine.weight_version = version
            await rollout.generate(QUESTION, HELLO, rid=version)
        text = QUESTION + "".join(HELLO)
        assert (await rollout.retrieve(text))["ambiguous"] is True
        for version in ("v1", "v2"):
            told = await rollout.retrieve(text, weight_version=version)
            assert (set(told["weight_versions"]), told["ambiguous"]) == ({None, version}, False)
        assert (await rollout.retrieve(text, weight_version=3))["complete"] is False


async def test_an_idle_cache_forgets_after_its_time() -> None:
    clock = TurnedClock()
    async with rollouts(settings={"ttl_s": 100}, clock=clock) as rollout:
        await rollout.generate(QUESTION, HELLO)
        await clock.turn(90)
        assert rollout.router.application.outside.metrics().count("router_radix_cache_trajectories 1\n") == 1
        await clock.turn(60)
        assert "router_radix_cache_trajectories 0\n" in rollout.router.application.outside.metrics()


# ------------------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"text": ["a"]}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"text": "", "rid": "r"}, "text"),
        ([], "text"),
        ({"text": "a", "rid": 5}, "rid"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"text": "a", "session_id": ["s"]}, "session_id"),
        ({"text": "a", "weight_version": 1.5}, "weight_version"),
        ({"text": "a", "strict": "yes"}, "strict"),
    ],
)
async def test_a_retrieval_that_asks_wrongly_is_told_which_key_is_wrong(body, param) -> None:
    import json

    async with rollouts() as rollout:
        answer = await exchange_once(rollout.port, target="/retrieve_from_text", body=json.dumps(body).encode())
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff"])
async def test_a_retrieval_without_json_is_a_400(body: bytes) -> None:
    async with rollouts() as rollout:
        assert (await exchange_once(rollout.port, target="/retrieve_from_text", body=body)).status == 400
        assert (await exchange_once(rollout.port, "GET", "/retrieve_from_text")).status == 405


async def test_a_text_above_the_tokenizers_limit_is_a_413_on_both_ways() -> None:
    plugins = {"hf_tokenizer": {"path": str(ASSETS), "max_characters": 100}}
    async with rollouts(plugins=plugins) as rollout:
        refused = await exchange_once(rollout.port, json={"text": "x" * 101})
        assert (refused.status, refused.json()["error"]["code"]) == (413, "text_too_long")
        await rollout.retrieve("x" * 101, 413)
        assert rollout.worker.requests == []


async def test_without_a_tokenizer_the_router_does_not_start() -> None:
    for settings, named in (({}, ""), ({"tokenizer": "m"}, " named 'm'")):
        tables = {"enabled": ["radix_cache"], "plugins": {"radix_cache": settings}}
        application = Application(load(tables, file="", environment={}))
        with pytest.raises(ConfigError, match=f"no plugin has one{named}: enable hf_tokenizer and set its path"):
            await application.start()
        await application.stop()


# ------------------------------------------------------------------------------------------------------ switches
@pytest.mark.parametrize("headers", [{"x-router-plugins": "-radix_cache"}, {"x-router-profile": "plain"}])
async def test_switched_off_it_leaves_no_trace(headers) -> None:
    async with rollouts(profiles={"plain": {"disable": ["radix_cache"]}}) as rollout:
        asked = b'{"text": "' + QUESTION.replace("\n", "\\n").encode() + b'",  "sampling_params": {}}'
        rollout.worker.say("a", times=2)
        answer = await exchange_once(rollout.port, body=asked, headers=headers)
        direct = await exchange_once(rollout.worker.port, body=asked)
        assert rollout.worker.requests[0].body == asked
        ours, theirs = answer.json(), direct.json()
        del ours["meta_info"]["id"], theirs["meta_info"]["id"]
        assert ours == theirs
        stats = await rollout.stats()
        assert (stats["requests_with_text"], stats["trajectories"]) == (0, 0)


async def test_switched_on_by_a_header_it_works_for_that_request() -> None:
    async with rollouts(enabled=["hf_tokenizer"], router={"available": ["radix_cache"]}) as rollout:
        await rollout.generate(QUESTION, HELLO)
        assert "text" in rollout.last_request.json()
        await rollout.generate(QUESTION, HELLO, headers={"x-router-plugins": "+radix_cache"})
        assert "text" not in rollout.last_request.json()
        assert await rollout.has(("p", QUESTION), ("g", HELLO))


async def test_other_paths_are_not_touched() -> None:
    async with ScriptedWorker() as worker, rollouts() as rollout:
        del worker
        body = b'{"model":"m","prompt" : "hi","text":"x"}'
        await exchange_once(rollout.port, target="/v1/embeddings", body=body)
        await exchange_once(rollout.port, target="/generate/", body=body)
        assert [request.body for request in rollout.worker.requests] == [body, body]
