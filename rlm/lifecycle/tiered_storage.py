"""Lets KIP-405's remote storage release entries of combined segments, as a long-term tier.

The tier's contents are known by leader epoch and offset, and say which records those are: one leader wrote each epoch.
Where this broker has a replica, the log's own leader epochs count, and records that the log no longer has are not
released. It answers only while `__remote_log_metadata` is followed. Otherwise time or the log's start releases entries.
"""

from collections.abc import Callable
from pathlib import Path

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, MalformedFileError, read_leader_epochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TieredRange
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

EPOCHS_MAX_AGE_S = 30.0
"""An older chain lacks newer epochs and says nothing about them; what it has was true when it was read."""


class LogEpochs:
    """The leader epochs of the logs on this broker, read again after `max_age_s`. Any thread may ask."""

    def __init__(
        self,
        directory_of: Callable[[TopicIdPartition], Path | None],
        clock: Callable[[], float],
        max_age_s: float = EPOCHS_MAX_AGE_S,
    ) -> None:
        """`clock` also counts while the host sleeps, in seconds (`plugin.wall_clock.lasting_s`)."""
        self._directory_of = directory_of
        self._clock = clock
        self._max_age_s = max_age_s
        self._read: dict[TopicIdPartition, tuple[float, LeaderEpochs | None]] = {}

    def of(self, partition: TopicIdPartition) -> LeaderEpochs | None:
        """Return the log's epochs; None when there is no such log here, or its checkpoint cannot be read."""
        now = self._clock()
        known = self._read.get(partition)
        if known is None or now - known[0] >= self._max_age_s:
            known = self._read[partition] = (now, self._read_now(partition))
        return known[1]

    def _read_now(self, partition: TopicIdPartition) -> LeaderEpochs | None:
        directory = self._directory_of(partition)
        if directory is None:
            return None
        try:
            return read_leader_epochs(directory)
        except (OSError, MalformedFileError):
            return None


class TieredStorageTier:
    """Implements `rlm.lifecycle.release.LongTermTier` with `__remote_log_metadata`. One thread at a time."""

    def __init__(self, offsets: TieredOffsets, epochs: LogEpochs, is_read: Callable[[], bool] = lambda: True) -> None:
        """While `is_read` returns False, `offsets` may lack what the topic has."""
        self._offsets = offsets
        self._epochs = epochs
        self._is_read = is_read

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry is on the tier; False when that is not known."""
        if not self._is_read():
            return False
        partition = entry.topic_id_partition
        epochs = self._epochs.of(partition)
        if epochs is None:
            return any(
                held.first_offset <= entry.first_offset and entry.last_offset <= held.last_offset
                for held in self._offsets.epoch_ranges(partition).get(entry.leader_epoch, ())
            )
        offsets = TieredRange(entry.first_offset, entry.last_offset)
        return self._offsets.is_tiered(partition, epochs, entry.leader_epoch, offsets)

    def waits_for(self, _topic_id: TopicId, /) -> bool:
        """Return False: Kafka makes the tier from its own logs."""
        return False
