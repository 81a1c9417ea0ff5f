"""What the gateway tells of itself: connections, bytes by the way they went, and what was refused.

`side` is `gateway` in the agent that clients connect to, and `broker` in the agent beside the broker that they want;
`zone` is the client's.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

GATEWAY_SIDE, BROKER_SIDE = "gateway", "broker"


class GatewayMetrics:
    """Counters of both sides."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = Gauge(
            "remote_wal_gateway_connections",
            "Connections of clients that are relayed now",
            ["side", "zone", "broker"],
            registry=registry,
        )
        self.bytes = Counter(
            "remote_wal_gateway_bytes",
            "Bytes relayed for clients, to brokers of other zones and from them",
            ["side", "zone", "broker", "direction"],
            registry=registry,
        )
        """These cross the zone border."""
        self.refused = Counter(
            "remote_wal_gateway_refused",
            "Connections of clients that were closed before any byte passed, and those that were idle for too long",
            ["side", "reason"],
            registry=registry,
        )
