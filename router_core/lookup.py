"""How a value is looked up by its key: for type checkers only, since mypyc takes no overloads without a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from router_core.types.state import StateKey

T = TypeVar("T")
D = TypeVar("D")


class Lookup(Protocol):
    """The value, or None; with a default, that instead of None."""

    @overload
    def __call__(self, key: StateKey[T], /) -> T | None: ...
    @overload
    def __call__(self, key: StateKey[T], default: D, /) -> T | D: ...
