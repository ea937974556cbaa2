"""How samples are sent: as JSON, or with their arrays as they are in memory (``npz``, ``safetensors``).

The two binary encodings hold each array under its place (``samples.0.tokens``), and under ``payload.json`` the UTF-8
text (uint8) of ``{"payload": P, "arrays": [path, ...]}``: P with null where the arrays are, and those places as lists
of keys and indices. Nothing is converted: logprobs are float64 in all three, and JSON numbers are the shortest that
give the same double back.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
import orjson
from numpy.typing import NDArray

from router_tito.errors import ExportError

JSON = "json"
NPZ = "npz"
SAFETENSORS = "safetensors"
ENCODINGS = {JSON: "application/json", NPZ: "application/x-npz", SAFETENSORS: "application/x-safetensors"}
"""Name -> media type."""
PAYLOAD = "payload.json"
SLICE = 16384
"""Rows of an array that are written in one go: a single call keeps every other thread of the process waiting."""

Path: TypeAlias = "tuple[str | int, ...]"


def encode(payload: Any, encoding: str) -> bytes:
    """``payload`` (JSON values and numpy arrays of numbers) as bytes. Raises ExportError for an unknown encoding."""
    if encoding == JSON:
        return b"".join(_json_pieces(payload))
    _check(encoding)
    arrays: dict[Path, NDArray[Any]] = {}
    rest = _taken_out(payload, (), arrays)
    text = json.dumps({"payload": rest, "arrays": list(arrays)}, default=str, separators=(",", ":")).encode()
    members = {_name(path): np.ascontiguousarray(array) for path, array in arrays.items()}
    members[PAYLOAD] = np.frombuffer(text, np.uint8)
    if encoding == NPZ:
        file = io.BytesIO()
        np.savez(file, **members)  # type: ignore[arg-type]  # numpy's stub takes a name for its flag
        return file.getvalue()
    from safetensors.numpy import save  # late: who sends JSON needs it not

    return bytes(save(members))


def decode(body: bytes, encoding: str) -> Any:
    """Inverse of ``encode``: arrays from the binary encodings, lists from JSON. Raises ExportError if damaged."""
    if encoding == JSON:
        return orjson.loads(body)
    _check(encoding)
    try:
        members = _members(body, encoding)
        told = json.loads(bytes(members[PAYLOAD]))
        payload = told["payload"]
        for path in told["arrays"]:
            payload = _put(payload, path, members[_name(path)])
    except Exception as error:
        raise ExportError(f"the samples are not {encoding} as it was sent: {error!r}") from error
    return payload


def _check(encoding: str) -> None:
    if encoding not in ENCODINGS:
        raise ExportError(f"there is no encoding {encoding!r}: one of {', '.join(ENCODINGS)}")


def _members(body: bytes, encoding: str) -> dict[str, NDArray[Any]]:
    if encoding == NPZ:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    from safetensors.numpy import load

    return dict(load(body))


def _name(path: Sequence[str | int]) -> str:
    """The place of an array as one text, each key quoted so that no two places share one."""
    return ".".join(quote(str(step), safe="").replace(".", "%2E") for step in path) or "array"


def _taken_out(value: Any, path: Path, arrays: dict[Path, NDArray[Any]]) -> Any:
    """``value`` with null in the place of each array."""
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return None
    if isinstance(value, Mapping):
        return {str(key): _taken_out(item, (*path, str(key)), arrays) for key, item in value.items()}
    if _has_parts(value):
        return [_taken_out(item, (*path, index), arrays) for index, item in enumerate(value)]
    return value


def _put(payload: Any, path: Sequence[str | int], array: NDArray[Any]) -> Any:
    if not path:
        return array
    parent = payload
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = array
    return payload


def _has_parts(value: Any) -> bool:
    """Whether this is a list in which arrays may be."""
    return isinstance(value, list | tuple) and any(isinstance(v, Mapping | list | tuple | np.ndarray) for v in value)


def _holds_array(value: Any) -> bool:
    """Whether an array is anywhere in it."""
    if isinstance(value, Mapping):
        return any(map(_holds_array, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_array, value))
    return isinstance(value, np.ndarray)


def _json_pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield from _array_pieces(value)
    elif not _holds_array(value):
        yield json.dumps(value, default=str, separators=(",", ":")).encode()
    elif isinstance(value, Mapping):
        yield b"{"
        for place, (key, item) in enumerate(value.items()):
            yield (b"," if place else b"") + json.dumps(str(key)).encode() + b":"
            yield from _json_pieces(item)
        yield b"}"
    else:
        yield b"["
        for place, item in enumerate(value):
            if place:
                yield b","
            yield from _json_pieces(item)
        yield b"]"


def _array_pieces(array: NDArray[Any]) -> Iterator[bytes]:
    array = np.ascontiguousarray(array)
    yield b"["
    rows = max(1, SLICE // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        text = orjson.dumps(array[start : start + rows], option=orjson.OPT_SERIALIZE_NUMPY)
        yield (b"," if start else b"") + text[1:-1]
    yield b"]"
