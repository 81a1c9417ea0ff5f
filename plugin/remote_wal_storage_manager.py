"""The seam to remote storage: KIP-1176's RemoteWalStorageManager in Python's naming."""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from plugin.adopted_records import RecordsList
from plugin.blob_storage import BlobStorage
from plugin.errors import RemoteStorageError
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

WHOLE_STORE: Final = ""
"""The one place of a store that has no parts."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """An object as the store lists it, metadata or not."""

    combined_segment_id: CombinedSegmentId
    key: str
    size_bytes: int
    last_modified_ms: int
    """The store's own clock, not the writer's."""
    custom_metadata: bytes = b""
    """By which the storage manager finds the object again; empty where the id is enough."""


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """One place of several that hold a whole object."""

    place: str | None
    """The part of the store, which fails, and comes back, by itself. None: one that is not known here, where nothing is
    read or deleted, and of which nothing is concluded."""
    custom_metadata: bytes
    """By which the storage manager finds this copy, and no other."""
    is_sure: bool = True
    """Whether the object is expected there; else it may be there."""


@dataclass(frozen=True, slots=True)
class StorageContext:
    """What every backend is told about its user, beside its own settings."""

    cluster_id: str
    """Kafka's cluster id; it is part of every key, so that clusters may share a bucket."""
    broker_id: int
    loop: AbstractEventLoop | None = None
    """On which `on_loop` will be asked, so that connections may be opened there ahead."""
    can_wait: bool = False
    """Nobody's records wait for it, as with a command that a person runs: time-outs that are not set are long ones."""


@dataclass(slots=True)
class RequestCounts:
    """Requests sent to the store, each attempt counted, and the bytes of objects that they moved."""

    put: int = 0
    get: int = 0
    head: int = 0
    delete: int = 0
    list: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failed attempts by `RemoteStorageError.label`."""
    foreign_objects: int = 0
    """Objects passed over in listings because their keys are not ours."""
    missed_copies: dict[str, int] = field(default_factory=dict)
    """By place, objects that were finished without their copy there."""


class SegmentsOnLoop(Protocol):
    """The two calls that every object takes, to be awaited on the event loop: no thread is asked, nor woken.

    They do what the storage manager's own of these names do. What must wait after all (a failed attempt's next one)
    runs in `threads`.
    """

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList, threads: Executor
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate: ...

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes,
        threads: Executor,
    ) -> bytes: ...


class RemoteWalStorageManager(ABC):
    """Stores combined segments. Methods block, and are called from many threads at once.

    Errors are `plugin.errors.RemoteStorageError` and its kinds, nothing else (a broken precondition, a bug of
    the caller, is a ValueError). Every method keeps its own deadlines, per attempt and in total, so none
    blocks for ever.
    """

    bucket_key: ClassVar[str | None] = None
    """The setting that names where objects are; None: there can be no bucket for each zone (`plugin.zones.buckets`)."""

    @property
    def adopts(self) -> bool:
        """Whether it can write, and read by `AdoptingStorage`, segments with `AdoptedRecords`; by itself none can."""
        return False

    @abstractmethod
    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Take the settings under `remote.log.wal.storage.manager.impl.prefix`, prefix removed. Called once.

        Checks that the store keeps what the system relies on (a conditional PUT above all).
        Raises RemoteStorageConfigError naming the key that is wrong.
        """

    @abstractmethod
    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """Write one combined segment; `records_list[i]` are the batches of `metadata.entries[i]`, `AdoptedRecords` only
        where `adopts`. The custom metadata ends with their note then (`plugin.format.adoption_note`).

        When it returns, the object is durable and readable. Idempotent: calling again with the same
        metadata and bytes succeeds, whether or not an earlier call took effect. Where the KIP would
        overwrite, other bytes under the same id raise RemoteSegmentConflictError: objects are immutable.
        """

    @abstractmethod
    def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        """The bytes [start_position, end_position) of an object (the KIP's end is inclusive, ours is not).

        Raises RemoteResourceNotFoundError when the object is gone, RemoteSegmentCorruptError when it is
        shorter than asked. The caller checks the bytes' checksum.
        """

    @abstractmethod
    def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        """The metadata that the object's own footer holds, for recovery without the metadata topic.

        Raises RemoteSegmentCorruptError when header, footer or their checksums are wrong.
        """

    @abstractmethod
    def delete_log_segment_data(self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b"") -> None:
        """Remove an object. Idempotent: deleting what is not there succeeds."""

    @abstractmethod
    def list_log_segments(self, broker_id: int | None = None) -> Iterator[StoredSegment]:
        """All objects of this cluster (or of one broker), in any order (S3 Express lists unsorted).

        Objects that are not ours are passed over and counted, never touched. Where a part of the store does not answer,
        IncompleteListingError comes after all that the others have: nothing may be concluded from what is missing.
        """

    def on_loop(self, size_bytes: int, custom_metadata: bytes = b"") -> SegmentsOnLoop | None:
        """For one call, of so many bytes, of a segment with this custom metadata; None: it is a thread's."""
        return None

    def copies_of(self, custom_metadata: bytes) -> Sequence[StoredCopy]:
        """Where objects with this custom metadata are, in the order in which they are to be read; at least one."""
        return (StoredCopy(WHOLE_STORE, custom_metadata),)

    @property
    def out_of_step(self) -> Sequence[str]:
        """Parts of the store that take no copies now: what is written meanwhile has none there."""
        return ()

    @property
    def blobs(self) -> BlobStorage | None:
        """Storage for what is no segment; None where it stores segments only."""
        return None

    @property
    @abstractmethod
    def request_counts(self) -> RequestCounts:
        """Counters since `configure`; read by metrics and by the cost policy."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Calls under way may finish or fail. Idempotent."""


def blobs_of(storage: RemoteWalStorageManager, operation: str, key: str) -> BlobStorage:
    """The storage manager's blobs. Raises RemoteStorageError, of that operation, where it has none."""
    blobs = storage.blobs
    if blobs is None:
        raise RemoteStorageError(operation, key, f"{type(storage).__name__} stores segments only", label="no_blobs")
    return blobs
