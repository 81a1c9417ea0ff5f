"""How often the tasks of the life cycle run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LifecycleIntervals:
    """Intervals in seconds (guessed)."""

    failover_s: float = 10.0
    """Looks for entries of older leaders that the logs do not have; also at each change of leadership."""
    cluster_s: float = 30.0
    """Asks for topics, their retention and log start offsets."""
    expiration_s: float = 5.0
    """Looks for objects that may be deleted."""
    orphans_s: float = 6 * 3600.0
    """Compares the store's listing with the metadata."""
