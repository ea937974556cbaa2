from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.errors import TraceError, TurnRefusedError
from router_tito.packed import (
    check_ids,
    first_difference,
    ids_from_text,
    logprobs_from_text,
    pack_ids,
    pack_logprobs,
    to_text,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(IDS)
def test_ids_survive_packing_and_text(ids: list[int]) -> None:
    assert list(ids_from_text(to_text(pack_ids(ids, "ids")))) == ids


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_logprobs_keep_every_bit(logprobs: list[float]) -> None:
    packed = pack_logprobs(logprobs, len(logprobs))
    assert list(map(repr, logprobs_from_text(to_text(packed)))) == list(map(repr, logprobs))


@given(IDS, IDS)
def test_the_first_difference_is_found(left: list[int], right: list[int]) -> None:
    position = first_difference(array("i", left), array("i", right))
    assert left[:position] == right[:position]
    assert position == min(len(left), len(right)) or left[position] != right[position]


@pytest.mark.parametrize("ids", [[1.5], ["1"], [None], [2**31], 7])
def test_what_is_no_id_is_refused(ids: Any) -> None:
    with pytest.raises(TurnRefusedError) as raised:
        pack_ids(ids, "prompt ids")
    assert raised.value.reason == "bad_ids"


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(TurnRefusedError):
        check_ids(array("i", [1, -1]), "prompt ids")


@pytest.mark.parametrize("logprobs", [None, [], [0.0], [0.0, None], [0.0, math.nan], [0.0, -math.inf], [0.0] * 3])
def test_logprobs_that_are_not_one_finite_number_a_token_are_refused(logprobs: Any) -> None:
    with pytest.raises(TurnRefusedError) as raised:
        pack_logprobs(logprobs, 2)
    assert raised.value.reason == "logprobs_missing"


@pytest.mark.parametrize("text", [None, 5, "%%%", "AAA=", "AAAAAAA="])
def test_damaged_text_is_refused(text: Any) -> None:
    with pytest.raises(TraceError):
        ids_from_text(text)
