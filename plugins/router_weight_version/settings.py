"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings, per_exchange


class WeightVersionSettings(PluginSettings):
    """How old the weights of a request may be, how versions are learnt, and how long a pause lasts."""

    max_staleness: int | None = per_exchange(None, ge=0)
    """How many versions behind the newest of the pool a worker may be, and the version that first served a session
    (its later turns are refused then, 409 ``too_stale``), or made the first token of an aborted answer (its rest is).
    None: no bound."""
    hold_for_version: bool = per_exchange(True)
    """Whether a request waits for a worker that is fresh enough; else it is refused (503) at once, unless a
    pending version will do."""
    confirm_recovered: bool = True
    """Whether a worker that had a known version and comes back (from quarantine, or registered again without a
    version) gets requests only once its version was stated: by the worker, or by the coordinator."""
    version_path: str = Field(default="/get_model_info", pattern=r"^(/.*)?$")
    """What a worker is asked for its ``weight_version``; empty: it is never asked."""
    ask_interval_s: float = Field(default=2.0, gt=0)
    """Seconds between two questions to a worker whose version is not confirmed, or pending."""
    ask_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds that a worker has to answer such a question."""
    learn_max_bytes: int = Field(default=1 << 20, ge=0)
    """Bytes of an answer that are looked through for ``weight_version``; 0 learns nothing from answers."""
    pause_ttl_s: float = Field(default=600.0, gt=0)
    """Seconds after which a pause ends by itself, unless the call says otherwise."""
    max_pause_ttl_s: float = Field(default=3600.0, gt=0)
    """Longest lease in seconds that a call may ask for."""
    pause_wait_s: float = Field(default=30.0, gt=0)
    """Seconds that ``?wait=true`` waits, unless the call says otherwise."""
    session_ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds without a turn after which a session's version is forgotten."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Most sessions whose version is kept; one more forgets the longest unused."""
