"""What one request asks for, by its headers and by the settings that hold for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from router_core import Exchange, Reject, Worker
from router_session_affinity.place import Gate
from router_session_affinity.table import Turn
from router_session_affinity.wish import Pin, Wish, read_wish

GROUP_HEADER = "x-prompt-id"
GROUP_FIELD: Final = GROUP_HEADER.encode()
SESSION, GROUP = "session", "group"

Key = tuple[str, str]


class Affinity:
    """What one exchange asks for, and its turn once a worker was looked for."""

    __slots__ = ("gate", "is_hashed", "key", "pin", "turn", "why")

    def __init__(self, key: Key | None, pin: Pin | None, gate: Gate, *, is_hashed: bool) -> None:
        self.key = key
        """None: nothing keeps it anywhere."""
        self.pin = pin
        self.gate = gate
        self.is_hashed = is_hashed
        self.turn: Turn[Worker] | None = None
        self.why = "stays"
        """Why the newest choice was made."""

    def pin_of(self, exchange: Exchange) -> Pin | None:
        """The pin that holds for the next attempt."""
        return None if self.pin is not None and self.pin.is_once and exchange.attempts else self.pin


class Rules:
    """The settings of the process or of a profile, as far as requests are read by them."""

    __slots__ = ("_gate", "_hard_pins", "_is_hashed", "_kind", "_max_key_characters", "_session_headers")

    def __init__(
        self,
        kind: str,
        gate: Gate,
        *,
        is_hashed: bool,
        hard_pins: bool,
        max_key_characters: int,
        session_headers: Sequence[str],
    ) -> None:
        self._kind = kind
        self._gate = gate
        self._is_hashed = is_hashed
        self._hard_pins = hard_pins
        self._max_key_characters = max_key_characters
        self._session_headers = session_headers

    def read(self, exchange: Exchange) -> Affinity | None:
        """None where nothing keeps it anywhere. Raises Reject (400) for what is wrong or too long."""
        wish = read_wish(exchange.request.headers, pins_are_hard=self._hard_pins)
        key = None if wish.is_sticky is False else self._key(exchange, wish)
        if key is None and wish.pin is None:
            return None
        return Affinity(key, wish.pin, self._gate, is_hashed=self._is_hashed and not wish.is_sticky)

    def _key(self, exchange: Exchange, wish: Wish) -> Key | None:
        """What this request is kept together by."""
        kind = self._kind
        if kind == "none":
            if not wish.is_sticky:
                return None
            kind = SESSION
        key = exchange.session_id if kind == SESSION else exchange.identity.group
        if not key:
            return None
        if len(key) > self._max_key_characters:
            where = GROUP_HEADER if kind == GROUP else self._session_header(exchange)
            message = f"{len(key)} characters of a {kind}'s id, at most {self._max_key_characters} are kept"
            raise Reject(400, "key_too_long", f"{message} (plugins.session_affinity.max_key_characters)", where)
        return kind, key

    def _session_header(self, exchange: Exchange) -> str:
        headers = exchange.request.headers
        return next((name for name in self._session_headers if name in headers), "session_id")
