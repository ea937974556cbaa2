"""What docs/generate.py writes into docs/reference/objects.md: the public names, from their source."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import router_core
import router_core.testing

FOR_THE_CORE = "# for the core"
"""What stands below this comment in a class is no plugin's business."""
FIRST = ("Exchange", "Request", "Answer", "Attempt", "Worker", "Session", "Router")
"""What hooks are given, before all that is there for more special work."""


def objects_page(command: str) -> str:
    names = [*FIRST, *(name for name in router_core.__all__ if name not in FIRST)]
    parts = [
        "# Objects\n",
        f"Written by `{command}` from the docstrings: what may be imported from `router_core`, and from "
        "`router_core.testing` in tests. Names that do not stand here may change without a word. Hooks are given the "
        f"first {len(FIRST)}.\n",
        *(_entry(name, getattr(router_core, name)) for name in names if name != "API_VERSION"),
        "## For tests: router_core.testing\n",
        "| name | what it is |\n|---|---|",
        *(_line(name, getattr(router_core.testing, name)) for name in router_core.testing.__all__),
    ]
    is_row = re.compile(r"\| .*\|\Z", re.DOTALL).match
    return "\n".join(part.rstrip() + ("" if is_row(part) else "\n") for part in parts) + "\n"


def _line(name: str, found: Any) -> str:
    is_described = (inspect.isclass(found) and not hasattr(found, "__origin__")) or inspect.isfunction(found)
    told = (inspect.getdoc(found) or "").split("\n", 1)[0] if is_described else ""
    return f"| `{name}` | {_text(told) or 'see its signature' if is_described else 'a constant or a type'} |"


def _entry(name: str, found: Any) -> str:
    if inspect.isclass(found):
        return _class(name, found)
    if inspect.isfunction(found):
        signature = _signature(found)
        return f"## {name}\n\n```python\n{_kind(found)} {name}{signature}\n```\n\n{_prose(inspect.getdoc(found))}\n"
    return f"## {name}\n\nA constant, type or mark, used as the [hooks](hooks.md) show it.\n"


def _class(name: str, cls: type[Any]) -> str:
    parts = [f"## {name}", _prose(inspect.getdoc(cls))]
    rows = [f"| `{key}` | {_code(kind)} | {_text(told)} |" for key, kind, told in _attributes(cls)]
    if rows:
        parts.append("\n".join(["| attribute | type | meaning |", "|---|---|---|", *rows]))
    for key, method in _methods(cls):
        parts.append(f"**`{_kind(method)} {key}{_signature(method)}`**")
        if told := inspect.getdoc(method):
            parts.append(_prose(told))
    return "\n\n".join(part for part in parts if part) + "\n"


def _source(cls: type[Any]) -> str:
    return textwrap.dedent(inspect.getsource(cls)).split(FOR_THE_CORE, 1)[0].rstrip()


def _attributes(cls: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring: of the class's body, of `__init__`, of properties."""
    try:
        (tree,) = ast.parse(_source(cls)).body
    except (OSError, SyntaxError, ValueError):
        return
    assert isinstance(tree, ast.ClassDef)
    if is_dataclass(cls) or issubclass(cls, Enum):
        yield from _assigned(tree.body)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name == "__init__":
            types = {arg.arg: ast.unparse(arg.annotation) for arg in _arguments(node) if arg.annotation}
            for key, kind, told in _assigned(node.body):
                yield key, kind or types.get(key, ""), told
        elif any(ast.unparse(mark) == "property" for mark in node.decorator_list) and not node.name.startswith("_"):
            yield node.name, ast.unparse(node.returns) if node.returns else "", ast.get_docstring(node) or ""


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    return [*node.args.args, *node.args.kwonlyargs]


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """``name: type = value`` and ``self.name = value``, with the docstring below."""
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            targets, kind = [node.target], ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            targets, kind = node.targets, _kind_of(node.value)
        else:
            continue
        told = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            told = inspect.cleandoc(below.value.value)
        for target in targets[0].elts if isinstance(targets[0], ast.Tuple) else targets:
            key = ast.unparse(target).removeprefix("self.")
            if key.isidentifier() and not key.startswith("_"):
                yield key, kind, told


def _kind_of(value: ast.expr) -> str:
    """The type of a value that says it itself: a constant, or a call of a class."""
    if isinstance(value, ast.Constant) and value.value is not None:
        return type(value.value).__name__
    return ast.unparse(value.func) if isinstance(value, ast.Call) and ast.unparse(value.func)[0].isupper() else ""


def _methods(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    source = _source(cls) if not issubclass(cls, Enum) else ""
    for key, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and not key.startswith("_") and re.search(rf"def {key}\(", source):
            yield key, function


def _kind(function: Any) -> str:
    return "async def" if inspect.iscoroutinefunction(function) else "def"


def _signature(function: Any) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return re.sub(r"\((?:self|cls)(?:, )?", "(", text, count=1)


def _code(kind: str) -> str:
    """As code, without the character that ends a table's cell."""
    return f"`{kind.replace(' | ', ' or ')}`" if kind else ""


def _text(told: str) -> str:
    return " ".join(told.replace("``", "`").split()).replace("|", "\\|")


def _prose(told: str | None) -> str:
    """A docstring as Markdown: what is indented in it, and examples, become blocks."""
    text = re.sub(r"(?<!`)``(?!`)", "`", told or "").replace("::\n", ":\n")
    text = re.sub(r"(?m)(?:^>>> .*\n?(?:^(?!$).*\n?)*)", lambda m: f"```pycon\n{m.group().rstrip()}\n```\n", text)
    if "```" in text:
        return text
    block = r"(?m)(?:^    .*\n?)(?:^(?:    .*)?\n?)*?(?=^\S|\Z)"
    return re.sub(block, lambda m: f"```text\n{textwrap.dedent(m.group()).strip()}\n```\n\n", text)
