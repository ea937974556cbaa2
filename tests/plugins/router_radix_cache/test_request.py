from __future__ import annotations

import pytest
from router_radix_cache.request import Prompt, read_prompt


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"text": "hi"}, Prompt("hi", None, False, False)),
        ({"text": "hi", "input_ids": None, "stream": True, "return_logprob": True}, Prompt("hi", None, True, True)),
        ({"input_ids": [1, 2]}, Prompt(None, [1, 2], False, False)),
        ({"text": "hi", "input_ids": [1, 2]}, Prompt(None, [1, 2], False, False)),
        ({"text": "hi", "sampling_params": {"n": 1}, "rid": "r", "image_data": []}, Prompt("hi", None, False, False)),
        ({"text": "hi", "sampling_params": None}, Prompt("hi", None, False, False)),
    ],
)
def test_a_single_prompt_is_read(body, prompt) -> None:
    assert read_prompt(body) == prompt


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": ["a", "b"]},
        {"text": 5},
        {"input_ids": []},
        {"input_ids": [[1], [2]]},
        {"input_ids": "1 2"},
        {"input_ids": [True]},
        {"text": "hi", "sampling_params": {"n": 4}},
        {"text": "hi", "sampling_params": [{}]},
        {"text": "hi", "rid": ["r"]},
        {"text": "hi", "image_data": "http://image"},
        {"text": "hi", "session_params": {"id": "s"}},
        {"input_ids": [1], "input_embeds": [[0.5]]},
        ["text"],
        "text",
        None,
    ],
)
def test_a_batch_and_what_is_no_prompt_are_left_alone(body) -> None:
    assert read_prompt(body) is None
