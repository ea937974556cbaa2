"""Reads the fields of a JSON request; a wrong type is a WrongTypeError naming it, null counts as missing."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from router_core.reference_engine.errors import InvalidFieldError, WrongTypeError

Fields = Mapping[str, Any]
Choice = TypeVar("Choice", bound=str)


def flag(body: Fields, name: str, default: bool = False) -> bool:
    """Return a boolean."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise WrongTypeError(name, f"{name} must be true or false, got {value!r}.")
    return value


def integer(body: Fields, name: str, default: int, at_least: int | None = None) -> int:
    """Return a whole number, not below ``at_least``."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(name, f"{name} must be an integer, got {value!r}.")
    if at_least is not None and value < at_least:
        raise InvalidFieldError(name, f"{name} must be at least {at_least}, got {value}.")
    return value


def number(body: Fields, name: str, default: float, at_least: float, at_most: float = float("inf")) -> float:
    """Return a number between ``at_least`` and ``at_most``."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(name, f"{name} must be a number, got {value!r}.")
    if not at_least <= value <= at_most:
        raise InvalidFieldError(name, f"{name} must be in [{at_least}, {at_most}], got {value}.")
    return float(value)


def text(body: Fields, name: str, default: str = "") -> str:
    """Return a string."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise WrongTypeError(name, f"{name} must be a string, got {value!r}.")
    return value


def choice(body: Fields, name: str, choices: Sequence[Choice], default: Choice) -> Choice:
    """Return one of ``choices``."""
    value = body.get(name)
    if value is None:
        return default
    for known in choices:
        if value == known:
            return known
    raise WrongTypeError(name, f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def mapping(body: Fields, name: str) -> Fields:
    """Return an object; missing is empty."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise WrongTypeError(name, f"{name} must be an object, got {value!r}.")
    return value


def mappings(body: Fields, name: str) -> list[Fields]:
    """Return a list of objects; missing is empty."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise WrongTypeError(name, f"{name} must be a list of objects.")
    return value


def texts(body: Fields, name: str) -> tuple[str, ...]:
    """Return strings; one alone counts as a list of one."""
    value = body.get(name)
    listed = [value] if isinstance(value, str) else value or []
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise WrongTypeError(name, f"{name} must be a string or a list of strings, got {value!r}.")
    return tuple(listed)


def ids(value: Any, name: str, vocabulary_size: int) -> list[int]:
    """Return a list of token ids, each below ``vocabulary_size``."""
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
        raise WrongTypeError(name, f"{name} must be a list of token ids.")
    for token_id in value:
        if not 0 <= token_id < vocabulary_size:
            raise InvalidFieldError(
                name, f"{name}: the id {token_id} is outside the vocabulary (0 to {vocabulary_size - 1})."
            )
    return value
