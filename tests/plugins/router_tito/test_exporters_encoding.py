"""What is sent is what was recorded: each encoding gives everything back, to the last bit of a logprob."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.errors import ExportError
from router_tito.exporters import TraceOutcome, as_lists, decode, encode, find_composer
from router_tito.exporters.encoding import PAYLOAD, SLICE
from router_tito.trace import Trace
from tito_kit import answer, assistant, user

BINARY = ("npz", "safetensors")
ENCODINGS = ("json", *BINARY)
AWKWARD = [-0.1, -1e-300, -5e-324, -math.pi, -0.30000000000000004, -1.7976931348623157e308, -(2.0**-1074), 0.0, -1e22]


def is_same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and knows arrays."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return type(left) is type(right) and left == right


def payload() -> dict[str, Any]:
    return {
        "samples": [
            {
                "tokens": np.arange(5, dtype=np.int32),
                "text": 'é東🙂"\\',
                "none": None,
                "empty": [],
                "deep": {"a": [1, 2.0]},
            },
            {"tokens": np.array([], np.int32), "experts": np.arange(12, dtype=np.uint16).reshape(3, 2, 2)},
        ],
        "logprobs": [np.array(AWKWARD), np.array([0.1, 0.2])],
        "mask": np.array([0, 1], np.uint8),
        "complete": True,
    }


@pytest.mark.parametrize("encoding", BINARY)
def test_arrays_come_back_to_the_bit_with_their_type_and_shape(encoding: str) -> None:
    assert is_same(decode(encode(payload(), encoding), encoding), payload())


def test_json_gives_the_same_numbers_as_lists() -> None:
    assert is_same(decode(encode(payload(), "json"), "json"), as_lists(payload()))
    assert is_same(json.loads(encode(payload(), "json")), as_lists(payload()))


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    st.lists(
        st.floats(max_value=0.0, allow_nan=False, allow_infinity=False, allow_subnormal=True), min_size=1, max_size=30
    )
)
def test_every_double_is_the_same_double_after_every_encoding(encoding: str, values: list[float]) -> None:
    back = decode(encode({"logprobs": np.array(values)}, encoding), encoding)["logprobs"]
    assert np.array(back, np.float64).tobytes() == np.array(values).tobytes()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARRAYS = st.builds(
    lambda values, dtype: np.array(values, dtype),
    st.lists(st.integers(0, 200), max_size=4),
    st.sampled_from(["uint8", "uint16", "int32", "int64", "float64"]),
)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.data())
def test_any_mixture_of_values_and_arrays_comes_back(encoding: str, data: Any) -> None:
    tree = data.draw(
        st.recursive(
            JSON_VALUES | ARRAYS,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        )
    )
    back = decode(encode(tree, encoding), encoding)
    assert is_same(back, as_lists(tree) if encoding == "json" else tree)


@pytest.mark.parametrize("shape", [(SLICE + 1,), (3 * SLICE,), (SLICE // 4 + 3, 2, 4)])
def test_long_arrays_are_written_in_slices_that_nobody_sees(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    assert json.loads(encode({"a": array}, "json")) == {"a": array.tolist()}


def test_an_array_that_is_a_view_of_another_is_written_as_it_reads() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    for view in (array.T, array[:, 1], array[::2]):
        for encoding in ENCODINGS:
            assert np.asarray(decode(encode([view], encoding), encoding)[0]).tolist() == view.tolist()


@pytest.mark.parametrize("encoding", BINARY)
def test_keys_are_never_mistaken_for_places(encoding: str) -> None:
    arrays = [np.array([number]) for number in range(7)]
    tree = {
        "a": {"b": arrays[0], "": arrays[1]},
        "a.b": arrays[2],
        "a.": arrays[3],
        "payload.json": arrays[4],
        "\0": arrays[5],
        "../é": arrays[6],
    }
    assert is_same(decode(encode(tree, encoding), encoding), tree)


def test_the_members_of_a_binary_encoding_are_found_by_their_place() -> None:
    with np.load(io.BytesIO(encode(payload(), "npz")), allow_pickle=False) as members:
        names = {"samples.0.tokens", "samples.1.tokens", "samples.1.experts", "logprobs.0", "logprobs.1", "mask"}
        assert set(members.files) == names | {PAYLOAD}
        assert members["logprobs.0"].dtype == np.float64
    from safetensors.numpy import load

    assert set(load(encode(payload(), "safetensors"))) == names | {PAYLOAD}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_samples_come_back_whole(encoding: str) -> None:
    trace = Trace()
    logprobs = AWKWARD[:-2]
    ids = list(range(10, 10 + len(logprobs)))
    trace.commit(trace.prepare_turn([user("q")]), answer(ids, assistant("a"), [1, 2], logprobs=logprobs))
    composer = find_composer("neutral")()
    outcomes = [TraceOutcome(trace, "t", 0.1)]
    (row,) = as_lists(decode(encode(composer.pack(outcomes), encoding), encoding))
    assert is_same([row], composer.compose(outcomes))
    assert [value.hex() for value in row["logprobs"][2:]] == [value.hex() for value in logprobs]


def test_what_cannot_be_encoded_or_decoded_says_so() -> None:
    with pytest.raises(ExportError, match="'pickle': one of json, npz, safetensors"):
        encode({}, "pickle")
    with pytest.raises(ExportError, match="'pickle'"):
        decode(b"", "pickle")
    for encoding in BINARY:
        whole = encode(payload(), encoding)
        for damaged in (b"", b"nothing", whole[: len(whole) // 2]):
            with pytest.raises(ExportError, match=f"not {encoding}"):
                decode(damaged, encoding)


def test_an_object_that_is_no_json_is_written_as_text() -> None:
    """A trajectory id may be anything."""
    for encoding in ENCODINGS:
        assert decode(encode({"trajectory_id": 1j}, encoding), encoding) == {"trajectory_id": "1j"}
