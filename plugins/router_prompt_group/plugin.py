"""Requests of one prompt stay on one worker, where their common prompt is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from router_core import (
    Exchange,
    Identity,
    Outcome,
    PluginSettings,
    Reject,
    Router,
    Scores,
    StateKey,
    Worker,
    hookimpl,
)
from router_prompt_group.settings import PromptGroupSettings
from router_prompt_group.table import GroupTable

GROUP_HEADER = "x-prompt-id"
ENTERED = StateKey[str]("prompt group")


class PromptGroup:
    """Pins a group by its first request and lets it go after its last one; falls through when that worker is out."""

    requires_api: ClassVar[str] = ">=1,<2"
    Settings: ClassVar[type[PluginSettings]] = PromptGroupSettings

    def __init__(self, settings: PromptGroupSettings) -> None:
        self._settings = settings
        self._table: GroupTable[Worker] = GroupTable(linger_s=settings.linger_s, max_groups=settings.max_groups)
        self._router: Router

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        router.spawn(self._sweep_forever(), name="prompt groups: idle groups")

    async def _sweep_forever(self) -> None:
        while True:
            await self._router.clock.sleep(max(1.0, self._settings.linger_s))
            self._table.sweep(self._router.clock.now())

    @hookimpl
    def identify(self, exchange: Exchange) -> Identity | None:
        group = exchange.request.headers.get(GROUP_HEADER)
        return Identity(group=group) if group else None

    @hookimpl
    def request_start(self, exchange: Exchange) -> None:
        group, limit = exchange.identity.group, self._settings.max_id_characters
        if group is not None and len(group) > limit:
            message = f"{len(group)} characters of a prompt id, at most {limit} are kept"
            setting = "plugins.prompt_group.max_id_characters"
            raise Reject(400, "prompt_id_too_long", f"{message} ({setting})", GROUP_HEADER)

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
        group_id = exchange.identity.group
        if group_id is None or not exchange.settings(self).is_on:
            return None
        group = self._table.enter(group_id, exchange, self._router.clock.now())
        exchange.state[ENTERED] = group_id
        worker = group.worker
        if worker is None or worker not in workers:
            group.follow(exchange)
            return None
        return {worker: 1.0}

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        if (group_id := exchange.state.get(ENTERED)) is not None:
            self._table.leave(group_id, exchange, self._router.clock.now(), has_served=outcome.is_ok)

    @hookimpl
    def metrics(self) -> str:
        return (
            "# HELP router_prompt_groups Groups that have a worker.\n"
            "# TYPE router_prompt_groups gauge\n"
            f"router_prompt_groups {len(self._table)}\n"
        )
