"""The metadata topic's records as bytes.

The key of every record is the combined segment's id (16 bytes). The value, big endian:

====  ========================  ==========================================================
size  field                     in which record type
====  ========================  ==========================================================
1     format version, 1         both
1     record type               both; 1 = combined segment, 2 = dead entries
16    combined segment id       both, equal to the key
8     event timestamp, ms       both
1     state                     1
8     object's size, bytes      1; -1 = unknown
2     custom metadata's length  1, followed by that many bytes
4     broker id                 2
4     leader epoch              2
rest  entry columns             both (`plugin.entry_columns`), absent when there are no entries
====  ========================  ==========================================================

A COPY_SEGMENT_STARTED record has no entries, so its value has 37 bytes.
"""

import struct
from typing import Final

from metadata_topic.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    UnknownRecord,
)
from plugin import entry_columns
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)

FORMAT_VERSION: Final = 1
COMBINED_SEGMENT: Final = 1
DEAD_ENTRIES: Final = 2

CUSTOM_METADATA_MAX_BYTES: Final = 1024
"""KIP-405 caps custom metadata too (remote.log.metadata.custom.metadata.max.bytes), so that none fills the
topic.
"""

_STATES: Final = frozenset(map(int, RemoteLogSegmentState))

_HEAD: Final = struct.Struct(">BB16sq")
_SEGMENT: Final = struct.Struct(">BqH")
_DEAD: Final = struct.Struct(">ii")


class UndecodableRecordError(ValueError):
    """Not one of our records, a damaged one, or one of a newer format. `reason` is a short label for
    counting.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}")


def encode_key(combined_segment_id: CombinedSegmentId) -> bytes:
    """The record's key, 16 bytes."""
    return combined_segment_id.to_bytes()


def encode(record: RemoteWalCombinedLogSegmentMetadata | RemoteWalLogSegmentMetadataUpdate) -> bytes:
    """The record's value. Raises ValueError when a field is beyond what the format holds."""
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        return _encode_dead_entries(record)
    if len(record.custom_metadata) > CUSTOM_METADATA_MAX_BYTES:
        raise ValueError(
            f"custom metadata of {record.combined_segment_id} has {len(record.custom_metadata)} bytes, "
            f"at most {CUSTOM_METADATA_MAX_BYTES} are taken"
        )
    try:
        head = _head(COMBINED_SEGMENT, record.combined_segment_id, record.event_timestamp_ms)
        segment = _SEGMENT.pack(record.state, record.size_bytes, len(record.custom_metadata))
    except struct.error as error:
        raise ValueError(f"metadata of {record.combined_segment_id}: {error}") from error
    return b"".join((head, segment, record.custom_metadata, encode_entries(record.entries)))


def encode_entries(entries: tuple[RemoteLogSegmentMetadataEntry, ...]) -> bytes:
    """The entry columns as they stand in a value: nothing at all when there are no entries."""
    return entry_columns.encode(entries) if entries else b""


def decode_entries(entry_block: bytes | memoryview) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """The inverse of `encode_entries`. Raises ValueError."""
    return entry_columns.decode(entry_block) if len(entry_block) else ()


def decode(key: bytes | None, value: bytes | None) -> PublishedSegment | RemoteWalLogSegmentMetadataUpdate:
    """The record that `encode` made. Raises UndecodableRecordError for everything else, and nothing else."""
    if key is None or len(key) != 16:
        raise UndecodableRecordError("foreign_key", f"the key is not a combined segment id: {_size(key)} bytes")
    if value is None:
        raise UndecodableRecordError("no_value", "a tombstone; this topic has none")
    if len(value) < 1:
        raise UndecodableRecordError("truncated", "the value is empty")
    if value[0] != FORMAT_VERSION:
        raise UndecodableRecordError("version", f"format version {value[0]}, this reader knows {FORMAT_VERSION}")
    if len(value) < _HEAD.size:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes are less than the head's {_HEAD.size}")
    _, record_type, raw_id, event_timestamp_ms = _HEAD.unpack_from(value)
    if raw_id != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different segments")
    segment_id = CombinedSegmentId.from_bytes(raw_id)
    if record_type == COMBINED_SEGMENT:
        return _decode_segment(segment_id, event_timestamp_ms, value)
    if record_type == DEAD_ENTRIES:
        return _decode_dead_entries(segment_id, event_timestamp_ms, value)
    raise UndecodableRecordError("record_type", f"record type {record_type} is not known")


