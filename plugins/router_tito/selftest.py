"""Self-test of a chat template: fixed conversations rendered both ways, as a report for people and for capabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .errors import RenderError
from .node import Message, RenderContext
from .render import NO_CONTEXT, Renderer

TAILS: tuple[tuple[str, ...], ...] = (
    ("tool",),
    ("tool", "tool"),
    ("tool", "user"),
    ("tool", "tool", "user"),
    ("user",),
    ("user", "user"),
    ("system",),
)
"""Roles that follow a sampled answer in practice."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """What a template can do. ``bridges`` and ``lost_roles`` name tails and roles; an empty reason means it works."""

    bridges: dict[str, str]
    """Per tail, joined by "+": "" if bridging gives the very ids of a whole rendering, else why not."""
    lost_roles: list[str]
    """Roles whose messages the template refuses or leaves out."""
    arguments: str
    """Whether tool arguments are given to the template as "text" or as an "object"."""
    renders_tool_calls: bool
    keeps_thinking: bool
    """Whether the template still writes an answer's reasoning behind a later question; bridged turns keep it anyway."""
    generation_prompt: str

    @property
    def is_bridgeable(self) -> bool:
        """Whether both a tool result and a user message can follow a sampled answer without rendering all anew."""
        return not self.bridges["tool"] and not self.bridges["user"]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "is_bridgeable": self.is_bridgeable}


def self_test(renderer: Renderer, context: RenderContext = NO_CONTEXT) -> SelfTestReport:
    """Try the renderer's template; raises nothing but what a broken tokenizer raises."""
    shape = renderer.template.shape
    try:
        generation_prompt = renderer.bridges.generation_prompt(context)
    except RenderError as error:
        generation_prompt = f"refused: {error}"
    return SelfTestReport(
        bridges={"+".join(roles): renderer.bridges.fault(roles, context) for roles in TAILS},
        lost_roles=[
            role for role in ("system", "user", "assistant", "tool") if renderer.template.role_fault(role, context)
        ],
        arguments=shape.arguments,
        renders_tool_calls=shape.renders_tool_calls,
        keeps_thinking=_keeps_thinking(renderer, context),
        generation_prompt=generation_prompt,
    )


def _keeps_thinking(renderer: Renderer, context: RenderContext) -> bool:
    user: Message = {"role": "user", "content": "probe question"}
    answer: Message = {"role": "assistant", "content": "probe answer", "reasoning_content": "probe thought"}
    try:
        return "probe thought" in renderer.template.render([user, answer, user], context, generation_prompt=True)
    except RenderError:
        return False
