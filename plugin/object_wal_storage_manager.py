"""The RemoteWalStorageManager on any object store: format, keys, retries and unknown outcomes.

An object is written under a key that its id alone decides, and only if nothing is there. So when a write's
outcome is not known (a 500, a time-out, a lost answer), the same write is simply sent again. If the store
then says that the key is taken, size and checksum tell whose bytes these are: ours, and the write has
succeeded, or other ones, and the caller must take a new key. Nothing is ever deleted on an unknown outcome.

Safe for many threads; what is shared are the store, which is safe itself, and the counters, which have a
lock.
"""

import random
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from kafka_log.crc32c import crc32c
from plugin.backend_settings import ObjectBackendSettings, parse_settings
from plugin.blob_storage import StoredBlob
from plugin.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    OpenCombinedSegment,
    SealedCombinedSegment,
    SegmentHeader,
    decode_footer,
    locate_footer,
)
from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteSegmentCorruptError,
    RemoteStorageConfigError,
    RemoteStorageError,
)
from plugin.object_keys import ObjectKeyFactory
from plugin.object_store import ListedObject, ListPage, ObjectHead, ObjectStore
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
)
from plugin.retrying import Retrier, RetryPolicy
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

log = structlog.get_logger(__name__)

_TAIL_BYTES: Final = 64 * 1024
"""Read at an object's end in the hope that the whole footer is in it: some 2,500 entries are."""