def decode_or_keep_out(key: bytes | None, value: bytes | None) -> MetadataRecord:
    """`decode`, with UnknownRecord in place of the error: for readers that must go on."""
    try:
        return decode(key, value)
    except UndecodableRecordError as error:
        return UnknownRecord(error.reason, str(error))


def _size(raw: bytes | None) -> int:
    return 0 if raw is None else len(raw)


def _head(record_type: int, segment_id: CombinedSegmentId, event_timestamp_ms: int) -> bytes:
    return _HEAD.pack(FORMAT_VERSION, record_type, segment_id.to_bytes(), event_timestamp_ms)


def _encode_dead_entries(record: RemoteWalLogSegmentMetadataUpdate) -> bytes:
    if len({entry.topic_id_partition for entry in record.entries}) != 1:
        raise ValueError(f"dead entries of {record.combined_segment_id} must be of one partition")
    try:
        head = _head(DEAD_ENTRIES, record.combined_segment_id, record.event_timestamp_ms)
        dead = _DEAD.pack(record.broker_id, record.leader_epoch)
    except struct.error as error:
        raise ValueError(f"dead entries of {record.combined_segment_id}: {error}") from error
    return b"".join((head, dead, encode_entries(record.entries)))


def _decode_segment(segment_id: CombinedSegmentId, event_timestamp_ms: int, value: bytes) -> PublishedSegment:
    custom_start = _HEAD.size + _SEGMENT.size
    if len(value) < custom_start:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes are less than {custom_start}")
    state, size_bytes, custom_length = _SEGMENT.unpack_from(value, _HEAD.size)
    entries_start = custom_start + custom_length
    if custom_length > CUSTOM_METADATA_MAX_BYTES:
        raise UndecodableRecordError("custom_metadata", f"{custom_length} bytes of custom metadata")
    if len(value) < entries_start:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes, custom metadata ends at {entries_start}")
    if state not in _STATES:
        raise UndecodableRecordError("state", f"state {state} is not known")
    if size_bytes < UNKNOWN_POSITION:
        raise UndecodableRecordError("size", f"an object of {size_bytes} bytes")
    entry_block = value[entries_start:]
    metadata = RemoteWalCombinedLogSegmentMetadata(
        combined_segment_id=segment_id,
        entries=_decode_entries_of_record(entry_block),
        state=RemoteLogSegmentState(state),
        event_timestamp_ms=event_timestamp_ms,
        size_bytes=size_bytes,
        custom_metadata=value[custom_start:entries_start],
    )
    return PublishedSegment(metadata, entry_block)


def _decode_dead_entries(
    segment_id: CombinedSegmentId, event_timestamp_ms: int, value: bytes
) -> RemoteWalLogSegmentMetadataUpdate:
    entries_start = _HEAD.size + _DEAD.size
    if len(value) < entries_start:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes are less than {entries_start}")
    broker_id, leader_epoch = _DEAD.unpack_from(value, _HEAD.size)
    entries = _decode_entries_of_record(value[entries_start:])
    if len({entry.topic_id_partition for entry in entries}) != 1:
        raise UndecodableRecordError("dead_entries", "they are not of one partition")
    return RemoteWalLogSegmentMetadataUpdate(segment_id, entries, broker_id, leader_epoch, event_timestamp_ms)


def _decode_entries_of_record(entry_block: bytes) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    try:
        return decode_entries(entry_block)
    except ValueError as error:
        raise UndecodableRecordError("entries", str(error)) from error
