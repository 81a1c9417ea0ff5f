"""The ids of archive objects, and the type that distinguishes them from combined segments' ids."""

import struct
from typing import NamedTuple, Self

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId

_ID = struct.Struct(">16sIQQ16s")
ARCHIVE_OBJECT_ID_BYTES = _ID.size


class ArchiveObjectId(NamedTuple):
    """Names an archive object; its key follows from it."""

    topic_id_partition: TopicIdPartition
    first_offset: int
    last_offset: int
    """Inclusive."""
    writer_id: CombinedSegmentId
    """The agent's broker and incarnation, and a sequence that counts its archive objects. Used once: a failed upload
    leaves it unused, because its outcome may be unknown."""

    def to_bytes(self) -> bytes:
        """Encode the id as 52 bytes, big endian: topic id, partition, first and last offset, writer id.

        Raises ValueError when a number does not fit.
        """
        (topic_id, partition), first, last, writer_id = self
        try:
            return _ID.pack(topic_id, partition, first, last, writer_id.to_bytes())
        except struct.error as error:
            raise ValueError(f"{self} does not fit {ARCHIVE_OBJECT_ID_BYTES} bytes: {error}") from error

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse 52 bytes. Raises ValueError when they cannot be an archive object's id."""
        if len(raw) != ARCHIVE_OBJECT_ID_BYTES:
            raise ValueError(f"an archive object id has {ARCHIVE_OBJECT_ID_BYTES} bytes, not {len(raw)}")
        topic_id, partition, first, last, writer_id = _ID.unpack(raw)
        if partition >= 2**31 or not first <= last < 2**62:
            raise ValueError(f"partition {partition} with offsets {first} to {last} is no archive object")
        return cls(TopicIdPartition(TopicId(topic_id), partition), first, last, CombinedSegmentId.from_bytes(writer_id))

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{self.first_offset}-{self.last_offset}:{self.writer_id}"


StoredObjectId = CombinedSegmentId | ArchiveObjectId
"""Names an object that holds record batches; its type says which of the two stores has it."""
