"""Reads and writes ``.safetensors``: 8 bytes of header length, a JSON header, then the tensors' bytes.

Format: https://huggingface.co/docs/safetensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from router_core.reference_engine.kv_cache import FloatArray

_DTYPES: dict[str, npt.DTypeLike] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def read_safetensors(path: Path) -> dict[str, FloatArray]:
    """Return all tensors as float32; a type that is no float is a ValueError naming file and tensor."""
    blob = path.read_bytes()
    header_bytes = int.from_bytes(blob[:8], "little")
    header: dict[str, Any] = json.loads(blob[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    body = memoryview(blob)[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        try:
            tensors[name] = _as_float32(body[start:end], entry["dtype"]).reshape(entry["shape"])
        except KeyError:
            raise ValueError(f"{path}: tensor {name} has the type {entry['dtype']}; floats are needed") from None
    return tensors


def _as_float32(raw: memoryview, dtype: str) -> FloatArray:
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        widened: FloatArray = (np.frombuffer(raw, dtype="<u2").astype("<u4") << 16).view(np.float32)
        return widened
    numbers: npt.NDArray[Any] = np.frombuffer(raw, dtype=_DTYPES[dtype])
    return numbers.astype(np.float32)


def write_safetensors(path: Path, tensors: Mapping[str, FloatArray]) -> None:
    """Write ``tensors`` as float32, in their order."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        size = 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())
