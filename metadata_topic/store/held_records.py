"""Records that the leader's log lost though no other replica was elected: objects that hold them are kept.

Theory. Objects with offsets beyond the end of their leader epoch are dead if another replica was elected. They may be
the only copy if the same broker leads again with a shorter log (a power cut, an empty disk). Its agent declares that
(`GapReason.LOST_LOCALLY`): an offset range, and the leader epoch that begins in the shortened log where the older
ones end. Every entry in that range of an older epoch is held: the log has none of them. It is not served, as the
log's leader epochs do not lead to it, and it is not deleted, until its topic is deleted or a person gives it up,
which declares it dead. What archive objects hold is kept until the topic is deleted.

An unclean election may bring such records back: another replica still had them. Its leader's agent takes them for
stored, as its leader epochs lead to them. A recovery leaves them out, and says so: objects alone do not tell whether
the log has them again, or others in their place that were never stored. To take them would give a replica records that
differ from the leader's, and no epoch would show it.

Not thread-safe: the store calls it under its lock.
"""

from collections.abc import Iterable, Iterator, Mapping

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

LocalLosses = Mapping[TopicIdPartition, tuple[DeclaredGap, ...]]
"""By partition."""


class HeldRecords:
    """All declared local losses. Declarations are few, and are never removed."""

    def __init__(self) -> None:
        self.losses: LocalLosses = {}
        self._told: dict[DeclaredGap, None] = {}

    def add(self, losses: Iterable[DeclaredGap], *, is_published: bool = True) -> None:
        """Add local losses; `is_published`: records of the topic declare them.

        `losses` is replaced, never changed, so others may keep it.
        """
        for loss in losses:
            known = self.losses.get(loss.topic_id_partition, ())
            if loss not in known:
                self.losses = {**self.losses, loss.topic_id_partition: (*known, loss)}
            if is_published:
                self._told[loss] = None

    def __iter__(self) -> Iterator[DeclaredGap]:
        """Yield the losses that records of the topic declare: a snapshot must not have more than the topic."""
        return iter(self._told)


def is_held(entry: RemoteLogSegmentMetadataEntry, losses: LocalLosses) -> bool:
    """Whether the entry has records that the log lost locally, so that its object is kept."""
    return lost_from(entry, losses) is not None


def lost_from(entry: RemoteLogSegmentMetadataEntry, losses: LocalLosses) -> int | None:
    """Return the first offset of the entry that the log lost locally; None: it lost none of them."""
    found = (
        max(entry.first_offset, loss.from_offset)
        for loss in losses.get(entry.topic_id_partition, ())
        if entry.leader_epoch < loss.leader_epoch
        and entry.first_offset < loss.to_offset
        and entry.last_offset >= loss.from_offset
    )
    return min(found, default=None)
