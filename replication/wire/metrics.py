"""Replication's metrics: bytes by the way they took, requests to peers, and every fault by its reason."""

from collections import Counter as Counter_
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.hot_path.loop_metrics import LoopCounter
from plugin.inline_reason import RIGHTLY_INLINE, InlineReason
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.frame_inbox import FrameSizeError
from replication.wire.packed_message import PackedTopic
from replication.wire.peer_protocol import Hello

log = structlog.get_logger(__name__)


class PeerVersions:
    """The protocol versions of other agents. Updated in the event loop at each connection; any thread may read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._others: dict[int, int] = {}
        gauge = Gauge(
            "remote_wal_peers_of_another_version",
            "Other agents of another protocol version: all between them and this one goes inline",
            registry=registry,
        )
        gauge.set_function(lambda: len(self._others))

    @property
    def others(self) -> dict[int, int]:
        """The versions that differ from this agent's own, by broker id, ascending."""
        return dict(sorted(self._others.copy().items()))

    def heard(self, own: Hello, peer: Hello) -> None:
        """Record the hello of another known broker's agent."""
        if peer.version == own.version:
            if self._others.pop(peer.broker_id, None) is not None:
                log.info("peer_of_this_version", broker=peer.broker_id, version=peer.version)
        elif self._others.get(peer.broker_id) != peer.version:
            self._others[peer.broker_id] = peer.version
            log.warning("peer_of_another_version", broker=peer.broker_id, version=peer.version, own=own.version)

    def note_left(self, broker_id: int) -> None:
        self._others.pop(broker_id, None)


LINKED: Final = "linked"
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_REFUSED_HINT = "what is to pass beside brokers' own requests is named by remote.wal.agent.peer.requests"


@dataclass(slots=True)
class PartitionTraffic:
    """Record bytes of one partition that followers got, counted once for each follower."""

    linked_bytes: int = 0
    inline_bytes: int = 0
    unsaved_bytes: int = 0
    """Inline bytes that links could have saved, see `RIGHTLY_INLINE`."""
    packed_away_bytes: int = 0
    """Inline bytes that did not cross, because they were packed. Known a moment later than the inline ones."""
    crossed_bytes: int = 0
    """See `note_crossed`."""
    reasons: Counter_[str] = field(default_factory=Counter_, compare=False)
    """Inline bytes by `InlineReason`."""

    def note_crossed(self) -> int:
        """Return the inline bytes as they crossed zones (packed), never less than before: a counter must not shrink."""
        self.crossed_bytes = max(self.crossed_bytes, self.inline_bytes - self.packed_away_bytes)
        return self.crossed_bytes


class RecentTraffic:
    """The record bytes of a topic that followers got in the last minute and hour. Any thread may ask."""

    def __init__(self) -> None:
        self._minute = _Spans(10.0, _MINUTE_S)
        self._hour = _Spans(300.0, _HOUR_S)

    def add(self, way: str, size: int, now_s: float) -> bool:
        """Count bytes that were linked, or inline for a reason (`way`). Returns whether they begin a new span of the
        hour."""
        self._minute.add(way, size, now_s)
        return self._hour.add(way, size, now_s)

    def share(self, over_s: float, now_s: float) -> float | None:
        """Return the linked share of the bytes in that time; None if nothing moved."""
        moved = self.moved(over_s, now_s)
        total = moved.total()
        return moved[LINKED] / total if total else None

    def moved(self, over_s: float, now_s: float) -> Counter_[str]:
        """Return the bytes in the last `over_s` seconds, at most an hour, by inline reason or as `linked`."""
        return (self._minute if over_s <= _MINUTE_S else self._hour).moved(over_s, now_s)

    def is_older_than_an_hour(self, now_s: float) -> bool:
        """Whether nothing moved within the last hour."""
        return self._hour.is_over(now_s)


