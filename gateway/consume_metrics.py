"""What the agent beside a broker tells of the records that consumers of other zones are sent, by their zone.

`way` is `linked`, `inline`, or `original` for what was linked and the gateway had to ask for as it was.
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
        """Those that are linked do not cross the zone border."""
        self.responses = Counter(
            "remote_wal_gateway_fetch_responses",
            "Fetch responses with records to consumers of other zones, by the way they went",
            ["zone", "way"],
            registry=registry,
        )
