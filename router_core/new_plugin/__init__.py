"""``router-core new-plugin``: writes a package with a plugin in it, whose tests pass as they stand."""

from __future__ import annotations

import keyword
import re
from importlib.metadata import entry_points, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from router_core.errors import ConfigError

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*\Z")
MAX_NAME_CHARACTERS = 50
ENDING = ".template"


def new_plugin(name: str, directory: str | None = None) -> Path:
    """Writes the package into ``directory`` (default ``./router-NAME``), which must not exist or be empty.

    Raises ConfigError for a name that no plugin can have, and where nothing can be written.
    """
    _check_name(name)
    target = Path(directory or f"router-{name.replace('_', '-')}")
    words = {
        "name": name,
        "package": f"router_{name}",
        "distribution": f"router-{name.replace('_', '-')}",
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "api": ".".join(version("router-core").split(".")[:2]),
    }
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"{str(target)!r} exists and is not empty", where="--directory")
        for path, text in _filled(words):
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}: {str(target)!r}", where="new-plugin"
        ) from None
    return target


def _check_name(name: str) -> None:
    if not NAME_PATTERN.match(name) or len(name) > MAX_NAME_CHARACTERS or name.endswith("_") or "__" in name:
        raise ConfigError(
            f"{name!r} is no plugin name: a-z, 0-9 and single _, a letter first, at most {MAX_NAME_CHARACTERS}",
            where="new-plugin",
        )
    if keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is a word of Python's", where="new-plugin")
    taken = next((point for point in entry_points(group="router_core.plugins") if point.name == name), None)
    if taken is not None:
        by = taken.dist.name if taken.dist else "?"
        raise ConfigError(f"{name!r} is taken by the installed distribution {by}", where="new-plugin")


def _filled(words: dict[str, str]) -> list[tuple[str, str]]:
    found = []
    for path, file in _files(files(__name__) / "template"):
        place = path.removesuffix(ENDING).replace("NAME", words["name"])
        place = place.replace("package/", f"{words['package']}/").replace("its_tests/", "tests/")
        found.append((place, Template(file.read_text(encoding="utf-8")).substitute(words)))
    return found


def _files(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            found += _files(one, f"{prefix}{one.name}/")
        elif one.name.endswith(ENDING):
            found.append((prefix + one.name, one))
    return found
