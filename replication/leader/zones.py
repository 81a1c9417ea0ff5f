"""Which followers stand in this broker's own zone (`broker.rack`), as the cluster tells.

Bytes to them cross no border, so links would cost what they save nothing of, and make them later. A broker that is away
keeps the zone that it had; one without a known zone, or all while the own one is not known, count as standing in
another.
"""

from collections.abc import Mapping

from kafka_log.topic_partition import TopicIdPartition
from replication.leader.remote_readers import RemoteReaders


class Zones:
    """Told on one thread; any thread may ask."""

    def __init__(self, own: str | None = None, readers: RemoteReaders | None = None) -> None:
        """`readers` are the agents of other zones by which consumers read; None: none do."""
        self.readers = readers
        self.own = own
        """None: not known, so nobody stands in it."""
        self._racks: Mapping[int, str] = {}
        self._followers: Mapping[TopicIdPartition, frozenset[int]] = {}

    def learned(self, racks: Mapping[int, str | None]) -> None:
        """These brokers live, and say so of their zones. None: they have none."""
        known = {broker_id: rack for broker_id, rack in self._racks.items() if broker_id not in racks}
        self._racks = known | {broker_id: rack for broker_id, rack in racks.items() if rack}

    def led(self, followers: Mapping[TopicIdPartition, frozenset[int]]) -> None:
        """These partitions are led here, and these brokers follow them."""
        self._followers = followers

    def has_replica(self, zone: str, partition: TopicIdPartition) -> bool | None:
        """Whether a broker there follows the partition, as far as zones are known; None where it is not led here."""
        followers = self._followers.get(partition)
        return None if followers is None else any(self._racks.get(one) == zone for one in followers)

    def of(self, broker_id: int) -> str | None:
        """Where the broker stands; None: not known."""
        return self._racks.get(broker_id)

    def is_own(self, broker_id: int) -> bool:
        """Whether the broker stands in this one's zone."""
        return self.own is not None and self._racks.get(broker_id) == self.own

    def remote(self, broker_ids: frozenset[int]) -> frozenset[int]:
        """Of these, the brokers to which bytes cross a border."""
        return frozenset(one for one in broker_ids if not self.is_own(one))

    def elsewhere(self, partition: TopicIdPartition, followers: frozenset[int]) -> frozenset[int]:
        """The brokers to which bytes of this partition cross a border: of its followers, and for consumers."""
        readers = self.readers.of(partition) if self.readers is not None else frozenset[int]()
        return self.remote(followers | readers)
