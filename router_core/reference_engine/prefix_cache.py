"""Keeps the keys and values of earlier sequences, so that a prompt that begins like one is not computed again."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from router_core.reference_engine.kv_cache import KvCache

_MAX_SEQUENCES = 256


class PrefixCache:
    """The last used sequences, running ones too; at most ``max_tokens`` tokens and 256 sequences.

    Everything in it is of one set of weights: whoever changes weights calls ``clear``.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._sequences: OrderedDict[int, KvCache] = OrderedDict()

    def add(self, cache: KvCache) -> None:
        """Remember ``cache`` as the newest; it may still grow, and is then to be touched."""
        self._sequences[id(cache)] = cache
        self.touch(cache)

    def touch(self, cache: KvCache) -> None:
        """Make ``cache`` the newest, if it is still known, and forget the oldest that are too many."""
        if id(cache) in self._sequences:
            self._sequences.move_to_end(id(cache))
        tokens = self.tokens
        while self._sequences and (tokens > self._max_tokens or len(self._sequences) > _MAX_SEQUENCES):
            _, oldest = self._sequences.popitem(last=False)
            tokens -= oldest.length

    def fill(self, cache: KvCache, token_ids: Sequence[int], at_most: int) -> int:
        """Copy the longest known prefix of ``token_ids`` into the empty ``cache``; return its length."""
        wanted = np.asarray(token_ids, dtype=np.int32)
        best, length = None, 0
        for known in self._sequences.values():
            common = min(known.common_prefix(wanted), at_most)
            if common > length:
                best, length = known, common
        if best is not None:
            self._sequences.move_to_end(id(best))
            cache.copy_prefix(best, length)
        return length

    def clear(self) -> None:
        """Forget all."""
        self._sequences.clear()

    @property
    def tokens(self) -> int:
        """How many tokens are kept."""
        return sum(cache.length for cache in self._sequences.values())
