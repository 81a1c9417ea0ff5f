"""The buckets of a zoned store, and which of them an object's custom metadata names."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from plugin.blob_storage import StoredBlob
from plugin.errors import IncompleteListingError, RemoteStorageError
from plugin.format.bucket_id import BUCKET_ID_BYTES, unknown_bucket
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import CombinedSegmentId

T = TypeVar("T", StoredSegment, StoredBlob)
H = TypeVar("H")


@dataclass(slots=True)
class Bucket:
    """One bucket."""

    name: str
    manager: RemoteWalStorageManager
    rests_until_s: float = field(default=float("-inf"))
    """Nothing is deleted in it until then, because it did not answer."""
    avoided_until_s: float = field(default=float("-inf"))
    """Until then other buckets are asked first for shared objects, because a read failed."""


@dataclass(frozen=True, slots=True)
class ZoneBuckets:
    """Buckets by their ids (`plugin.format.bucket_id`)."""

    by_id: Mapping[bytes, Bucket]
    own: bytes | None
    """The bucket that is written to."""
    unnamed: bytes | None
    """The bucket of objects that name none."""

    @property
    def ids(self) -> Collection[bytes]:
        """Each id as custom metadata that names only this bucket."""
        return self.by_id.keys()

    @property
    def all(self) -> Collection[Bucket]:
        """All buckets, in no particular order."""
        return self.by_id.values()

    def unnamed_first(self) -> Sequence[Bucket]:
        """Return all buckets in the order to look for objects that name none."""
        return [self.by_id[one] for one in sorted(self.by_id, key=lambda bucket_id: bucket_id != self.unnamed)]

    def written(self, operation: str, key: str) -> tuple[bytes, Bucket]:
        """Return the own zone's bucket. Raises RemoteStorageError if there is none."""
        if self.own is None:
            raise RemoteStorageError(operation, key, "there is no bucket to write to here", label="no_bucket")
        return self.own, self.by_id[self.own]

    def holding(self, custom_metadata: bytes) -> Bucket | None:
        """Return the named bucket; None for an unknown one."""
        named = custom_metadata[:BUCKET_ID_BYTES] if custom_metadata else self.unnamed
        return self.by_id.get(named) if named is not None else None

    def known(self, operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> tuple[Bucket, bytes]:
        """Return the bucket of a copy, and its own storage manager's metadata. Raises UnknownBucketError."""
        bucket = self.holding(custom_metadata)
        if bucket is None:
            raise unknown_bucket(operation, segment_id, custom_metadata)
        return bucket, custom_metadata[BUCKET_ID_BYTES:]

    def listed(self, key: str, listing: Callable[[RemoteWalStorageManager], Iterator[T]]) -> Iterator[T]:
        """Yield what each bucket has. Raises IncompleteListingError at the end if one did not answer."""
        unanswered: dict[str, str] = {}
        for bucket_id, bucket in self.by_id.items():
            try:
                for stored in listing(bucket.manager):
                    yield replace(stored, custom_metadata=bucket_id + stored.custom_metadata)
            except RemoteStorageError as error:
                unanswered[bucket.name] = str(error)
        if unanswered:
            raise IncompleteListingError(key, unanswered)


def in_each(holders: Iterable[H], delete: Callable[[H], None]) -> None:
    """Delete in each bucket. Raises the first failure once all were tried."""
    failures: list[RemoteStorageError] = []
    for one in holders:
        try:
            delete(one)
        except RemoteStorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]
