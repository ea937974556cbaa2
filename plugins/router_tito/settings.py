"""Settings of the plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from router_core import per_exchange
from router_tito.engines import MODES
from router_tito.errors import MessageError
from router_tito.export_settings import ExportSettings
from router_tito.matcher import LOOSE_TOOL_CALL, Matcher
from router_tito.parsers import FORMS
from router_tito.render import Thinking


class TitoSettings(ExportSettings):
    """What is captured, how a turn is put to a worker, and what may be kept."""

    mode: str = per_exchange("inject")
    """How a turn is put to a worker: ``inject`` gives it the exact ids in its chat call, ``translate`` in its call
    that generates from ids, ``render`` in that of vLLM with vLLM's own rendering and parsing, ``observe`` lets it
    render and asks for the ids it used; ``GET /sessions/capabilities`` lists all."""
    tool_form: str = "auto"
    """How the model writes its tool calls, where they are parsed here (``translate``): ``qwen``, ``llama3``,
    ``deepseek_v3``, ``glm4``, ``none``, or told from the chat template (``auto``)."""
    default_max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of an answer for which neither the client nor its session said any, where the call must say it
    (``translate``, ``render``); none: all that the worker's context has room for."""
    worker_kind: Literal["auto", "sglang", "vllm"] = "auto"
    """What the workers speak; ``auto`` asks each one."""
    detect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds that asking a worker for its kind may take."""
    tokenizer: str | None = None
    """Name under which the tokenizer is asked for; none: the default one of the tokenizer plugin."""
    thinking: Thinking = "all"
    """Which earlier thinking a prompt keeps: ``all`` that was sampled, that of the running ``tool_cycle``, or what the
    ``template`` keeps."""
    matchers: list[str] = Field(default=[LOOSE_TOOL_CALL])
    """Which messages are the same: ``strict``, ``loose_tool_call``, ``reasoning_optional``, or ``pkg.mod:function``."""

    implicit_sessions: bool = per_exchange(False)
    """Whether a session header that names no open session opens it."""
    retry: Literal["auto", "coalesce", "record"] = per_exchange("auto")
    """What becomes of an equal request: joined to the former answer on evidence that it is a retry (``auto``), always
    (``coalesce``), or never (``record``)."""
    coalesce_grace_s: float = per_exchange(30.0, ge=0)
    """Seconds that a worker's call goes on after its client has left, for a retry to join it."""
    max_kept_answers: int = Field(default=4, ge=0)
    """Most finished answers kept in a session for a retry; one is dropped once the agent went on from it."""
    on_uncapturable: Literal["mark", "fail"] = per_exchange("mark")
    """What becomes of an answer that cannot be trained on: it passes, ``mark``-ed by x-router-untrainable, or the turn
    will ``fail`` (502; a stream that has begun is broken off)."""
    routed_experts: bool = per_exchange(False)
    """Whether routed experts are asked for and kept; a branch without them is then incomplete."""
    experts_shape: tuple[int, int] | None = None
    """(layers, experts per token) of routed experts that come without a shape, as SGLang sends them."""
    debug: bool = per_exchange(False)
    """Whether each prompt is also rendered anew and compared; costs a full encoding each turn."""

    max_session_nodes: int = Field(default=100_000, ge=1)
    """Most messages of one session; a turn above it is refused as too long."""
    max_session_bytes: int = Field(default=1 << 30, ge=1)
    """Most bytes kept for one session; a turn above it is refused as too long."""
    gc_threshold: int = Field(default=2_000_000, ge=1)
    """Messages of all sessions above which the longest idle sessions are evicted."""
    max_bytes: int = Field(default=8 << 30, ge=1)
    """Bytes kept for all sessions above which the longest idle sessions are evicted."""
    max_described_tokens: int = Field(default=200_000, ge=0)
    """Most tokens that ``GET /sessions/{id}`` lists; above it the ids and logprobs are left out, and it says so."""

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, mode: str) -> str:
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}: one of {', '.join(MODES)}")
        return mode

    @field_validator("tool_form")
    @classmethod
    def _known_form(cls, form: str) -> str:
        known = ("auto", "none", *FORMS)
        if form not in known:
            raise ValueError(f"there is no form {form!r}: one of {', '.join(known)}")
        return form

    @field_validator("matchers")
    @classmethod
    def _known_matchers(cls, names: list[str]) -> list[str]:
        try:
            Matcher(names)
        except MessageError as error:
            raise ValueError(str(error)) from None
        return names
