"""A partition's log on disk, objects that hold parts of it, and a metadata store that knows them."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kafka_log.crc32c import crc32c
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectDeleted, ArchiveObjectPrepared
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from rlm.archive.stored_runs import ArchiveLinks, LedLogs
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog
from tests.kafka_log.log_writer import LogWriter, WrittenBatch
from tests.rlm.archive_rig import MemoryArchive
from tests.rlm.memory_storage import MemoryStorage

EARLIER_BROKER, EARLIER_INCARNATION = 7, 3


class UploadedLog:
    """Uploaded by an agent before the one under test. Batches are appended to `writer`."""

    def __init__(self, directory: Path, partition: TopicIdPartition, storage: MemoryStorage | None = None) -> None:
        self.partition = partition
        self.writer = LogWriter(directory)
        self.storage = storage if storage is not None else MemoryStorage()
        self.store = RemoteWalMetadataStore()
        self.archive = MemoryArchive()
        self.archived = ArchiveStore()
        self._archived = 0
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

    def write_archive(self, batches: Sequence[WrittenBatch], run_bytes: int = 400) -> ArchiveObjectCommitted:
        """An archive object with these batches, stored and prepared; the record would commit it."""
        writer_id = CombinedSegmentId(EARLIER_BROKER, EARLIER_INCARNATION, self._archived)
        self._archived += 1
        named = ArchiveObjectId(self.partition, batches[0].base_offset, batches[-1].last_offset, writer_id)
        opened = OpenArchiveObject("cluster", named, 1000, run_bytes)
        for written in batches:
            raw = written.raw
            opened.append(written.leader_epoch, written.last_offset, memoryview(raw), scan_batches(raw, 0, len(raw)))
        self.archived.apply(ArchiveObjectPrepared(named, EARLIER_INCARNATION, 10_000, 1000))
        sealed = opened.seal()
        ask(self.archive.write(named, sealed))
        return ArchiveObjectCommitted(named, EARLIER_INCARNATION, sealed.entries, sealed.size_bytes, 1000)

    def archive_all(self, batches: Sequence[WrittenBatch], run_bytes: int = 400) -> ArchiveObjectId:
        """An archive object with these batches, committed; the combined segments are all released and gone."""
        committed = self.write_archive(batches, run_bytes)
        self.archived.apply(committed)
        for segment in list(self.storage.objects):
            self.start_deletion(segment)
            del self.storage.objects[segment]
        return committed.object_id

    def start_archive_deletion(self, object_id: ArchiveObjectId) -> None:
        state = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        self.archived.apply(ArchiveObjectDeleted(object_id, EARLIER_INCARNATION, state, 2000))

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

    def logs(self, min_entry_bytes: int = 0, min_run_bytes: int = 0) -> LedLogs:
        return LedLogs(self.store, self.stored_log, min_entry_bytes, ArchiveLinks(self.archived, min_run_bytes))

    def runs(
        self, offset: int, max_bytes: int = 10**9, policy: LinkPolicy = LinkPolicy.ALWAYS, min_entry_bytes: int = 0
    ) -> list[ProvedRun]:
        return self.found(offset, max_bytes, policy, min_entry_bytes).runs

    def found(
        self, offset: int, max_bytes: int = 10**9, policy: LinkPolicy = LinkPolicy.ALWAYS, min_entry_bytes: int = 0
    ) -> FoundRuns:
        log = self.stored_log(self.partition, policy)
        assert log is not None
        return self.logs(min_entry_bytes).runs(log, offset, max_bytes)

    def stored_bytes(self, run: ProvedRun) -> list[bytes]:
        """What the object holds where the run says that its batches are."""
        start = run.entry.start_file_position
        named = run.object_id
        content = self.archive.objects[named] if isinstance(named, ArchiveObjectId) else self.storage.objects[named]
        return [content[start + batch.start : start + batch.end] for batch in run.batches]
