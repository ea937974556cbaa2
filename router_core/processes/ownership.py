"""Which process owns a session: a function of its id alone, the same in every process and over restarts."""

from __future__ import annotations

import hashlib
import uuid
from functools import lru_cache


class Owners:
    """``processes`` slots, of which this one is ``slot``."""

    def __init__(self, processes: int, slot: int) -> None:
        self._processes = processes
        self.slot = slot

    def slot_of(self, session_id: str) -> int:
        return _hash_of(session_id) % self._processes

    def is_ours(self, session_id: str) -> bool:
        return self.slot_of(session_id) == self.slot

    def new_id(self) -> str:
        """An id that this process owns."""
        while not self.is_ours(session_id := uuid.uuid4().hex):
            pass
        return session_id


@lru_cache(maxsize=1 << 14)  # it is asked twice of each request of a session
def _hash_of(session_id: str) -> int:
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)
