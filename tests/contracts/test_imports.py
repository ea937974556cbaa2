"""Who may import whom, read from the source. Imports for type checkers alone do not count."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import router_core

ROOT = Path(__file__).parents[2]

LAYERS = (
    "build errors headers lookup outbox sse splice scan clock deadline tasks request_task urls settings in_use",
    "file_limit garbage",
    "types strip bodies request_head upload upstream config",
    "hookspecs control dp_rank failures holds inbound sessions workers",
    "loaded_plugin worker_updates debug asgi_inbound compiled_hooks",
    "timing begun_hooks",
    "plan router stats_routes access protocol",
    "plans selection outside switch_off tracing stalls fast_cycle",
    "registry attempt admin",
    "delivery",
    "proxy listing introspection",
    "asgi",
    "routes operator_routes fast_front",
    "generation",
    "app",
    "server",
    "processes",
    "cli in_process",
    "__main__",
)
"""Modules and packages of the core; each may import only what stands in a line above its own."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
PUBLIC_UP_TO = "router"
"""The package itself shows names of this layer and of those before it: nobody who imports it gets a server."""

ON_TOP = {
    "reference_engine": set(),
    "demo": {"sse", "reference_engine"},
    "new_plugin": {"errors"},
    "testing": {"clock", "in_process", "timing"},
}
"""Packages beside the core that nobody but the command line imports -> what of the core they may use (and the public
names). ``testing`` starts whole routers, for tests."""


@dataclass(frozen=True)
class Import:
    """One import that runs: of a module, or of a name from a package."""

    by: str
    module: str
    name: str | None
    is_late: bool
    """Inside of a function."""

    def __str__(self) -> str:
        return f"{self.by} imports {self.name + ' from ' if self.name else ''}{self.module}"


def _walk(node: ast.AST, by: str, package: list[str], *, is_late: bool) -> Iterator[Import]:
    """The imports below a node of module ``by``; relative ones are taken from ``package``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(by, alias.name, None, is_late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) + 1 - child.level] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            yield from (Import(by, module, alias.name, is_late) for alias in child.names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _walk(child, by, package, is_late=is_late or is_function)


@cache
def imports_in(folder: Path) -> tuple[Import, ...]:
    """All imports of a package, each by the dotted name of its module."""
    found: list[Import] = []
    for file in sorted(folder.rglob("*.py")):
        *package, module = file.relative_to(folder.parent).with_suffix("").parts
        by = ".".join(package if module == "__init__" else [*package, module])
        found += _walk(ast.parse(file.read_text(encoding="utf-8")), by, package, is_late=False)
    return tuple(found)


def core_imports() -> Iterator[tuple[str, str, Import]]:
    """Who of the core imports whom of it: first names below ``router_core``; an empty one is the package itself."""
    submodules = {path.stem for path in (ROOT / "router_core").iterdir()}
    for found in imports_in(ROOT / "router_core"):
        parts = found.module.split(".")
        if parts[0] == "router_core":
            imported = parts[1] if len(parts) > 1 else found.name if found.name in submodules else ""
            importer = found.by.removeprefix("router_core").lstrip(".").split(".")[0]
            if importer != imported:
                yield importer, imported or "", found


def test_every_module_of_the_core_has_its_layer() -> None:
    modules = {path.stem for path in (ROOT / "router_core").glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in (ROOT / "router_core").glob("*/__init__.py")}
    assert modules | packages == {*LEVEL, *ON_TOP}, "put a new module into LAYERS"


def test_the_core_imports_only_layers_above_its_own() -> None:
    wrong = [
        str(found)
        for importer, imported, found in core_imports()
        if importer in LEVEL and importer != "cli" and not LEVEL.get(imported, len(LAYERS)) < LEVEL[importer]
    ]
    assert not wrong


def test_the_package_shows_public_names_without_the_server() -> None:
    wrong = [
        str(found)
        for importer, imported, found in core_imports()
        if importer == "" and not LEVEL.get(imported, len(LAYERS)) <= LEVEL[PUBLIC_UP_TO]
    ]
    assert not wrong


def test_only_the_command_line_imports_what_stands_on_top() -> None:
    wrong = [
        str(found)
        for importer, imported, found in core_imports()
        if imported in {*ON_TOP, "cli"} and importer not in {"cli", "__main__", *ON_TOP}
    ]
    assert not wrong


def test_what_stands_on_top_uses_little_of_the_core() -> None:
    wrong = [
        str(found)
        for importer, imported, found in core_imports()
        if importer in ON_TOP and imported and imported not in ON_TOP[importer]
    ]
    assert not wrong


def test_the_command_line_is_quick_to_say_what_it_can_do() -> None:
    early = [found for importer, _, found in core_imports() if importer == "cli" and not found.is_late]
    assert [str(found) for found in early] == ["router_core.cli imports ConfigError from router_core.errors"]


# ---------------------------------------------------------------------------------------------------------- plugins
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/__init__.py"))


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_a_plugin_imports_only_public_names_and_itself(folder: Path) -> None:
    wrong = []
    for found in imports_in(folder):
        top = found.module.split(".")[0]
        is_ours = top == "plugins" or top.startswith("router_")
        is_public = found.module == "router_core" and found.name in router_core.__all__
        if is_ours and top != folder.name and not is_public:
            wrong.append(str(found))
    assert not wrong


def test_the_core_knows_no_plugin_and_no_model_library() -> None:
    names = {*(folder.name for folder in PLUGINS), "plugins", "transformers", "torch"}
    found = imports_in(ROOT / "router_core")
    assert not [str(one) for one in found if one.module.split(".")[0] in names]


def test_plugins_import_transformers_late() -> None:
    found = [one for folder in PLUGINS for one in imports_in(folder)]
    assert not [str(one) for one in found if one.module.split(".")[0] == "transformers" and not one.is_late]


def test_a_serving_router_has_not_imported_transformers(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    command = [sys.executable, "-X", "importtime", "-m", "router_core", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready_file)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        with process:
            deadline = time.monotonic() + 20
            while not ready_file.exists() and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.02)
            process.terminate()
            _, said = process.communicate()
    finally:
        process.kill()
    assert json.loads(ready_file.read_text(encoding="utf-8"))["port"] > 0
    imported = {
        line.rpartition("|")[2].strip().split(".")[0] for line in said.splitlines() if line.startswith("import")
    }
    assert {"aiohttp", "router_core", "router_health"} <= imported
    assert not imported & {"transformers", "tokenizers", "torch", "numpy", "pytest"}
