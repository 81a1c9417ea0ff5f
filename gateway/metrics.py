"""What the gateway tells of itself: connections, bytes by the way they went, and what was refused.

`side` is `gateway` in the agent that clients connect to, `broker` in the agent beside the broker that they want,
`bootstrap` where all zones' clients ask for brokers, and `own_zone` where those of the broker's own zone have their
answers held; `zone` is the client's.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from replication.wire.framed_connection import FramedConnection

GATEWAY_SIDE, BROKER_SIDE, BOOTSTRAP_SIDE, OWN_SIDE = "gateway", "broker", "bootstrap", "own_zone"


class PassedBytes:
    """What has passed over a connection between a gateway and a broker's agent since it was last counted."""

    def __init__(
        self, peer: FramedConnection, received: Callable[[float], object], sent: Callable[[float], object]
    ) -> None:
        """What `peer` has received and sent until now does not count."""
        self._peer = peer
        self._count = received, sent
        self._counted = peer.bytes_received, peer.bytes_sent

    def update(self) -> None:
        """Count what came since."""
        now = self._peer.bytes_received, self._peer.bytes_sent
        for count, new, old in zip(self._count, now, self._counted, strict=True):
            count(new - old)
        self._counted = now


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
        self.admin_requests = Counter(
            "remote_wal_gateway_admin_requests",
            "Requests of admin tools that name remote.wal.* of topics, or are shown them, by what became of that part",
            ["outcome"],
            registry=registry,
        )
