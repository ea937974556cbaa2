"""Hands an answer to the client: the head once, the body as it comes, an end only when it is whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router_core.errors import ClientLeft, PluginError, Reject
from router_core.headers import HOP_BY_HOP, RawHeaders, is_fit_to_send, one_date_and_server
from router_core.plan import Plan, observe
from router_core.types import Answer, Exchange

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Delivery:
    """The client's side of one exchange, on its way out."""

    def __init__(
        self, exchange: Exchange, plan: Plan, send: Send, *, http_version: str, max_collected_bytes: int
    ) -> None:
        self._exchange = exchange
        self._send = send
        self.collects = http_version == "1.0"
        """Whether the client knows no chunks."""
        self._max_collected_bytes = max_collected_bytes
        self._observers = list(plan.chunk_observers)
        self.answer: Answer | None = None
        """What is being delivered."""
        self.has_begun = False
        """Whether the head has left: from here on an error can only break the transfer."""
        self.is_whole = False

    async def prepare(self, answer: Answer) -> None:
        """Collects an answer of unknown length for a client that knows no chunks. Raises WorkerFault, Reject."""
        self.answer = answer
        if self.collects and "content-length" not in answer.headers and self._has_body(answer):
            try:
                answer.set_body(await answer.body(self._max_collected_bytes))
            except Reject as error:
                message = f"{error.message} (router.max_collected_bytes, for a client that knows no chunks)"
                raise Reject(error.status, error.code, message) from None

    async def begin(self, answer: Answer) -> None:
        """Sends the head. Raises PluginError for one that no server could send."""
        self.answer = answer
        head = {"type": "http.response.start", "status": answer.status, "headers": _checked(answer)}
        await self._pass(head)
        self.has_begun = True

    async def finish(self, answer: Answer) -> None:
        """Sends the body and the end."""
        body = answer.ready_body
        if body is not None:
            if body and self._has_body(answer):
                self._observe(body)
                await self._pass({"type": "http.response.body", "body": body, "more_body": False})
            else:
                await self._pass({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            async for chunk in answer.chunks:
                if self._observers:
                    self._observe(chunk)
                await self._pass({"type": "http.response.body", "body": chunk, "more_body": True})
            await self._pass({"type": "http.response.body", "body": b"", "more_body": False})
        self.is_whole = True

    def _has_body(self, answer: Answer) -> bool:
        return self._exchange.request.method != "HEAD" and answer.status not in (204, 304)

    def _observe(self, chunk: bytes) -> None:
        self._observers = [
            (plugin, call)
            for plugin, call in self._observers
            if observe(plugin, "response_chunk", call, self._exchange, chunk)
        ]

    async def _pass(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise ClientLeft("the client closed its connection") from error


def _checked(answer: Answer) -> RawHeaders:
    """The head's fields, one Date and one Server. Raises PluginError where a plugin made it impossible."""
    status = answer.status
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise PluginError("?", "response_start", f"no status: {status!r}")
    try:
        fields = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in HOP_BY_HOP]
        is_fit = is_fit_to_send(fields)
    except (AttributeError, TypeError, ValueError):
        is_fit = False
    if not is_fit:
        raise PluginError("?", "response_start", f"no header fields: {answer.headers!r}")
    lengths = [value for name, value in fields if name == b"content-length"]
    if lengths and (status in (204, 304) or len(lengths) > 1 or not lengths[0].isdigit()):
        if status not in (204, 304):
            raise PluginError("?", "response_start", f"no content length: {lengths!r}")
        fields = [pair for pair in fields if pair[0] != b"content-length"]  # it would be that of another answer's body
    return one_date_and_server(fields)
