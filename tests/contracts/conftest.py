"""The wheel, built once, and virtual environments of their own that it is installed into.

Nothing is downloaded: the wheel is built without isolation, and the environments see the site-packages of whoever runs
the tests, so that dependencies are there. What is installed into them comes first.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN_S = 50


class Environment:
    """A virtual environment: install into it, run its Python."""

    def __init__(self, directory: Path) -> None:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
        self.directory = directory
        self.python = directory / "bin" / "python"
        site = next((directory / "lib").glob("python*")) / "site-packages"
        seen = [path for path in sys.path if path.endswith("site-packages")]
        (site / "dependencies.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")

    def install(self, what: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "install"]
        run([*pip, "--quiet", "--no-build-isolation", "--no-deps", "--ignore-installed", str(what)], self.directory)

    def run(self, *arguments: str) -> str:
        """What its Python prints; a failure fails the test with it."""
        return run([str(self.python), *arguments], self.directory)


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """router-core's wheel, built from this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)], ROOT)
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes an environment with the wheel, and what else is named, installed into it."""

    def make(*more: Path) -> Environment:
        made = Environment(tmp_path_factory.mktemp("environment"))
        for what in (wheel, *more):
            made.install(what)
        return made

    return make
