"""Which branches are auxiliary calls of an agent: titles, summaries and the like, which are nobody's rollout.

Agents make such calls beside their loop: with a prompt of their own, without tools, once. A rule looks at what was
sent and sampled, never at what a client is called. What a rule may tag at all is a *lone call*:

- the branch has one answer, and nobody went on from it;
- that answer is not in any other prompt as an assistant's message (a plan made without tools is, a title is not);
- it is not the last answer of a session given on a history that holds answers: that is how an agent out of steps ends.

Each rule compares it with the *main branch*, the one with the most answers (at least two: before that nobody can tell
which is main):

=================  ====================================================================================================
``no_tools``       the call offers no tools, the main branch does
``other_system``   the call offers no tools and no answers in its history, and its system prompt is not the main one's
=================  ====================================================================================================

A summary asked for within the main conversation (same system prompt, same tools) is the model's work like any other,
and is trained. Own rules are regular expressions (searched in a lone call's system prompt and last message) or dotted
paths of functions ``(lone: BranchView, main: BranchView) -> bool``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from router_tito.canonical import join_parts
from router_tito.errors import ExportError
from router_tito.node import Message, MessageNode
from router_tito.trace import Trace
from router_tito.views import BranchView

Rule: TypeAlias = Callable[[BranchView, BranchView], bool]
SYSTEM_ROLES = ("system", "developer")


def _answers(branch: BranchView) -> list[MessageNode]:
    return [node for node in branch.nodes if node.is_sampled]


def _has_tools(branch: BranchView) -> bool:
    return bool(branch.trace.graph.contexts[branch.nodes[-1].context].tools)


def _has_history(branch: BranchView) -> bool:
    """Whether its prompt holds answers, whoever gave them."""
    return any(node.message.get("role") == "assistant" for node in branch.nodes[:-1])


def _system(branch: BranchView) -> list[bytes]:
    """Keys of its system prompt."""
    return [node.key.hash for node in branch.nodes if node.message.get("role") in SYSTEM_ROLES]


def no_tools(lone: BranchView, main: BranchView) -> bool:
    """See the module's table."""
    return _has_tools(main) and not _has_tools(lone)


def other_system(lone: BranchView, main: BranchView) -> bool:
    """See the module's table."""
    return not _has_tools(lone) and not _has_history(lone) and _system(lone) != _system(main)


RULES: dict[str, Rule] = {"no_tools": no_tools, "other_system": other_system}
DEFAULT_RULES = tuple(RULES)


class AuxiliaryRules:
    """The rules that are on: names of ``RULES`` or dotted paths, and regular expressions."""

    def __init__(self, rules: Sequence[str] = DEFAULT_RULES, patterns: Sequence[str] = ()) -> None:
        """Raises ExportError for a rule that is not there and a pattern that is none."""
        self._rules = {name: RULES[name] if name in RULES else _load(name) for name in rules}
        try:
            self._patterns = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise ExportError(f"{error.pattern!r} is no regular expression: {error}") from None

    def tag(self, trace: Trace, branches: Sequence[BranchView]) -> dict[int, str]:
        """Branch id -> the rule by which it is an auxiliary call."""
        lone = _lone_calls(trace, branches)
        if not lone:
            return {}
        main = max(branches, key=lambda branch: (len(_answers(branch)), branch.nodes[-1].end, -branch.branch_id))
        has_main = len(_answers(main)) > 1
        tags = {}
        for branch in lone:
            rule = self._matching_pattern(branch) or (self._matching_rule(branch, main) if has_main else "")
            if rule:
                tags[branch.branch_id] = rule
        return tags

    def _matching_rule(self, branch: BranchView, main: BranchView) -> str:
        return next((name for name, rule in self._rules.items() if rule(branch, main)), "")

    def _matching_pattern(self, branch: BranchView) -> str:
        texts = [_text(message) for message in _asking(branch)]
        return next((p.pattern for p in self._patterns for text in texts if p.search(text)), "")


def _lone_calls(trace: Trace, branches: Sequence[BranchView]) -> list[BranchView]:
    """The branches that rules may tag at all; see above."""
    single = [branch for branch in branches if len(_answers(branch)) == 1 and not branch.nodes[-1].children]
    if not single:
        return []
    nodes = list(trace.nodes)
    quoted = {node.key.hash for node in nodes if not node.is_sampled and node.message.get("role") == "assistant"}
    last = max(node.node_id for node in nodes if node.is_sampled)
    return [
        branch
        for branch in single
        if branch.nodes[-1].key.hash not in quoted and not (branch.branch_id == last and _has_history(branch))
    ]


def _asking(branch: BranchView) -> Iterable[Message]:
    """The messages in which a lone call says what it wants."""
    prompt = [node.message for node in branch.nodes[:-1]]
    return [*(message for message in prompt if message.get("role") in SYSTEM_ROLES), *prompt[-1:]]


def _text(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, list | tuple):
        content = join_parts(content)
    return content if isinstance(content, str) else ""


def _load(path: str) -> Rule:
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(RULES)
        raise ExportError(f"there is no rule {path!r}: one of {known}, or a dotted path ({error})") from None
    if not callable(found):
        raise ExportError(f"rule {path!r} is not callable")
    return found  # type: ignore[no-any-return]  # checked to be callable; its types are its author's
