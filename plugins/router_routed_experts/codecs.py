"""From the wire to integers: what SGLang and vLLM send as routed experts.

SGLang sends base64 of little-endian int32 without a header, ``[rows, layers, top_k]``; vLLM base64 of a ``.npy``
file, uint8 when it fits; both may be wrapped as ``{"data", "shape", "start"}``. A dtype that is stated (in the
``.npy`` header, in the object, beside the field) wins; a worker whose raw dtype is not known is not guessed at.

Values are decoded as they come and narrowed at once: a body of 64 MiB of base64 leaves 12 MiB of uint8, and no copy
of the text is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from router_core import FoundValue, Pieces, Sink, ValueScanner
from router_routed_experts.base64_stream import Base64Stream
from router_routed_experts.reasons import Reason, RowsError

RAW_DTYPES = {"sglang": "int32"}
"""The dtype of a value without a header, by worker dialect; vLLM sends none without."""

DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "int16", "int32", "int64")}

MAX_EXPECTED_BYTES = 1 << 28
"""Most bytes of an answer for whose ids room is reserved in advance, whatever it says of its length."""

NPY_MAGIC = b"\x93NUMPY"

NPY_FIELDS = tuple(
    re.compile(rb"""['"]%s['"]\s*:\s*%s""" % field)
    for field in (
        (b"descr", rb"""['"]([<>|=]?[iu][1248])['"]"""),
        (b"fortran_order", rb"(False)"),
        (b"shape", rb"\(([\d\s,]{0,200})\)"),
    )
)

