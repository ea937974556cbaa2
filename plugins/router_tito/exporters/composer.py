"""From outcomes to what one trainer takes: the base of all composers, and how they are found.

A composer is a class under the entry point group ``router_core.composers``; its name is the format's. It is made with
``ExportOptions`` and has ``compose(outcomes)``. To bring an own one, subclass ``TraceComposer``:

    class Lengths(TraceComposer):
        def compose(self, outcomes):
            return [len(row.tokens) for outcome in outcomes for row in self.rows(outcome)]
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import numpy as np

from router_tito.errors import ExportError, IncompleteError

from .auxiliary import AuxiliaryRules
from .outcome import TraceOutcome
from .pick import DROP_ABANDONED, LeftOut, select
from .row import SampleRow, sample_row

ENTRY_POINTS = "router_core.composers"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is exported, and whether a gap may pass."""

    picker: str = DROP_ABANDONED
    strict: bool = False
    """Whether anything missing is an IncompleteError; else it is told in the rows."""
    auxiliary: AuxiliaryRules = field(default_factory=AuxiliaryRules)
    keep_auxiliary: bool = False
    """Whether auxiliary calls are rows too; their turns are tagged either way."""


@dataclass(frozen=True, slots=True)
class Export:
    """The rows of one outcome, and what is not in them."""

    rows: list[SampleRow]
    reasons: list[str]
    """What is missing, in any row or beside them; empty when nothing is."""
    left_out: list[LeftOut]


def export(outcome: TraceOutcome, options: ExportOptions) -> Export:
    """The rows of an outcome. Raises ExportError for an unknown picker; never IncompleteError."""
    selection = select(outcome.trace, options.picker, options.auxiliary, keep_auxiliary=options.keep_auxiliary)
    rows = [sample_row(outcome, branch, selection.auxiliary.get(branch.branch_id)) for branch in selection.branches]
    reasons = [f"branch {row.branch_id}: {reason}" for row in rows for reason in row.reasons]
    told = {reason for row in rows for reason in row.reasons}
    lost = [f"turn {turn.turn_id} was not captured: {turn.reason}" for turn in outcome.trace.lost]
    reasons += [f"{reason} (it is in no sample)" for reason in lost if reason not in told]
    reasons += [f"{count} turns were not captured: {reason}" for reason, count in outcome.missed.items() if count > 0]
    if not rows:
        reasons.append("nothing was captured" if not selection.left_out else "every branch was left out")
    return Export(rows, reasons, selection.left_out)


class TraceComposer(ABC):
    """Makes what one trainer takes. It may run in a thread, and lives for one call of ``compose``."""

    needs_reward: ClassVar[bool] = False
    """Whether the format has no place for a rollout that was not rewarded."""

    def __init__(self, options: ExportOptions | None = None) -> None:
        self.options = options or ExportOptions()
        self._exports: dict[int, Export] = {}

    @abstractmethod
    def compose(self, outcomes: Sequence[TraceOutcome]) -> Any:
        """What the trainer takes. Raises ExportError where the outcomes cannot be put into this format."""

    def pack(self, outcomes: Sequence[TraceOutcome]) -> Any:
        """The same, but what has one value a token may be a numpy array: this is what is encoded to be sent."""
        return self.compose(outcomes)

    def export(self, outcome: TraceOutcome) -> Export:
        """The rows of an outcome and what is not in them; the same object each time it is asked for."""
        found = self._exports.get(id(outcome))
        if found is None:
            found = self._exports[id(outcome)] = self._export(outcome)
        return found

    def rows(self, outcome: TraceOutcome) -> list[SampleRow]:
        """The rows of an outcome. Raises IncompleteError where something is missing and the options are strict."""
        made = self.export(outcome)
        if self.options.strict and made.reasons:
            raise IncompleteError(made.reasons)
        return made.rows

    def _export(self, outcome: TraceOutcome) -> Export:
        made = export(outcome, self.options)
        if self.needs_reward:
            made.reasons.extend(f"branch {row.branch_id}: it has no reward" for row in made.rows if row.reward is None)
        return made


class PackedComposer(TraceComposer):
    """A composer that makes arrays, and lists of them for who takes no arrays."""

    kept_arrays: ClassVar[frozenset[str]] = frozenset()
    """Keys whose arrays the trainer takes as they are."""

    @abstractmethod
    def pack(self, outcomes: Sequence[TraceOutcome]) -> Any: ...

    def compose(self, outcomes: Sequence[TraceOutcome]) -> Any:
        return as_lists(self.pack(outcomes), kept=self.kept_arrays)


def as_lists(value: Any, *, kept: Iterable[str] = ()) -> Any:
    """``value`` with every array as plain lists, but for those under the keys ``kept``."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: item if key in kept else as_lists(item, kept=kept) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_lists(item, kept=kept) for item in value]
    return value


def number_of(reward: Any, format_name: str) -> float | None:
    """A reward as a number: itself, or the ``score`` of an object. Raises ExportError for an object without one."""
    if isinstance(reward, Mapping):
        reward = reward.get("score")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise ExportError(
                f"{format_name} takes a number as reward: the object that was given has no number 'score'"
            )
    return None if reward is None else float(reward)


# -------------------------------------------------------------------------------------------------------- finding them
def composer_names() -> list[str]:
    """The formats that there are."""
    return sorted(_found())


def find_composer(name: str) -> type[TraceComposer]:
    """The composer of a format. Raises ExportError where there is none, or it cannot be loaded."""
    points = _found().get(name)
    if points is None:
        raise ExportError(f"there is no format {name!r}: one of {', '.join(composer_names())}")
    if len({point.value for point in points}) > 1:
        told = " and ".join(f"{point.value} ({point.dist.name if point.dist else '?'})" for point in points)
        raise ExportError(f"format {name!r} is offered twice: {told}")
    try:
        composer = points[0].load()
    except Exception as error:
        raise ExportError(f"format {name!r} cannot be loaded from {points[0].value}: {error!r}") from error
    if not (inspect.isclass(composer) and issubclass(composer, TraceComposer)):
        raise ExportError(f"format {name!r}: {points[0].value} is no subclass of router_tito.exporters.TraceComposer")
    return composer


def forget_composers() -> None:
    """Look again for what is installed; it does not change under most processes."""
    _found.cache_clear()


@cache
def _found() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, []).append(point)
    return found
