"""What a process asks of the supervisor: to have something run in all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from router_core.errors import Reject
from router_core.processes.link import Link
from router_core.processes.messages import Ask, Fault, Refused, Reload, Tell, Told


class Asking:
    """Questions of one process that wait for the answers of all."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Mapping[int, Any]]] = {}

    async def ask(self, what: Any) -> Mapping[int, Any]:
        """The answers, by slot."""
        number = next(self._ids)
        future: asyncio.Future[Mapping[int, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._link.send(Ask(number, what))
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    def take(self, message: Told) -> None:
        """The answers to one."""
        if (future := self._waiting.pop(message.id, None)) is not None and not future.done():
            future.set_result(message.answers)

    def end(self) -> None:
        """No answer will come."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Reject(503, "shutting_down", "the router is stopping", retry_after_s=1))

    async def tell(self, plugin: str, message: Any) -> list[Any]:
        """`Router.tell_all`."""
        answers = await self.ask(Tell(plugin, message))
        return [_checked(answers[slot]) for slot in sorted(answers)]

    async def reload(self) -> dict[str, Any]:
        """`Application.reload` of all processes."""
        answers = await self.ask(Reload())
        told: dict[str, Any] = _checked(answers[0])
        return told


def _checked(answer: Any) -> Any:
    if isinstance(answer, Refused):
        raise Reject(answer.status, answer.code, answer.message, answer.param)
    if isinstance(answer, Fault):
        raise RuntimeError(f"another process failed: {answer.message}")
    return answer
