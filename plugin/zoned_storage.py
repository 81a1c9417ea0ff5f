"""One store made of a bucket for each zone: written to in the own zone, read and deleted in all.

Theory. An object's custom metadata begins with the id of its bucket (`plugin.bucket_id`); the rest is the bucket's own
storage manager's. What names no bucket was written before there was a list, and is in the unnamed one; or its upload
never ended, and left no custom metadata: so it is looked for in the others too, and deleted in all. What names a bucket
that is not known here is neither read nor deleted.

Each bucket stands for itself: it may be away, or come late, and only what is asked of it fails. One that does not
answer a deletion is asked for no other one for a while, so that its time-outs do not hold up those of the others. A
listing gives what the others have, and tells at its end which bucket did not answer.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from plugin.blob_storage import BlobStorage, StoredBlob, blobs_of
from plugin.bucket_id import BUCKET_ID_BYTES, unknown_bucket
from plugin.errors import IncompleteListingError, RemoteResourceNotFoundError, RemoteStorageError
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

T = TypeVar("T", StoredSegment, StoredBlob)

_REST_S: Final = 10.0


@dataclass(slots=True)
class Bucket:
    """One of them."""

    name: str
    manager: RemoteWalStorageManager
    rests_until_s: float = field(default=float("-inf"))
    """Until when nothing is deleted in it, as it did not answer."""


class ZonedWalStorageManager(RemoteWalStorageManager):
    """See the module's theory. Its buckets are configured already, each by itself."""

    def __init__(
        self,
        buckets: Mapping[bytes, Bucket],
        own: bytes | None,
        unnamed: bytes | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` and `unnamed` are bucket ids: in which is written, and in which objects are that name none."""
        self._buckets = dict(buckets)
        self._own = own
        self._unnamed = unnamed
        self._clock = clock

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Nothing: see the class."""

    def place_of(self, custom_metadata: bytes) -> str | None:
        """The bucket's name."""
        bucket = self._bucket_of(custom_metadata)
        return bucket.name if bucket is not None else None

    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: Sequence[bytes | memoryview]
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """In the own zone's bucket."""
        bucket_id, bucket = self._written("copy", str(metadata.combined_segment_id))
        update = bucket.manager.copy_log_segment_data(metadata, records_list)
        return replace(update, custom_metadata=bucket_id + update.custom_metadata)

    def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        """Where no bucket is named, in the unnamed one first, and in each of the others while it is not there."""
        if not custom_metadata:
            return self._fetch_anywhere(combined_segment_id, start_position, end_position)
        bucket = self._known("fetch", combined_segment_id, custom_metadata)
        rest = custom_metadata[BUCKET_ID_BYTES:]
        return bucket.manager.fetch_log_segment(combined_segment_id, start_position, end_position, rest)

    def _fetch_anywhere(self, segment_id: CombinedSegmentId, start_position: int, end_position: int) -> bytes:
        ids = sorted(self._buckets, key=lambda bucket_id: bucket_id != self._unnamed)
        for bucket_id in ids[:-1]:
            try:
                return self._buckets[bucket_id].manager.fetch_log_segment(segment_id, start_position, end_position)
            except RemoteResourceNotFoundError:
                continue
        return self._buckets[ids[-1]].manager.fetch_log_segment(segment_id, start_position, end_position)

    def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        bucket = self._known("fetch metadata", stored.combined_segment_id, stored.custom_metadata)
        rest = replace(stored, custom_metadata=stored.custom_metadata[BUCKET_ID_BYTES:])
        return replace(bucket.manager.fetch_segment_metadata(rest), custom_metadata=stored.custom_metadata)

    def delete_log_segment_data(self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b"") -> None:
        """In all buckets where none is named. Raises when one that may have it does not answer."""
        named = [self._known("delete", combined_segment_id, custom_metadata)] if custom_metadata else None
        failures: list[RemoteStorageError] = []
        for bucket in self._buckets.values() if named is None else named:
            try:
                self._delete(bucket, combined_segment_id, custom_metadata[BUCKET_ID_BYTES:])
            except RemoteStorageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _delete(self, bucket: Bucket, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        if self._clock() < bucket.rests_until_s:
            reason = f"bucket {bucket.name} did not answer a moment ago"
            raise RemoteStorageError("delete", str(segment_id), reason, label="bucket_away")
        try:
            bucket.manager.delete_log_segment_data(segment_id, custom_metadata)
        except RemoteStorageError as error:
            if error.retriable:
                bucket.rests_until_s = self._clock() + _REST_S
            raise

    def list_log_segments(self, broker_id: int | None = None) -> Iterator[StoredSegment]:
        """Of all buckets. Raises IncompleteListingError at the end where one did not answer."""
        return self._list(
            "-" if broker_id is None else f"broker {broker_id}", lambda one: one.list_log_segments(broker_id)
        )

    def _list(self, key: str, listing: Callable[[RemoteWalStorageManager], Iterator[T]]) -> Iterator[T]:
        unanswered: dict[str, str] = {}
        for bucket_id, bucket in self._buckets.items():
            try:
                for stored in listing(bucket.manager):
                    yield replace(stored, custom_metadata=bucket_id + stored.custom_metadata)
            except RemoteStorageError as error:
                unanswered[bucket.name] = str(error)
        if unanswered:
            raise IncompleteListingError(key, unanswered)

    @property
    def request_counts(self) -> RequestCounts:
        """Of all buckets."""
        sums = RequestCounts()
        for counts in (bucket.manager.request_counts for bucket in self._buckets.values()):
            for name in ("put", "get", "head", "delete", "list", "put_bytes", "get_bytes", "foreign_objects"):
                setattr(sums, name, getattr(sums, name) + getattr(counts, name))
            for label, failures in counts.failures.copy().items():
                sums.failures[label] = sums.failures.get(label, 0) + failures
        return sums

    def close(self) -> None:
        for bucket in self._buckets.values():
            bucket.manager.close()

    # Blobs (`plugin.blob_storage`)

    def put_blob(self, name: str, content: bytes) -> None:
        """In the own zone's bucket."""
        _, bucket = self._written("put", name)
        blobs_of(bucket.manager, "put", name).put_blob(name, content)

    def get_blob(self, blob: StoredBlob) -> bytes:
        return self._holder("get", blob).get_blob(blob)

    def list_blobs(self, directory: str) -> Iterator[StoredBlob]:
        """Of all buckets, as `list_log_segments`."""
        return self._list(directory, lambda one: blobs_of(one, "list", directory).list_blobs(directory))

    def delete_blob(self, blob: StoredBlob) -> None:
        self._holder("delete", blob).delete_blob(blob)

    def _holder(self, operation: str, blob: StoredBlob) -> BlobStorage:
        bucket = self._bucket_of(blob.custom_metadata)
        if bucket is None:
            raise RemoteStorageError(operation, blob.name, "was not listed by this storage manager", label="no_blobs")
        return blobs_of(bucket.manager, operation, blob.name)

    def _written(self, operation: str, key: str) -> tuple[bytes, Bucket]:
        if self._own is None:
            raise RemoteStorageError(operation, key, "there is no bucket to write to here", label="no_bucket")
        return self._own, self._buckets[self._own]

    def _known(self, operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> Bucket:
        bucket = self._bucket_of(custom_metadata)
        if bucket is None:
            raise unknown_bucket(operation, segment_id, custom_metadata)
        return bucket

    def _bucket_of(self, custom_metadata: bytes) -> Bucket | None:
        named = custom_metadata[:BUCKET_ID_BYTES] if custom_metadata else self._unnamed
        return self._buckets.get(named) if named is not None else None
