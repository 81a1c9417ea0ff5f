"""Records that the leader's log lost though no other replica was elected: objects that hold them are kept.

Theory. Objects with offsets beyond the end of their leader epoch are dead if another replica was elected. They may be
the only copy if the same broker leads again with a shorter log (a power cut, an empty disk). Its agent declares that
(`GapReason.LOST_LOCALLY`): an offset range, and the leader epoch that begins in the shortened log where the older
ones end. Every entry in that range of an older epoch is held: the log has none of them. It is not served, as the
log's leader epochs do not lead to it, and it is not deleted, until its topic is deleted or a person gives it up.
That declares dead what combined segments hold. What archive objects hold is kept even then, until the topic is deleted;
the loss is given up as a whole (`GapReason.GIVEN_UP`), and nobody is told of it any more.

An unclean election may bring such records back: another replica still had them. Its leader's agent takes them for
stored, as its leader epochs lead to them. A recovery leaves them out, and says so: objects alone do not tell whether
the log has them again, or others in their place that were never stored. To take them would give a replica records that
differ from the leader's, and no epoch would show it.

Not thread-safe: the store calls it under its lock.
"""

from collections.abc import Iterable, Iterator, Mapping

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

LocalLosses = Mapping[TopicIdPartition, tuple[DeclaredGap, ...]]
"""By partition."""


class HeldRecords:
    """All declared local losses, and which of them were given up. Declarations are few, and are never removed."""

    def __init__(self) -> None:
        self.losses: LocalLosses = {}
        self._given_up: set[DeclaredGap] = set()
        self._told: dict[DeclaredGap, None] = {}

    def add(self, losses: Iterable[DeclaredGap], *, is_published: bool = True) -> None:
        """Add local losses, and that some were given up; `is_published`: records of the topic declare them.

        `losses` is replaced, never changed, so others may keep it.
        """
        for loss in losses:
            known = self.losses.get(loss.topic_id_partition, ())
            if loss.reason is GapReason.GIVEN_UP:
                self._given_up.add(loss._replace(reason=GapReason.LOST_LOCALLY))
            elif loss not in known:
                self.losses = {**self.losses, loss.topic_id_partition: (*known, loss)}
            if is_published:
                self._told[loss] = None

    def undecided(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """Return a partition's losses that were not given up."""
        return [loss for loss in self.losses.get(topic_id_partition, ()) if loss not in self._given_up]

    def __iter__(self) -> Iterator[DeclaredGap]:
        """Yield what records of the topic declare: a snapshot must not have more than the topic."""
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
