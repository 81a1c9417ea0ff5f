"""Counts what the gateway answers itself, and why it did not."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.serve.serving import ServeOutcome


class ServeMetrics:
    """Metrics of Fetch requests to which the gateway responds, or may not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fetches = Counter(
            "remote_wal_gateway_fetch_serve",
            "Fetch requests of consumers, by how they were answered: by the gateway (served), or by the broker and why",
            ["way"],
            registry=registry,
        )
        self._held = Gauge(
            "remote_wal_gateway_fetch_serve_held_bytes",
            "Record bytes that the gateway holds to answer consumers",
            registry=registry,
        )

    def answered(self, way: ServeOutcome) -> None:
        """Count one Fetch request by its `ServeOutcome`."""
        self._fetches.labels(way.value).inc()

    def set_held(self, held_bytes: Callable[[], int]) -> None:
        """Set the function that returns how many record bytes are held."""
        self._held.set_function(held_bytes)
