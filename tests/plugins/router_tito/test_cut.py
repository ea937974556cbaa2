"""Cutting logprobs out of an answer's bytes gives what decoding the whole answer gives."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.engines.cut import cut_ids, cut_logprobs

ENTRY = st.builds(
    lambda text, logprob, order: {
        "token": text,
        **({"bytes": list(text.encode("utf-8", "replace")), "logprob": logprob} if order else {"logprob": logprob}),
        "top_logprobs": [],
    },
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=6),
        st.sampled_from(['"logprob":1,', '"logprobs":{"content":[', ']},"finish_reason":', '\\"', '"', "\\", "null"]),
    ),
    st.one_of(st.floats(max_value=0, allow_nan=False, allow_infinity=False), st.none(), st.just(-1e-05)),
    st.booleans(),
)


def answer(entries: list[Any], text: str = "", **more: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
    }
    return {"id": "x", "choices": [{**choice, **more}], "usage": {"total_tokens": 1}}


@given(st.lists(ENTRY, max_size=8), st.text(max_size=8), st.booleans())
def test_what_is_cut_is_what_would_have_been_decoded(entries: list[Any], text: str, ascii_only: bool) -> None:
    told = answer(entries, text + '"logprobs":{"content":[')
    body = json.dumps(told, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "replace")
    cut = cut_logprobs(body)
    assert cut is not None
    rest, logprobs = cut
    assert logprobs == [entry["logprob"] for entry in entries]
    expected = json.loads(body)
    expected["choices"][0]["logprobs"] = None
    assert json.loads(rest) == expected


@pytest.mark.parametrize(
    "told",
    [
        answer([{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -2.0}]}]),
        answer([{"token": "a", "top_logprobs": [], "logprob": -1.0}]),
        {"choices": [answer([])["choices"][0], answer([])["choices"][0]]},
        {"choices": [{"index": 0, "logprobs": None, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "logprobs": {"content": []}, "z": 1}]},
    ],
)
def test_what_does_not_look_as_engines_write_it_is_left_to_the_decoder(told: dict[str, Any]) -> None:
    assert cut_logprobs(orjson.dumps(told)) is None
    assert cut_logprobs(json.dumps(answer([])).encode()) is None  # spaces


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (b'{"a":1,"ids":[1,22],"b":2}', b'{"a":1,"ids":null,"b":2}'),
        (b'{"ids":[1,223]}', None),
        (b'{"ids":[1,22,3]}', None),
        (b'{"ids":[1, 22]}', None),
        (b'{"ids":null}', None),
        (b'{"b":[1,22]}', None),
        (b'{"ids":[1,22],"x":{"ids":[1,22]}}', None),
        (b'{"text":"\\"ids\\":[1,22]","b":1}', None),
        (b'{"text":"\\"ids\\":[1,22]","ids":[1,22]}', b'{"text":"\\"ids\\":[1,22]","ids":null}'),
        (b"", None),
    ],
)
def test_ids_are_cut_out_where_they_stand_once_and_are_these(text: bytes, rest: bytes | None) -> None:
    assert cut_ids(text, b"ids", b"[1,22]") == rest
