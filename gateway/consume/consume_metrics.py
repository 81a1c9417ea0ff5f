"""Counts the record bytes for consumers of other zones, at the agent beside the broker, by zone.

`way` is `linked`, `inline`, or `original` for linked bytes that the gateway had to request inline.
"""

from prometheus_client import CollectorRegistry, Counter

from gateway.client_traffic import ClientTraffic


class ConsumeMetrics:
    """Counters of the broker's side."""

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        self.traffic = traffic or ClientTraffic()
        self.record_bytes = Counter(
            "remote_wal_gateway_fetch_record_bytes",
            "Record bytes in Fetch responses to consumers of other zones, by the way they went",
            ["zone", "way"],
            registry=registry,
        )
        """Linked bytes do not cross zones."""
        self.responses = Counter(
            "remote_wal_gateway_fetch_responses",
            "Fetch responses with records to consumers of other zones, by the way they went",
            ["zone", "way"],
            registry=registry,
        )