class _Spans:
    """Bytes by inline reason or as linked, in equal spans of time; empty spans are left out.

    Plain lists and dicts, because each topic has its own.
    """

    __slots__ = ("_kept", "_span_s", "_spans")

    def __init__(self, span_s: float, over_s: float) -> None:
        self._span_s = span_s
        self._kept = round(over_s / span_s)
        self._spans: list[tuple[int, dict[str, int]]] = []
        """Each span's number, and its bytes."""

    def add(self, way: str, size: int, now_s: float) -> bool:
        """Count bytes. Returns whether they begin a new span."""
        span = int(now_s // self._span_s)
        is_new = not self._spans or self._spans[-1][0] != span
        if is_new:
            self._spans = [one for one in self._spans if one[0] > span - self._kept]
            self._spans.append((span, {}))
        moved = self._spans[-1][1]
        moved[way] = moved.get(way, 0) + size
        return is_new

    def is_over(self, now_s: float) -> bool:
        """Whether all spans have passed."""
        return not self._spans or self._spans[-1][0] <= int(now_s // self._span_s) - self._kept

    def moved(self, over_s: float, now_s: float) -> Counter_[str]:
        """Return the bytes in that time."""
        since = int((now_s - over_s) // self._span_s)
        total = Counter_[str]()
        for span, moved in list(self._spans):
            if span > since:
                total.update(moved.copy())
        return total


@dataclass(slots=True)
class FollowerTraffic:
    """Bytes between one follower's agent and the leader's, both directions together, size prefixes included."""

    peer_bytes: int = 0
    stock_bytes: int = 0
    """The size of these frames without links."""


@dataclass(slots=True)
class Traffic:
    """Byte counts in more detail than metrics have. Any thread may copy the dictionaries."""

    by_partition: defaultdict[TopicIdPartition, PartitionTraffic] = field(
        default_factory=lambda: defaultdict(PartitionTraffic)
    )
    by_topic: defaultdict[tuple[TopicId, int], PartitionTraffic] = field(
        default_factory=lambda: defaultdict(PartitionTraffic)
    )
    """By topic id and follower's broker id, for partitions with the feature on."""
    by_follower: defaultdict[int, FollowerTraffic] = field(default_factory=lambda: defaultdict(FollowerTraffic))
    """By the follower's broker id; -1 for connections without a replica's fetches."""
    recent: defaultdict[TopicId, RecentTraffic] = field(default_factory=lambda: defaultdict(RecentTraffic))
    """Topics that moved nothing for an hour are dropped."""
    recent_of_all: RecentTraffic = field(default_factory=RecentTraffic)
    """The sum of `recent`."""

    def moved(self, topic_id: TopicId, way: str, size: int, now_s: float) -> None:
        """Count bytes that were just linked, or went inline for a reason (`way`)."""
        self.recent[topic_id].add(way, size, now_s)
        if self.recent_of_all.add(way, size, now_s):
            for one in [one for one, recent in self.recent.items() if recent.is_older_than_an_hour(now_s)]:
                del self.recent[one]

    def forget_gone(self, is_led: Callable[[TopicIdPartition], bool]) -> None:
        """Forget partitions that are not led here and topics without led partitions. Call it after each usage
        record."""
        for partition in list(self.by_partition):
            if partition.topic_id not in self.recent and not is_led(partition):
                del self.by_partition[partition]
        kept = self.recent.keys() | {partition.topic_id for partition in self.by_partition}
        for topic, moved in list(self.by_topic.items()):
            if topic[0] not in kept:
                if moved == PartitionTraffic():
                    del self.by_topic[topic]
                else:
                    self.by_topic[topic] = PartitionTraffic()


class CatchUpMetrics:
    """Metrics of followers that are far behind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.found_bytes = counter(
            "remote_wal_catch_up_found_bytes", "Record bytes found in objects for followers that are far behind"
        )
        """Includes objects that were not announced."""
        self.read_bytes = counter(
            "remote_wal_catch_up_read_bytes", "Bytes of objects read for the local broker while it is far behind"
        )
        """The catch-up quota limits these."""


class BypassMetrics:
    """Metrics of the bypass around dead agents."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.bytes = counter(
            "remote_wal_bypass_bytes", "Bytes to and from leaders' brokers past their dead agents", ["direction"]
        )
        """These bytes cross zones."""
        self.switches = counter(
            "remote_wal_bypass_switches",
            "Changes of the way to a leader: past its agent to the broker, or back to the agent",
            ["to"],
        )
        """`to` is `broker` (past its agent) or `agent` (back to it)."""
        self.peers = Gauge("remote_wal_bypassed_peers", "Other agents that are bypassed now", registry=registry)


class SharedReadMetrics:
    """Metrics of the agents of a zone that read objects for each other."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.ranges = counter(
            "remote_wal_shared_ranges",
            "Ranges of objects that agents of the zone asked each other for",
            ["outcome", "role"],
        )
        """`role` is `asker` or `giver`. Ranges that were not `given` are read from the store; `wrong` ones were given
        but failed the check."""
        self.bytes = counter(
            "remote_wal_shared_bytes", "Bytes of ranges that agents of the zone gave each other", ["direction"]
        )
        """These bytes stay in the zone."""

    def asked(self, outcome: str, size: int = 0) -> None:
        """Count a range requested from a neighbour, by the outcome."""
        self.ranges.labels(outcome, "asker").inc()
        if size:
            self.bytes.labels("received").inc(size)

    def count_given(self, outcome: str, size: int = 0) -> None:
        """Count a range that a neighbour requested from this agent, by the outcome."""
        self.ranges.labels(outcome, "giver").inc()
        if size:
            self.bytes.labels("sent").inc(size)


class PackingMetrics:
    """Metrics of packing records that cross zones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        loop_counter = partial(LoopCounter, registry=registry)
        packed = loop_counter(
            "remote_wal_packed_bytes",
            "Bytes of records to other zones that were packed, with their headers: before, and after",
            ["form"],
        )
        self.before_bytes, self.after_bytes = packed.labels("before"), packed.labels("after")
        self.plain_bytes = loop_counter(
            "remote_wal_not_packed_bytes",
            "Record bytes to other zones that went plain: their topic is off, not known yet, or rests",
        ).labels()
        self.rests = loop_counter(
            "remote_wal_packing_rests", "Times that a topic's records were found not to pack, and go plain for a while"
        ).labels()


class ConnectionMetrics:
    """Metrics of all connections: their number, their memory, and what ended some of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.frame_bytes = gauge("remote_wal_frame_bytes", "Memory that frames hold, for all connections", ["way"])
        self.connections = gauge(
            "remote_wal_connections",
            "Connections that are held now, from their accept on, handshakes and silent ones included",
            ["listener"],
        )
        """Labelled like `refused_requests`."""
        self.refused_requests = Counter(
            "remote_wal_refused_requests",
            "Requests that brokers do not ask each other, or not in this one's name: each ended its connection",
            ["listener", "api"],
            registry=registry,
        )
        """`listener` is `peer`, or `replica` where the agent stands in for the leader."""
        self.versions = PeerVersions(registry)


class ReplicationMetrics:
    """Counters of both proxies. Bytes between agents are counted at both ends, size prefixes included."""

    def __init__(self, registry: CollectorRegistry) -> None:
        loop_counter = partial(LoopCounter, registry=registry)
        self.registry = registry
        self.peer_bytes = loop_counter("remote_wal_peer_bytes", "Bytes between agents", ["role", "direction"])
        """These bytes cross zones."""
        self.stock_bytes = loop_counter(
            "remote_wal_stock_bytes", "Bytes that the relayed frames have in stock Kafka", ["direction"]
        )
        """The bytes that stock Kafka would have sent."""
        self.record_bytes = loop_counter(
            "remote_wal_replicated_record_bytes", "Record bytes given to followers", ["path"]
        )
        self.inline_bytes = loop_counter(
            "remote_wal_inline_bytes",
            "Record bytes given to followers inline, by why they were not linked; together all that went inline",
            ["reason"],
        )
        self.responses = loop_counter(
            "remote_wal_fetch_responses", "Fetch responses with records, as first sent", ["path"]
        )
        self.held = ConnectionMetrics(registry)
        self.catch_up = CatchUpMetrics(registry)
        self.bypass = BypassMetrics(registry)
        self.shared_reads = SharedReadMetrics(registry)
        self.packing = PackingMetrics(registry)
        self.faults = Counter("remote_wal_faults", "Faults that replication survived", ["reason"], registry=registry)
        """Every fault that was answered by falling back or by closing a connection."""
        self.traffic = Traffic()

    def linked(self, partition: TopicIdPartition, size: int, follower_id: int, now_s: float) -> None:
        """Count record bytes that a follower got as links."""
        self.traffic.moved(partition.topic_id, LINKED, size, now_s)
        self.traffic.by_partition[partition].linked_bytes += size
        self.traffic.by_topic[partition.topic_id, follower_id].linked_bytes += size
        self.record_bytes.labels("linked").inc(size)

    def inline(
        self, partition: TopicIdPartition | None, size: int, follower_id: int, reason: InlineReason, now_s: float
    ) -> None:
        """Count record bytes that were sent inline; `partition` is None for topics without the feature."""
        self.inline_bytes.labels(reason.value).inc(size)
        if partition is not None:
            if reason is not InlineReason.OWN_ZONE:
                self.traffic.moved(partition.topic_id, reason.value, size, now_s)
            moved = self.traffic.by_partition[partition]
            if reason not in RIGHTLY_INLINE:
                moved.unsaved_bytes += size
            moved.inline_bytes += size
            moved.reasons[reason.value] += size
            self.traffic.by_topic[partition.topic_id, follower_id].inline_bytes += size
        self.record_bytes.labels("inline").inc(size)

    def packed(self, topics: Sequence[PackedTopic], follower_id: int) -> None:
        """Count the bytes that packing saved in records to a follower, for topics whose bytes are counted."""
        for topic, plain_bytes, packed_bytes in topics:
            moved = self.traffic.by_topic.get((TopicId(topic), follower_id)) if isinstance(topic, bytes) else None
            if moved is not None:
                moved.packed_away_bytes += plain_bytes - packed_bytes

    def relayed(self, direction: str, size: int, follower_id: int) -> None:
        """Count a frame by its size before links replaced records; `direction` is `request` or `response`."""
        self.stock_bytes.labels(direction).inc(size)
        self.traffic.by_follower[follower_id].stock_bytes += size

    def fault(self, reason: str) -> None:
        self.faults.labels(reason).inc()

    def request_refused(self, listener: str, error: RequestRefusedError, **where: object) -> None:
        """Count and log a refused request, whether it was answered or not."""
        self.held.refused_requests.labels(listener, error.api).inc()
        self.fault("request_refused")
        log.error("request_refused", listener=listener, error=str(error), hint=_REFUSED_HINT, **where)

    def connection_ended(self, side: str, error: Exception | None) -> None:
        """Count and log the end of a connection if a frame's size was one that no correct peer sends."""
        if isinstance(error, FrameSizeError):
            self.fault(f"{side}_frame_{error.reason}")
            log.warning("connection_refused", side=side, error=str(error))


class CountsBytes(Protocol):
    """A connection that counts the bytes it has sent and received."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...


class PeerByteCount:
    """Adds the bytes that one connection between agents has counted to the metrics."""

    def __init__(self, metrics: ReplicationMetrics, role: str, connection: CountsBytes) -> None:
        self._metrics = metrics
        self._connection = connection
        self._sent = metrics.peer_bytes.labels(role, "sent")
        self._received = metrics.peer_bytes.labels(role, "received")
        self._counted_sent = self._counted_received = 0

    def update(self, follower_id: int | None = None) -> None:
        """Add the bytes counted since the last call to the metrics; at the leader's end, under this follower."""
        sent, received = self._connection.bytes_sent, self._connection.bytes_received
        if follower_id is not None:
            added = sent - self._counted_sent + received - self._counted_received
            self._metrics.traffic.by_follower[follower_id].peer_bytes += added
        self._sent.value += sent - self._counted_sent
        self._received.value += received - self._counted_received
        self._counted_sent, self._counted_received = sent, received
