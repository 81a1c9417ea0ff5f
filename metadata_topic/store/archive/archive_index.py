"""Where the archived offsets of partitions are, and in which objects.

Theory. By partition and leader epoch, the committed objects' spans: an object's runs of one epoch follow one another.
Spans may overlap (a range archived twice); a lookup takes the one that reaches furthest. A lookup goes by the leader
epoch chain of the log that is asked about, so what was archived and then lost in an unclean election is not found, and
its offsets are archived anew.

What holds the records, and guards all of it by a lock, is `metadata_topic.store.archive.archive_store`.
"""

from bisect import bisect_left, bisect_right, insort
from itertools import accumulate, groupby

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.leader_epochs import LeaderEpochChain
from plugin.format.archive_object_id import ArchiveObjectId

_Span = tuple[int, int, ArchiveObjectId]
"""First and last offset, and the object that holds them."""


class _EpochSpans:
    """The archived offsets of one partition and leader epoch: few, as an archive object is large.

    Changes are cheap, the first question after one is not.
    """

    __slots__ = ("_reach", "_spans")

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._reach: list[int] | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """Each span once."""
        insort(self._spans, (first, last, object_id))
        self._reach = None

    def remove(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """What was added."""
        del self._spans[bisect_left(self._spans, (first, last, object_id))]
        self._reach = None

    def covering(self, offset: int) -> list[_Span]:
        """Best first: reaching furthest, then the oldest id."""
        if self._reach is None:
            self._reach = list(accumulate((last for _, last, _ in self._spans), max))
        found = []
        at = bisect_right(self._spans, offset, key=lambda span: span[0]) - 1
        while at >= 0 and self._reach[at] >= offset:
            if self._spans[at][1] >= offset:
                found.append(self._spans[at])
            at -= 1
        return sorted(found, key=lambda span: (-span[1], span[0], span[2]))

    def end_from(self, offset: int) -> int:
        """The first offset from `offset` on that is not archived."""
        while best := self.covering(offset):
            offset = best[0][1] + 1
        return offset

    def first_from(self, offset: int) -> int | None:
        """The first archived offset that is not below `offset`."""
        if self.covering(offset):
            return offset
        at = bisect_left(self._spans, offset, key=lambda span: span[0])
        return self._spans[at][0] if at < len(self._spans) else None


def spans_of(committed: ArchiveObjectCommitted) -> list[tuple[int, int, int]]:
    """(leader epoch, first offset, last offset), one for each epoch, ascending."""
    found = []
    for epoch, group in groupby(committed.runs, key=lambda run: run.leader_epoch):
        runs = list(group)
        found.append((epoch, runs[0].first_offset, runs[-1].last_offset))
    return found


class ArchiveIndex:
    """Not thread-safe; lookups change it too."""

    def __init__(self) -> None:
        self._spans: dict[TopicIdPartition, dict[int, _EpochSpans]] = {}

    def add(self, committed: ArchiveObjectCommitted) -> None:
        """Each object once."""
        epochs = self._spans.setdefault(committed.object_id.topic_id_partition, {})
        for epoch, first, last in spans_of(committed):
            epochs.setdefault(epoch, _EpochSpans()).add(first, last, committed.object_id)

    def remove(self, committed: ArchiveObjectCommitted) -> None:
        """What was added."""
        partition = committed.object_id.topic_id_partition
        epochs = self._spans[partition]
        for epoch, first, last in spans_of(committed):
            epochs[epoch].remove(first, last, committed.object_id)
            if not len(epochs[epoch]):
                del epochs[epoch]
        if not epochs:
            del self._spans[partition]

    def clear(self) -> None:
        """Know of no object."""
        self._spans.clear()

    def partitions(self) -> list[TopicIdPartition]:
        """Return the partitions that have committed objects."""
        return list(self._spans)

    def covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochChain
    ) -> list[ArchiveObjectId]:
        """The objects that hold `offset` of this log, the best first: reaching furthest."""
        spans = self._spans_at(topic_id_partition, offset, leader_epochs)
        return [object_id for _, _, object_id in spans.covering(offset)] if spans is not None else []

    def archived_range(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain, from_offset: int
    ) -> tuple[int, int] | None:
        """The first unbroken range [first, last] of this log, at or above `from_offset`; None when there is none."""
        first = self._first_archived(topic_id_partition, leader_epochs, from_offset)
        if first is None:
            return None
        end = first
        while (spans := self._spans_at(topic_id_partition, end, leader_epochs)) is not None:
            reached = spans.end_from(end)
            epoch_end = leader_epochs.end_of(leader_epochs.epoch_at(end) or 0)
            reached = reached if epoch_end is None else min(reached, epoch_end)
            if reached == end:
                break
            end = reached
        return first, end - 1

    def covers(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, first_offset: int, last_offset: int
    ) -> bool:
        """Whether all records of this epoch at these offsets are archived."""
        spans = self._spans.get(topic_id_partition, {}).get(leader_epoch)
        return spans is not None and spans.end_from(first_offset) > last_offset

    def _spans_at(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochChain
    ) -> _EpochSpans | None:
        epoch = leader_epochs.epoch_at(offset)
        return None if epoch is None else self._spans.get(topic_id_partition, {}).get(epoch)

    def _first_archived(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain, from_offset: int
    ) -> int | None:
        """The first offset of this log, not below `from_offset`, that is archived."""
        found = []
        for epoch, spans in self._spans.get(topic_id_partition, {}).items():
            start, end = leader_epochs.start_offset(epoch), leader_epochs.end_of(epoch)
            if start is not None:
                first = spans.first_from(max(start, from_offset))
                if first is not None and (end is None or first < end):
                    found.append(first)
        return min(found, default=None)
