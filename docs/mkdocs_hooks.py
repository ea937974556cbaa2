"""What mkdocs does beside its own: pages that stand outside of docs/ join the site, and links find them there.

READMEs of plugins and examples, README.md and CHANGELOG.md keep their place in the repository, where their relative
links lead to files. On the site a link to one of them leads to its page; one to any other file becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
ROW = re.compile(r"(?m)^\|.*\|$")
SPAN = re.compile(r"`[^`\n]+`")
BLOCK = re.compile(r"(?ms)^```.*?^```$")


def outside_pages() -> dict[str, str]:
    """Path in the repository -> path on the site, of every page that stands outside of docs/."""
    pages = {"CHANGELOG.md": "CHANGELOG.md"}
    for readme in sorted((ROOT / "plugins").glob("router_*/README.md")):
        pages[f"plugins/{readme.parent.name}/README.md"] = f"plugins/{readme.parent.name.removeprefix('router_')}.md"
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        pages[f"examples/{readme.parent.name}/README.md"] = f"examples/{readme.parent.name}.md"
    return pages


def on_config(config: Any) -> Any:
    """The empty sections of the navigation get their pages."""
    for section in config.nav:
        for name, pages in section.items():
            if pages == []:
                section[name] = [page for page in outside_pages().values() if page.startswith(f"{name.lower()}/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    for path, page in outside_pages().items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return ROW.sub(_unescaped, rewritten(markdown, page.file.src_uri))


def _unescaped(row: re.Match[str]) -> str:
    """A table's row: in code GitHub wants a bar escaped, and Python's Markdown shows the backslash."""
    return SPAN.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def rewritten(markdown: str, page: str) -> str:
    """The text of a page of the site, with links between its pages. Code stays as it is."""
    outside = outside_pages()
    origin = {target: path for path, target in outside.items()}.get(page, f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        path = "docs/index.md" if path == "README.md" else path
        there = outside.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if there is None or not there.endswith(".md"):
            return label
        return f"[{label}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    parts, last = [], 0
    for block in BLOCK.finditer(markdown):
        parts += [LINK.sub(link, markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, LINK.sub(link, markdown[last:])])
