"""Answers the `tokenizer` hook with tokenizers of transformers, loaded beside the first requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from router_core import PluginSettings, Router, hookimpl
from router_hf_tokenizer.door import TokenizerDoor
from router_hf_tokenizer.source import check_path, read_template
from router_hf_tokenizer.tokenizer import HfTokenizer, load

log = logging.getLogger(__name__)

NAME = "hf_tokenizer"


class ModelSettings(BaseModel):
    """One further tokenizer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str
    """Local directory with tokenizer.json and tokenizer_config.json, or the name of a repository on the hub."""
    chat_template: str | None = None
    """Chat template instead of the tokenizer's own: its text, or the file that holds it."""

    _path = field_validator("path")(check_path)
    _chat_template = field_validator("chat_template")(read_template)


class HfTokenizers:
    """The one importer of transformers: late, in a thread, after the port is open."""

    requires_api = ">=1,<2"
    several_processes = True

    class Settings(PluginSettings):
        path: str | None = None
        """The default tokenizer: a local directory with tokenizer.json and tokenizer_config.json, or the name of a
        repository on the hub (its copy in the cache is taken without asking the hub)."""
        chat_template: str | None = None
        """Chat template instead of the default tokenizer's own: its text, or the file that holds it."""
        models: dict[str, ModelSettings] = Field(default={})
        """Tokenizers by the name under which they are asked for, beside the default one."""
        threads: int = Field(default=2, ge=1, le=64)
        """Threads in which tokenizers work."""
        max_characters: int = Field(default=4_000_000, ge=1)
        """Longest text (characters) that is encoded in one call; a longer one is refused (413)."""
        wait_s: float = Field(default=20.0, ge=0)
        """Seconds that a request waits for a tokenizer that is being loaded; then it is refused (503 ``warming``)."""

        _path = field_validator("path")(check_path)
        _chat_template = field_validator("chat_template")(read_template)

        @model_validator(mode="after")
        def _has_one(self) -> HfTokenizers.Settings:
            if self.path is None and not self.models:
                raise ValueError("it names no tokenizer: set path to a directory that holds tokenizer.json")
            if self.path is None and self.chat_template is not None:
                raise ValueError("chat_template belongs to the default tokenizer, and path names none")
            return self

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="tokenizer")
        self._doors: dict[str | None, TokenizerDoor] = {
            name: TokenizerDoor(name, source.path, self._threads, wait_s=settings.wait_s)
            for name, source in self._sources().items()
        }
        self._router: Router

    def _sources(self) -> Mapping[str | None, ModelSettings]:
        settings = self._settings
        own: dict[str | None, ModelSettings] = {}
        if settings.path is not None:
            own[None] = ModelSettings.model_construct(path=settings.path, chat_template=settings.chat_template)
        own.update(settings.models)
        return own

    @hookimpl
    def tokenizer(self, name: str | None) -> TokenizerDoor | None:
        return self._doors.get(name)

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        self._tell()
        loop = asyncio.get_running_loop()
        # A daemon: the hub may keep it waiting, and nobody should wait for that at the end.
        threading.Thread(target=self._load_all, args=(loop,), name="tokenizer loading", daemon=True).start()

    @hookimpl
    async def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @hookimpl
    def metrics(self) -> str:
        lines = [
            "# HELP router_hf_tokenizer_ready Whether a tokenizer is loaded.",
            "# TYPE router_hf_tokenizer_ready gauge",
            *(
                f'router_hf_tokenizer_ready{{path="{_label(door.path)}"}} {int(door.is_ready)}'
                for door in self._doors.values()
            ),
            "# HELP router_hf_tokenizer_waiting Work that runs or waits for one of the tokenizers' threads.",
            "# TYPE router_hf_tokenizer_waiting gauge",
            f"router_hf_tokenizer_waiting {sum(door.waiting for door in self._doors.values())}",
        ]
        return "\n".join(lines) + "\n"

    # -------------------------------------------------------------------------------------------------------- loading
    def _load_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for name, source in self._sources().items():
            try:
                found: HfTokenizer | str = load(
                    source.path, chat_template=source.chat_template, max_characters=self._settings.max_characters
                )
            except Exception as error:  # noqa: BLE001  # a broken library is a tokenizer that is not there
                found = str(error)
            with contextlib.suppress(RuntimeError):  # the router has stopped meanwhile
                loop.call_soon_threadsafe(self._settle, self._doors[name], found)

    def _settle(self, door: TokenizerDoor, found: HfTokenizer | str) -> None:
        door.settle(found)
        if door.fault is not None:
            log.error("%s", door.fault)
        self._tell()

    def _tell(self) -> None:
        """Says at ``/readiness`` what is not there yet."""
        missing = [door.fault or f"{door.path!r} is being loaded" for door in self._doors.values() if not door.is_ready]
        if missing:
            self._router.warming[NAME] = "; ".join(missing)
        else:
            self._router.warming.pop(NAME, None)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
