"""Writes what the code knows best: settings, hooks and objects in docs/reference, the table of plugins in README.md.

python docs/generate.py            writes them
python docs/generate.py --check    says which are not up to date; exit status 1 if one is not
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

from objects import objects_page
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from router_core import PluginSettings, hookspecs
from router_core.config import DEFAULT_ENABLED
from router_core.registry import ENTRY_POINTS
from router_core.settings import ProfileSettings, RouterSettings, is_per_exchange

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTION = "router-core"
COMMAND = "python docs/generate.py"
UNITS = {"_s": "seconds", "bytes": "bytes", "tokens": "tokens", "characters": "characters", "_share": "0 to 1"}
BOUNDS = {"gt": "> {}", "ge": ">= {}", "lt": "< {}", "le": "<= {}"}


def plugins() -> list[EntryPoint]:
    """The plugins that come with the router, by name."""
    found = entry_points(group=ENTRY_POINTS)
    return sorted((point for point in found if point.dist and point.dist.name == DISTRIBUTION), key=lambda p: p.name)


def first_line(text: str | None) -> str:
    return _backticks((text or "").strip().split("\n", 1)[0])


# ------------------------------------------------------------------------------------------------- README's table
def plugin_table() -> str:
    rows = ["| plugin | what it does | on by default |", "|---|---|---|"]
    for point in plugins():
        package = point.value.split(".", 1)[0]
        told = first_line(importlib.import_module(package).__doc__)
        readme = ROOT / "plugins" / package / "README.md"
        name = f"[{point.name}](plugins/{package}/README.md)" if readme.exists() else point.name
        rows.append(f"| {name} | {told} | {'yes' if point.name in DEFAULT_ENABLED else ''} |")
    return "\n".join(rows)


def readme() -> str:
    old = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = f"<!-- begin plugins ({COMMAND}) -->\n", "<!-- end plugins -->"
    before, after = old.index(begin) + len(begin), old.index(end)
    return f"{old[:before]}{plugin_table()}\n{old[after:]}"


# ------------------------------------------------------------------------------------------------------- settings
def settings_page() -> str:
    parts = [
        f"# Settings\n\nWritten by `{COMMAND}` from the models that validate them.\n",
        "A value is taken from the first of: a flag of the command line, the environment, the file (`--config FILE`, "
        "else `./plugins.toml`), the default. `[router] port` is `ROUTER__PORT` in the environment and "
        "`--set router.port=8000` on the command line; a plugin's setting is `ROUTER__PLUGINS__HEALTH__INTERVAL_S` and "
        "`--set plugins.health.interval_s=2`. Values there are TOML values, else plain text; lists of texts also go by "
        "commas. An unknown key is an error before anything serves; the table of an installed plugin that nothing "
        "enables is fine and not looked at until something does. Settings marked † may be overridden by a profile.\n",
        f"`enabled` (a list of names, default `{_toml(list(DEFAULT_ENABLED))}`) says which plugins are on, and in "
        "which order requests pass them.\n",
        "## [router]\n\n" + table(RouterSettings),
        "## [profiles.NAME]\n\n" + first_line(ProfileSettings.__doc__) + "\n\n" + table(ProfileSettings),
        "## Every plugin\n\n" + table(PluginSettings),
    ]
    for point in plugins():
        cls = point.load()
        model = getattr(cls, "Settings", PluginSettings)
        own = table(model, but=PluginSettings)
        parts.append(f"## [plugins.{point.name}]\n\n{first_line(cls.__doc__)}\n\n{own or 'No settings of its own.'}")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def table(model: type[BaseModel], *, but: type[BaseModel] | None = None) -> str:
    """One row a setting; settings that ``but`` has, unchanged, are left out."""
    rows = ["| setting | type | default | unit | meaning |", "|---|---|---|---|---|"]
    rows += [
        _row(model, name, field)
        for name, field in model.model_fields.items()
        if but is None or name not in but.model_fields or field.default != but.model_fields[name].default
    ]
    return "\n".join(rows) if len(rows) > 2 else ""


def _row(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    mark = " †" if is_per_exchange(model, name) else ""
    kind = ", ".join([_type(field.annotation), *_bounds(field)])
    default = "required" if field.is_required() else f"`{_toml(field.get_default(call_default_factory=True))}`"
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")
    meaning = " ".join(_backticks(field.description or "").split())
    return "| " + " | ".join(c.replace("|", "\\|") for c in (f"`{name}`{mark}", kind, default, unit, meaning)) + " |"


def _bounds(field: FieldInfo) -> Iterator[str]:
    for constraint in field.metadata:
        for name, text in BOUNDS.items():
            if (bound := getattr(constraint, name, None)) is not None:
                yield text.format(f"{bound:g}" if isinstance(bound, float) else bound)
        if (pattern := getattr(constraint, "pattern", None)) is not None:
            yield f"like `{pattern}`"


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{_toml(choice)}`" for choice in arguments)
    if origin in (UnionType, typing.Union):
        return " or ".join("none" if part is NoneType else _type(part) for part in arguments)
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "table"
    names = {SecretStr: "secret", str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _toml(value: Any) -> str:
    """A default as it is written in plugins.toml."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value > 9999 else str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
    return str(value)


# ---------------------------------------------------------------------------------------------------------- hooks
def hooks_page() -> str:
    parts = [
        f"# Hooks\n\nWritten by `{COMMAND}` from the docstrings of `router_core/hookspecs.py`, which are the contract. "
        f"This is version {hookspecs.API_VERSION} of the hook API: a plugin says "
        f'`requires_api = ">={hookspecs.API_VERSION},<{hookspecs.API_VERSION + 1}"`.\n',
        _prose(inspect.getdoc(hookspecs) or "") + "\n",
        "## During a request, in the order in which they run\n",
        *(_hook(name) for name in hookspecs.IN_REQUEST),
        "## Outside a request\n",
        *(_hook(name) for name in hookspecs.OUTSIDE_REQUEST),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _hook(name: str) -> str:
    spec = getattr(hookspecs, name)
    kind = "async def" if name in hookspecs.ASYNC else "def"
    signature = str(inspect.signature(spec)).replace("'", "")
    return f"### {name}\n\n```python\n{kind} {name}{signature}\n```\n\n{_prose(inspect.getdoc(spec) or '')}\n"


def _prose(text: str) -> str:
    """A docstring as Markdown: its indented lines become a block, its double backticks single ones."""
    text = _backticks(text)
    return re.sub(r"(?m)(?:^    .*\n?)+", lambda lines: f"```text\n{textwrap.dedent(lines.group())}```\n", text)


def _backticks(text: str) -> str:
    return re.sub(r"(?<!`)``(?!`)", "`", text)


# ----------------------------------------------------------------------------------------------------------- main
def main(arguments: list[str]) -> int:
    pages = {
        "README.md": readme(),
        "docs/reference/settings.md": settings_page(),
        "docs/reference/hooks.md": hooks_page(),
        "docs/reference/objects.md": objects_page(COMMAND),
    }
    stale = [
        name
        for name, text in pages.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    if arguments == ["--check"]:
        for name in stale:
            print(f"{name} is not up to date: run `{COMMAND}`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(pages[name], encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
