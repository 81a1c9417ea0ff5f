"""Where leaders said that older epochs end, kept beyond the segments that they named: it is a fact about the log.

`recovery.metadata.epoch_ends` judges it. Not thread-safe: the store calls it under its lock.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kafka_log.topic_partition import TopicIdPartition


class DeclaredEnd(NamedTuple):
    """Where one leader said that one older epoch ends. Its own leader epochs do not change while it leads, so it
    says so once."""

    topic_id_partition: TopicIdPartition
    declarer_epoch: int
    leader_epoch: int
    """The epoch that ends."""
    end_offset: int
    """The epoch ends there, or before."""
    is_exact: bool
    """Whether the epoch ends exactly at that offset."""


class DeclaredEnds:
    """All declared ends of epochs. The order in which they arrive, and repetitions, make no difference."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicIdPartition, dict[tuple[int, int], DeclaredEnd]] = {}

    def add(self, declared: Iterable[DeclaredEnd]) -> None:
        """Add declarations. None can be about the declarer's own epoch or a newer one."""
        for new in declared:
            of_partition = self._by_partition.setdefault(new.topic_id_partition, {})
            known = of_partition.get((new.declarer_epoch, new.leader_epoch), new)
            tightest = min(known, new, key=lambda one: (one.end_offset, not one.is_exact))
            of_partition[new.declarer_epoch, new.leader_epoch] = tightest

    def of(self, topic_id_partition: TopicIdPartition) -> Iterable[DeclaredEnd]:
        """Return a partition's declarations."""
        return self._by_partition.get(topic_id_partition, {}).values()

    def all(self) -> list[DeclaredEnd]:
        """Return all declarations."""
        return [declared for of_partition in self._by_partition.values() for declared in of_partition.values()]
