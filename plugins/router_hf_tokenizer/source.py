"""Where a tokenizer comes from: checked before anything serves, read later."""

from __future__ import annotations

import re
from pathlib import Path

HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def check_path(path: str | None) -> str | None:
    """A local directory or the name of a repository on the hub; raises ValueError for what is neither."""
    if path is None:
        return None
    directory = Path(path).expanduser()
    if directory.is_dir():
        if not any((directory / name).is_file() for name in FILES):
            raise ValueError(f"the directory {path!r} holds no tokenizer: none of {', '.join(FILES)} is there")
        return str(directory)
    if directory.is_file():
        raise ValueError(f"{path!r} is a file: name the directory that holds it")
    if not HUB_NAME.match(path):
        raise ValueError(
            f"there is no directory {path!r}: name one that holds tokenizer.json and tokenizer_config.json"
            " (a checkpoint's will do), or a repository on the hub such as Qwen/Qwen3-8B"
        )
    return path


def read_template(template: str | None) -> str | None:
    """A chat template from its text or the file that holds it; raises ValueError where it is neither."""
    if template is None or "{" in template or "\n" in template:
        return template
    file = Path(template).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {template!r}, and as a template's text it holds no {{{{ }}}} or {{% %}}")
    return file.read_text(encoding="utf-8")
