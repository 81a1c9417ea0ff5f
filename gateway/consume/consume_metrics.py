"""Counts the record bytes for consumers of other zones, at the agent beside the broker, by zone.

`way` is `linked`, `inline`, or `original` for linked bytes that the gateway had to request inline.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter

from gateway.client_traffic import ClientTraffic


class ConsumeMetrics:
    """Counters of consumers of other zones, at the agent beside the broker."""

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        counter = partial(Counter, registry=registry)
        self.traffic = traffic or ClientTraffic()
        self.record_bytes = counter(
            "remote_wal_gateway_fetch_record_bytes",
            "Record bytes in Fetch responses to consumers of other zones, by the way they went",
            ["zone", "way"],
        )
        """Linked bytes do not cross zones."""
        self.responses = counter(
            "remote_wal_gateway_fetch_responses",
            "Fetch responses with records to consumers of other zones, by the way they went",
            ["zone", "way"],
        )
