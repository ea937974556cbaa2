"""What a rollout that speaks text must get back, over real HTTP."""

from __future__ import annotations

import pytest
from router_radix_cache.unusable import Unusable

from router_core.testing import exchange_once, reply_json

from .over_http import QUESTION, ids_of, reference, rollouts

HELLO = [" ", "he", "llo wor", "ld"]


async def test_a_trajectory_comes_back_with_the_sampled_ids_and_not_the_encoded_ones() -> None:
    async with rollouts() as rollout:
        await rollout.generate(QUESTION, HELLO)
        assert reference.encode(QUESTION + "".join(HELLO)) != ids_of(("p", QUESTION), ("g", HELLO))
        assert await rollout.has(("p", QUESTION), ("g", HELLO))
        told = await rollout.retrieve(QUESTION + "".join(HELLO))
        assert (told["complete"], told["ambiguous"], told["matched_characters"]) == (True, False, len(told["response"]))


async def test_the_second_turn_reuses_the_ids_of_the_first_and_the_worker_is_sent_ids_and_no_text() -> None:
    async with rollouts() as rollout:
        await rollout.generate(QUESTION, [" he", "llo"])
        await rollout.generate(QUESTION + " hello\nQuestion: again?\nAnswer:", [" ye", "s"])
        first, second = (request.json() for request in rollout.worker.requests)
        parts = [("p", QUESTION), ("g", [" he", "llo"]), ("p", "\nQuestion: again?\nAnswer:")]
        assert (first["input_ids"], second["input_ids"]) == (ids_of(parts[0]), ids_of(*parts))
        assert "text" not in first
        assert "text" not in second
        assert b"Question" not in rollout.last_request.body
        assert await rollout.has(*parts, ("g", [" ye", "s"]))
        stats = await rollout.stats()
        assert stats["reused_tokens"] == len(ids_of(*parts[:2]))
        assert stats["encoded_tokens"] == len(ids_of(parts[0])) + len(ids_of(parts[2]))


async def test_each_of_eight_outputs_of_one_prompt_is_found_whole() -> None:
    async with rollouts() as rollout:
        outputs = [[" ans", "wer ", str(number)] for number in range(8)]
        for output in outputs:
            await rollout.generate(QUESTION, output)
        assert all([await rollout.has(("p", QUESTION), ("g", output)) for output in outputs])
        assert (await rollout.stats())["encoded_tokens"] == len(ids_of(("p", QUESTION)))


@pytest.mark.parametrize("order", [1, -1])
async def test_an_output_whose_text_is_the_start_of_another_keeps_its_own_tokens(order: int) -> None:
    async with rollouts() as rollout:
        outputs = [[" go"], [" goi", "ng ", "home"]][::order]
        for output in outputs:
            await rollout.generate(QUESTION, output)
        for output in outputs:
            assert await rollout.has(("p", QUESTION), ("g", output))


async def test_of_equal_texts_one_comes_back_whole_and_it_is_told_that_there_are_others() -> None:
    async with rollouts() as rollout:
        outputs = {"r1": [" he", "llo"], "r2": [" hel", "lo"]}
        for rid, output in outputs.items():
            await rollout.generate(QUESTION, output, rid=rid, headers={"x-session-id": f"s-{rid}"})
        told = await rollout.retrieve(QUESTION + " hello")
        assert rollout.lists(told) == rollout.expected(("p", QUESTION), ("g", outputs["r2"]))  # the newest
        assert told["ambiguous"] is True
        for rid, output in outputs.items():
            for narrow in ({"rid": rid}, {"session_id": f"s-{rid}"}):
                told = await rollout.retrieve(QUESTION + " hello", **narrow)
                assert rollout.lists(told) == rollout.expected(("p", QUESTION), ("g", output))
                assert told["ambiguous"] is False


