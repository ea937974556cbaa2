"""What a worker has probably cached: the blocks of the prompts that were sent to it, newest last. Knows no HTTP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Block hashes of one worker's prompts.

    A block is always younger than the blocks behind it in its prompt, so what is forgotten first are ends of prompts,
    and a block that is known says that all before it are.
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def match(self, chain: Sequence[int]) -> int:
        """How many blocks from the chain's start are known."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in self._blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, chain: Sequence[int], max_blocks: int) -> None:
        """A prompt was sent; forgets the oldest blocks above the bound."""
        blocks = self._blocks
        for block in reversed(chain):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > max_blocks:
            blocks.popitem(last=False)
