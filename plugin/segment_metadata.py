"""The metadata of a combined segment and of the partitions' records in it (the types of KIP-1176).

A combined segment is one immutable object that holds record batches of many partitions. The types carry the KIP's names
in Python's spelling: `combined_segment_id` is combinedSegmentId, and so on. Positions are bytes from the object's first
byte, and ranges are half open: [start_file_position, end_file_position).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Self

from kafka_log.topic_partition import TopicIdPartition

UNKNOWN_POSITION = -1
"""The position of an entry in a segment that is not written yet (KIP-1176: -1 in the STARTED event)."""


class RemoteLogSegmentState(IntEnum):
    """The states of a remote segment, with KIP-405's names and ids."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class CombinedSegmentId(NamedTuple):
    """combinedSegmentId: the writer of the object, and its number among that agent process's objects.

    The KIP uses a random UUID. These are 128 bits as well, but they also give the object's key and its owner, and a
    restarted agent (another incarnation) can never use a key of its predecessor.
    """

    broker_id: int
    """The writing agent's broker, 0 to 2**31 - 1."""
    incarnation: int
    """One start of that agent, 48 bits, growing from start to start."""
    sequence: int
    """Counts the objects of one incarnation from 0, 48 bits."""

    def to_bytes(self) -> bytes:
        """Encode the id as 16 bytes, big endian, so that their order is the order of (broker, incarnation, sequence).

        Raises ValueError when a number does not fit.
        """
        try:
            return b"".join((self.broker_id.to_bytes(4), self.incarnation.to_bytes(6), self.sequence.to_bytes(6)))
        except OverflowError as error:
            raise ValueError(f"{self} does not fit 16 bytes") from error

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse 16 bytes. Raises ValueError when `raw` has another length."""
        if len(raw) != 16:
            raise ValueError(f"a combined segment id has 16 bytes, not {len(raw)}")
        return cls(int.from_bytes(raw[:4]), int.from_bytes(raw[4:10]), int.from_bytes(raw[10:]))

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.incarnation:012x}-{self.sequence:012x}"


CUSTOM_METADATA_MAX_BYTES: Final = 1024
"""The most bytes of custom metadata."""


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataEntry:
    """One partition's run of record batches, all of one leader epoch, inside a combined segment.

    In a compacted log the run may have holes, so the next run's first offset can be any that is higher.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int
    first_offset: int
    last_offset: int
    """Inclusive."""
    start_file_position: int
    end_file_position: int
    crc32c: int
    """CRC32C of the bytes [start_file_position, end_file_position)."""
    sha256: bytes = b""
    """SHA-256 of the same bytes, as `kafka_log.batch_digests.run_digest`; empty if its writer took none. Only the
    metadata has it, never the object's own footer: who can write the object could write the footer."""


@dataclass(frozen=True, slots=True)
class RemoteWalCombinedLogSegmentMetadata:
    """A combined segment in one of its states. Every record is complete: a reader needs no earlier one."""

    combined_segment_id: CombinedSegmentId
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """Empty in COPY_SEGMENT_STARTED as published; in DELETE states, empty means all of the object's."""
    state: RemoteLogSegmentState
    event_timestamp_ms: int
    """The writing agent's wall clock, milliseconds since 1970."""
    size_bytes: int = UNKNOWN_POSITION
    """The whole object's size; unknown until written."""
    custom_metadata: bytes = b""
    """Opaque to all except the backend (the KIP's customMetadata: for instance a bucket's name)."""


@dataclass(frozen=True, slots=True)
class RemoteWalCombinedLogSegmentMetadataUpdate:
    """The result of `copy_log_segment_data`: the entries' positions, the size, and the backend's metadata."""

    combined_segment_id: CombinedSegmentId
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    size_bytes: int
    custom_metadata: bytes
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class RemoteWalLogSegmentMetadata:
    """One partition's part of a combined segment: the entry, and the object that holds it."""

    combined_segment_id: CombinedSegmentId
    entry: RemoteLogSegmentMetadataEntry
    state: RemoteLogSegmentState
    custom_metadata: bytes = b""
