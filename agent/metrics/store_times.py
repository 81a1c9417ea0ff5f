"""How long calls to the store take, by what came of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Histogram

from plugin.errors import failure_label

_BUCKETS_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class StoreTimes:
    """Any thread may tell."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._seconds = Histogram(
            "remote_wal_store_seconds",
            "Time of calls to object storage, their retries included, by what came of them: ok, or why they failed",
            ["operation", "result"],
            buckets=_BUCKETS_S,
            registry=registry,
        )

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Around one call."""
        begun_s, result = self._clock(), "ok"
        try:
            yield
        except Exception as error:
            result = failure_label(error)
            raise
        finally:
            self._seconds.labels(operation, result).observe(self._clock() - begun_s)