class ObjectWalStorageManager(RemoteWalStorageManager):
    """A backend is a subclass that names its settings and opens its store."""

    settings_model: type[ObjectBackendSettings] = ObjectBackendSettings

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        rng: random.Random | None = None,
        new_probe_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._clock = clock
        self._closed = threading.Event()
        self._sleep = sleep or self._wait_unless_closed
        self._rng = rng or random.Random()  # noqa: S311 - it spreads retries, it guards nothing
        self._new_probe_id = new_probe_id
        self._counts = RequestCounts()
        self._counts_lock = threading.Lock()

    @abstractmethod
    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        """The store that the settings (of `settings_model`) describe. Raises RemoteStorageConfigError."""

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        parsed = parse_settings(self.settings_model, settings)
        try:
            self._keys = ObjectKeyFactory.of(parsed.prefix, context.cluster_id)
        except ValueError as error:
            raise RemoteStorageConfigError("configure", "prefix", str(error)) from error
        policy = RetryPolicy(parsed.attempt_timeout_ms / 1000, parsed.total_timeout_ms / 1000)
        self._retrier = Retrier(policy, self._clock, self._sleep, self._rng, self._count_failure)
        self._context = context
        self._store = self.open_store(parsed)
        if parsed.startup_self_test:
            self._check_conditional_writes()

    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: Sequence[bytes | memoryview]
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        segment_id = metadata.combined_segment_id
        # The event's time stamp, not the clock's, so that the same call again writes the same bytes.
        segment = OpenCombinedSegment(SegmentHeader(self._context.cluster_id, segment_id, metadata.event_timestamp_ms))
        for entry, records in zip(metadata.entries, records_list, strict=True):
            segment.append(entry, records)
        sealed = segment.seal()
        self._put(self._keys.key_of(segment_id), sealed.chunks, sealed.size_bytes)
        return RemoteWalCombinedLogSegmentMetadataUpdate(segment_id, sealed.entries, sealed.size_bytes, b"")

    def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        return self._get(self._keys.key_of(combined_segment_id), start_position, end_position)

    def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        size, key = stored.size_bytes, stored.key
        decoded, entries = self.read_footer(key, size)
        if decoded.combined_segment_id != stored.combined_segment_id:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"holds segment {decoded.combined_segment_id}")
        return RemoteWalCombinedLogSegmentMetadata(
            decoded.combined_segment_id,
            entries,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            decoded.created_ms,
            size,
        )

    def delete_log_segment_data(self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b"") -> None:
        self._delete(self._keys.key_of(combined_segment_id))

    def list_log_segments(self, broker_id: int | None = None) -> Iterator[StoredSegment]:
        prefix = self._keys.list_prefix(broker_id)
        page: str | None = None
        while True:
            listed = self._list_page(prefix, page)
            for item in listed.objects:
                segment_id = self._keys.parse(item.key)
                if segment_id is not None:
                    yield StoredSegment(segment_id, item.key, item.size_bytes, item.last_modified_ms)
                elif self._keys.parse_blob(item.key) is None and self._keys.parse_archive(item.key) is None:
                    with self._counts_lock:
                        self._counts.foreign_objects += 1
            page = listed.next_page
            if page is None:
                return

    # Objects of this format under keys of another kind (`plugin.archive_storage`)

    @property
    def keys(self) -> ObjectKeyFactory:
        """Builds and parses this cluster's keys."""
        return self._keys

    def write_object(self, key: str, sealed: SealedCombinedSegment) -> None:
        """Write a whole object; durable and readable on return. Idempotent, as `copy_log_segment_data` is."""
        self._put(key, sealed.chunks, sealed.size_bytes)

    def read_object(self, key: str, start_position: int, end_position: int) -> bytes:
        """The bytes [start_position, end_position), as `fetch_log_segment` gives them."""
        return self._get(key, start_position, end_position)

    def delete_object(self, key: str) -> None:
        """Remove an object. Idempotent: deleting what is not there succeeds."""
        self._delete(key)

    def list_objects(self, prefix: str) -> Iterator[ListedObject]:
        """All objects whose key starts with `prefix`, which ends in "/"; in any order."""
        page: str | None = None
        while True:
            listed = self._list_page(prefix, page)
            yield from listed.objects
            page = listed.next_page
            if page is None:
                return

    def read_footer(self, key: str, size_bytes: int) -> tuple[SegmentHeader, tuple[RemoteLogSegmentMetadataEntry, ...]]:
        """Header and entries out of the object itself, checked, and of this cluster.

        Raises RemoteSegmentCorruptError when they are not.
        """
        if size_bytes < HEADER_BYTES + TRAILER_BYTES:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"{size_bytes} bytes are no combined segment")
        tail_start = max(0, size_bytes - _TAIL_BYTES)
        tail = self._get(key, tail_start, size_bytes)
        header = tail[:HEADER_BYTES] if tail_start == 0 else self._get(key, 0, HEADER_BYTES)
        try:
            location = locate_footer(tail[-TRAILER_BYTES:], size_bytes)
            if location.start >= tail_start:
                footer = tail[location.start - tail_start : location.end - tail_start]
            else:
                footer = self._get(key, location.start, location.end)
            decoded, entries = decode_footer(header, footer, location)
        except ValueError as error:
            raise RemoteSegmentCorruptError("fetch metadata", key, str(error)) from error
        if decoded.cluster_id != self._context.cluster_id:
            raise RemoteSegmentCorruptError("fetch metadata", key, f"belongs to cluster {decoded.cluster_id}")
        return decoded, entries

    @property
    def request_counts(self) -> RequestCounts:
        return self._counts

    def _wait_unless_closed(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise RemoteStorageError("wait", "-", "the storage manager was closed", label="closed")

    def close(self) -> None:
        self._closed.set()
        if hasattr(self, "_store"):
            self._store.close()

    # Blobs (`plugin.blob_storage`)

    def put_blob(self, name: str, content: bytes) -> None:
        self._put(self._keys.blob_key(name), [content], len(content))

    def get_blob(self, blob: StoredBlob) -> bytes:
        return self._get(self._keys.blob_key(blob.name), 0, blob.size_bytes)

    def list_blobs(self, directory: str) -> Iterator[StoredBlob]:
        prefix = self._keys.blob_prefix(directory)
        page: str | None = None
        while True:
            listed = self._list_page(prefix, page)
            for item in listed.objects:
                name = self._keys.parse_blob(item.key)
                if name is not None:
                    yield StoredBlob(name, item.size_bytes)
            page = listed.next_page
            if page is None:
                return

    def delete_blob(self, name: str) -> None:
        self._delete(self._keys.blob_key(name))

    def _put(self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        deadline = self._retrier.deadline()
        try:
            self._retrier.call(lambda: self._put_once(key, chunks, size_bytes), deadline)
        except ObjectExistsError:
            self._check_that_it_is_ours(key, chunks, size_bytes, deadline)

    def _put_once(self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        with self._counts_lock:
            self._counts.put += 1
            self._counts.put_bytes += size_bytes
        self._store.put_if_absent(key, chunks)

    def _check_that_it_is_ours(
        self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int, deadline: float
    ) -> None:
        """The key is taken: by an earlier attempt of ours, which is success, or by something else."""

        def attempt() -> ObjectHead:
            with self._counts_lock:
                self._counts.head += 1
            return self._store.head(key)

        head = self._retrier.call(attempt, deadline)
        checksum = 0
        for chunk in chunks:
            checksum = crc32c(chunk, checksum)
        if (head.size_bytes, head.crc32c) != (size_bytes, checksum):
            raise RemoteSegmentConflictError(
                "put",
                key,
                f"the key holds {head.size_bytes} other bytes, ours would be {size_bytes}",
                "two agents may run for one broker, or an incarnation was used twice",
            )

    def _get(self, key: str, start: int, end: int) -> bytes:
        if not 0 <= start < end:
            raise ValueError(f"[{start}, {end}) is no range of {key}")

        def attempt() -> bytes:
            with self._counts_lock:
                self._counts.get += 1
            data = self._store.get_range(key, start, end)
            with self._counts_lock:
                self._counts.get_bytes += len(data)
            if len(data) != end - start:
                raise RemoteSegmentCorruptError("get", key, f"bytes {start} to {end} were asked for, {len(data)} came")
            return data

        return self._retrier.call(attempt, self._retrier.deadline())

    def _delete(self, key: str) -> None:
        def attempt() -> None:
            with self._counts_lock:
                self._counts.delete += 1
            self._store.delete(key)

        self._retrier.call(attempt, self._retrier.deadline())

    def _list_page(self, prefix: str, page: str | None) -> ListPage:
        def attempt() -> ListPage:
            with self._counts_lock:
                self._counts.list += 1
            return self._store.list_page(prefix, page)

        return self._retrier.call(attempt, self._retrier.deadline())

    def _count_failure(self, error: RemoteStorageError) -> None:
        if not isinstance(error, ObjectExistsError | RemoteResourceNotFoundError):
            log.warning("storage_attempt_failed", operation=error.operation, key=error.key, kind=error.label)
        with self._counts_lock:
            self._counts.failures[error.label] = self._counts.failures.get(error.label, 0) + 1

    def _check_conditional_writes(self) -> None:
        """Write the same probe twice; only a store that refuses the second keeps our objects immutable.

        Old S3 look-alikes ignore If-None-Match and overwrite.
        """
        key = self._keys.probe_key(self._context.broker_id, self._new_probe_id())
        body = b"remote-wal start-up self-test"
        self._put(key, [body], len(body))
        try:
            self._probe_again(key, body)
        finally:
            self._delete(key)

    def _probe_again(self, key: str, body: bytes) -> None:
        try:
            self._retrier.call(lambda: self._put_once(key, [body], len(body)), self._retrier.deadline())
        except ObjectExistsError:
            return
        raise RemoteStorageConfigError(
            "configure",
            key,
            "the store let a conditional PUT (If-None-Match: *) overwrite an object",
            "use a store that honours conditional writes",
        )
