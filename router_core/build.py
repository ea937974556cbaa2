"""Which build runs: these sources, or what mypyc made of them."""

from __future__ import annotations


def is_compiled() -> bool:
    """Whether the modules of the hot path run as extension modules. All of them do, or none: this one is of them."""
    return not __file__.endswith((".py", ".pyc"))
