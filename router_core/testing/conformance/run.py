"""Runs every check against one plugin and says, in sentences, what it does not keep to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router_core import RouterError
from router_core.testing.conformance.budget import hook_seconds
from router_core.testing.conformance.leaving import a_client_may_leave_at_every_hook, a_client_may_leave_at_every_stage
from router_core.testing.conformance.malformed import (
    a_worker_may_answer_nonsense,
    nonsense_is_no_failure,
    unknown_fields_pass,
)
from router_core.testing.conformance.passing import (
    a_crowd_is_not_mixed_up,
    pieces_make_no_difference,
    switched_off_it_leaves_no_trace,
    what_it_does_not_know_passes,
)
from router_core.testing.conformance.sessions import a_closed_session_leaves_nothing
from router_core.testing.conformance.settings import settings_round_trip
from router_core.testing.conformance.subject import LogWatch, Subject, subject_of
from router_core.testing.engines import EngineName

Check = Callable[[Subject], Awaitable[None]]

CHECKS: tuple[Check, ...] = (
    settings_round_trip,
    switched_off_it_leaves_no_trace,
    what_it_does_not_know_passes,
    pieces_make_no_difference,
    a_crowd_is_not_mixed_up,
    a_client_may_leave_at_every_hook,
    a_client_may_leave_at_every_stage,
    unknown_fields_pass,
    nonsense_is_no_failure,
    a_worker_may_answer_nonsense,
    a_closed_session_leaves_nothing,
)
"""Every check, in order; each opens a router of its own."""


@dataclass
class Report:
    """What was found. ``str(report)`` is for people."""

    name: str
    faults: dict[str, str] = field(default_factory=dict)
    """Check -> the sentence that says what the plugin did."""
    hook_us: dict[str, float] = field(default_factory=dict)
    """Hook -> median microseconds of a call. A figure of this machine at this moment: to look at, not to assert."""
    exchange_us: float = 0.0
    """The same of all its hooks in one exchange."""

    def __str__(self) -> str:
        lines = [f"plugin {self.name!r} {'does not conform' if self.faults else 'conforms'}"]
        lines += [f"  {check.replace('_', ' ')}: {fault}" for check, fault in self.faults.items()]
        lines += [f"  {hook}: {us:.0f} us a call" for hook, us in self.hook_us.items()]
        if self.hook_us:
            lines.append(f"  all hooks: {self.exchange_us:.0f} us an exchange")
        return "\n".join(lines)


async def assert_plugin_conforms(
    plugin: type[Any] | str,
    settings: Mapping[str, Any] | None = None,
    *,
    beside: Sequence[str] = (),
    plugins: Mapping[str, Mapping[str, Any]] | None = None,
    engine: EngineName = "sglang",
    session: Mapping[str, Any] | None = None,
    keeps: Collection[str] = (),
    changes_everything: bool = False,
    checks: Sequence[Check] = CHECKS,
) -> Report:
    """Tries a plugin over real HTTP. Raises AssertionError with one sentence for each check that it fails.

    ``plugin`` is a class or the name of an installed one, ``settings`` its table. ``beside`` are installed plugins that
    it needs, enabled before it, with their tables in ``plugins``. ``session`` are keys for ``POST /sessions``.
    ``keeps`` names attributes of the plugin that may remember closed sessions, by design and bounded.
    ``changes_everything``: the plugin means to change requests for paths it does not know. Returns the report, with
    what each hook and an exchange cost.

    >>> async def test_it_conforms():
    ...     await assert_plugin_conforms(MyPlugin, {"limit": 3})
    """
    name, cls, is_installed = subject_of(plugin)
    subject = Subject(
        name,
        cls,
        is_installed,
        settings or {},
        tuple(beside),
        plugins or {},
        engine,
        session or {},
        frozenset(keeps),
        changes_everything,
    )
    report = Report(name)
    watch, log = LogWatch(), logging.getLogger("router_core")
    log.addHandler(watch)
    try:
        for check in checks:
            if (fault := await _fault(check, subject, watch)) is not None:
                report.faults[check.__name__] = fault
        if not report.faults:
            of_hook, of_one = await hook_seconds(subject)
            report.hook_us = {hook: seconds * 1e6 for hook, seconds in of_hook.items()}
            report.exchange_us = of_one * 1e6
    finally:
        log.removeHandler(watch)
    if report.faults:
        raise AssertionError(str(report))
    return report


async def _fault(check: Check, subject: Subject, watch: LogWatch) -> str | None:
    """The sentence of a check that fails, with what the core said about failing hooks meanwhile."""
    watch.lines.clear()
    try:
        await check(subject)
    except (AssertionError, ValueError, OSError, RouterError) as error:
        said = next((line for line in watch.lines if line.startswith(f"plugin {subject.name!r} failed")), None)
        return f"{error}" + (f" [{said}]" if said and said not in str(error) else "")
    return None
