"""The documentation as a site: its navigation holds each page once; and it builds, where mkdocs is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_navigation_holds_each_page_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^ +- (?:[\w ]+: )?(\S+\.md)$", config.partition("\nnav:\n")[2])
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, "CHANGELOG.md"]), "put a new page into mkdocs.yml and docs/index.md"


def test_each_page_is_on_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.name != "index.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_anchors_in_links_between_pages_are_heads() -> None:
    broken = []
    for page in DOCS.rglob("*.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).read_text(encoding="utf-8") if target else page.read_text(encoding="utf-8")
            if anchor not in {_anchor(head) for head in re.findall(r"(?m)^#+ (.*)$", there)}:
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def _anchor(head: str) -> str:
    """As GitHub and mkdocs make them."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower())


@pytest.mark.skipif(find_spec("material") is None, reason="the extra `docs` (mkdocs-material) is not installed")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plugins" / "tito" / "index.html").is_file()
    assert (tmp_path / "tutorial" / "your-first-rollout" / "index.html").is_file()
