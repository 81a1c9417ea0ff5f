"""Lets the archive release entries of combined segments, as a long-term tier."""

from collections.abc import Callable

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.release import HeldRange


class ArchiveTier:
    """Answers for expiration. Any thread may ask."""

    def __init__(
        self,
        archive: ArchiveStore,
        is_archived: Callable[[TopicId], bool],
        chain_of: Callable[[TopicIdPartition], LeaderEpochChain | None],
    ) -> None:
        """`is_archived` says whether the topic has the archive on and some agent archives it, here or elsewhere.

        `chain_of` returns a led partition's epochs; None for partitions led elsewhere.
        """
        self._archive = archive
        self._is_archived = is_archived
        self._chain_of = chain_of

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry that the log has is archived."""
        partition, epoch, last = entry.topic_id_partition, entry.leader_epoch, entry.last_offset
        chain = self._chain_of(partition)
        end = chain.end_of(epoch) if chain is not None else None
        if end is not None and end <= entry.first_offset:
            return False  # dead as a whole, or the chain is incomplete: the archive cannot decide
        return self._archive.covers(partition, epoch, entry.first_offset, last if end is None else min(last, end - 1))

    def held_range(self, partition: TopicIdPartition, /) -> HeldRange | None:
        """Return a range in the newest epoch, from its first archived offset to the first hole."""
        chain = self._chain_of(partition)
        epoch = chain.newest_epoch if chain is not None else None
        if chain is None or epoch is None:
            return None
        found = self._archive.archived_range(partition, chain, chain.start_offset(epoch) or 0)
        return None if found is None else HeldRange(epoch, *found)

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether only the archive may release the topic's entries, and neither time nor another tier."""
        return self._is_archived(topic_id)
