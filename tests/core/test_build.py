"""Which build is tested: this checkout's sources, or the compiled modules that were installed (`.ci/run` does both)."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tomllib
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import router_core
from router_core.build import build_name
from router_core.outbox import Outbox, OutboxTransport

ROOT = Path(__file__).parents[2]
EXPECTED = os.environ.get("TESTED_BUILD", "interpreted")


def listed() -> Iterator[str]:
    """The modules that pyproject.toml lists, by name; a pattern stands for what is installed of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for pattern in project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["include"]:
        top, _, below = pattern.removeprefix("plugins/").partition("/")
        spec = find_spec(top)
        assert spec is not None and spec.origin is not None, top
        found = [path.relative_to(Path(spec.origin).parent) for path in Path(spec.origin).parent.glob(below)]
        assert found, f"{pattern} names nothing"
        for path in found:
            yield ".".join([top, *path.with_suffix("").parts]).removesuffix(".__init__")


def test_the_build_that_is_meant_is_tested() -> None:
    assert build_name() == EXPECTED
    assert EXPECTED == "interpreted" or not Path(router_core.__file__).is_relative_to(ROOT)


def test_every_listed_module_is_of_that_build() -> None:
    names = sorted(listed())
    assert "router_core.build" in names and "router_core.proxy" in names
    origins = {name: spec.origin for name in names if (spec := find_spec(name)) and spec.origin}
    assert origins.keys() == set(names)
    is_source = {name: origin.endswith(".py") for name, origin in origins.items()}
    assert set(is_source.values()) == {EXPECTED == "interpreted"}, is_source


@pytest.mark.skipif(
    EXPECTED == "compiled" and sys.version_info >= (3, 12), reason="mypyc gives objects no weak references there"
)
def test_an_object_does_not_own_its_weak_references() -> None:
    """mypyc before Python 3.12 gave them up with the object: memory of others was freed, and the collector crashed."""
    loop = asyncio.new_event_loop()
    transport = OutboxTransport(asyncio.Transport(), Outbox(), loop)
    loop.close()
    gone = weakref.ref(transport)
    gc.collect()
    counts = [sys.getrefcount(gone)]
    del transport
    counts.append(sys.getrefcount(gone))
    assert counts[0] == counts[1]
    assert gone() is None
