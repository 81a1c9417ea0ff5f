"""The gateway's metrics: connections, bytes by the way they went, and refusals; then those of each stage.

`side` is `gateway` in the agent that clients connect to, `broker` in the agent beside the broker that they want,
`bootstrap` where clients of all zones ask for brokers, and `own_zone` where clients of the broker's own zone have their
answers held; `zone` is the client's. `way` is `linked`, `inline`, or `original`: linked, and then requested inline.

`ClientTraffic` has more detail than metrics: the basis of cost reports. Its counts are cumulative, and used in the
event loop. At the gateway both ends are counted: what clients sent and got would have crossed zones without the
gateway; what passed between the agents did.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.pipelined_acks import AckRoute
from gateway.serve.serving import ServeOutcome
from metadata_topic.records.usage_record import ClientZoneUsage, RouterUsage
from replication.wire.framed_connection import FramedConnection


@dataclass(slots=True)
class ClientTraffic:
    """The bytes that an agent has moved for clients: as their gateway, and beside their broker."""

    zone: str = ""
    """The zone of the clients that connect to this agent."""
    by_zone: defaultdict[str, ClientZoneUsage] = field(default_factory=lambda: defaultdict(ClientZoneUsage))
    router: RouterUsage = field(default_factory=RouterUsage)

    @property
    def own(self) -> ClientZoneUsage:
        """The traffic of the clients that connect to this agent."""
        return self.by_zone[self.zone]

    def fetched(self, zone: str, size: int, has_replica: bool | None) -> None:
        """Count record bytes that the local broker sent to a consumer of another zone.

        `has_replica`: whether its zone has a replica of the partition; None if unknown.
        """
        if has_replica is None:
            self.by_zone[zone].untold_bytes += size
        elif has_replica:
            self.by_zone[zone].near_bytes += size


GATEWAY_SIDE, BROKER_SIDE, BOOTSTRAP_SIDE, OWN_SIDE = "gateway", "broker", "bootstrap", "own_zone"


class PassedBytes:
    """Counts the bytes on one of a client's two connections, in steps."""

    def __init__(
        self, peer: FramedConnection, received: Callable[[int], object], sent: Callable[[int], object]
    ) -> None:
        """What `peer` has received and sent before is not counted."""
        self._peer = peer
        self._count_received, self._count_sent = received, sent
        self._received, self._sent = peer.bytes_received, peer.bytes_sent

    def update(self) -> None:
        """Count the bytes since the last call."""
        received, sent = self._peer.bytes_received, self._peer.bytes_sent
        if received != self._received:
            self._count_received(received - self._received)
        if sent != self._sent:
            self._count_sent(sent - self._sent)
        self._received, self._sent = received, sent


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
            "Connections of clients that were closed before any byte passed",
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


class ProduceMetrics:
    """Counters of Produce requests through object storage, at the gateway and at the leader's agent."""

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        counter = partial(Counter, registry=registry)
        self.router: RouterUsage = (traffic or ClientTraffic()).router
        self.requests = counter(
            "remote_wal_gateway_produce_requests",
            "Clients' frames that went to a broker's agent, by the way they went",
            ["way"],
        )
        self.linked_bytes = counter(
            "remote_wal_gateway_produce_linked_bytes", "Record bytes of clients' requests that did not cross zones"
        )
        self.asked = counter(
            "remote_wal_gateway_produce_asked_inline",
            "Requests that the agent beside the broker had to ask the gateway for as they were",
            ["reason"],
        )
        self.objects = counter(
            "remote_wal_gateway_router_objects", "Objects of the RouterChannel by what became of them", ["outcome"]
        )
        self.live_objects = Gauge(
            "remote_wal_gateway_router_live_objects",
            "Objects of this gateway that are uploaded, stored, or to be deleted",
            registry=registry,
        )


class ServeMetrics:
    """Metrics of Fetch requests to which the gateway responds, or may not."""

    def __init__(self, registry: CollectorRegistry, held_bytes: Callable[[], int] = int) -> None:
        """`held_bytes` returns how many record bytes are held."""
        self._fetches = Counter(
            "remote_wal_gateway_fetch_serve",
            "Fetch requests of consumers, by how they were answered: by the gateway (served), or by the broker and why",
            ["way"],
            registry=registry,
        )
        Gauge(
            "remote_wal_gateway_fetch_serve_held_bytes",
            "Record bytes that the gateway holds to answer consumers",
            registry=registry,
        ).set_function(held_bytes)

    def answered(self, way: ServeOutcome) -> None:
        """Count one Fetch request by its `ServeOutcome`."""
        self._fetches.labels(way.value).inc()


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
        self._verdicts = {one: self._answers.labels(one.value) for one in Verdict}
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
        requests = counter(
            "remote_wal_gateway_acks_all_requests",
            "Produce requests with acks=all, by how they went on: as acks=1 (pipelined), or unchanged and why",
            ["way"],
        )
        self._routes = {one: requests.labels(one.value) for one in AckRoute}
        Gauge(
            "remote_wal_gateway_durable_waiting",
            "Partitions of Produce answers that are held now",
            registry=registry,
        ).set_function(lambda: logs.waiting)

    def ended(self, verdict: Verdict, held_s: float) -> None:
        """Count how waiting for a partition ended, and how long it took in seconds."""
        self._verdicts[verdict].inc()
        if verdict.is_kept:
            (self._held if verdict is Verdict.STORED else self._replicated).observe(held_s)
            self.are_refused_late = False
        elif verdict is Verdict.TIMED_OUT:
            self.are_refused_late = True

    def pipelined(self, way: AckRoute) -> None:
        """Count a request with acks=all by how it was forwarded (`AckRoute`)."""
        self._routes[way].inc()

    def transaction_refused(self) -> None:
        """Count a transactional request to a durable topic."""
        self._answers.labels("transactional").inc()

    def refused(self) -> None:
        """Count a connection that was ended because the response to a request could not be held."""
        self._answers.labels("refused").inc()
