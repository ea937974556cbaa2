from __future__ import annotations

import pytest
from router_routed_experts.asking import CHAT, COMPLETIONS, GENERATE, TOKENS
from router_routed_experts.codecs import Decoded
from router_routed_experts.reading import AnswerReader
from router_routed_experts.reasons import Reason, RowsError

from .answers import dumped, events, experts_of, generate_answer, npy_text, raw_text


def parts_of(target: str, body: bytes, *, is_stream: bool = False, size: int | None = None, **options):
    reader = AnswerReader(target, is_stream=is_stream, **{"max_bytes": 100_000, **options})
    for at in range(0, len(body), size or len(body) or 1):
        reader.feed(body[at : at + (size or len(body))])
    return reader.finish("fallback")


def told(part) -> tuple:
    choice, decoded = part.choice, part.decoded
    ids = len(decoded.ids) if isinstance(decoded, Decoded) else decoded and decoded.reason
    return part.key, choice.prompt_tokens, choice.counted, choice.is_aborted, ids


@pytest.mark.parametrize("size", [None, 1, 7, 100])
def test_an_answer_of_generate_says_its_tokens_and_has_its_experts(size) -> None:
    body = dumped(generate_answer(raw_text(experts_of(12)), completion_tokens=2))
    [part] = parts_of(GENERATE, body, size=size)
    assert told(part) == ("r1", 11, 2, False, 12 * 8)
    assert part.choice.output_ids.tolist() == [1, 2]


@pytest.mark.parametrize("size", [None, 1, 7, 100])
def test_of_a_cumulative_stream_the_last_event_of_each_choice_counts(size) -> None:
    def event(index: int, text: object, finish: object, tokens: int) -> dict:
        answer = generate_answer(text, finish_reason=finish, completion_tokens=tokens, id=f"r{index}")
        return {**answer, "index": index}

    body = events(
        event(0, None, None, 1),
        event(1, None, None, 1),
        event(1, raw_text(experts_of(12)), {"type": "stop"}, 2),
        event(0, raw_text(experts_of(11)), {"type": "abort"}, 1),
    )
    first, second = parts_of(GENERATE, body, is_stream=True, size=size)
    assert told(first) == ("r0", 11, 1, True, 11 * 8)
    assert told(second) == ("r1", 11, 2, False, 12 * 8)


def test_a_batch_has_a_part_for_each_answer() -> None:
    answers = [generate_answer(raw_text(experts_of(12)), id=f"r{number}", completion_tokens=2) for number in range(3)]
    del answers[1]["meta_info"]["routed_experts"]
    parts = parts_of(GENERATE, dumped(answers))
    assert [told(part) for part in parts] == [
        ("r0", 11, 2, False, 96),
        ("r1", 11, 2, False, None),
        ("r2", 11, 2, False, 96),
    ]


def test_choices_of_one_id_are_told_apart() -> None:
    meta = {"id": "r", "prompt_tokens": 3, "completion_tokens": 2, "finish_reason": {"type": "stop"}}
    choices = [
        {"index": index, "meta_info": {**meta, "routed_experts": raw_text(experts_of(4 + index))}} for index in (0, 1)
    ]
    parts = parts_of(CHAT, dumped({"id": "r", "choices": choices}))
    assert [told(part) for part in parts] == [("r", 3, 2, False, 32), ("r_1", 3, 2, False, 40)]


def test_a_chat_of_vllm_is_counted_by_its_usage_where_there_is_one_choice() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, "routed_experts": npy_text(experts_of(4)), "finish_reason": "stop"}]
    [part] = parts_of(CHAT, dumped({"id": "chatcmpl-1", "choices": choices, "usage": usage}))
    assert told(part) == ("chatcmpl-1", 3, 2, False, 32)
    choices.append({"index": 1, "routed_experts": npy_text(experts_of(4)), "finish_reason": "abort"})
    parts = parts_of(CHAT, dumped({"id": "chatcmpl-1", "choices": choices, "usage": usage}))
    assert [told(part) for part in parts] == [
        ("chatcmpl-1", 3, None, False, 32),
        ("chatcmpl-1_1", 3, None, True, 32),
    ]


