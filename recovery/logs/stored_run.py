"""A part of a log in an object: batches of one partition and one leader epoch."""

from dataclasses import dataclass
from typing import NamedTuple

from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that holds runs: a combined segment, or an archive object."""

    object_id: StoredObjectId
    size_bytes: int
    written_ms: int
    """By its writer's clock, milliseconds since 1970."""
    custom_metadata: bytes = b""
    is_going: bool = False
    """Whether its deletion has begun, so that it may be gone at any time."""

    @property
    def is_archived(self) -> bool:
        """Whether the object is in the archive's store, not a combined segment."""
        return isinstance(self.object_id, ArchiveObjectId)


class StoredRun(NamedTuple):
    """Batches of one partition and one leader epoch in one object, at [start_position, end_position)."""

    stored_in: StoredObject
    leader_epoch: int
    first_offset: int
    last_offset: int
    """The last offset of the bytes, inclusive."""
    living_last_offset: int
    """The last offset of the part not known as dead, inclusive; `last_offset` if nothing is dead."""
    start_position: int
    end_position: int
    crc32c: int
    sha256: bytes = b""
    """The entry's SHA-256."""

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position
