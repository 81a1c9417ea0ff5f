"""Counts answers that are held: how waiting ended, how long it took, and how many wait."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.pipelined_acks import AckRoute

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class DurableMetrics:
    """Metrics of held responses on all connections of one agent."""

    def __init__(self, registry: CollectorRegistry, logs: DurableLogs) -> None:
        counter = partial(Counter, registry=registry)
        self.are_refused_late = False
        """Whether the last wait ended because its time was over; waits that ended with NOT_LED do not count."""
        self._answers = counter(
            "remote_wal_gateway_durable_answers",
            "Partitions of Produce answers that were held, by how that ended; requests that were refused: `refused`, "
            "not understood; `transactional`, of a transaction",
            ["outcome"],
        )
        self._held = Histogram(
            "remote_wal_gateway_durable_held_seconds",
            "For how long answers for partitions of durable topics were held until they were stored",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._replicated = Histogram(
            "remote_wal_gateway_pipelined_held_seconds",
            "For how long answers to acks=all that went on as acks=1 were held until they were replicated",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._requests = counter(
            "remote_wal_gateway_acks_all_requests",
            "Produce requests with acks=all, by how they went on: as acks=1 (pipelined), or unchanged and why",
            ["way"],
        )
        Gauge(
            "remote_wal_gateway_durable_waiting",
            "Partitions of Produce answers that are held now",
            registry=registry,
        ).set_function(lambda: logs.waiting)

    def ended(self, verdict: Verdict, held_s: float) -> None:
        """Count how waiting for a partition ended, and how long it took in seconds."""
        self._answers.labels(verdict.value).inc()
        if verdict.is_kept:
            (self._held if verdict is Verdict.STORED else self._replicated).observe(held_s)
            self.are_refused_late = False
        elif verdict is Verdict.TIMED_OUT:
            self.are_refused_late = True

    def pipelined(self, way: AckRoute) -> None:
        """Count a request with acks=all by how it was forwarded (`AckRoute`)."""
        self._requests.labels(way.value).inc()

    def transaction_refused(self) -> None:
        """Count a transactional request to a durable topic."""
        self._answers.labels("transactional").inc()

    def refused(self) -> None:
        """Count a connection that was ended because the response to a request could not be held."""
        self._answers.labels("refused").inc()
