"""The reference is complete: settings, hooks, errors, routes and plugins are those of the code; its examples run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PARTS = ("docs", "examples", "plugins")
"""Folders with pages that link to others."""
HEADS = ["What it does", "When to use it", "Settings", "Hooks and order", "What it keeps", "Routes"]
"""What every plugin's README tells, in this order; it may tell more."""
CODE = re.compile(r"(?ms)^```.*?^```$")
NO_ROUTER = {"testing", "reference_engine", "demo"}
"""Parts of the core whose errors are not the router's."""
STARLETTES = {"not_found": {404}, "method_not_allowed": {405}, "bad_request": {400}}
"""Codes that `router_core.app` gives to what Starlette refuses."""


def test_the_pages_written_from_the_code_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------------------------------------- errors
def sources() -> Iterator[Path]:
    for file in sorted([*(ROOT / "router_core").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]):
        if file.relative_to(ROOT).parts[1] not in NO_ROUTER:
            yield file


def codes_in_the_code() -> dict[str, set[int]]:
    """Code -> the statuses it comes with: of every ``Reject(status, code, ...)``, and of the classes of errors."""
    found: dict[str, set[int]] = defaultdict(set)
    for file in sources():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Reject", "super().__init__"):
                status, code = [_literal(argument, constants) for argument in [*node.args, None, None][:2]]
                if isinstance(status, int) and isinstance(code, str):
                    found[code].add(status)
            elif isinstance(node, ast.ClassDef):
                found.update({code: {502} for code in _codes_of_class(node)})
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "NoWorker":
                found.update({ast.literal_eval(k.value): {503} for k in node.keywords if k.arg == "code"})
    return found | STARLETTES


def _literal(node: ast.expr | None, constants: dict[str, Any]) -> object:
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return node.value if isinstance(node, ast.Constant) else None


def _codes_of_class(node: ast.ClassDef) -> Iterator[str]:
    """``code = "worker_lost"`` in the body of a class."""
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
            yield ast.literal_eval(line.value)


def codes_in_the_docs() -> dict[str, set[int]]:
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([\d, ]+) \|", (REFERENCE / "errors.md").read_text(encoding="utf-8"))
    return {code: {int(status) for status in statuses.split(",")} for code, statuses in rows}


def test_every_error_code_is_documented_with_its_status_and_no_other() -> None:
    told, raised = codes_in_the_docs(), codes_in_the_code()
    assert {code: raised[code] for code in raised if raised[code] != told.get(code)} == {}, "write them into errors.md"
    assert told.keys() - raised.keys() == set(), "nothing raises them any more"


# ----------------------------------------------------------------------------------------------------------- routes
def routes_in_the_code() -> set[tuple[str, str]]:
    """Method and path of every ``Route(path, endpoint, methods=[...])`` of the core."""
    found = set()
    for file in (ROOT / "router_core").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Route":
                methods = next(ast.literal_eval(k.value) for k in node.keywords if k.arg == "methods")
                path = re.sub(r"\{(\w+):path\}", r"{\1}", ast.literal_eval(node.args[0]))
                found.update((method, path.replace("{name}", "{worker}")) for method in methods)
    return found


def test_every_route_of_the_core_is_documented_and_no_other() -> None:
    page = (REFERENCE / "http-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`(?:GET|POST|PUT|PATCH|DELETE) [^|]*) \|", page)
    told = {(method, path) for row in rows for method, path in re.findall(r"`([A-Z]+) ([^?`]+)", row)}
    assert told == routes_in_the_code()


# --------------------------------------------------------------------------------------------------- README and links
def test_links_between_the_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(page for part in PARTS for page in (ROOT / part).rglob("*.md"))]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#]+)", CODE.sub("", page.read_text(encoding="utf-8")))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken


def test_the_readme_has_one_command_for_the_demo_and_one_for_the_tests() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^python3 -m venv .*$", readme)
    assert [command.rpartition("&& ")[2] for command in commands] == ["router-core demo", "pytest"]


def test_every_plugin_has_a_readme_with_the_same_heads() -> None:
    for folder in sorted((ROOT / "plugins").glob("router_*/")):
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {folder.name.removeprefix('router_')}\n"), folder.name
        assert [head for head in re.findall(r"(?m)^## (.*)$", page) if head in HEADS] == HEADS, folder.name


async def test_the_plugin_of_the_readme_works() -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len(code.splitlines()) <= 12
    names: dict[str, Any] = {}
    exec(code, names)
    plugin = names["PreferRack"]
    async with ScriptedWorker() as far, ScriptedWorker() as near:
        async with running_router(enabled=(), classes=[plugin]) as router:
            for worker, labels in ((far, {}), (near, {"rack": "b"})):
                body = {"url": worker.url, "labels": labels}
                await exchange_once(router.port, "POST", "/workers", json=body)
            for _ in range(4):
                answer = await exchange_once(router.port, headers=[("x-rack", "b")], json={"text": "hi"})
                assert answer.status == 200
            assert (len(far.requests), len(near.requests)) == (0, 4)
            for _ in range(4):  # without the header it prefers no worker, not even one without a rack
                await exchange_once(router.port, json={"text": "hi"})
        assert len(far.requests) > 0
        assert len(near.requests) > 4
