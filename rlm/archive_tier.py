"""The archive as the long-term tier that releases entries of combined segments."""

from collections.abc import Callable

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.leader_epochs import LeaderEpochChain
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry


class ArchiveTier:
    """Answers for expiration. Any thread may ask."""

    def __init__(
        self,
        archive: ArchiveStore,
        is_archived: Callable[[TopicIdPartition], bool],
        chain_of: Callable[[TopicIdPartition], LeaderEpochChain | None],
    ) -> None:
        """`is_archived` tells whether the partition's topic has the archive on and somebody archives it, here or on
        another broker. `chain_of` gives a led partition's epochs; None for what is led elsewhere.
        """
        self._archive = archive
        self._is_archived = is_archived
        self._chain_of = chain_of

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry is archived, but for those that the log does not have."""
        partition, epoch, last = entry.topic_id_partition, entry.leader_epoch, entry.last_offset
        chain = self._chain_of(partition)
        end = chain.end_of(epoch) if chain is not None else None
        if end is not None and end <= entry.first_offset:
            return False  # dead as a whole, or the chain is not the whole one: not for the archive to say
        return self._archive.covers(partition, epoch, entry.first_offset, last if end is None else min(last, end - 1))

    def waits_for(self, partition: TopicIdPartition, /) -> bool:
        """Whether neither time nor another tier may release the partition's entries."""
        return self._is_archived(partition)
