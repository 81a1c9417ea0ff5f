"""Where leaders found that older epochs end: what their declarations say of objects that they do not name. Sans-IO.

Theory. A leader that declares an epoch's records dead from an offset on (`rlm.failover`) names a combined segment, and
that mark goes when the segment does. But what it says is of the log: as of that leader, the older epoch ends there. So
it holds as well for copies that no declaration can name, because nobody had told of them: an object whose agent died
before it published it, and an archive object that reaches beyond the end. Above all this is so after a restoration to a
point in time, whose end no record tells until something is written behind it.

It holds for what was written until then. An unclean election may bring such records back; whoever leads then uploads
them anew, into objects that are younger than the declaration. Where the declarer's own epoch was declared dead in turn,
at or before that offset, its log is not the one that went on, and nothing follows from what it said.

Declarations outlive the unpublished objects: the topic keeps its records for longer than any object of it lives.
Archive objects live longer than that; what follows from a declaration that the topic has forgotten is not known.
"""

from typing import NamedTuple

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import RemoteWalLogSegmentMetadataUpdate


class _Declaration(NamedTuple):
    """All that one leader said of one older epoch: its own log's leader epochs do not change while it leads."""

    end_offset: int
    declared_ms: int
    """The last time it said so."""


class EpochEnds:
    """Filled by one thread, then read."""

    def __init__(self) -> None:
        self._declared: dict[tuple[TopicIdPartition, int], dict[int, _Declaration]] = {}

    def add(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        """Take in what a leader declared, in any order. Of its own epoch, or a newer one, it cannot know."""
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                continue
            new = _Declaration(entry.first_offset, record.event_timestamp_ms)
            by_epoch = self._declared.setdefault((entry.topic_id_partition, entry.leader_epoch), {})
            known = by_epoch.get(record.leader_epoch, new)
            by_epoch[record.leader_epoch] = _Declaration(
                min(known.end_offset, new.end_offset), max(known.declared_ms, new.declared_ms)
            )

    def end_of(self, partition: TopicIdPartition, leader_epoch: int, written_ms: int) -> int | None:
        """From which offset on the epoch's records are dead in an object that was written then, in milliseconds since
        1970 by its writer's clock; None when nobody said so.
        """
        return min(
            (
                declaration.end_offset
                for declarer, declaration in self._declared.get((partition, leader_epoch), {}).items()
                if written_ms <= declaration.declared_ms and not self._is_void(partition, declarer, declaration)
            ),
            default=None,
        )

    def _is_void(self, partition: TopicIdPartition, declarer: int, declaration: _Declaration) -> bool:
        """Whether the declarer's own records are dead from there on."""
        own = self._declared.get((partition, declarer), {})
        return any(later.end_offset <= declaration.end_offset for later in own.values())
