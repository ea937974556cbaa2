"""uvicorn's HTTP protocol, mended where it would lose a request's body."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router_core.headers import content_length


class Protocol(HttpToolsProtocol):
    """A request that asks for an upgrade passes as plain HTTP, with its body.

    httptools takes what follows such a head for another protocol: it says that the message is complete, and would read
    the body as the next request. (Java's HttpClient asks every server for h2c, on its POSTs too.) So the body is read
    by a new parser, which is told its framing first.
    """

    _is_primed = True
    """False while a new parser reads the framing that the old one knows already."""
    _framing: bytes | None = None
    """Of the body that follows the head of a request for an upgrade."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._read_body_anew()
            except httptools.HttpParserError:
                message = "Invalid HTTP request received."
                self.logger.warning(message)
                self.send_400_response(message)
                return
            else:
                return

    def _read_body_anew(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if self._framing is not None:
            self._is_primed = False
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n\r\n")
            self._is_primed, self._framing = True, None

    def on_headers_complete(self) -> None:
        if not self._is_primed:
            return
        super().on_headers_complete()
        if self.parser.should_upgrade():
            if any(name == b"transfer-encoding" for name, _ in self.headers):
                self._framing = b"transfer-encoding: chunked"
            elif length := content_length(self.headers):
                self._framing = b"content-length: %d" % length

    def on_message_complete(self) -> None:
        if self._framing is None:
            super().on_message_complete()

    def on_message_begin(self) -> None:
        if self._is_primed:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_primed:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_primed:
            super().on_header(name, value)
