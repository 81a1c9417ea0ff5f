"""The seam to remote storage: KIP-1176's RemoteWalStorageManager in Python's naming."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from plugin.adopted_records import RecordsList
from plugin.blob_storage import BlobStorage
from plugin.errors import RemoteStorageError
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

WHOLE_STORE: Final = ""
"""The only place of a store that has no parts."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """An object in a listing of the store, whether the metadata has it or not."""

    combined_segment_id: CombinedSegmentId
    key: str
    size_bytes: int
    last_modified_ms: int
    """The store's own clock, not the writer's."""
    custom_metadata: bytes = b""
    """The custom metadata by which the storage manager finds the object; empty if the id is enough."""


@dataclass(frozen=True, slots=True)
class StorageContext:
    """What a storage manager gets to know of the agent or tool that uses it, beside its own settings."""

    cluster_id: str
    """Kafka's cluster id; part of every key, so that clusters may share a bucket."""
    broker_id: int
    can_wait: bool = False
    """Whether no records wait for it, as for a command that a person runs: unset time-outs are then long."""
    is_written: bool = True
    """Whether its user writes. Then a write tests at once that the store keeps conditional writes; else credentials for
    reading are enough."""
    makes_missing: bool = True
    """Whether a store's directory is made if it is not there, as an agent does at its start. Commands make none: a
    misspelt one would then look like a store that works."""


@dataclass(slots=True)
class RequestCounts:
    """Requests to the store, each attempt counted, and the bytes of objects that they moved."""

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
    """Objects ignored in listings because their keys are not ours."""


class RemoteWalStorageManager(ABC):
    """Stores combined segments. Async methods are for the event loop of `plugin.store_loop`.

    Errors are `plugin.errors.RemoteStorageError` and its kinds, nothing else (a broken precondition, a bug of the
    caller, is a ValueError). Every method keeps its own deadlines, per attempt and in total, so none waits for ever.
    """

    bucket_key: ClassVar[str | None] = None
    """The setting that names where objects are; None: a bucket for each zone is impossible (`plugin.zones.buckets`)."""

    @property
    def adopts(self) -> bool:
        """Whether segments with `AdoptedRecords` can be written, and read through `AdoptingStorage`; by default not."""
        return False

    @abstractmethod
    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Apply the settings under `rsm.wal.config.`, prefix removed, and check the store. Blocks; called once.

        Checks that the store does what the system relies on (a conditional PUT above all). Raises
        RemoteStorageConfigError naming the key that is wrong.
        """

    @abstractmethod
    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """Write one combined segment; `records_list[i]` are the batches of `metadata.entries[i]`.

        `AdoptedRecords` are allowed only if `adopts`; the custom metadata then ends with their note
        (`plugin.format.adoption_note`). When it returns, the object is durable and readable. Idempotent: calling again
        with the same metadata and bytes succeeds, whether or not an earlier call took effect. Where the KIP would
        overwrite, other bytes under the same id raise RemoteSegmentConflictError: objects are immutable.
        """

    @abstractmethod
    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        """Return the bytes [start_position, end_position) of an object (the KIP's end is inclusive, ours is not).

        Raises RemoteResourceNotFoundError when the object is gone, RemoteSegmentCorruptError when it is shorter than
        asked. The caller checks the bytes' checksum.
        """

    @abstractmethod
    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        """Return the metadata in the object's own footer, for recovery without the metadata topic.

        Raises RemoteSegmentCorruptError when header, footer or their checksums are wrong.
        """

    @abstractmethod
    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        """Delete an object. Idempotent: deleting a missing object succeeds."""

    @abstractmethod
    def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[Sequence[StoredSegment]]:
        """List all objects of this cluster, or of one broker, in parts and in any order (S3 Express lists unsorted).

        Objects that are not ours are counted and ignored. If a part of the store does not answer,
        IncompleteListingError comes after everything that the others have: nothing may be concluded from missing
        objects.
        """

    def place_of(self, custom_metadata: bytes) -> str | None:
        """Return the part of the store, such as a bucket, that has objects with this custom metadata; parts fail and
        recover separately.

        None: the part is unknown, so such an object is neither read nor deleted, and nothing is concluded about it.
        """
        return WHOLE_STORE

    @property
    def blobs(self) -> BlobStorage | None:
        """Storage for objects other than segments; None if it stores segments only."""
        return None

    @property
    @abstractmethod
    def request_counts(self) -> RequestCounts:
        """Counts of requests since `configure`, for metrics and the cost policy."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Calls under way may finish or fail. Idempotent."""


def blobs_of(storage: RemoteWalStorageManager, operation: str, key: str) -> BlobStorage:
    """Return the storage manager's blobs. Raises RemoteStorageError, naming this operation, if it stores none."""
    blobs = storage.blobs
    if blobs is None:
        raise RemoteStorageError(operation, key, f"{type(storage).__name__} stores segments only", label="no_blobs")
    return blobs