async def test_a_prompt_that_ends_inside_a_token_of_another_inherits_no_half_of_it() -> None:
    async with rollouts() as rollout:
        await rollout.generate("The cat sat", [" down"])
        await rollout.generate("The ca", ["r st", "ops"])
        assert rollout.last_request.json()["input_ids"] == reference.encode("The ca")
        assert await rollout.has(("p", "The ca"), ("g", ["r st", "ops"]))
        assert await rollout.has(("p", "The cat sat"), ("g", [" down"]))


async def test_characters_of_many_bytes_survive_also_where_outputs_part_within_one() -> None:
    async with rollouts() as rollout:
        prompt = "写一个问候:"
        for output in (["你", "好🦀", "é"], ["你", "们好"], ["e\u0301"]):
            await rollout.generate(prompt, output)
        for output in (["你", "好🦀", "é"], ["你", "们好"], ["e\u0301"]):
            assert await rollout.has(("p", prompt), ("g", output))


async def test_a_character_that_several_tokens_make_comes_back_by_its_tokens() -> None:
    async with rollouts() as rollout:
        [crab] = [reference.encode("🦀")]
        assert len(crab) > 1
        rollout.worker.say("a🦀", ids=[*reference.encode("a"), *crab], finish="stop", logprobs=[-0.5] * (len(crab) + 1))
        await exchange_once(rollout.port, json={"text": "x", "return_logprob": True})
        told = await rollout.retrieve("xa🦀")
        assert told["tokens"] == [*reference.encode("x"), *reference.encode("a"), *crab]
        assert (await rollout.retrieve("xa"))["complete"] is True
        assert (await rollout.retrieve("xa" + "🦞"))["matched_characters"] == 2


async def test_an_unknown_text_is_encoded_with_mask_0_and_strict_makes_it_a_404() -> None:
    async with rollouts() as rollout:
        assert await rollout.has(("p", "never seen"))
        told = await rollout.retrieve("never seen")
        assert (told["complete"], told["matched_characters"]) == (False, 0)
        refused = await rollout.retrieve("never seen", 404, strict=True)
        assert refused["error"]["param"] == "text"
        assert "0 of 10 characters are known" in refused["error"]["message"]


async def test_a_text_that_is_unknown_at_its_end_is_encoded_there() -> None:
    async with rollouts() as rollout:
        await rollout.generate(QUESTION, HELLO)
        parts = [("p", QUESTION), ("g", HELLO), ("p", "\nand more")]
        assert await rollout.has(*parts)
        known = QUESTION + "".join(HELLO)
        told = await rollout.retrieve(known + "\nand more")
        assert (told["complete"], told["matched_characters"]) == (False, len(known))
        await rollout.retrieve(known + "\nand more", 404, strict=True)
        await rollout.retrieve(known, strict=True)


async def test_an_abort_without_a_token_stores_nothing_and_breaks_nothing() -> None:
    async with rollouts() as rollout:
        assert (await rollout.generate(QUESTION, [], finish="abort")).status == 200
        assert await rollout.has(("p", QUESTION))
        stats = await rollout.stats()
        assert (stats["trajectories"], stats["stored"], stats["not_stored"]) == (0, 0, {"aborted": 1})


async def test_an_aborted_sample_is_not_given_back_as_a_finished_one() -> None:
    async with rollouts() as rollout:
        await rollout.generate(QUESTION, [" par"], finish="abort")
        assert await rollout.has(("p", QUESTION + " par"))
        assert (await rollout.stats())["not_stored"] == {"aborted": 1}


