"""Measures how long calls to the store take, by result, and when it last answered."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Histogram

from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    failure_label,
)

_BUCKETS_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ANSWERS = frozenset(
    {"ok", RemoteResourceNotFoundError.label, ObjectExistsError.label, RemoteSegmentConflictError.label}
)
"""Results which show that a store works."""


class StoreTimes:
    """Measures calls to the object store. Any thread may update and read."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._answered_s: float | None = None
        self._failed: tuple[float, str] | None = None
        self._seconds = Histogram(
            "remote_wal_store_seconds",
            "Time of calls to object storage, their retries included, by what came of them: ok, or why they failed",
            ["operation", "result"],
            buckets=_BUCKETS_S,
            registry=registry,
        )

    @property
    def answered_s_ago(self) -> float | None:
        """Seconds since the last successful call to the object store; None: none since the agent started."""
        return None if self._answered_s is None else max(self._clock() - self._answered_s, 0.0)

    @property
    def failed(self) -> tuple[float, str] | None:
        """How many seconds ago the last call failed, and why; None if it succeeded."""
        failed = self._failed
        return None if failed is None else (max(self._clock() - failed[0], 0.0), failed[1])

    @contextmanager
    def time_call(self, operation: str) -> Iterator[None]:
        begun_s, result = self._clock(), "ok"
        try:
            yield
        except Exception as error:
            result = failure_label(error)
            raise
        finally:
            now_s = self._clock()
            self._seconds.labels(operation, result).observe(now_s - begun_s)
            if result in ANSWERS:
                self._answered_s, self._failed = now_s, None
            else:
                self._failed = now_s, result
