"""One store made of a bucket for each zone: written to in the own zone, read and deleted in all.

An object's custom metadata begins with the id of its bucket (`plugin.format.bucket_id`); the rest is the bucket's
own storage manager's. An object that names no bucket was written before there was a list, and is in the unnamed one; or
its upload never ended and left no custom metadata. So it is looked for in the other buckets too, and deleted in all.
Objects in an unknown bucket are neither read nor deleted.

Each bucket is independent: it may be away, or come late, and only calls to it fail. A bucket that does not answer a
deletion is not asked for another one for a while, so that its time-outs do not delay the others' deletions. A listing
gives what the others have, and reports at its end which bucket did not answer.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from plugin.adopted_records import RecordsList
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import IncompleteListingError, RemoteResourceNotFoundError, RemoteStorageError
from plugin.format.adoption_note import join_note, split_note
from plugin.format.bucket_id import BUCKET_ID_BYTES, unknown_bucket
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
    blobs_of,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

T = TypeVar("T", StoredSegment, StoredBlob)
R = TypeVar("R")
H = TypeVar("H")

_REST_S: Final = 10.0


@dataclass(slots=True)
class Bucket:
    name: str
    manager: RemoteWalStorageManager
    rests_until_s: float = field(default=float("-inf"))
    """Nothing is deleted in it until then, because it did not answer."""


@dataclass(frozen=True, slots=True)
class ZoneBuckets:
    """Buckets, or parts of them such as blobs, by their ids (`plugin.format.bucket_id`)."""

    by_id: Mapping[bytes, Bucket]
    own: bytes | None
    """The bucket that is written to."""
    unnamed: bytes | None
    """The bucket of objects that name none."""

    @property
    def ids(self) -> Collection[bytes]:
        """The ids of all buckets, each as custom metadata that names only this bucket."""
        return self.by_id.keys()

    @property
    def all(self) -> Collection[Bucket]:
        """All buckets, in no particular order."""
        return self.by_id.values()

    def unnamed_first(self) -> Sequence[Bucket]:
        """Return all buckets in the order to search for objects whose custom metadata names none."""
        return [self.by_id[one] for one in sorted(self.by_id, key=lambda bucket_id: bucket_id != self.unnamed)]

    def written(self, operation: str, key: str) -> tuple[bytes, Bucket]:
        """Return the own zone's bucket. Raises RemoteStorageError if there is none."""
        if self.own is None:
            raise RemoteStorageError(operation, key, "there is no bucket to write to here", label="no_bucket")
        return self.own, self.by_id[self.own]

    def holding(self, custom_metadata: bytes) -> Bucket | None:
        """Return the bucket that the custom metadata names; None for an unknown one."""
        named = custom_metadata[:BUCKET_ID_BYTES] if custom_metadata else self.unnamed
        return self.by_id.get(named) if named is not None else None

    def known(self, operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> tuple[Bucket, bytes]:
        """Return the bucket of an object, and its own storage manager's metadata. Raises UnknownBucketError."""
        bucket = self.holding(custom_metadata)
        if bucket is None:
            raise unknown_bucket(operation, segment_id, custom_metadata)
        return bucket, custom_metadata[BUCKET_ID_BYTES:]

    async def listed(
        self, key: str, listing: Callable[[RemoteWalStorageManager], AsyncIterator[Sequence[T]]]
    ) -> AsyncIterator[list[T]]:
        """Yield the listings of all buckets. Raises IncompleteListingError at the end if one did not respond."""
        unanswered: dict[str, str] = {}
        for bucket_id, bucket in self.by_id.items():
            try:
                async for part in listing(bucket.manager):
                    yield [replace(stored, custom_metadata=bucket_id + stored.custom_metadata) for stored in part]
            except RemoteStorageError as error:
                unanswered[bucket.name] = str(error)
        if unanswered:
            raise IncompleteListingError(key, unanswered)


async def in_each(holders: Iterable[H], delete: Callable[[H], Awaitable[None]]) -> None:
    """Delete an object in each of these buckets. Raises the first failure once all were tried."""
    failures: list[RemoteStorageError] = []
    for one in holders:
        try:
            await delete(one)
        except RemoteStorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]


