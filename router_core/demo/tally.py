"""What the rollouts saw of the workers, and whether it was as promised."""

from __future__ import annotations

import time
from collections import Counter

from router_core.demo.cast import Turn
from router_core.demo.failure import DemoFailure


class Tally:
    """Counts turns, tokens and failures. A turn may fail only between a worker's end and its quarantine."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()
        """Answered turns by worker."""
        self.tokens = 0
        self.failed = 0
        self._killed_at: float | None = None
        self._quarantined_at: float | None = None

    def killed(self) -> None:
        self._killed_at = time.monotonic()

    def quarantined(self) -> None:
        self._quarantined_at = time.monotonic()

    def answered(self, worker: str, turn: Turn) -> None:
        self.turns[worker] += 1
        self.tokens += len(turn.output_ids)

    def fail(self, what: str, begun_at: float) -> None:
        """Raises DemoFailure for a turn that had no right to fail; ``begun_at`` is monotonic."""
        self.failed += 1
        if self._killed_at is None:
            raise DemoFailure(f"{what}, and both workers were up")
        if self._quarantined_at is not None and begun_at > self._quarantined_at:
            raise DemoFailure(f"{what}, after the dead worker was quarantined")
