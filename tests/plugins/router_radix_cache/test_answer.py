from __future__ import annotations

import orjson
import pytest
from router_radix_cache.answer import read_answer, weight_spans
from router_radix_cache.tokens import Span
from router_radix_cache.unusable import Unusable, UnusableError


def body(**changes) -> bytes:
    meta = {
        "id": "r1",
        "finish_reason": {"type": "stop"},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, "x"]],
        "weight_version": "v1",
    }
    answer = {"text": "ab", "output_ids": [7, 8], "meta_info": meta}
    for key, value in changes.items():
        place = answer if key in ("text", "output_ids", "meta_info") else meta
        if value is ...:
            place.pop(key)
        else:
            place[key] = value
    return orjson.dumps(answer)


def test_a_finished_answer_is_read() -> None:
    sampled = read_answer(body(), 3)
    assert (sampled.rid, sampled.text, sampled.token_ids) == ("r1", "ab", [7, 8])
    assert (sampled.logprobs, sampled.spans) == ([-0.5, -0.25], [Span(0, 2, "v1")])


@pytest.mark.parametrize(
    "changes",
    [
        {"output_ids": ...},
        {"prompt_tokens": ..., "completion_tokens": ..., "id": ...},
        {"finish_reason": "length"},
        {"output_token_logprobs": [[-0.5, 7], [-0.25, 8]]},
    ],
)
def test_what_other_workers_leave_out_or_write_otherwise_is_read_too(changes) -> None:
    assert read_answer(body(**changes), 3).token_ids == [7, 8]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": {"type": "abort", "message": "x"}}, Unusable.ABORTED),
        ({"finish_reason": "abort"}, Unusable.ABORTED),
        ({"finish_reason": None}, Unusable.UNFINISHED),
        ({"finish_reason": ...}, Unusable.UNFINISHED),
        ({"output_ids": [], "output_token_logprobs": [], "completion_tokens": 0}, Unusable.EMPTY),
        ({"output_ids": [], "output_token_logprobs": ...}, Unusable.EMPTY),
        ({"output_token_logprobs": ...}, Unusable.NO_LOGPROBS),
        ({"output_token_logprobs": None}, Unusable.NO_LOGPROBS),
        ({"output_token_logprobs": [[None, 7, None], [-0.25, 8, None]]}, Unusable.NO_LOGPROBS),
        ({"output_token_logprobs": [[-0.5], [-0.25, 8]]}, Unusable.NO_LOGPROBS),
        ({"output_token_logprobs": [-0.5, -0.25]}, Unusable.NO_LOGPROBS),
        ({"output_token_logprobs": [[-0.5, 7, None]]}, Unusable.LENGTHS_DIFFER),
        ({"completion_tokens": 5}, Unusable.LENGTHS_DIFFER),
        ({"output_ids": [7, 9]}, Unusable.IDS_DIFFER),
        ({"output_ids": [7, "8"], "output_token_logprobs": [[-0.5, 7], [-0.25, "8"]]}, Unusable.REFUSED),
        ({"prompt_tokens": 4}, Unusable.PROMPT_DIFFERS),
        ({"text": None}, Unusable.UNREADABLE),
        ({"meta_info": []}, Unusable.UNREADABLE),
    ],
)
def test_an_answer_that_is_not_certain_is_not_kept_and_says_why(changes, reason) -> None:
    with pytest.raises(UnusableError) as error:
        read_answer(body(**changes), 3)
    assert error.value.reason is reason


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'"x"', b'[{"text":"a"}]', b"\xff"])
def test_what_is_no_answer_is_told(text: bytes) -> None:
    with pytest.raises(UnusableError) as error:
        read_answer(text, 3)
    assert error.value.reason is Unusable.UNREADABLE


@pytest.mark.parametrize(
    ("told", "spans"),
    [
        ([("v1", 0, 2), ("v2", 2, 5)], [Span(0, 2, "v1"), Span(2, 5, "v2")]),
        ([("v1", 0, 5), ("v2", 5, 5)], [Span(0, 5, "v1")]),
        ([("v1", 0, 2), ("v2", 3, 5)], [Span(0, 5, "v9")]),
        ([("v1", 0, 2), ("v2", 2, 6)], [Span(0, 5, "v9")]),
        ([("v1", 1, 5)], [Span(0, 5, "v9")]),
        ([], [Span(0, 5, "v9")]),
        ([(3, 0, 5)], [Span(0, 5, "3")]),
    ],
)
def test_weight_versions_hold_where_they_cover_the_answer_and_else_the_one_version_does(told, spans) -> None:
    versions = [{"version": version, "start": start, "end": end} for version, start, end in told]
    assert weight_spans({"weight_versions": versions, "weight_version": "v9"}, 5) == spans


def test_a_missing_weight_version_is_none() -> None:
    assert weight_spans({}, 5) == [Span(0, 5, None)]
    assert weight_spans({"weight_versions": [None], "weight_version": True}, 5) == [Span(0, 5, None)]
