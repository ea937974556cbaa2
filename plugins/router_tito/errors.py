"""What the pure parts of this plugin raise.

TitoError
├── MessageError              a message (or matcher name) whose shape cannot be read
├── TraceError                the trace was misused: unknown node, sealed trace, unreadable dump
├── TurnRefusedError          this answer may not be trained on, so it is not committed; `reason` is a label
│   └── TokenMismatchError    the prompt that came back is not the prompt that was claimed
├── RenderError               messages that cannot become ids
│   ├── UnrenderableError     content the text path cannot carry (images, audio)
│   └── TemplateRefusedError  the chat template raised, or dropped a message without a word
└── ExportError               a trace that cannot become the samples that were asked for
    └── IncompleteError       something is missing, and no gap was to pass; `reasons` says what
"""

from __future__ import annotations

from collections.abc import Sequence


class TitoError(Exception):
    """Root of this plugin's errors."""


class MessageError(TitoError):
    """A message or a matcher name that cannot be read; the text names the part at fault."""


class TraceError(TitoError):
    """The trace was used against its rules; nothing was changed."""


class TurnRefusedError(TitoError):
    """An answer that is not committed. ``reason`` is a short stable label for records and metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TokenMismatchError(TurnRefusedError):
    """The tokens at ``position`` are not the stored ones that the caller said it reused."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__("token_mismatch", message)
        self.position = position


class RenderError(TitoError):
    """Messages that cannot be turned into token ids."""


class UnrenderableError(RenderError):
    """Content that is not text: such a turn is observed, not injected."""


class TemplateRefusedError(RenderError):
    """The chat template raised on these messages or silently left one out."""


class ExportError(TitoError):
    """A trace that cannot become the samples that were asked for; the text says why and what would do."""


class IncompleteError(ExportError):
    """Something is missing, and the caller takes only what is whole. ``reasons`` has one text for each gap."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)
