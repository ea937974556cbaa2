"""Hooks that are methods of compiled classes: no functions, and nothing that pluggy would look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pluggy

from router_core.hookspecs import marks_of


class Hooks(pluggy.PluginManager):
    """pluggy's register of hooks that are functions.

    It leaves alone what may only be asked of an instance that has started (pluggy 1.6 asks for everything there is):
    properties, and the attributes that a compiled class declares.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        found = inspect.getattr_static(type(plugin), name, None)
        is_left = inspect.isdatadescriptor(found) or is_compiled(found)
        return None if is_left else super().parse_hookimpl_opts(plugin, name)


def is_compiled(function: object) -> bool:
    """Whether a class's attribute is a method of compiled code: callable, bound when it is got, and no function."""
    is_bound = inspect.ismethoddescriptor(function) and not isinstance(function, staticmethod)
    return is_bound and callable(function)


def compiled_hooks(cls: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The compiled methods of a class that are marked as hooks."""
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        if marks_of(function) is not None and is_compiled(function):
            yield name, function
