"""The compiled build: the modules that pyproject.toml lists become extension modules in the wheel, made by mypyc.

Not hatch-mypyc: that one compiles inside of the checkout, where what it leaves is imported instead of a changed
source, and knows one root, while ``plugins/router_x`` is ``router_x`` in the wheel. Here everything is laid out as in
the wheel, in a directory of its own, and compiled there.
"""

from __future__ import annotations

import re
import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "router_core"
"""All modules are one library, so that they call each other directly: ``router_core__mypyc`` at the wheel's top."""
PROBE = "#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n"
WEAK_REFERENCES = r"(\*\(\(PyObject \*\*\)\(\(char \*\)self \+ sizeof\(PyObject \*\) \+ sizeof\(\w+\)\)\))"
NO_COMPILER = """router-core's compiled build needs a C compiler and the headers of Python. Tried here:
  {error}
On Debian and Ubuntu: apt-get install gcc libc6-dev python3-dev; on macOS: xcode-select --install.
Or install the interpreted build, which does the same and needs no compiler: without HATCH_BUILD_HOOKS_ENABLE."""


class CompiledModules(BuildHookInterface[Any]):
    """Options: ``include``, patterns of sources below the root; ``opt-level``, as the C compiler's -O.

    1 makes as fast a router as 2 and 3 (most of its work is done in Python's own functions), in half the time.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            self.app.display_warning("router-core: an editable install runs its sources, nothing is compiled")
            return
        self._directory = TemporaryDirectory(prefix="router-core-")  # until the wheel is written
        stage = Path(self._directory.name).resolve()
        modules = self._lay_out(stage)
        with chdir(stage):
            probe_compiler()
            compile_modules(modules, self.config.get("opt-level", "1"))
        made = [*stage.rglob("*.so"), *stage.rglob("*.pyd")]
        build_data["force_include"].update({str(path): path.relative_to(stage).as_posix() for path in made})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._directory.cleanup()

    def _lay_out(self, stage: Path) -> list[str]:
        """Copies what the wheel gets; gives those to be compiled, as paths below ``stage``."""
        files = {Path(file.path): file.distribution_path for file in self.build_config.builder.recurse_included_files()}
        for source, target in files.items():
            (stage / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, stage / target)
        modules = set()
        for pattern in self.config["include"]:
            found = [files[path] for path in Path(self.root).glob(pattern) if path in files]
            if not found:
                raise ValueError(f"pyproject.toml: hooks.custom: include: {pattern!r} is nothing that the wheel has")
            modules.update(found)
        return sorted(modules)


def compile_modules(modules: list[str], opt_level: str) -> None:
    """Compiles modules below the current directory, in place."""
    import setuptools  # noqa: F401  # mypyc.build wants it first
    from mypyc.build import mypycify

    options = ["--config-file=", "--explicit-package-bases"]
    extensions = mypycify(
        [*options, *modules],
        opt_level=opt_level,
        debug_level="0",
        group_name=GROUP,
        target_dir="build",
        multi_file=True,  # a file for each module: they are compiled side by side
    )
    leave_weak_references(Path("build"))
    build_extensions(extensions)
    shutil.rmtree("build")


def leave_weak_references(directory: Path) -> None:
    """Mends what mypyc 2.4 wrote for Python before 3.12: an instance does not own its list of weak references.

    Where a class has a ``__dict__`` (a base that is not compiled, a nested function), the head of that list is visited
    and given up like an attribute; whoever holds the weak reference then has freed memory, and the next garbage
    collection crashes. Here it is not visited, and the weak references are told that the instance is gone.
    """
    for path in directory.rglob("*.c"):
        written = path.read_text(encoding="utf-8")
        unseen = re.sub(rf"Py_VISIT\({WEAK_REFERENCES}\);", "", written)
        told = r"if (Py_REFCNT(self) == 0 && \1) PyObject_ClearWeakRefs((PyObject *)self);"
        path.write_text(re.sub(rf"Py_CLEAR\({WEAK_REFERENCES}\);", told, unseen), encoding="utf-8")


def probe_compiler() -> None:
    """Says at once what is missing, before a minute's work."""
    from setuptools import Extension
    from setuptools.errors import BaseError, CCompilerError

    with TemporaryDirectory() as directory, chdir(directory):
        Path("probe.c").write_text(PROBE, encoding="utf-8")
        try:
            build_extensions([Extension("probe", ["probe.c"])])
        except (BaseError, CCompilerError) as error:
            raise SystemExit(NO_COMPILER.format(error=error)) from None


def build_extensions(extensions: list[Any]) -> None:
    """Each becomes a file below the current directory; every core compiles."""
    from pybind11.setup_helpers import ParallelCompile
    from setuptools import Distribution

    distribution = Distribution({"name": "router-core", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    with ParallelCompile():
        command.run()
