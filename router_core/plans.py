"""Which plan holds for a request: the process's own set, a profile's, or what a header switches on and off."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router_core.errors import Reject
from router_core.loaded_plugin import HookWrap, LoadedPlugin
from router_core.plan import Plan
from router_core.timing import HookTimes

MAX_PLANS = 256
SAMPLE: Final = 64
"""The first so many exchanges are timed, then one of so many: to look at the clock costs more than most hooks."""


@dataclass(frozen=True)
class Profile:
    """A profile with its overridden settings validated: plugin name -> settings."""

    enable: frozenset[str]
    disable: frozenset[str]
    settings: Mapping[str, Any]


class Plans:
    """Compiles each set of plugins once. ``loaded`` is in request order, ``installed`` names more."""

    def __init__(
        self,
        loaded: Sequence[LoadedPlugin],
        enabled: Sequence[str],
        profiles: Mapping[str, Profile],
        *,
        profile: str | None = None,
        installed: Collection[str] = (),
        hook_timeout_s: float,
    ) -> None:
        self.loaded = tuple(loaded)
        self._names = [plugin.name for plugin in loaded]
        self._enabled = frozenset(enabled)
        self._profiles = profiles
        self._profile = profile
        self._installed = installed
        self._timeout_s = hook_timeout_s
        self._times: HookTimes | None = None
        self._exchanges = 0
        self._wraps: list[HookWrap] = []
        self._plans: OrderedDict[tuple[str | None, str | None], Plan] = OrderedDict()
        self.default = self.of(None, None)
        self.all = Plan(loaded, hook_timeout_s=hook_timeout_s)
        """Every loaded plugin: for what happens outside a request."""
        self.nothing = Plan((), hook_timeout_s=hook_timeout_s)
        """No plugin: for a request that is refused before its plan is known."""

    def time_hooks(self) -> HookTimes:
        """Takes the time of every hook from now on; for `startup`, before the first request."""
        if self._times is None:
            self._times = HookTimes()
        return self._times

    def watch_hooks(self, wrap: HookWrap) -> None:
        """Has the hooks of exchanges and sessions called through what ``wrap`` makes of them; from the next one on."""
        self._wraps.append(wrap)
        self.compile_anew()

    @property
    def times(self) -> HookTimes | None:
        """The time of every hook, if it is taken."""
        return self._times

    def profiles_with(self, plugin: str) -> list[str]:
        """The profiles in which a plugin is on."""
        return [name for name in self._profiles if plugin in self.of(name, None).names]

    def compile_anew(self) -> None:
        """For the next exchange on: a plugin was switched off, or its hooks are watched."""
        self._plans.clear()
        self.default = self.of(None, None)

    def check_profile(self, name: str, where: str) -> None:
        """Raises Reject (400) naming ``where`` when there is no such profile."""
        if name not in self._profiles:
            known = ", ".join(sorted(self._profiles)) or "none"
            raise Reject(400, "unknown_profile", f"there is no profile {name!r}; profiles: {known}", where)

    def of_exchange(self, profile: str | None, switches: str | None) -> Plan:
        """The same for one exchange: now and then with the time of its hooks taken, where somebody wants to know."""
        plan = self.default if profile is None and switches is None else self.of(profile, switches)
        if self._times is None:
            return plan
        self._exchanges += 1
        if self._exchanges <= SAMPLE:
            return self.timed(plan)
        return plan if self._exchanges % SAMPLE else self.timed(plan, SAMPLE)

    def timed(self, plan: Plan, stands_for: int = 1) -> Plan:
        """The same plan with the time of its hooks taken, if somebody wants to know."""
        times = self._times
        if times is None:
            return plan
        key = f"for {stands_for}"
        if (twin := plan.twins.get(key)) is None:
            twin = plan.wrapped(lambda plugin, hook, call: times.timed(plugin.name, hook, call, stands_for))
            plan.twins[key] = twin
        return twin

    def of(self, profile: str | None, switches: str | None) -> Plan:
        """The plan of a profile and of a header such as ``+tito,-radix_cache``. Raises Reject (400)."""
        key = (profile or self._profile, switches)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._compile(*key)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return plan

    def _compile(self, profile_name: str | None, switches: str | None) -> Plan:
        names, settings = set(self._enabled), {}
        if profile_name is not None:
            self.check_profile(profile_name, "x-router-profile")
            profile = self._profiles[profile_name]
            names = (names | profile.enable) - profile.disable
            settings = dict(profile.settings)
        for switch in (switches or "").split(","):
            switch = switch.strip()
            sign, name = switch[:1], switch[1:].strip()
            if not switch:
                continue
            if sign not in ("+", "-") or name not in self._names:
                message = f"{switch!r} is not + or - and the name of a loaded plugin; loaded: {', '.join(self._names)}"
                if name in self._installed and name not in self._names:
                    message = f"{name!r} is installed but not loaded: name it in router.available"
                raise Reject(400, "unknown_plugin", message, "x-router-plugins")
            names.add(name) if sign == "+" else names.discard(name)
        plugins = [plugin for plugin in self.loaded if plugin.name in names and not plugin.is_off]
        return Plan(plugins, hook_timeout_s=self._timeout_s, overrides=settings, wraps=self._wraps)
