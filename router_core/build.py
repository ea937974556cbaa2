"""Which build runs: the sources, or what mypyc made of the modules that pyproject.toml lists."""

from __future__ import annotations


def build_name() -> str:
    """``compiled`` or ``interpreted``. Of the listed modules all are compiled or none, and this one is listed."""
    return "interpreted" if __file__.endswith((".py", ".pyc")) else "compiled"