@pytest.mark.parametrize("size", [None, 1, 7, 100])
def test_a_streamed_chat_of_sglang_says_all_in_its_sglext(size) -> None:
    delta = {"id": "r", "choices": [{"index": 0, "delta": {"content": '"sglext" "usage":{'}, "finish_reason": None}]}
    sglext = {"routed_experts": raw_text(experts_of(4)), "input_ids": [1, 2, 3], "output_ids": [[4, 5]]}
    body = events(delta, delta, {"id": "r", "choices": [], "usage": None, "sglext": sglext})
    [part] = parts_of(CHAT, body, is_stream=True, size=size)
    assert told(part) == ("r", 3, 2, False, 32)
    assert part.choice.output_ids.tolist() == [4, 5]


@pytest.mark.parametrize("size", [None, 1, 7, 100])
def test_streamed_ids_are_added_up(size) -> None:
    def event(ids: list[int], **more) -> dict:
        return {"id": "cmpl-1", "choices": [{"index": 0, "text": "x", "token_ids": ids, **more}]}

    body = events(
        event([4], prompt_token_ids=[1, 2, 3]), event([5, 6]), event([7], routed_experts=npy_text(experts_of(6)))
    )
    [part] = parts_of(COMPLETIONS, body, is_stream=True, size=size)
    assert told(part) == ("cmpl-1", 3, 4, False, 48)
    [part] = parts_of(TOKENS, body.replace(b'"id":"cmpl-1"', b'"request_id":"q"'), is_stream=True, size=size)
    assert told(part) == ("q", 3, 4, False, 48)
    assert part.choice.output_ids.tolist() == [4, 5, 6, 7]


def test_a_value_that_cannot_be_decoded_is_told_with_its_part() -> None:
    [part] = parts_of(GENERATE, dumped(generate_answer("%%%not base64%%%", completion_tokens=2)))
    assert told(part) == ("r1", 11, 2, False, Reason.NOT_BASE64)


def test_without_a_header_only_the_places_of_sglang_have_a_dtype() -> None:
    choices = [{"index": 0, "routed_experts": raw_text(experts_of(4)), "finish_reason": "stop"}]
    [part] = parts_of(CHAT, dumped({"id": "r", "choices": choices}))
    assert told(part)[-1] is Reason.DTYPE_UNKNOWN


def test_an_answer_that_names_nothing_has_one_part_without_experts() -> None:
    [part] = parts_of(GENERATE, b"{}")
    assert told(part) == ("fallback", None, None, False, None)
    [part] = parts_of(CHAT, events({"choices": []}), is_stream=True)
    assert told(part) == ("fallback", None, None, False, None)


def test_a_stream_is_known_by_its_first_event_also_where_it_breaks_off() -> None:
    for target, event in (
        (CHAT, {"id": "r", "choices": [{"index": 0, "delta": {"content": "x"}}]}),
        (GENERATE, generate_answer(None, id="r", finish_reason=None)),
    ):
        reader = AnswerReader(target, is_stream=True, max_bytes=1000)
        reader.feed(b"data: " + dumped(event) + b"\n\ndata: {")
        assert reader.id == "r"
        assert [part.key for part in reader.finish("fallback")] == ["r"]


@pytest.mark.parametrize(
    ("body", "is_stream"), [(b'{"a":', False), (b"", False), (b'data: {"finish_reason":\n\n', True)]
)
def test_an_answer_that_is_no_json_is_told(body: bytes, is_stream: bool) -> None:
    with pytest.raises(RowsError) as error:
        parts_of(GENERATE, body, is_stream=is_stream)
    assert error.value.reason is Reason.UNREADABLE


def test_what_is_kept_is_bounded_and_experts_are_not_counted() -> None:
    large = generate_answer(raw_text(experts_of(2000)), text="x" * 50_000)
    assert told(parts_of(GENERATE, dumped(large), size=1000)[0])[-1] == 2000 * 8
    with pytest.raises(RowsError) as error:
        parts_of(GENERATE, dumped(large), size=1000, max_bytes=40_000)
    assert error.value.reason is Reason.UNREADABLE


def test_a_long_stream_keeps_no_more_than_an_event() -> None:
    deltas = [{"id": "r", "choices": [{"index": 0, "delta": {"content": "x" * 500}}]} for _ in range(300)]
    [part] = parts_of(CHAT, events(*deltas), is_stream=True, size=777, max_bytes=2000)
    assert told(part) == ("r", None, None, False, None)
