"""Knows which followers are in this broker's own zone (`broker.rack`), according to the cluster.

Bytes to them do not cross zones, so links would cost something, save nothing, and delay them. A broker that is away
keeps its last zone. A broker without a known zone counts as in another zone; so do all brokers while the own zone is
unknown.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.peer_protocol import ZoneReading, coalesce_ranges, in_order

KEEP_S = 300.0
"""A consumer that was away for longer counts as new: its first bytes may go inline while links begin."""


class RemoteReaders:
    """Tracks through which agents of other zones consumers have recently read a partition led here.

    Such agents read objects like followers' agents, once for all of their consumers. So links pay for them as for
    followers, and a partition without followers in other zones is still linked for them.
    """

    def __init__(
        self, clock: Callable[[], float], on_new: Callable[[], object] = lambda: None, keep_s: float = KEEP_S
    ) -> None:
        """`clock` gives monotonic seconds; `on_new` is called when an agent begins to count as a reader."""
        self._on_new = on_new
        self._clock = clock
        self._keep_s = keep_s
        self._read_s: dict[TopicIdPartition, dict[int, float]] = {}
        self._swept_s = clock()

    def read(self, partition: TopicIdPartition, broker_id: int) -> None:
        """Record that a consumer got records of this partition through the agent of this broker."""
        now_s = self._clock()
        if now_s - self._swept_s >= self._keep_s:
            self._swept_s = now_s
            self._read_s = {one: found for one, found in self._read_s.items() if self._living(found)}
        is_new = broker_id not in self.of(partition)
        self._read_s.setdefault(partition, {})[broker_id] = now_s
        if is_new:
            self._on_new()

    def of(self, partition: TopicIdPartition) -> frozenset[int]:
        """Return the brokers whose agents read this partition."""
        return self._living(self._read_s.get(partition, {}))

    def _living(self, read_s: dict[int, float]) -> frozenset[int]:
        since_s = self._clock() - self._keep_s
        return frozenset(one for one, at_s in read_s.copy().items() if at_s > since_s)


class Zones:
    """The zones of brokers, and followers and other readers of the led partitions. Updated on one thread; any thread
    may read."""

    def __init__(self, own: str | None = None, readers: RemoteReaders | None = None) -> None:
        """`readers` are the agents of other zones through which consumers read; None without zone gateways."""
        self.readers = readers
        self.own = own
        """None: unknown, so no broker counts as in the own zone."""
        self._racks: Mapping[int, str] = {}
        self._followers: Mapping[TopicIdPartition, frozenset[int]] = {}

    def learned(self, racks: Mapping[int, str | None]) -> None:
        """Record the zones of the living brokers; None for a broker without a rack."""
        known = {broker_id: rack for broker_id, rack in self._racks.items() if broker_id not in racks}
        self._racks = known | {broker_id: rack for broker_id, rack in racks.items() if rack}

    def set_led(self, followers: Mapping[TopicIdPartition, frozenset[int]]) -> None:
        """Record the partitions that are led here, and the brokers that follow each."""
        self._followers = followers

    def has_replica(self, zone: str, partition: TopicIdPartition) -> bool | None:
        """Whether a broker in that zone follows the partition; None if the partition is not led here."""
        followers = self._followers.get(partition)
        return None if followers is None else any(self._racks.get(one) == zone for one in followers)

    def of(self, broker_id: int) -> str | None:
        """Return the broker's zone; None if unknown."""
        return self._racks.get(broker_id)

    def is_own(self, broker_id: int) -> bool:
        return self.own is not None and self._racks.get(broker_id) == self.own

    def remote(self, broker_ids: frozenset[int]) -> frozenset[int]:
        """Return those of these brokers that are in another zone than this one."""
        return frozenset(one for one in broker_ids if not self.is_own(one))

    def find_elsewhere(self, partition: TopicIdPartition, followers: frozenset[int]) -> frozenset[int]:
        """Return the brokers to which this partition's bytes cross zones: followers, and agents that serve
        consumers.
        """
        readers = self.readers.of(partition) if self.readers is not None else frozenset[int]()
        return self.remote(followers | readers)


Ranges = list[tuple[int, int]]


def zone_readings(
    segment_id: CombinedSegmentId, wanted: Mapping[int, Ranges], zones: Zones, gap_bytes: int
) -> dict[int, ZoneReading]:
    """Return by broker the `ZoneReading` to announce, for those that share reads with others of their zone.

    `wanted` has the ranges of all agents that understand shared reads.

    If a zone has two readers or more, one of them reads for all. A reader counts if it gets the announcement of the
    object now, which requires that it is connected and keeps up; so an agent that is gone is never chosen. An agent
    whose zone is unknown, or that does not understand shared reads, reads for itself.
    """
    by_zone: defaultdict[str, list[int]] = defaultdict(list)
    for broker_id in wanted:
        zone = zones.of(broker_id)
        if zone is not None:
            by_zone[zone].append(broker_id)
    found: dict[int, ZoneReading] = {}
    for readers in by_zone.values():
        if len(readers) > 1:
            ranges = coalesce_ranges(list(chain.from_iterable(wanted[one] for one in readers)), gap_bytes)
            found |= dict.fromkeys(readers, ZoneReading(in_order(segment_id, readers), ranges))
    return found


def reads_for(brokers: Iterable[int], zones: Zones, *, shares: bool) -> dict[int, int | str]:
    """Return by broker who reads an object for it: the broker itself, or its zone if reads are shared there.

    `shares`: whether agents share reads at all.
    """
    zone_of = {broker_id: zones.of(broker_id) for broker_id in brokers}
    counts = Counter(zone_of.values())
    return {one: zone if shares and zone is not None and counts[zone] > 1 else one for one, zone in zone_of.items()}
