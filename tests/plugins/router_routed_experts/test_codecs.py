from __future__ import annotations

import base64
import gc
import io
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_routed_experts.codecs import Decoded, ExpertDecoder, decode_found, decode_object, open_decoder
from router_routed_experts.reasons import Reason, RowsError

from router_core import ValueScanner

from .answers import dumped, experts_of, generate_answer, npy_text, raw_text


def decode(
    text: str | bytes, raw_dtype: str | None = "int32", stated: str | None = None, size: int = 1 << 20
) -> Decoded:
    encoded = text.encode() if isinstance(text, str) else text
    decoder = ExpertDecoder(raw_dtype)
    for start in range(0, len(encoded), size):
        decoder.write(memoryview(encoded)[start : start + size])
    return decoder.finish(stated or raw_dtype)


def reason_of(call, *arguments, **options) -> Reason:
    with pytest.raises(RowsError) as caught:
        call(*arguments, **options)
    assert caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize(
    ("largest", "smallest_type"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.uint32)]
)
def test_ids_are_kept_in_the_smallest_type_that_holds_them(largest: int, smallest_type: type) -> None:
    ids = np.array([0, 1, largest], np.int32)
    decoded = decode(raw_text(ids), size=5)
    assert decoded.ids.dtype == smallest_type
    assert decoded.ids.tolist() == [0, 1, largest]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 1000), min_size=0, max_size=60), st.integers(1, 40), st.sampled_from(["<i4", "<u2", "<i8"])
)
def test_raw_values_cut_anywhere_are_the_same(ids: list[int], size: int, dtype: str) -> None:
    name = {"<i4": "int32", "<u2": "uint16", "<i8": "int64"}[dtype]
    assert decode(raw_text(np.array(ids), dtype), name, size=size).ids.tolist() == ids


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20), st.integers(1, 200), st.sampled_from(["u1", "<u2", ">u2", "<i4", "<i8"]))
def test_npy_values_cut_anywhere_say_their_own_shape_and_dtype(rows: int, size: int, dtype: str) -> None:
    experts = experts_of(rows)
    decoded = decode(npy_text(experts, dtype), None, size=size)
    assert decoded.shape == experts.shape
    assert decoded.ids.dtype == np.uint8
    assert (decoded.ids.reshape(experts.shape) == experts).all()


def test_a_stated_dtype_wins_over_the_workers() -> None:
    ids = np.arange(300, 332)
    text = raw_text(ids, "<u2")
    assert decode(text, "int32", stated="uint16").ids.tolist() == ids.tolist()
    assert decode(text, None, stated="uint16").ids.tolist() == ids.tolist()
    assert decode(text, None, stated="uint16").ids.dtype == np.uint16
    odd = raw_text(ids[:3], "<u2")  # six bytes are no whole int32
    assert decode(odd, "int32", stated="uint16").ids.tolist() == [300, 301, 302]


def test_a_header_wins_over_everything() -> None:
    experts = experts_of(3)
    assert (decode(npy_text(experts, "u1"), "int32", stated="uint16").ids.reshape(experts.shape) == experts).all()


def test_no_dtype_is_guessed() -> None:
    assert reason_of(decode, raw_text(experts_of(3)), None) is Reason.DTYPE_UNKNOWN
    assert reason_of(decode, raw_text(experts_of(3)), "int32", "float32") is Reason.DTYPE_UNKNOWN


@pytest.mark.parametrize(
    "text",
    ["%%%not base64%%%", "AAAAA", "AAA", "AA==AAAA", "AAAAAA==A", "A===", "AAAA AAAA", "AAAA\\u002f", "A" * 8 + "é"],
)
@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_what_is_not_base64_is_told(text: str, size: int) -> None:
    assert reason_of(decode, text, size=size) is Reason.NOT_BASE64


