"""The RemoteWalStorageManager on any object store: format, keys, retries and unknown outcomes.

An object's key follows from its id (`plugin.format.object_keys`); requests are retried
(`plugin.clients.object_requests`).
"""

import asyncio
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final

import structlog

from plugin.adopted_records import AdoptionTable, RecordsList
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.clients.backend_settings import ObjectBackendSettings, parse_settings, unhurried
from plugin.clients.object_requests import ObjectRequests, RetryPolicy
from plugin.clients.object_store import LOOP_MAX_BYTES, ListedObject, ObjectStore
from plugin.errors import (
    RemoteSegmentCorruptError,
    RemoteStorageConfigError,
    RemoteStorageError,
)
from plugin.format.adoption_note import AdoptionNote
from plugin.format.bucket_id import bucket_id, unknown_bucket
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    OpenCombinedSegment,
    SealedCombinedSegment,
    SegmentHeader,
    decode_footer,
    locate_footer,
    table_place,
)
from plugin.format.object_keys import ObjectKeyFactory
from plugin.remote_wal_storage_manager import (
    WHOLE_STORE,
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask

log = structlog.get_logger(__name__)

_TAIL_BYTES: Final = 64 * 1024
"""Read at an object's end; usually the whole footer is in it: some 2,500 entries are."""


class ObjectWalStorageManager(RemoteWalStorageManager):
    """A storage manager on an object store. A backend is a subclass that names its settings and opens its store."""

    settings_model: type[ObjectBackendSettings] = ObjectBackendSettings
    bucket_key: ClassVar[str | None] = "bucket"

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] | None = None,
        new_probe_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._clock = clock
        self._is_closed = False
        self._sleep = sleep or self._sleep_unless_closed
        self._new_probe_id = new_probe_id
        self._counts = RequestCounts()

    @property
    def adopts(self) -> bool:
        return True

    @abstractmethod
    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        """Open the store that the settings (of `settings_model`) describe. Raises RemoteStorageConfigError."""

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        told = unhurried(self.settings_model, settings) if context.can_wait else settings
        parsed = parse_settings(self.settings_model, told)
        try:
            self._keys = ObjectKeyFactory.of(parsed.prefix, context.cluster_id)
        except ValueError as error:
            raise RemoteStorageConfigError("configure", "prefix", str(error)) from error
        name = settings.get(self.bucket_key) if self.bucket_key is not None else None
        self._bucket_id = bucket_id(name) if name is not None else b""
        policy = RetryPolicy(parsed.attempt_timeout_ms / 1000, parsed.total_timeout_ms / 1000)
        self._context = context
        store = self.open_store(parsed)
        self._requests = ObjectRequests(store, policy, self._counts, self._clock, self._sleep)
        self._blobs = _ObjectBlobs(self._keys, self._requests)
        if context.is_written:
            ask(self._requests.check_conditional_writes(self._keys.probe_key(context.broker_id, self._new_probe_id())))

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        segment_id = metadata.combined_segment_id
        if sum(map(len, records_list)) > LOOP_MAX_BYTES:
            sealed = await asyncio.to_thread(_sealed, self._context.cluster_id, metadata, records_list)
        else:
            sealed = _sealed(self._context.cluster_id, metadata, records_list)
        await self._requests.put(self._keys.key_of(segment_id), sealed.chunks, sealed.size_bytes)
        note = sealed.note.encode() if sealed.note is not None else b""
        return RemoteWalCombinedLogSegmentMetadataUpdate(segment_id, sealed.entries, sealed.size_bytes, note)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        self._check_place("fetch", combined_segment_id, custom_metadata)
        return await self._requests.get(self._keys.key_of(combined_segment_id), start_position, end_position)

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        size, key = stored.size_bytes, stored.key
        decoded, entries, note = await self.read_footer(key, size)
        if decoded.combined_segment_id != stored.combined_segment_id:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"holds segment {decoded.combined_segment_id}")
        return RemoteWalCombinedLogSegmentMetadata(
            decoded.combined_segment_id,
            entries,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            decoded.created_ms,
            size,
            note.encode() if note is not None else b"",
        )

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        self._check_place("delete", combined_segment_id, custom_metadata)
        await self._requests.delete(self._keys.key_of(combined_segment_id))

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[list[StoredSegment]]:
        async for part in self._requests.list(self._keys.list_prefix(broker_id)):
            yield list(self._segments_of(part))

    def _segments_of(self, listed: Iterable[ListedObject]) -> Iterator[StoredSegment]:
        for item in listed:
            segment_id = self._keys.parse(item.key)
            if segment_id is not None:
                yield StoredSegment(segment_id, item.key, item.size_bytes, item.last_modified_ms)
            elif self._keys.parse_blob(item.key) is None and self._keys.parse_archive(item.key) is None:
                self._counts.foreign_objects += 1

    def place_of(self, custom_metadata: bytes) -> str | None:
        """Return the bucket of objects with this custom metadata: the own one, also if it is named as one of a
        former list (`plugin.zones.buckets`)."""
        return WHOLE_STORE if custom_metadata in (b"", self._bucket_id) else None

    def _check_place(self, operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        if self.place_of(custom_metadata) is None:
            raise unknown_bucket(operation, segment_id, custom_metadata)

    # For objects of this format under keys of another kind (`plugin.archive_storage`)

    @property
    def keys(self) -> ObjectKeyFactory:
        """The factory of this cluster's keys."""
        return self._keys

    @property
    def requests(self) -> ObjectRequests:
        return self._requests

    async def read_footer(
        self, key: str, size_bytes: int
    ) -> tuple[SegmentHeader, tuple[RemoteLogSegmentMetadataEntry, ...], AdoptionNote | None]:
        """Return an object's header, entries and adoption note, after checking them, by few requests.

        Raises RemoteSegmentCorruptError when they are damaged or another cluster's, and RemoteStorageError.
        """
        if size_bytes < HEADER_BYTES + TRAILER_BYTES:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"{size_bytes} bytes are no combined segment")
        tail_start = max(0, size_bytes - _TAIL_BYTES)
        tail = await self._requests.get(key, tail_start, size_bytes)
        header = tail[:HEADER_BYTES] if tail_start == 0 else await self._requests.get(key, 0, HEADER_BYTES)
        try:
            location = locate_footer(tail[-TRAILER_BYTES:], size_bytes)
            if location.start >= tail_start:
                footer = tail[location.start - tail_start : location.end - tail_start]
            else:
                footer = await self._requests.get(key, location.start, location.end)
            decoded, entries = decode_footer(header, footer, location)
            note = await self._read_note(key, table_place(header, footer))
        except ValueError as error:
            raise RemoteSegmentCorruptError("fetch metadata", key, str(error)) from error
        if decoded.cluster_id != self._context.cluster_id:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"belongs to cluster {decoded.cluster_id}")
        return decoded, entries, note

    async def _read_note(self, key: str, place: tuple[int, int, int] | None) -> AdoptionNote | None:
        if place is None:
            return None
        start, length, crc = place
        raw = await self._requests.get(key, start, start + length)
        return AdoptionNote.of(AdoptionTable.read(raw, crc), raw, start)

    @property
    def blobs(self) -> BlobStorage:
        return self._blobs

    @property
    def request_counts(self) -> RequestCounts:
        return self._counts

    async def _sleep_unless_closed(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._is_closed:
            raise RemoteStorageError("wait", "-", "the storage manager was closed", label="closed")

    def close(self) -> None:
        self._is_closed = True
        if hasattr(self, "_requests"):
            self._requests.store.close()


def _sealed(
    cluster_id: str, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
) -> SealedCombinedSegment:
    # The event's time stamp, not the clock's, so that a repeated call writes the same bytes.
    segment = OpenCombinedSegment(SegmentHeader(cluster_id, metadata.combined_segment_id, metadata.event_timestamp_ms))
    for entry, records in zip(metadata.entries, records_list, strict=True):
        segment.append(entry, records)
    return segment.seal()


class _ObjectBlobs:
    """Blobs beside the segments, as `BlobStorage`."""

    def __init__(self, keys: ObjectKeyFactory, requests: ObjectRequests) -> None:
        self._keys = keys
        self._requests = requests

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        await self._requests.put(self._keys.blob_key(name), chunks, sum(map(len, chunks)))
        return b""

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        return await self._requests.get(self._keys.blob_key(blob.name), start, blob.size_bytes if end is None else end)

    async def list_blobs(self, directory: str) -> AsyncIterator[list[StoredBlob]]:
        async for part in self._requests.list(self._keys.blob_prefix(directory)):
            yield [
                StoredBlob(name, item.size_bytes, last_modified_ms=item.last_modified_ms)
                for item in part
                if (name := self._keys.parse_blob(item.key)) is not None
            ]

    async def delete_blob(self, blob: StoredBlob) -> None:
        await self._requests.delete(self._keys.blob_key(blob.name))
