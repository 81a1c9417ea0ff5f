"""Knows which followers are in this broker's own zone (`broker.rack`), according to the cluster.

Bytes to them do not cross zones, so links would cost something, save nothing, and delay them. A broker that is away
keeps its last zone. A broker without a known zone counts as in another zone; so do all brokers while the own zone is
unknown.
"""

from collections.abc import Mapping

from kafka_log.topic_partition import TopicIdPartition
from replication.leader.remote_readers import RemoteReaders


class Zones:
    """Updated on one thread; any thread may read."""

    def __init__(self, own: str | None = None, readers: RemoteReaders | None = None) -> None:
        """`readers` are the agents of other zones through which consumers read; None if there are none."""
        self.readers = readers
        self.own = own
        """None: unknown, so no broker counts as in the own zone."""
        self._racks: Mapping[int, str] = {}
        self._followers: Mapping[TopicIdPartition, frozenset[int]] = {}

    def learned(self, racks: Mapping[int, str | None]) -> None:
        """Record the zones of the living brokers; None for a broker without one."""
        known = {broker_id: rack for broker_id, rack in self._racks.items() if broker_id not in racks}
        self._racks = known | {broker_id: rack for broker_id, rack in racks.items() if rack}

    def led(self, followers: Mapping[TopicIdPartition, frozenset[int]]) -> None:
        """Record which partitions are led here, and which brokers follow them."""
        self._followers = followers

    def has_replica(self, zone: str, partition: TopicIdPartition) -> bool | None:
        """Whether a broker in that zone follows the partition; None if the partition is not led here."""
        followers = self._followers.get(partition)
        return None if followers is None else any(self._racks.get(one) == zone for one in followers)

    def of(self, broker_id: int) -> str | None:
        """The broker's zone; None if unknown."""
        return self._racks.get(broker_id)

    def is_own(self, broker_id: int) -> bool:
        """Whether the broker is in the own zone."""
        return self.own is not None and self._racks.get(broker_id) == self.own

    def remote(self, broker_ids: frozenset[int]) -> frozenset[int]:
        """Return those of these brokers to which bytes cross zones."""
        return frozenset(one for one in broker_ids if not self.is_own(one))

    def elsewhere(self, partition: TopicIdPartition, followers: frozenset[int]) -> frozenset[int]:
        """Return the brokers to which this partition's bytes cross zones: followers, and agents that serve
        consumers.
        """
        readers = self.readers.of(partition) if self.readers is not None else frozenset[int]()
        return self.remote(followers | readers)
