"""What is known of one worker's health, and what follows from it. Knows no clock and no HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HealthRecord:
    """Consecutive failures of a worker, and how often it was asked in vain while it was out."""

    generation: int
    failures: int = 0
    vain_probes: int = 0

    def renew(self, generation: int) -> None:
        """The worker was registered again: what was known of it does not count any more."""
        if generation != self.generation:
            self.generation, self.failures, self.vain_probes = generation, 0, 0

    def succeed(self) -> None:
        """A success clears every failure before it."""
        self.failures = self.vain_probes = 0

    def fail(self, max_failures: int) -> bool:
        """Counts a failure; True when the worker should be out."""
        self.failures += 1
        return self.failures >= max_failures

    def pause_s(self, interval_s: float, max_interval_s: float) -> float:
        """Seconds until the next probe of a worker that is out: doubled each time, up to a bound."""
        return min(max_interval_s, interval_s * 2.0 ** min(self.vain_probes, 20))
