"""The buckets of a zoned store: which of them an object's custom metadata names, and what is asked of all."""

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
    """One of them."""

    name: str
    manager: RemoteWalStorageManager
    rests_until_s: float = field(default=float("-inf"))
    """Until when nothing is deleted in it, as it did not answer."""
    avoided_until_s: float = field(default=float("-inf"))
    """Until when other buckets are asked first for what they have as well, as a read failed."""


@dataclass(frozen=True, slots=True)
class ZoneBuckets:
    """Buckets by their ids (`plugin.format.bucket_id`)."""

    by_id: Mapping[bytes, Bucket]
    own: bytes | None
    """In which is written."""
    unnamed: bytes | None
    """In which objects are that name none."""

    @property
    def ids(self) -> Collection[bytes]:
        """Each as custom metadata that names this bucket, and says no more."""
        return self.by_id.keys()

    @property
    def all(self) -> Collection[Bucket]:
        """In no order that counts."""
        return self.by_id.values()

    def unnamed_first(self) -> Sequence[Bucket]:
        """All of them, in the order in which what names none is looked for."""
        return [self.by_id[one] for one in sorted(self.by_id, key=lambda bucket_id: bucket_id != self.unnamed)]

    def written(self, operation: str, key: str) -> tuple[bytes, Bucket]:
        """The own zone's. Raises RemoteStorageError where there is none."""
        if self.own is None:
            raise RemoteStorageError(operation, key, "there is no bucket to write to here", label="no_bucket")
        return self.own, self.by_id[self.own]

    def holding(self, custom_metadata: bytes) -> Bucket | None:
        """That which is named; None for one that is not known here."""
        named = custom_metadata[:BUCKET_ID_BYTES] if custom_metadata else self.unnamed
        return self.by_id.get(named) if named is not None else None

    def known(self, operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> tuple[Bucket, bytes]:
        """The bucket of a copy, and what its own storage manager said of it. Raises UnknownBucketError."""
        bucket = self.holding(custom_metadata)
        if bucket is None:
            raise unknown_bucket(operation, segment_id, custom_metadata)
        return bucket, custom_metadata[BUCKET_ID_BYTES:]

    def listed(self, key: str, listing: Callable[[RemoteWalStorageManager], Iterator[T]]) -> Iterator[T]:
        """What each has. Raises IncompleteListingError at the end where one did not answer."""
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
    """Delete in each. Raises the first failure once all were tried."""
    failures: list[RemoteStorageError] = []
    for one in holders:
        try:
            delete(one)
        except RemoteStorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]
