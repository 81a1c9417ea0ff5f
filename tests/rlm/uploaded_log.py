"""A partition's log on disk, objects that hold parts of it, and a metadata store that knows them."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.topic_settings import LinkPolicy
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.led_views import StoredLog
from rlm.stored_runs import LedLogs, StoredRun
from tests.kafka_log.log_writer import LogWriter, WrittenBatch
from tests.rlm.memory_storage import MemoryStorage

EARLIER_BROKER, EARLIER_INCARNATION = 7, 3


class UploadedLog:
    """Uploaded by an agent before the one under test. Batches are appended to `writer`."""

    def __init__(self, directory: Path, partition: TopicIdPartition, storage: MemoryStorage | None = None) -> None:
        self.partition = partition
        self.writer = LogWriter(directory)
        self.storage = storage if storage is not None else MemoryStorage()
        self.store = RemoteWalMetadataStore()
        self.uploaded_offset = 0
        self._sequence = 0

    def upload(self, batches: Sequence[WrittenBatch]) -> CombinedSegmentId:
        """One object with these batches, an entry for each leader epoch."""
        segment = CombinedSegmentId(EARLIER_BROKER, EARLIER_INCARNATION, self._sequence)
        self._sequence += 1
        content, entries = b"h" * 112, []
        for epoch, of_epoch in groupby(batches, key=lambda written: written.leader_epoch):
            run = list(of_epoch)
            raw = b"".join(written.raw for written in run)
            entries.append(
                RemoteLogSegmentMetadataEntry(
                    self.partition,
                    epoch,
                    run[0].base_offset,
                    run[-1].last_offset,
                    len(content),
                    len(content) + len(raw),
                    crc32c(raw),
                )
            )
            content += raw
        self.storage.objects[segment] = content
        self._publish(segment, tuple(entries), RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        self.uploaded_offset = max(self.uploaded_offset, batches[-1].last_offset + 1)
        return segment

    def start_deletion(self, segment: CombinedSegmentId) -> None:
        self._publish(segment, (), RemoteLogSegmentState.DELETE_SEGMENT_STARTED)

    def _publish(
        self,
        segment: CombinedSegmentId,
        entries: tuple[RemoteLogSegmentMetadataEntry, ...],
        state: RemoteLogSegmentState,
    ) -> None:
        size = len(self.storage.objects[segment])
        self.store.apply(RemoteWalCombinedLogSegmentMetadata(segment, entries, state, 1000, size))

    def stored_log(self, partition: TopicIdPartition, policy: LinkPolicy = LinkPolicy.ALWAYS) -> StoredLog | None:
        if partition != self.partition:
            return None
        return StoredLog(partition, self.writer.path, self.uploaded_offset, policy)

    def logs(self, min_entry_bytes: int = 0) -> LedLogs:
        return LedLogs(self.store, self.stored_log, min_entry_bytes)

    def runs(
        self, offset: int, max_bytes: int = 10**9, policy: LinkPolicy = LinkPolicy.ALWAYS, min_entry_bytes: int = 0
    ) -> list[StoredRun]:
        log = self.stored_log(self.partition, policy)
        assert log is not None
        return self.logs(min_entry_bytes).runs(log, offset, max_bytes)

    def stored_bytes(self, run: StoredRun) -> list[bytes]:
        """What the object holds where the run says that its batches are."""
        start = run.entry.start_file_position
        content = self.storage.objects[run.combined_segment_id]
        return [content[start + batch.start : start + batch.end] for batch in run.batches]
