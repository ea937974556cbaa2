"""A chat stream up to its abort: it passes as it comes, and is kept in case it has to be put into its token form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from router_core import event_data
from router_partial_rollout.wire import only_choice, read_part

WORTHLESS: tuple[dict[str, object], ...] = ({}, {"role": "assistant"}, {"role": "assistant", "content": ""})
"""Deltas of an event that only opens a stream."""


class ChatStart:
    """Of one chat stream: events to pass on, and what was held back from the abort on.

    What opens a stream waits for its first token: a stream that is aborted before it is asked for again as a whole.
    Where an abort is likely, each event waits for the next one: the last before an abort may hold what the worker's
    parser had kept back, a half character or a half tool call, and that is then not the client's.
    """

    def __init__(self, is_abort_likely: Callable[[], bool]) -> None:
        self._is_abort_likely = is_abort_likely
        self.is_aborted = False
        self.told: list[bytes] = []
        """All events, as they came."""
        self.held: list[bytes] = []
        """Those at the end that did not pass."""
        self._is_open = False

    async def passing(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for event in events:
            self.told.append(event)
            if self._waits(event):
                self.held.append(event)
            elif self._is_abort_likely():
                passed = self.take_held()
                self.held.append(event)
                if passed:
                    yield passed
            else:
                self.held.append(event)
                yield self.take_held()
        if not self.is_aborted and self.held:
            yield self.take_held()

    def take_held(self) -> bytes:
        held, self.held = self.held, []
        return b"".join(held)

    def _waits(self, event: bytes) -> bool:
        if self.is_aborted:
            return True
        if self._is_open and b'"abort"' not in event:
            return False
        data = event_data(event)
        chunk = read_part(data) if data is not None and data != b"[DONE]" else None
        choice = only_choice(chunk or {})
        self.is_aborted = choice.get("finish_reason") == "abort"
        self._is_open = self._is_open or chunk is None or not _is_opening(choice)
        return self.is_aborted or not self._is_open


def _is_opening(choice: dict[str, object]) -> bool:
    delta = choice.get("delta")
    said = {key: value for key, value in delta.items() if value is not None} if isinstance(delta, dict) else None
    tells = any(choice.get(key) for key in ("finish_reason", "logprobs", "token_ids"))
    return said in WORTHLESS and not tells
