"""What mypyc asks of the modules that it may compile (pyproject.toml), read from their source."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
HOOK = BUILD["targets"]["wheel"]["hooks"]["custom"]
MODULES = sorted({path for pattern in HOOK["include"] for path in ROOT.glob(pattern)})


def waits_in_handlers(tree: ast.AST) -> Iterator[int]:
    """Lines of an await where an exception is being handled, or a ``finally`` or ``async with`` is under way.

    A compiled coroutine has no exception state of its own: what it handles while it waits, others would see as theirs.
    """
    for node in ast.walk(tree):
        held: list[ast.stmt] = []
        if isinstance(node, ast.Try):
            held = [*node.handlers, *node.finalbody]  # type: ignore[list-item]
        elif isinstance(node, ast.AsyncWith):
            held = [node]
        for statement in held:
            for inner in ast.walk(statement):
                if isinstance(inner, ast.Await | ast.AsyncWith | ast.AsyncFor):
                    yield inner.lineno


def test_there_are_modules_to_compile() -> None:
    assert len(MODULES) > 10
    for pattern in HOOK["include"]:
        assert list(ROOT.glob(pattern)), f"{pattern} is no file any more"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_awaited_while_an_exception_is_handled(path: Path) -> None:
    assert not sorted(set(waits_in_handlers(ast.parse(path.read_text()))))


def test_such_awaits_are_found() -> None:
    source = """
async def f():
    try:
        await a()
    except ValueError:
        await b()
    finally:
        await c()
    async with d():
        pass
"""
    assert sorted(waits_in_handlers(ast.parse(source))) == [6, 8, 9]