@pytest.mark.parametrize("size", range(1, 12))
def test_a_slash_may_be_escaped(size: int) -> None:
    ids = np.full(8, 0x3F3FFF)
    text = raw_text(ids)
    assert "/" in text
    assert decode(text.replace("/", "\\/"), size=size).ids.tolist() == ids.tolist()


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("line", ["\\n", "\\r\\n", "\\u000a", "\\u002f", "\n"])
def test_lines_of_base64_and_other_escapes_are_told_and_never_taken_for_characters(line: str, size: int) -> None:
    text = raw_text(experts_of(9))
    assert reason_of(decode, line.join([text[:76], text[76:]]), size=size) is Reason.NOT_BASE64
    assert reason_of(decode, text + line, size=size) is Reason.NOT_BASE64


@pytest.mark.parametrize("size", [1, 5, 32, 33, 1000])
def test_the_alphabet_of_addresses_is_told(size: int) -> None:
    text = base64.urlsafe_b64encode(np.full(30, 0x3E3F3E, "<i4")).decode()
    assert set("-_") & set(text)
    assert reason_of(decode, text, size=size) is Reason.NOT_BASE64


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", [">u2", ">i4", ">i8", "<u4"])
def test_each_version_of_the_header_and_each_order_of_bytes_is_read(version: tuple[int, int], dtype: str) -> None:
    experts = experts_of(11, experts=300, top_k=3)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, experts.astype(dtype), version=version)
    text = base64.b64encode(stream.getvalue())
    for size in (1, 50, 1000):
        assert (decode(text, None, size=size).ids.reshape(experts.shape) == experts).all()


@pytest.mark.parametrize("expected", [0, 40, 1 << 20])
def test_what_is_reserved_in_advance_changes_no_id_and_is_given_back(expected: int) -> None:
    ids = np.arange(70_000) % 60_000
    text = raw_text(ids).encode()
    decoder = ExpertDecoder("int32", expected)
    for start in range(0, len(text), 1000):
        decoder.write(memoryview(text)[start : start + 1000])
    decoded = decoder.finish("int32").ids
    assert decoded.dtype == np.uint16
    assert (decoded == ids).all()
    owner = decoded if decoded.base is None else decoded.base
    assert owner.nbytes == 2 * len(ids)


def test_bytes_that_make_no_whole_ids_are_told() -> None:
    assert reason_of(decode, base64.b64encode(b"123456").decode()) is Reason.WRONG_SIZE


@pytest.mark.parametrize(("dtype", "name"), [("<i4", "int32"), ("<i2", "int16"), ("<i8", "int64")])
def test_negative_ids_are_told(dtype: str, name: str) -> None:
    assert reason_of(decode, raw_text(np.array([1, -1, 3]), dtype), name) is Reason.ID_RANGE
    assert reason_of(decode, npy_text(np.array([1, -1, 3]), dtype), name) is Reason.ID_RANGE


def test_ids_above_32_bits_are_told() -> None:
    assert reason_of(decode, raw_text(np.array([1 << 32]), "<i8"), "int64") is Reason.ID_RANGE


def test_an_npy_of_floats_or_in_fortran_order_or_cut_short_is_told() -> None:
    assert reason_of(decode, npy_text(experts_of(3), "f4")) is Reason.BAD_NPY
    assert reason_of(decode, npy_text(np.asfortranarray(experts_of(3)))) is Reason.BAD_NPY
    whole = base64.b64decode(npy_text(experts_of(3)))
    assert reason_of(decode, base64.b64encode(whole[:60])) is Reason.BAD_NPY
    assert reason_of(decode, base64.b64encode(whole[:-1])) is Reason.WRONG_SIZE
    assert reason_of(decode, base64.b64encode(b"\x93NUMPY\x01\x00\x02\x00{\n")) is Reason.BAD_NPY


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(1, 30))
def test_any_header_is_read_or_refused_without_another_error(garbage: bytes, size: int) -> None:
    body = b"\x93NUMPY\x01\x00" + len(garbage).to_bytes(2, "little") + garbage + b"12345678"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            decode(base64.b64encode(body), size=size)
        except RowsError as error:
            assert error.reason in (Reason.BAD_NPY, Reason.WRONG_SIZE)


