"""Values that plugins keep on the router's objects, typed and private by their key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from router_core.lookup import Lookup

T = TypeVar("T")


class StateKey(Generic[T]):
    """Names a value that a plugin keeps on an exchange, session or worker. Who holds the key sees the value.

    >>> RID = StateKey[str]("rid")
    >>> exchange.state[RID] = "r-1"
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


class State:
    """Values by `StateKey`; private to a plugin as long as it keeps the key to itself."""

    __slots__ = ("_values", "get")

    def __init__(self) -> None:
        values: dict[StateKey[Any], Any] = {}
        self._values = values
        self.get: Lookup = values.get
        """``get(key)``: the value, or None; ``get(key, default)``. The dictionary's own, since hooks ask most often."""

    def __getitem__(self, key: StateKey[T]) -> T:
        return self._values[key]  # type: ignore[no-any-return]  # the key carries the type

    def __setitem__(self, key: StateKey[T], value: T) -> None:
        self._values[key] = value

    def __contains__(self, key: StateKey[Any]) -> bool:
        return key in self._values

    def pop(self, key: StateKey[T]) -> T | None:
        """Takes the value away and returns it, or None."""
        value: T | None = self._values.pop(key, None)
        return value
