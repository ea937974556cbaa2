"""Control traffic to workers: probes and verbs, on connections of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from router_core.types import Worker

MAX_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """A worker's answer to a control call, or why there is none (``status`` 0)."""

    status: int
    body: bytes = b""
    error: str | None = None
    refused: bool = False
    """The worker's machine refused the connection."""
    timed_out: bool = False
    """Nothing, or not everything, came in time."""
    content_type: str | None = None

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class ControlClient:
    """Calls workers beside the data traffic; never raises for a worker's fault."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                skip_auto_headers=("content-type", "user-agent"),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            )
        return self._session

    async def call(
        self,
        worker: Worker,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ControlAnswer:
        """Asks ``path`` (with its query) of one worker; gives up after ``timeout_s`` seconds."""
        fields = dict(headers or {})
        if worker.api_key is not None:
            fields["authorization"] = f"Bearer {worker.api_key}"
        return await self.call_url(worker.base_url + path, method, timeout_s=timeout_s, body=body, headers=fields)

    async def call_url(
        self,
        url: str,
        method: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> ControlAnswer:
        """Asks somebody who is no worker, such as a coordinator, in the same way."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client().request(
                    method, URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                told = await _bounded(answer.content)
                return ControlAnswer(answer.status, told, content_type=answer.headers.get("content-type"))
        except TimeoutError:
            return ControlAnswer(0, error=f"no answer within {timeout_s:g} s", timed_out=True)
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return ControlAnswer(0, error=str(error.os_error or error), refused=refused)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return ControlAnswer(0, error=str(error) or type(error).__name__)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    parts, size = [], 0
    while size < MAX_ANSWER_BYTES and (part := await content.readany()):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
