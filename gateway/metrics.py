"""The gateway's metrics: connections, bytes by the way they went, and refusals.

`side` is `gateway` in the agent that clients connect to, `broker` in the agent beside the broker that they want,
`bootstrap` where clients of all zones ask for brokers, and `own_zone` where clients of the broker's own zone have their
answers held; `zone` is the client's.
"""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.client_traffic import ClientTraffic
from replication.wire.framed_connection import FramedConnection

GATEWAY_SIDE, BROKER_SIDE, BOOTSTRAP_SIDE, OWN_SIDE = "gateway", "broker", "bootstrap", "own_zone"


class PassedBytes:
    """Counts the bytes on one of a client's two connections, in steps."""

    def __init__(
        self, peer: FramedConnection, received: Callable[[int], object], sent: Callable[[int], object]
    ) -> None:
        """What `peer` has received and sent before is not counted."""
        self._peer = peer
        self._count = received, sent
        self._counted = peer.bytes_received, peer.bytes_sent

    def update(self) -> None:
        """Count the bytes since the last call."""
        now = self._peer.bytes_received, self._peer.bytes_sent
        for count, new, old in zip(self._count, now, self._counted, strict=True):
            count(new - old)
        self._counted = now


class GatewayMetrics:
    """Counters of clients' connections, at the gateway and at the broker's agent."""

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        counter = partial(Counter, registry=registry)
        self.traffic = traffic or ClientTraffic()
        self.connections = Gauge(
            "remote_wal_gateway_connections",
            "Connections of clients that are relayed now",
            ["side", "zone", "broker"],
            registry=registry,
        )
        self.bytes = counter(
            "remote_wal_gateway_bytes",
            "Bytes relayed for clients, to brokers of other zones and from them",
            ["side", "zone", "broker", "direction"],
        )
        """These bytes cross zones."""
        self.refused = counter(
            "remote_wal_gateway_refused",
            "Connections of clients that were closed before any byte passed, and those that were idle for too long",
            ["side", "reason"],
        )


class ClientCount:
    """Counts one client's connection at its gateway.

    Metrics have what crosses zones; the traffic also has what would have crossed without the gateway.
    """

    def __init__(self, metrics: GatewayMetrics, zone: str, broker_id: int) -> None:
        labels = (GATEWAY_SIDE, zone, str(broker_id))
        self._to_broker = metrics.bytes.labels(*labels, "to_broker").inc
        self._to_client = metrics.bytes.labels(*labels, "to_client").inc
        self._own = metrics.traffic.own
        self.counts_near = False
        """Whether the agent beside the broker reports which of the answers' records have a replica in the zone."""

    def sent(self, size: int) -> None:
        """Count bytes from the client."""
        self._own.sent_bytes += size

    def sent_crossed(self, size: int) -> None:
        """Count bytes to the broker's agent."""
        self._own.sent_crossed_bytes += size
        self._to_broker(size)

    def count_given(self, size: int) -> None:
        """Count bytes to the client."""
        self._own.given_bytes += size
        if not self.counts_near:
            self._own.untold_bytes += size

    def given_crossed(self, size: int) -> None:
        """Count bytes from the broker's agent."""
        self._own.given_crossed_bytes += size
        self._to_client(size)
