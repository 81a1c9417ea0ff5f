"""What the gateway tells of itself: connections, bytes by the way they went, and what was refused.

`side` is `gateway` in the agent that clients connect to, `broker` in the agent beside the broker that they want,
`bootstrap` where all zones' clients ask for brokers, and `own_zone` where those of the broker's own zone have their
answers held; `zone` is the client's.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.client_traffic import ClientTraffic
from replication.wire.framed_connection import FramedConnection

GATEWAY_SIDE, BROKER_SIDE, BOOTSTRAP_SIDE, OWN_SIDE = "gateway", "broker", "bootstrap", "own_zone"


class PassedBytes:
    """What has passed over one of a client's two connections since it was last counted."""

    def __init__(
        self, peer: FramedConnection, received: Callable[[int], object], sent: Callable[[int], object]
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

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        self.traffic = traffic or ClientTraffic()
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


class ClientCount:
    """Of one client's connection where it comes in: in metrics what crosses the border, in the traffic also what would
    have.
    """

    def __init__(self, metrics: GatewayMetrics, zone: str, broker_id: int) -> None:
        labels = (GATEWAY_SIDE, zone, str(broker_id))
        self._to_broker = metrics.bytes.labels(*labels, "to_broker").inc
        self._to_client = metrics.bytes.labels(*labels, "to_client").inc
        self._own = metrics.traffic.own
        self.is_told = False
        """Whether the agent beside the broker tells which of the answers' records the zone has a replica of."""

    def sent(self, size: int) -> None:
        """So much came from the client."""
        self._own.sent_bytes += size

    def sent_crossed(self, size: int) -> None:
        """So much went to the broker's agent."""
        self._own.sent_crossed_bytes += size
        self._to_broker(size)

    def given(self, size: int) -> None:
        """So much went to the client."""
        self._own.given_bytes += size
        if not self.is_told:
            self._own.untold_bytes += size

    def given_crossed(self, size: int) -> None:
        """So much came from the broker's agent."""
        self._own.given_crossed_bytes += size
        self._to_client(size)

    def relayed_to_broker(self, size: int) -> None:
        """So much went on as it came."""
        self.sent(size)
        self.sent_crossed(size)

    def relayed_to_client(self, size: int) -> None:
        """Likewise."""
        self.given_crossed(size)
        self.given(size)
