"""Where epochs end and begin, by what leaders declared dead: beyond the objects that they name. Sans-IO.

Theory. A leader that declares an epoch's records dead from an offset on (`rlm.failover`) names a combined segment, and
that mark goes when the segment does. But what it says is of the log: as of that leader, the older epoch ends there. So
it holds as well for copies that no declaration can name, because nobody had told of them: an object whose agent died
before it published it, and an archive object that reaches beyond the end. Above all this is so after a restoration to a
point in time, whose end no record tells until something is written behind it.

It holds for what was written until then. An unclean election may bring such records back; whoever leads then uploads
them anew, into objects that are younger than the declaration. Where the declarer's own epoch was declared dead in turn,
at or before that offset, its log is not the one that went on, and nothing follows from what it said.

Where the newest declarer's own epoch begins follows from them at times, though nothing of it was uploaded: if it says
that the very epoch before ends at an offset, it is its own that begins there. If epochs lie between, it is not known
which of them does, and nothing is concluded. They do lie between wherever a partition was without a leader in the
meantime, as KRaft counts that as an epoch too: so it is with each partition of one replica. Nor is anything concluded
where it says of a still older epoch that it ends before: then the epoch before may have been cut off as a whole, and
the offset is merely that of the first of its records. (Of leaders before the newest one nothing need be known: an epoch
without records has no place in a log that a later one follows.)

Declarations outlive the unpublished objects: the topic keeps its records for longer than any object of it lives.
Archive objects live longer than that; what follows from a declaration that the topic has forgotten is not known.
"""

from typing import NamedTuple

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import RemoteWalLogSegmentMetadataUpdate
from recovery.log_plan import EpochStart


class _Declaration(NamedTuple):
    """All that one leader said of one older epoch: its own log's leader epochs do not change while it leads."""

    end_offset: int
    declared_ms: int
    """The last time it said so."""


class EpochEnds:
    """Filled by one thread, then read."""

    def __init__(self) -> None:
        self._declared: dict[TopicIdPartition, dict[int, dict[int, _Declaration]]] = {}
        """By the declarer's epoch, then by the one that it says ends."""

    def add(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        """Take in what a leader declared, in any order. Of its own epoch, or a newer one, it cannot know."""
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                continue
            new = _Declaration(entry.first_offset, record.event_timestamp_ms)
            by_declarer = self._declared.setdefault(entry.topic_id_partition, {})
            ends = by_declarer.setdefault(record.leader_epoch, {})
            known = ends.get(entry.leader_epoch, new)
            ends[entry.leader_epoch] = _Declaration(
                min(known.end_offset, new.end_offset), max(known.declared_ms, new.declared_ms)
            )

    def end_of(self, partition: TopicIdPartition, leader_epoch: int, written_ms: int) -> int | None:
        """From which offset on the epoch's records are dead in an object that was written then, in milliseconds since
        1970 by its writer's clock; None when nobody said so.
        """
        return min(
            (
                ends[leader_epoch].end_offset
                for declarer, ends in self._declared.get(partition, {}).items()
                if leader_epoch in ends
                and written_ms <= ends[leader_epoch].declared_ms
                and not self._is_void(partition, declarer, ends[leader_epoch].end_offset)
            ),
            default=None,
        )

    def starts(self) -> dict[TopicIdPartition, list[EpochStart]]:
        """Where epochs begin of which there may be no record."""
        found = {}
        for partition, by_declarer in self._declared.items():
            newest = max(by_declarer)
            before = by_declarer[newest].get(newest - 1)
            if before is not None and before.end_offset == min(end.end_offset for end in by_declarer[newest].values()):
                found[partition] = [EpochStart(newest, before.end_offset)]
        return found

    def _is_void(self, partition: TopicIdPartition, declarer: int, end_offset: int) -> bool:
        """Whether the declarer's own records are dead from there on."""
        said = (ends.get(declarer) for ends in self._declared[partition].values())
        return any(own is not None and own.end_offset <= end_offset for own in said)