SMALLEST = tuple(map(np.dtype, (np.uint8, np.uint16, np.uint32)))

Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Expert ids in the smallest unsigned type that holds them, flat, and what the value said of itself.

    ``dtype`` names the integers that the worker sent; None: it is not known.
    """

    ids: Ids
    shape: tuple[int, ...] | None = None
    start: int | None = None
    dtype: str | None = None


class GrowingIds:
    """Ids one after another in one buffer, of the smallest type that holds them so far.

    ``expected`` is how many there may be: what is reserved for them costs no memory before it is written.
    """

    def __init__(self, expected: int = 0) -> None:
        self._buffer: Ids = np.empty(expected, np.uint8)
        self._count = 0

    def add(self, ids: Ids) -> None:
        """Append; an id that needs a wider type widens those before it. Raises ``RowsError`` above 32 bits."""
        stop = self._count + ids.size
        buffer = self._buffer
        dtype = max(buffer.dtype, smallest_dtype(ids), key=_width)
        if stop > buffer.size or dtype != buffer.dtype:
            self._buffer = np.empty(max(stop, buffer.size if dtype != buffer.dtype else 2 * stop), dtype)
            self._buffer[: self._count] = buffer[: self._count]
        np.copyto(self._buffer[self._count : stop], ids, casting="unsafe")
        self._count = stop

    def array(self) -> Ids:
        """All ids, with no room behind them; no more may be added while it is in use."""
        self._buffer.resize(self._count, refcheck=False)  # in place: what was reserved and not needed goes back
        return self._buffer


class ExpertDecoder:
    """A sink that decodes one base64 string into ids; nothing is raised before ``finish``.

    Without a header the bytes are read as ``likely_dtype``; another one that is told only in the end costs nothing but
    a second reading: narrowing loses no byte.
    """

    def __init__(self, likely_dtype: str | None, expected_bytes: int = 0) -> None:
        self._likely_dtype = likely_dtype
        self._expected_bytes = expected_bytes
        self._base64 = Base64Stream()
        self._bytes = b""  # decoded, but not a whole header or integer yet
        self._dtype: np.dtype[Any] | None = None  # None until the start of the value is there
        self._shape: tuple[int, ...] | None = None
        self._ids: GrowingIds | None = None
        self._error: RowsError | None = None

    def write(self, piece: memoryview) -> None:
        """Decode what is there; after an error the rest is ignored."""
        if self._error is not None:
            return
        try:
            for decoded in self._base64.decode(piece):
                self._take(decoded)
        except RowsError as error:
            self._error = error

    def finish(self, raw_dtype: str | None) -> Decoded:
        """All ids; raises ``RowsError`` when the text, its header or its length is wrong.

        ``raw_dtype`` is that of a value without a header: what the answer states beside it, else the worker's. A
        header wins over it; without either nothing is guessed.
        """
        if self._error is not None:
            raise self._error
        self._take(self._base64.finish())
        if self._dtype is None and self._bytes.startswith(NPY_MAGIC):
            raise RowsError(Reason.BAD_NPY, "it ends within the header")
        dtype = self._dtype if self._shape is not None else dtype_of(raw_dtype)
        if dtype is not None and self._dtype not in (None, dtype):
            self._read_again(dtype)
        if self._bytes:
            raise RowsError(Reason.WRONG_SIZE, f"{len(self._bytes)} bytes more than whole integers of {dtype}")
        ids = self._array()
        if self._shape is not None and ids.size != math.prod(self._shape):
            raise RowsError(Reason.WRONG_SIZE, f"{ids.size} ids for the shape {self._shape}")
        if (
            dtype is not None
            and dtype.kind == "i"
            and ids.itemsize == dtype.itemsize
            and (ids >> 8 * ids.itemsize - 1).any()
        ):
            raise RowsError(Reason.ID_RANGE, f"an id is {int(ids.view(ids.dtype.str.replace('u', 'i')).min())}")
        return Decoded(ids, self._shape, dtype=dtype.name if dtype is not None else None)

    def _take(self, decoded: bytes) -> None:
        if self._bytes:  # only behind a header or behind an error: the decoder gives whole integers
            decoded = self._bytes + decoded
        if self._dtype is None:
            decoded = self._read_header(decoded)
        if self._dtype is None:
            self._bytes = decoded
            return
        count = len(decoded) // self._dtype.itemsize
        self._bytes = decoded[count * self._dtype.itemsize :]
        if count:
            if self._ids is None:
                self._ids = GrowingIds(self._expected_bytes * 3 // 4 // self._dtype.itemsize)
            # a negative id of 32 bits becomes 2**31 or more, and is told in the end
            self._ids.add(np.frombuffer(decoded, self._dtype.str.replace("i", "u"), count))

    def _read_header(self, decoded: bytes) -> bytes:
        """What follows the header; all of it, and no dtype, while the header is not whole."""
        if len(decoded) < len(NPY_MAGIC) + 6 and NPY_MAGIC.startswith(decoded[: len(NPY_MAGIC)]):
            return decoded
        if not decoded.startswith(NPY_MAGIC):
            self._dtype = dtype_of(self._likely_dtype or "uint8")
            return decoded
        width = 4 if decoded[6] > 1 else 2
        size = 8 + width + int.from_bytes(decoded[8 : 8 + width], "little")
        if len(decoded) < size:
            return decoded
        self._dtype, self._shape = read_npy_header(decoded[:size])
        return decoded[size:]

    def _read_again(self, dtype: np.dtype[Any]) -> None:
        raw = self._array().astype(self._dtype).tobytes() + self._bytes
        self._ids, self._bytes, self._dtype = None, b"", dtype
        self._take(raw)

    def _array(self) -> Ids:
        return np.empty(0, np.uint8) if self._ids is None else self._ids.array()


def dtype_of(name: str | None) -> np.dtype[Any]:
    """The little-endian dtype of a stated name, or ``RowsError``."""
    if name not in DTYPES:
        said = (
            "no dtype is stated and the worker's is not known" if name is None else f"the dtype {name!r} is no integer"
        )
        raise RowsError(Reason.DTYPE_UNKNOWN, said)
    return DTYPES[name]


def read_npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of a ``.npy`` header of integers in C order, or ``RowsError``.

    The three fields are looked for, since numpy's own reader evaluates the header and fails in many ways on a broken
    one.
    """
    descr, order, shape = (field.search(header) for field in NPY_FIELDS)
    if descr is None or order is None or shape is None:
        raise RowsError(Reason.BAD_NPY, f"no header of integers in C order: {header[8:120]!r}")
    return np.dtype(descr[1].decode()), tuple(int(size) for size in shape[1].replace(b",", b" ").split())


