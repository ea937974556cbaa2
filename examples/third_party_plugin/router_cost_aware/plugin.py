"""Prefers cheap workers: a label says what each one costs."""

from collections.abc import Sequence

from router_core import PluginSettings, Scores, Worker, hookimpl


class CostAware:
    """Scores a worker by the lowest price over its own; one without a readable price gets nothing."""

    requires_api = ">=1,<2"
    several_processes = True  # it keeps nothing

    class Settings(PluginSettings):
        label: str = "usd_per_hour"
        """Label of a worker that holds its price, a number above 0."""

    def __init__(self, settings: Settings) -> None:
        self._label = settings.label

    @hookimpl
    def score_workers(self, workers: Sequence[Worker]) -> Scores:
        prices = {worker: worker.labels.get(self._label, "") for worker in workers}
        known = {worker: float(price) for worker, price in prices.items() if price.replace(".", "", 1).isdecimal()}
        lowest = min((price for price in known.values() if price > 0), default=0.0)
        return {worker: lowest / price for worker, price in known.items() if price > 0}
