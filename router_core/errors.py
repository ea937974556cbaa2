"""Every error the router raises, as one small tree.

RouterError
├── ConfigError                 wrong configuration; raised before the first request
├── Reject                      the request is refused: status, code, message, param
│   ├── MalformedBody           400, the body is not the JSON that was asked for
│   └── NoWorker                503, nobody may take the request
├── ClientLeft                  the client closed its connection
├── AttemptWithdrawn            an attempt is given up before anything was sent; the core selects again
├── WorkerFault                 502, an attempt failed at its worker
│   ├── WorkerUnreachable       no connection: nothing was sent
│   ├── WorkerLost              the connection broke before the answer was whole
│   └── WorkerProtocolError     what came back is not HTTP
└── PluginError                 500, a hook raised, hung or answered nonsense
"""

from __future__ import annotations

import re

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")


class RouterError(Exception):
    """Root of the tree."""


class ConfigError(RouterError):
    """Wrong configuration. ``where`` is the file, variable or flag, ``key`` the dotted setting."""

    def __init__(self, message: str, *, where: str = "", key: str = "") -> None:
        self.where, self.key, self.message = where, key, message
        said = "" if where == f"--set {key}" else key  # once is enough
        super().__init__(": ".join(part for part in (where, said, message) if part))


class Reject(RouterError):
    """Refuses a request; raised by plugins and by the core, never counted as a failure.

    ``status`` is 400 to 599, ``code`` a short stable word for programs, ``param`` names the field or header at fault,
    ``retry_after_s`` becomes ``Retry-After`` (whole seconds).
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise ValueError(f"a refusal has a status from 400 to 599, not {status!r}")
        if not isinstance(code, str) or not _CODE.match(code):
            raise ValueError(f"a code is one word of letters, digits, '_', '-' and '.', not {code!r}")
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after_s = retry_after_s


class MalformedBody(Reject):
    """The request's body is not what a hook needs it to be."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, "malformed_body", message, param)


class NoWorker(Reject):
    """No worker may take the request. ``reasons`` maps each worker's url to why it is out."""

    def __init__(self, message: str, reasons: dict[str, str], *, code: str = "no_worker") -> None:
        super().__init__(503, code, message, retry_after_s=1)
        self.reasons = reasons


class ClientLeft(RouterError):
    """The client closed its connection; whatever runs for it stops."""


class AttemptWithdrawn(RouterError):
    """Gives an attempt up before anything of it was sent; raised in `attempt_start` or by ``attempt.before_send``.

    The attempt counts for nothing, and the core selects anew: whoever raises it sees to it that its filter then knows.
    """


class WorkerFault(RouterError):
    """An attempt failed at its worker. ``request_sent``: a byte of the request may have reached it."""

    code = "worker_fault"

    def __init__(self, message: str, *, request_sent: bool) -> None:
        super().__init__(message)
        self.request_sent = request_sent
        self.details: dict[str, object] = {}
        """What plugins add to the error that the client gets, beside the message."""


class WorkerUnreachable(WorkerFault):
    """No connection could be made. ``refused``: the worker's machine said no, at once."""

    code = "worker_unreachable"

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message, request_sent=False)
        self.refused = refused


class WorkerLost(WorkerFault):
    """The connection ended before the answer was whole."""

    code = "worker_lost"


class WorkerProtocolError(WorkerFault):
    """The worker answered something that is not HTTP/1.1."""

    code = "worker_protocol_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, request_sent=True)


class PluginError(RouterError):
    """A hook failed. The exchange it ran for gets a 500 ``plugin_error``; no other is touched."""

    def __init__(self, plugin: str, hook: str, message: str) -> None:
        super().__init__(f"plugin {plugin!r}, hook {hook!r}: {message}")
        self.plugin, self.hook = plugin, hook
