"""The wheel as users get it: what is in it, and that it works where nothing else of this checkout is."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_core.config import DEFAULT_ENABLED

PACKAGES = Path(__file__).parents[2] / "plugins"


@pytest.fixture(scope="module")
def bare(environment: Callable[..., Any]) -> Any:
    """An environment with the wheel in it."""
    return environment()


def test_the_wheel_holds_the_core_and_each_plugin_at_its_top_level_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/", 1)[0] for name in archive.namelist()}
    plugins = {folder.name for folder in PACKAGES.iterdir() if (folder / "__init__.py").exists()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"router_core", *plugins}
    assert len(top) == len(plugins) + 2


def test_the_wheel_has_what_is_no_python_too(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"router_core/py.typed", "router_core/reference_engine/assets/tokenizer.json"} <= names
    assert not any("tests" in Path(name).parts or "__pycache__" in name for name in names)


def test_installed_into_a_bare_environment_it_runs_the_demo(bare: Any) -> None:
    where = bare.run("-c", "import router_core, router_health; print(router_core.__file__, router_health.__file__)")
    assert where.count(str(bare.directory)) == 2
    assert "All as promised." in bare.run("-m", "router_core", "demo")


def test_its_command_and_its_plugins_are_found(bare: Any) -> None:
    assert (bare.directory / "bin" / "router-core").exists()
    listed = bare.run("-m", "router_core", "plugins")
    assert [line.split()[1] for line in listed.splitlines() if " on " in line] == list(DEFAULT_ENABLED)
