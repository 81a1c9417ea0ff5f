"""A RemoteWalStorageManager in memory that fails, hangs, corrupts and holds back on command."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from plugin.adopted_records import RecordsList
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteStorageTimeoutError,
)
from plugin.format.combined_segment import OpenCombinedSegment, SegmentHeader, decode_header
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

FAIL_BEFORE = "before"
"""The write takes no effect, and fails."""
FAIL_AFTER = "after"
"""The write takes effect, and fails all the same: its outcome is unknown to the caller."""


class MemoryStorage(RemoteWalStorageManager):
    """Objects in a dict. Thread-safe enough: every public attribute is set by the test alone."""

    def __init__(self) -> None:
        self.objects: dict[CombinedSegmentId, bytes] = {}
        self.entries: dict[CombinedSegmentId, tuple[RemoteLogSegmentMetadataEntry, ...]] = {}
        self.copy_faults: list[str | None] = []
        """One for each write to come; None lets it pass."""
        self.delete_faults: list[str | None] = []
        """The same for deletions."""
        self.copies_fail = False
        self.fetches_fail = False
        self.corrupt: Callable[[bytes], bytes] | None = None
        self.copies_held: dict[int, threading.Event] | None = None
        """When set, each write waits for the event of its sequence number."""
        self.copy_begun: dict[int, threading.Event] = {}
        self.fetch_gate = threading.Event()
        self.fetch_gate.set()
        self.delete_gate = threading.Event()
        self.delete_gate.set()
        self.deletes_begun = threading.Semaphore(0)
        self.custom_metadata = b""
        """Of what is written."""
        self.fetches: list[tuple[CombinedSegmentId, int, int]] = []
        self._lock = threading.Lock()

    def hold_copies(self, *sequences: int) -> None:
        self.copies_held = {sequence: threading.Event() for sequence in sequences}
        self.copy_begun = {sequence: threading.Event() for sequence in sequences}

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        pass

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        segment_id = metadata.combined_segment_id
        if self.copies_held is not None and segment_id.sequence in self.copies_held:
            self.copy_begun[segment_id.sequence].set()
            await _opened(self.copies_held[segment_id.sequence])
        with self._lock:
            fault = self.copy_faults.pop(0) if self.copy_faults else None
        if self.copies_fail or fault == FAIL_BEFORE:
            raise RemoteStorageTimeoutError("put", str(segment_id), "planted")
        segment = OpenCombinedSegment(SegmentHeader("cluster", segment_id, metadata.event_timestamp_ms))
        for entry, records in zip(metadata.entries, records_list, strict=True):
            segment.append(entry, records)
        sealed = segment.seal()
        with self._lock:
            if segment_id in self.objects:
                raise RemoteSegmentConflictError("put", str(segment_id), "the key is taken")
            self.objects[segment_id] = b"".join(sealed.chunks)
            self.entries[segment_id] = sealed.entries
        if fault == FAIL_AFTER:
            raise RemoteStorageTimeoutError("put", str(segment_id), "planted, after the effect")
        custom_metadata = self.custom_metadata if sealed.note is None else sealed.note.encode()
        return RemoteWalCombinedLogSegmentMetadataUpdate(segment_id, sealed.entries, sealed.size_bytes, custom_metadata)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        self.fetches.append((combined_segment_id, start_position, end_position))
        await _opened(self.fetch_gate)
        if self.fetches_fail:
            raise RemoteStorageTimeoutError("get", str(combined_segment_id), "planted")
        with self._lock:
            stored = self.objects.get(combined_segment_id)
        if stored is None:
            raise RemoteResourceNotFoundError("get", str(combined_segment_id), "not there")
        data = stored[start_position:end_position]
        return data if self.corrupt is None else self.corrupt(data)

    def records_of(self, segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry) -> bytes:
        return self.objects[segment_id][entry.start_file_position : entry.end_file_position]

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        raise NotImplementedError

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        self.deletes_begun.release()
        await _opened(self.delete_gate)
        with self._lock:
            fault = self.delete_faults.pop(0) if self.delete_faults else None
        if fault == FAIL_BEFORE:
            raise RemoteStorageTimeoutError("delete", str(combined_segment_id), "planted")
        self.objects.pop(combined_segment_id, None)
        if fault == FAIL_AFTER:
            raise RemoteStorageTimeoutError("delete", str(combined_segment_id), "planted, after the effect")

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[list[StoredSegment]]:
        yield [
            StoredSegment(segment_id, str(segment_id), len(stored), decode_header(stored).created_ms)
            for segment_id, stored in self.objects.items()
            if broker_id in (None, segment_id.broker_id)
        ]

    @property
    def request_counts(self) -> RequestCounts:
        return RequestCounts(put=len(self.objects), get=len(self.fetches))

    def close(self) -> None:
        pass


_AT_GATES = ThreadPoolExecutor(128, "gates")
"""Threads of their own: a loop's default ones also look up addresses."""


async def _opened(gate: threading.Event) -> None:
    if not gate.is_set():
        assert await asyncio.get_running_loop().run_in_executor(_AT_GATES, gate.wait, 60)


class MemoryPublisher:
    """Takes records until `is_full`."""

    def __init__(self) -> None:
        self.published: list[RemoteWalCombinedLogSegmentMetadata] = []
        self.is_full = False

    def publish(self, record: RemoteWalCombinedLogSegmentMetadata) -> None:
        from metadata_topic.records.errors import PublicationBacklogFullError

        if self.is_full:
            raise PublicationBacklogFullError("publish metadata", "-", "planted")
        self.published.append(record)

    def is_pending(self, _segment_id: CombinedSegmentId) -> bool:
        return False

    def entries(self, state: int) -> list[RemoteLogSegmentMetadataEntry]:
        return [entry for record in self.published if record.state == state for entry in record.entries]

    def when_published(self, _segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        tell()

    def sequences(self, state: int) -> list[int]:
        return [record.combined_segment_id.sequence for record in self.published if record.state == state]