class ZonedWalStorageManager(RemoteWalStorageManager):
    """A store of one bucket for each zone: writes to the own zone's, reads and deletes in all."""

    def __init__(self, buckets: ZoneBuckets, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = buckets
        self._clock = clock

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Do nothing: the buckets are already configured."""

    @property
    def adopts(self) -> bool:
        return self._buckets.own is not None and all(bucket.manager.adopts for bucket in self._buckets.all)

    def place_of(self, custom_metadata: bytes) -> str | None:
        """Return the name of the bucket that has objects with this custom metadata."""
        bucket = self._buckets.holding(custom_metadata)
        return bucket.name if bucket is not None else None

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """Write the segment to the own zone's bucket."""
        bucket_id, bucket = self._buckets.written("copy", str(metadata.combined_segment_id))
        update = await bucket.manager.copy_log_segment_data(metadata, records_list)
        return replace(update, custom_metadata=bucket_id + update.custom_metadata)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        """Read from the object's bucket. If its metadata names none, the unnamed bucket is tried first, then the
        others."""

        async def fetch(bucket: Bucket, rest: bytes) -> bytes:
            return await bucket.manager.fetch_log_segment(combined_segment_id, start_position, end_position, rest)

        if custom_metadata:
            return await fetch(*self._buckets.known("fetch", combined_segment_id, custom_metadata))
        return await _first_answer([partial(fetch, bucket, b"") for bucket in self._buckets.unnamed_first()])

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        named = stored.custom_metadata
        bucket, rest = self._buckets.known("fetch metadata", stored.combined_segment_id, named)
        found = await bucket.manager.fetch_segment_metadata(replace(stored, custom_metadata=rest))
        _, note = split_note(found.custom_metadata)
        return replace(found, custom_metadata=named if note is None else join_note(named, note))

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        """Delete the object, in all buckets if its metadata names none. Raises when one that may have it does not
        respond."""
        known = partial(self._buckets.known, "delete", combined_segment_id)
        holders = [custom_metadata] if custom_metadata else self._buckets.ids
        await in_each(holders, lambda one: self._delete(*known(one), combined_segment_id))

    async def _delete(self, bucket: Bucket, custom_metadata: bytes, segment_id: CombinedSegmentId) -> None:
        if self._clock() < bucket.rests_until_s:
            reason = f"bucket {bucket.name} did not answer a moment ago"
            raise RemoteStorageError("delete", str(segment_id), reason, label="bucket_away")
        try:
            await bucket.manager.delete_log_segment_data(segment_id, custom_metadata)
        except RemoteStorageError as error:
            if error.retriable:
                bucket.rests_until_s = self._clock() + _REST_S
            raise

    def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[Sequence[StoredSegment]]:
        """List the segments of all buckets. Raises IncompleteListingError at the end if one did not respond."""
        key = "-" if broker_id is None else f"broker {broker_id}"
        return self._buckets.listed(key, lambda one: one.list_log_segments(broker_id))

    @property
    def blobs(self) -> BlobStorage:
        return _ZonedBlobs(self._buckets)

    @property
    def request_counts(self) -> RequestCounts:
        """Counts of requests, summed over all buckets."""
        sums = RequestCounts()
        for counts in (bucket.manager.request_counts for bucket in self._buckets.all):
            for name in ("put", "get", "head", "delete", "list", "put_bytes", "get_bytes", "foreign_objects"):
                setattr(sums, name, getattr(sums, name) + getattr(counts, name))
            for label, failures in counts.failures.copy().items():
                sums.failures[label] = sums.failures.get(label, 0) + failures
        return sums

    def close(self) -> None:
        for bucket in self._buckets.all:
            bucket.manager.close()


async def _first_answer(attempts: Sequence[Callable[[], Awaitable[R]]]) -> R:
    """Return the first answer. A missing object is certain only if all buckets say so."""
    failures: list[RemoteStorageError] = []
    for attempt in attempts:
        try:
            return await attempt()
        except RemoteStorageError as error:
            failures.append(error)
    raise next((one for one in failures if not isinstance(one, RemoteResourceNotFoundError)), failures[0])


class _ZonedBlobs:
    """Blobs of all buckets, as `BlobStorage`."""

    def __init__(self, buckets: ZoneBuckets) -> None:
        self._buckets = buckets

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        """Write to the own zone's bucket."""
        bucket_id, bucket = self._buckets.written("put", name)
        return bucket_id + await blobs_of(bucket.manager, "put", name).put_blob(name, *chunks)

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        return await self._holder("get", blob).get_blob(blob, start, end)

    def list_blobs(self, directory: str) -> AsyncIterator[Sequence[StoredBlob]]:
        """List all buckets, like `list_log_segments`."""
        return self._buckets.listed(directory, lambda one: blobs_of(one, "list", directory).list_blobs(directory))

    async def delete_blob(self, blob: StoredBlob) -> None:
        """Delete, in all buckets if none is named, because then its upload never ended."""
        everywhere = (blobs_of(one.manager, "delete", blob.name) for one in self._buckets.all)
        holders = [self._holder("delete", blob)] if blob.custom_metadata else everywhere
        await in_each(holders, lambda one: one.delete_blob(blob))

    def _holder(self, operation: str, blob: StoredBlob) -> BlobStorage:
        bucket = self._buckets.holding(blob.custom_metadata)
        if bucket is None:
            raise RemoteStorageError(operation, blob.name, "was not listed by this storage manager", label="no_blobs")
        return blobs_of(bucket.manager, operation, blob.name)
