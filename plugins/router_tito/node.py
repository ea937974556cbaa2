"""Records of the trace: a message with its exact tokens, what a turn brings in and what committing it says."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .experts import NodeRows, RoutedRows
from .matcher import MessageKey
from .packed import Ids, Logprobs

Message: TypeAlias = dict[str, Any]
How: TypeAlias = Literal["bridge", "render", "reuse"]
"""How a prompt came about: continued behind sampled ids, rendered whole, or rendered whole and found to share a
stored prefix token by token."""

ROOT = -1
"""Parent of the first message's nodes; also "no node"."""
SCAFFOLD = -1
"""Message index of a prompt token that no message owns, such as the generation prompt."""


@dataclass(frozen=True, slots=True)
class RenderContext:
    """What a prompt is rendered with beside its messages; stored once per trace, however many turns use it."""

    tools: tuple[Any, ...]
    template_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelTurnResult:
    """What one call brought back, ready to be committed.

    ``prompt_ids`` are the ids the engine was given, ``prompt_message_indices`` the message each belongs to
    (``SCAFFOLD`` for none; None when the engine rendered the prompt), never decreasing among the owned ones; they
    begin with the id at ``labelled_from``, before which all is reused.
    ``reused_prefix_length`` first ids were copied from the trace; commit checks that. ``completion_ids`` and
    ``logprobs`` (nats) are equally long. ``weight_versions`` gives ``(version, start, end)`` over the completion
    when the weights changed under it.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float | None] | None
    message: Mapping[str, Any]
    finish_reason: str
    prompt_message_indices: Sequence[int] | None = None
    labelled_from: int = 0
    reused_prefix_length: int = 0
    how: How = "render"
    routed_experts: RoutedRows | None = None
    routed_experts_fault: str = ""
    model: str = ""
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    weight_version: str | None = None
    weight_versions: tuple[tuple[str | None, int, int], ...] = ()
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What is kept of a committed turn beside its tokens; lives on its assistant node."""

    turn_id: int
    request: bytes
    """Key of the whole request (messages and context): turns that share it are retries or repetitions."""
    finish_reason: str
    how: How
    reused_tokens: int
    model: str = ""
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    weight_version: str | None = None
    weight_versions: tuple[tuple[str | None, int, int], ...] = ()
    cached_tokens: int | None = None
    experts_fault: str = ""


@dataclass(slots=True, eq=False)
class MessageNode:
    """One message behind one exact token history. Only ``children`` and the three states below them change.

    ``token_ids`` is the delta to the parent; from ``sampled_start`` on the tokens were sampled and have a logprob,
    before it they are context (for an assistant node: its generation prompt). ``start`` is the position of the first
    of them in the trajectory, ``anchor_id`` the nearest sampled node up to and including this one, or ``ROOT``.
    """

    node_id: int
    parent_id: int
    message: Message
    key: MessageKey
    context: bytes
    is_plain: bool
    depth: int
    start: int
    token_ids: Ids
    sampled_start: int
    anchor_id: int
    logprobs: Logprobs = field(default_factory=lambda: array("d"))
    turn: TurnFacts | None = None
    children: list[int] = field(default_factory=list)
    is_delivered: bool = False
    is_abandoned: bool = False
    experts: NodeRows = field(default_factory=NodeRows)

    @property
    def is_sampled(self) -> bool:
        """Whether the model sampled this message in this trace."""
        return self.turn is not None

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.token_ids)

    @property
    def head_ids(self) -> Ids:
        """The tokens that are context."""
        return self.token_ids[: self.sampled_start]

    @property
    def sampled_ids(self) -> Ids:
        """The tokens that were sampled."""
        return self.token_ids[self.sampled_start :]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did. ``is_repeat``: the very same answer was there already, and no node was added."""

    turn_id: int
    node_id: int
    reused_tokens: int
    new_tokens: int
    how: How
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class UntrainableTurn:
    """A turn that was answered but whose tokens are not in the trace, and why."""

    turn_id: int
    node_id: int
    """Where it went on from (``ROOT``: nowhere)."""
    reason: str
    message_hash: bytes
    """Key of the answer, by which it is known again when a later prompt holds it as context; empty if unknown."""
    request: bytes = b""
    """Key of the whole request, by which a later answer to an equal one is known; empty if unknown."""