async def test_fewer_logprobs_than_ids_are_not_stored_and_pass() -> None:
    async with rollouts() as rollout:
        answer = {
            "text": " hello",
            "output_ids": [1, 2],
            "meta_info": {"id": "r", "finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 1, None]]},
        }
        rollout.worker.handler = reply_json(answer)
        passed = await exchange_once(rollout.port, json={"text": QUESTION, "return_logprob": True})
        assert passed.json() == answer
        assert await rollout.has(("p", QUESTION + " hello"))
        assert (await rollout.stats())["not_stored"] == {Unusable.LENGTHS_DIFFER: 1}


async def test_an_answer_without_a_weight_version_is_passed_on_and_stored() -> None:
    async with rollouts() as rollout:
        ids = reference.encode(" ok")
        answer = {
            "text": " ok",
            "output_ids": ids,
            "meta_info": {
                "id": "r",
                "finish_reason": {"type": "stop"},
                "output_token_logprobs": [[-0.5, one] for one in ids],
            },
        }
        rollout.worker.handler = reply_json(answer)
        assert (await exchange_once(rollout.port, json={"text": "a", "return_logprob": True})).json() == answer
        told = await rollout.retrieve("a ok")
        assert (told["complete"], set(told["weight_versions"])) == (True, {None})


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": ["a", "b"],\n "sampling_params":{"max_new_tokens":1}}',
        b'{"text":""}',
        b'{"input_ids" :[1,2,3]}',
        b'{"input_ids": [1, 2], "return_logprob": true}',
        b"{}",
        b'{"text": "a", "sampling_params": {"n": 2}}',
        b'{"text": "a", "image_data": "data:"}',
        b'{"text": "half \\ud800 a pair"}',
        b'{"text": "broken',
        b"\xff\x00",
        b"",
    ],
)
async def test_what_is_no_single_prompt_is_passed_on_byte_for_byte(body: bytes) -> None:
    async with rollouts() as rollout:
        alone = await exchange_once(rollout.worker.port, body=body)
        answer = await exchange_once(rollout.port, body=body)
        assert rollout.last_request.body == body
        assert answer.status == alone.status
        if alone.status != 200:
            assert answer.body == alone.body
        stored = int(b"return_logprob" in body)  # with its own ids
        assert (await rollout.stats())["stored"] == stored


async def test_a_prompt_of_ids_is_sent_as_it_came_and_stored_under_its_text() -> None:
    async with rollouts() as rollout:
        ids = ids_of(("g", ["Que", "stion: hi", "\n"]))
        assert ids != reference.encode("Question: hi\n")
        answer = await rollout.generate(ids, HELLO, rid="r1")
        assert rollout.last_request.json()["input_ids"] == ids
        assert answer.json()["meta_info"]["output_token_logprobs"]
        told = await rollout.retrieve("Question: hi\n" + "".join(HELLO))
        assert told["tokens"] == [*ids, *ids_of(("g", HELLO))]
        assert told["complete"] is True


async def test_a_small_budget_evicts_the_first_turn_and_the_second_works_encoded_afresh() -> None:
    async with rollouts(settings={"max_tokens": 64}) as rollout:
        await rollout.generate(QUESTION, [" he", "llo"])
        for number in range(20):
            await rollout.generate(f"filler {number} " + "x " * 15, [" y"])
            stats = await rollout.stats()
            assert 0 <= stats["tokens"] <= 64
        second = QUESTION + " hello\nQuestion: more?\nAnswer:"
        await rollout.generate(second, [" fine"])
        assert rollout.last_request.json()["input_ids"] == reference.encode(second)
        assert await rollout.has(("p", second), ("g", [" fine"]))
        assert (await rollout.stats())["dropped"]["lru"] > 10


async def test_a_group_of_64_siblings_with_8_equal_texts_of_other_ids_comes_back_each_by_its_rid() -> None:
    async with rollouts() as rollout:
        spellings = [["h", "ello"], ["he", "llo"], ["hel", "lo"], ["hell", "o"], ["hello"], ["h", "e", "llo"],
                     ["he", "l", "lo"], ["h", "e", "l", "l", "o"]]  # fmt: skip
        outputs = {f"r{number}": [f" other {number}"] for number in range(8, 64)}
        outputs |= {f"r{number}": [" ", *spelling] for number, spelling in enumerate(spellings)}
        assert len({tuple(ids_of(("g", outputs[f"r{number}"]))) for number in range(8)}) > 4
        for rid, output in outputs.items():
            await rollout.generate(QUESTION, output, rid=rid)
        for rid, output in outputs.items():
            assert await rollout.has(("p", QUESTION), ("g", output), rid=rid)
        assert (await rollout.retrieve(QUESTION + " hello"))["ambiguous"] is True
