"""What mypyc asks of the modules that it may compile (pyproject.toml), read from their source."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_core import hookspecs

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


def set_in_try_and_read_in_finally(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """A ``finally`` is typed as if nothing was raised: compiled, it takes what ``try`` sets for set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.finalbody:
            tried = [*node.body, *node.handlers, *node.orelse]
            written = {ast.unparse(name) for name in _names(tried, ast.Store)}
            for name in _names(node.finalbody, ast.Load):
                if ast.unparse(name) in written:
                    yield name.lineno, ast.unparse(name)


def _names(statements: list[ast.AST], context: type[ast.expr_context]) -> Iterator[ast.Name | ast.Attribute]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, context):
                yield node


def properties_over_attributes(compiled: list[ast.Module], others: list[ast.Module]) -> Iterator[str]:
    """Properties where a compiled base has an attribute: compiled readers look into the attribute all the same."""
    attributes: dict[str, set[str]] = {}
    for tree in compiled:
        for found in _classes(tree):
            attributes.setdefault(found.name, set()).update(_attributes(found))
    for tree in [*compiled, *others]:
        for found in _classes(tree):
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in found.bases}
            plain = set().union(*(attributes.get(base, set()) for base in bases))
            yield from sorted(f"{found.name}.{name}" for name in _properties(found) & plain)


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _attributes(found: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
    for statement in found.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _properties(found: ast.ClassDef) -> set[str]:
    return {
        method.name
        for method in found.body
        if isinstance(method, ast.FunctionDef)
        and any(ast.unparse(decorator) in ("property", "cached_property") for decorator in method.decorator_list)
    }


def test_there_are_modules_to_compile() -> None:
    assert len(MODULES) > 10
    for pattern in HOOK["include"]:
        assert list(ROOT.glob(pattern)), f"{pattern} is no file any more"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_awaited_while_an_exception_is_handled(path: Path) -> None:
    assert not sorted(set(waits_in_handlers(ast.parse(path.read_text()))))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_finally_reads_what_its_try_sets(path: Path) -> None:
    assert not list(set_in_try_and_read_in_finally(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name == "plugin.py"], ids=lambda path: path.parent.name
)
def test_an_async_hook_takes_all_arguments_in_order(path: Path) -> None:
    """Compiled, it does not tell which it takes."""
    for hook in ast.walk(ast.parse(path.read_text())):
        if isinstance(hook, ast.AsyncFunctionDef) and "hookimpl" in map(ast.unparse, hook.decorator_list):
            _, *taken = (argument.arg for argument in hook.args.args)
            assert taken == [*inspect.signature(getattr(hookspecs, hook.name)).parameters], hook.name


def test_no_property_stands_over_an_attribute_of_a_compiled_class() -> None:
    others = [path for root in ("router_core", "plugins") for path in (ROOT / root).rglob("*.py")]
    others = [path for path in others if path not in MODULES]
    compiled, rest = ([ast.parse(path.read_text()) for path in paths] for paths in (MODULES, others))
    assert not list(properties_over_attributes(compiled, rest))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_compiled_class_has_a_cached_property(path: Path) -> None:
    """It has no ``__dict__`` to keep it in."""
    assert "cached_property" not in path.read_text()


def test_such_properties_and_reads_are_found() -> None:
    base = ast.parse("class A:\n    def __init__(self):\n        self.x = 1\nclass B(A):\n    pass")
    derived = ast.parse("class C(A):\n    @property\n    def x(self):\n        return 2")
    assert list(properties_over_attributes([base], [derived])) == ["C.x"]
    read = ast.parse("try:\n    a = 1\n    self.b = 2\nfinally:\n    print(a, self.b, c)")
    assert list(set_in_try_and_read_in_finally(read)) == [(5, "a"), (5, "self.b")]


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