def smallest_dtype(ids: Ids) -> np.dtype[Any]:
    """The smallest type that holds all of them; raises ``RowsError`` for a wider one than is known."""
    if ids.dtype == SMALLEST[0]:
        return SMALLEST[0]
    bits = int(np.bitwise_or.reduce(ids))
    for dtype in SMALLEST:
        if bits < 1 << 8 * dtype.itemsize:
            return dtype
    signed = ids.view(ids.dtype.str.replace("u", "i"))
    raise RowsError(Reason.ID_RANGE, f"an id is {int(signed.min())}, one is {int(signed.max())}")


def _width(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize


def open_decoder(likely_dtype: str | None, expected_bytes: int = 0) -> Callable[[bool], Sink]:
    """The ``open_sink`` of a scanner: strings are decoded as they come, an object is kept until it is whole.

    ``expected_bytes`` is how long the answer says it is, for its first value.
    """
    expected = [min(expected_bytes, MAX_EXPECTED_BYTES)]

    def open_sink(is_string: bool) -> Sink:
        return ExpertDecoder(likely_dtype, expected.pop() if expected else 0) if is_string else Pieces()

    return open_sink


def decode_found(found: FoundValue, raw_dtype: str | None, stated_dtype: str | None = None) -> Decoded:
    """The ids of a value whose sink is of ``open_decoder`` or keeps the pieces; raises ``RowsError``.

    ``stated_dtype`` is what the answer says beside the value, ``raw_dtype`` the worker's where it says nothing.
    """
    if found.stop is None:
        raise RowsError(Reason.TRUNCATED, "the answer broke off within the value")
    sink = found.sink
    if isinstance(sink, ExpertDecoder):
        return sink.finish(stated_dtype or raw_dtype)
    if not isinstance(sink, Pieces):
        raise TypeError(f"a {type(sink).__name__} keeps nothing to decode")
    if not found.is_string:
        return decode_object(sink.joined(), stated_dtype or raw_dtype)
    decoder = ExpertDecoder(raw_dtype)
    for piece in sink.pieces:
        decoder.write(piece)
    return decoder.finish(stated_dtype or raw_dtype)


def decode_object(value: bytes, raw_dtype: str | None) -> Decoded:
    """The object form ``{"data", "shape", "start", "dtype"?}``; shape and start are taken as they are stated."""
    decoders: list[ExpertDecoder] = []

    def open_sink(is_string: bool) -> Sink:
        decoders.append(ExpertDecoder(raw_dtype))
        return decoders[-1]

    scanner = ValueScanner(b"data", open_sink=open_sink)
    scanner.feed(value)
    try:
        fields = orjson.loads(scanner.rest_bytes())
    except orjson.JSONDecodeError as error:
        raise RowsError(Reason.UNKNOWN_FORM, f"not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("data"), str):
        raise RowsError(Reason.UNKNOWN_FORM, "neither a string nor an object with data")
    shape, start, dtype = fields.get("shape"), fields.get("start"), fields.get("dtype")
    if not (shape is None or (isinstance(shape, list) and all(map(_is_count, shape)))):
        raise RowsError(Reason.UNKNOWN_FORM, f"its shape is {shape!r}")
    if not (start is None or _is_count(start)) or not (dtype is None or isinstance(dtype, str)):
        raise RowsError(Reason.UNKNOWN_FORM, f"its start is {start!r} and its dtype {dtype!r}")
    decoded = decoders[int(fields["data"])].finish(dtype or raw_dtype)
    if shape is not None and math.prod(shape) != decoded.ids.size:
        raise RowsError(Reason.WRONG_SIZE, f"{decoded.ids.size} ids for the stated shape {shape}")
    return Decoded(decoded.ids, decoded.shape if shape is None else tuple(shape), start, decoded.dtype)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