def test_the_object_form_is_taken_as_it_states_itself() -> None:
    experts = experts_of(5)
    value = {"data": raw_text(experts), "shape": list(experts.shape), "start": 3}
    decoded = decode_object(dumped(value), "int32")
    assert (decoded.shape, decoded.start) == (experts.shape, 3)
    assert (decoded.ids.reshape(experts.shape) == experts).all()
    stated = {"start": 0, "dtype": "uint16", "data": raw_text(experts, "<u2")}
    assert decode_object(dumped(stated), "int32").ids.tolist() == experts.ravel().tolist()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"shape": [1, 4, 2]}, Reason.UNKNOWN_FORM),
        ({"data": None}, Reason.UNKNOWN_FORM),
        ({"data": "AAAAAA==", "shape": [2, 2]}, Reason.WRONG_SIZE),
        ({"data": "AAAAAA==", "shape": [-1, -1, 1]}, Reason.UNKNOWN_FORM),
        ({"data": "AAAAAA==", "shape": 1}, Reason.UNKNOWN_FORM),
        ({"data": "AAAAAA==", "start": "0"}, Reason.UNKNOWN_FORM),
        ({"data": "AAAAAA==", "dtype": ["int32"]}, Reason.UNKNOWN_FORM),
        ({"data": "AAAAAA==", "dtype": "float32"}, Reason.DTYPE_UNKNOWN),
        (["AAAAAA=="], Reason.UNKNOWN_FORM),
    ],
)
def test_an_object_that_is_not_of_the_form_is_told(value: object, reason: Reason) -> None:
    assert reason_of(decode_object, dumped(value), "int32") is reason


@pytest.mark.parametrize("size", [1, 7, 64, 5000])
def test_a_scanner_decodes_each_value_as_it_comes(size: int) -> None:
    experts = experts_of(12)
    value = {"data": raw_text(experts), "shape": list(experts.shape), "start": 0}
    body = dumped([generate_answer(raw_text(experts)), generate_answer(npy_text(experts)), generate_answer(value)])
    scanner = ValueScanner(b"routed_experts", open_sink=open_decoder("int32"))
    for start in range(0, len(body), size):
        scanner.feed(body[start : start + size])
    for found in scanner.values:
        assert decode_found(found, "int32").ids.tolist() == experts.ravel().tolist()
    assert len(scanner.values) == 3


def test_a_value_that_breaks_off_is_told() -> None:
    scanner = ValueScanner(b"routed_experts", open_sink=open_decoder("int32"))
    scanner.feed(b'{"routed_experts":"AAAA')
    assert reason_of(decode_found, scanner.values[0], "int32") is Reason.TRUNCATED


def test_pieces_that_were_only_kept_can_be_decoded_later() -> None:
    experts = experts_of(12)
    body = dumped(generate_answer(raw_text(experts)))
    scanner = ValueScanner(b"routed_experts")
    for start in range(0, len(body), 50):
        scanner.feed(body[start : start + 50])
    assert decode_found(scanner.values[0], "int32").ids.tolist() == experts.ravel().tolist()


def test_a_sink_that_keeps_nothing_has_nothing_to_decode() -> None:
    class Nothing:
        def write(self, piece: memoryview) -> None:
            pass

    scanner = ValueScanner(b"routed_experts", open_sink=lambda is_string: Nothing())
    scanner.feed(b'{"routed_experts":"AAAA"}')
    with pytest.raises(TypeError, match="Nothing keeps nothing"):
        decode_found(scanner.values[0], "int32")


def test_a_scanner_and_its_chunks_are_freed_at_once() -> None:
    scanner, chunk = ValueScanner(b"routed_experts"), dumped(generate_answer("AAAA"))
    before = sys.getrefcount(chunk)
    gc.disable()
    try:
        scanner.feed(chunk)
        assert sys.getrefcount(chunk) > before
        del scanner
        assert sys.getrefcount(chunk) == before
    finally:
        gc.enable()
