"""Packed token sequences: 4 bytes an id, 8 bytes a logprob, compared at the speed of memcmp.

Logprobs are doubles because a float32 does not give back the number the engine wrote.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import orjson

from .errors import TraceError, TurnRefusedError

Ids: TypeAlias = "array[int]"
"""``array('i')`` of token ids."""
Logprobs: TypeAlias = "array[float]"
"""``array('d')`` of log probabilities in nats."""


def pack_ids(ids: Iterable[int], what: str) -> Ids:
    """``ids`` as ``array('i')``, the very object if it is one already; else ``TurnRefusedError`` naming ``what``."""
    if isinstance(ids, array) and ids.typecode == "i":
        return ids
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as error:
        raise TurnRefusedError("bad_ids", f"{what} are not token ids: {error}") from error


def check_ids(ids: Ids, what: str) -> None:
    """Raise ``TurnRefusedError`` if one of ``ids`` is negative (engines use -1 for "no token")."""
    if ids and int(np.frombuffer(ids, dtype=np.int32).min()) < 0:
        raise TurnRefusedError("bad_ids", f"{what} contain a negative id")


def pack_logprobs(logprobs: Sequence[float | None] | None, count: int) -> Logprobs:
    """One finite logprob per sampled token, or ``TurnRefusedError``: none is ever made up."""
    if logprobs is None:
        raise TurnRefusedError("logprobs_missing", f"the worker returned no logprobs for {count} sampled tokens")
    if len(logprobs) != count:
        raise TurnRefusedError("logprobs_missing", f"{len(logprobs)} logprobs for {count} sampled tokens")
    packed: Logprobs = array("d")
    try:
        packed.extend(logprobs)  # type: ignore[arg-type]  # a None in it is what the except is for
    except TypeError as error:
        raise TurnRefusedError("logprobs_missing", f"a sampled token has no logprob: {error}") from error
    if packed and not bool(np.isfinite(np.frombuffer(packed, dtype=np.float64)).all()):
        raise TurnRefusedError("logprobs_missing", "a sampled token's logprob is not a finite number")
    return packed


def ids_json(ids: Sequence[int]) -> bytes:
    """A JSON list of the ids, as orjson and pydantic write it."""
    if isinstance(ids, array):
        return orjson.dumps(np.frombuffer(ids, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)  # five times faster
    return orjson.dumps(list(ids))


def begins_with(ids: Ids, beginning: Ids) -> bool:
    """Whether ``ids`` begin with all of ``beginning``."""
    count = len(beginning)
    if count > len(ids):
        return False
    return not count or np.array_equal(np.frombuffer(ids, np.int32, count), np.frombuffer(beginning, np.int32))


def first_difference(left: Ids, right: Ids) -> int:
    """Position of the first token in which the two differ, or the shorter length."""
    count = min(len(left), len(right))
    unequal = np.frombuffer(left, dtype=np.int32)[:count] != np.frombuffer(right, dtype=np.int32)[:count]
    return int(unequal.argmax()) if unequal.any() else count


def to_text(packed: Ids | Logprobs) -> str:
    """Base64 of the little-endian bytes."""
    if sys.byteorder == "big":
        packed = array(packed.typecode, packed)
        packed.byteswap()
    return base64.b64encode(packed).decode("ascii")


def _from_text(typecode: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise TraceError(f"a packed array must be base64 text, not {type(text).__name__}")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise TraceError(f"a packed array is not base64: {error}") from error
    if len(raw) % array(typecode).itemsize:
        raise TraceError(f"a packed array of type {typecode!r} is cut off at {len(raw)} bytes")
    return raw


def ids_from_text(text: object) -> Ids:
    """Inverse of ``to_text`` for ids; ``TraceError`` if the text is not one."""
    packed: Ids = array("i")
    packed.frombytes(_from_text("i", text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def logprobs_from_text(text: object) -> Logprobs:
    """Inverse of ``to_text`` for logprobs; ``TraceError`` if the text is not one."""
    packed: Logprobs = array("d")
    packed.frombytes(_from_text("d", text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
