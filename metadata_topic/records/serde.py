"""The metadata topic's records as bytes.

The key of a record about an object is the combined segment's id (16 bytes), that of a node registration
`rwm:node:` and the broker's id (4 bytes), that of a rebuild of the topic `rwm:topic`. Every key of a kind that
is yet to come begins with `rwm:` and has not 16 bytes, so that a reader knows our records from foreign ones.
Declared gaps have their own layout (`metadata_topic.records.gap_record`, record type 6). The value, big endian:

====  ========================  ==========================================================
size  field                     in which record type
====  ========================  ==========================================================
1     format version, 1         all
1     record type               all; 1 = combined segment, 2 = dead entries, 3 = node, 4 = rebuilt
                                segment, 5 = rebuild of the topic
16    combined segment id       1, 2, 4, equal to the key
8     event timestamp, ms       1, 2, 4
1     state                     1, 4
8     object's size, bytes      1, 4; -1 = unknown
2     custom metadata's length  1, 4, followed by that many bytes
4     broker id                 2
4     leader epoch              2
rest  entry columns             1, 2, 4 (`plugin.entry_columns`), absent when there are no entries
4     broker id                 3, equal to the key's
4     caretaker's broker id     3
8     incarnation               3, 0 to 2**48 - 1
8     event timestamp, ms       3
16    topic id                  5
8     event timestamp, ms       5
====  ========================  ==========================================================

A COPY_SEGMENT_STARTED record has no entries, so its value has 37 bytes.

A newer format version, or a record type that is not known, under one of our keys is no fault of the record:
it is kept as bytes (`UnknownRecord.kept`).
"""

import struct
from typing import Final

from kafka_log.topic_partition import TopicId
from metadata_topic.records.gap_record import (
    GAPS,
    MalformedGapsError,
    RemoteWalGapDeclaration,
    decode_gaps,
    encode_gaps,
    gaps_key,
)
from metadata_topic.records.records import (
    MetadataRecord,
    PublishableRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    RemoteWalRebuiltSegment,
    RemoteWalTopicRebuilt,
    UnknownRecord,
    decode_entries,
    encode_entries,
)
from plugin import entry_columns
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)

_Decoded = (
    PublishedSegment
    | RemoteWalLogSegmentMetadataUpdate
    | RemoteWalNodeRegistration
    | RemoteWalTopicRebuilt
    | RemoteWalGapDeclaration
)

FORMAT_VERSION: Final = 1
COMBINED_SEGMENT: Final = 1
DEAD_ENTRIES: Final = 2
NODE_REGISTRATION: Final = 3
REBUILT_SEGMENT: Final = 4
TOPIC_REBUILT: Final = 5

_OUR_KEYS: Final = b"rwm:"
_NODE_KEY: Final = b"rwm:node:"
_TOPIC_KEY: Final = b"rwm:topic"
_ID_BYTES: Final = 16

CUSTOM_METADATA_MAX_BYTES: Final = 1024
"""KIP-405 caps custom metadata too (remote.log.metadata.custom.metadata.max.bytes), so that none fills the
topic.
"""

_STATES: Final = frozenset(map(int, RemoteLogSegmentState))

_HEAD: Final = struct.Struct(">BB16sq")
_SEGMENT: Final = struct.Struct(">BqH")
_DEAD: Final = struct.Struct(">ii")
_NODE: Final = struct.Struct(">BBiiqq")
_NODE_ID: Final = struct.Struct(">i")
_TOPIC: Final = struct.Struct(">BB16sq")
_MAX_INCARNATION: Final = 2**48 - 1


class UndecodableRecordError(ValueError):
    """Not one of our records, a damaged one, or one of a newer format. `reason` is a short label for
    counting; `newer` says that a newer reader could decode it.
    """

    def __init__(self, reason: str, detail: str, newer: bool = False) -> None:
        self.reason = reason
        self.newer = newer
        super().__init__(f"{reason}: {detail}")


def encode_key(combined_segment_id: CombinedSegmentId) -> bytes:
    """The key of a record about an object, 16 bytes."""
    return combined_segment_id.to_bytes()


def key_of(record: PublishableRecord) -> bytes:
    """The record's key. Raises ValueError when a field is beyond what the format holds."""
    if isinstance(record, RemoteWalNodeRegistration):
        return _node_key(record.broker_id)
    if isinstance(record, RemoteWalTopicRebuilt):
        return _TOPIC_KEY
    if isinstance(record, RemoteWalGapDeclaration):
        return gaps_key(record)
    return encode_key(record.combined_segment_id)


def encode(record: PublishableRecord) -> bytes:
    """The record's value. Raises ValueError when a field is beyond what the format holds."""
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        return _encode_dead_entries(record)
    if isinstance(record, RemoteWalNodeRegistration):
        return _encode_node(record)
    if isinstance(record, RemoteWalGapDeclaration):
        return encode_gaps(record, FORMAT_VERSION)
    if isinstance(record, RemoteWalTopicRebuilt):
        return _TOPIC.pack(FORMAT_VERSION, TOPIC_REBUILT, record.topic_id, record.event_timestamp_ms)
    if isinstance(record, RemoteWalRebuiltSegment):
        return _encode_segment(record.segment, REBUILT_SEGMENT, record.segment.entry_block)
    return _encode_segment(record, COMBINED_SEGMENT, encode_entries(record.entries))


def _encode_segment(
    record: RemoteWalCombinedLogSegmentMetadata | PublishedSegment, record_type: int, entry_block: bytes
) -> bytes:
    if len(record.custom_metadata) > CUSTOM_METADATA_MAX_BYTES:
        raise ValueError(
            f"custom metadata of {record.combined_segment_id} has {len(record.custom_metadata)} bytes, "
            f"at most {CUSTOM_METADATA_MAX_BYTES} are taken"
        )
    try:
        head = _head(record_type, record.combined_segment_id, record.event_timestamp_ms)
        segment = _SEGMENT.pack(record.state, record.size_bytes, len(record.custom_metadata))
    except struct.error as error:
        raise ValueError(f"metadata of {record.combined_segment_id}: {error}") from error
    return b"".join((head, segment, record.custom_metadata, entry_block))


def decode(key: bytes | None, value: bytes | None) -> _Decoded:
    """The record that `encode` made. Raises UndecodableRecordError for everything else, and nothing else."""
    if key is None or (len(key) != _ID_BYTES and not key.startswith(_OUR_KEYS)):
        raise UndecodableRecordError("foreign_key", f"the key is not one of ours: {_size(key)} bytes")
    if value is None:
        raise UndecodableRecordError("no_value", "a tombstone; this topic has none")
    if len(value) < 1:
        raise UndecodableRecordError("truncated", "the value is empty")
    if value[0] != FORMAT_VERSION:
        raise UndecodableRecordError(
            "version",
            f"format version {value[0]}, this reader knows {FORMAT_VERSION}",
            newer=value[0] > FORMAT_VERSION,
        )
    if len(value) < 2:
        raise UndecodableRecordError("truncated", "the value ends before the record type")
    return _decode_type(value[1], key, value)


def _decode_type(record_type: int, key: bytes, value: bytes) -> _Decoded:
    if record_type in (COMBINED_SEGMENT, REBUILT_SEGMENT):
        return _decode_segment(*_read_head(key, value), value)
    if record_type == DEAD_ENTRIES:
        return _decode_dead_entries(*_read_head(key, value), value)
    if record_type == NODE_REGISTRATION:
        return _decode_node(key, value)
    if record_type == TOPIC_REBUILT:
        return _decode_rebuild(key, value)
    if record_type == GAPS:
        try:
            return decode_gaps(key, value)
        except MalformedGapsError as error:
            raise UndecodableRecordError(error.reason, str(error), error.newer) from error
    raise UndecodableRecordError("record_type", f"record type {record_type} is not known", newer=True)


def decode_or_keep_out(key: bytes | None, value: bytes | None) -> MetadataRecord:
    """`decode`, with UnknownRecord in place of the error: for readers that must go on."""
    try:
        return decode(key, value)
    except UndecodableRecordError as error:
        kept = (key, value) if error.newer and key is not None and value is not None else None
        return UnknownRecord(error.reason, str(error), kept)


def _size(raw: bytes | None) -> int:
    return 0 if raw is None else len(raw)


def _head(record_type: int, segment_id: CombinedSegmentId, event_timestamp_ms: int) -> bytes:
    return _HEAD.pack(FORMAT_VERSION, record_type, segment_id.to_bytes(), event_timestamp_ms)


def _read_head(key: bytes, value: bytes) -> tuple[CombinedSegmentId, int]:
    """The segment's id and the event's timestamp."""
    if len(value) < _HEAD.size:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes are less than the head's {_HEAD.size}")
    _, _, raw_id, event_timestamp_ms = _HEAD.unpack_from(value)
    if raw_id != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different segments")
    return CombinedSegmentId.from_bytes(raw_id), event_timestamp_ms


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
    if entry_block:
        try:
            entry_columns.check(entry_block)
        except ValueError as error:
            raise UndecodableRecordError("entries", str(error)) from error
    return PublishedSegment(
        segment_id,
        RemoteLogSegmentState(state),
        event_timestamp_ms,
        size_bytes,
        value[custom_start:entries_start],
        entry_block,
        is_rebuilt=value[1] == REBUILT_SEGMENT,
    )


def _decode_dead_entries(
    segment_id: CombinedSegmentId, event_timestamp_ms: int, value: bytes
) -> RemoteWalLogSegmentMetadataUpdate:
    entries_start = _HEAD.size + _DEAD.size
    if len(value) < entries_start:
        raise UndecodableRecordError("truncated", f"{len(value)} bytes are less than {entries_start}")
    broker_id, leader_epoch = _DEAD.unpack_from(value, _HEAD.size)
    try:
        entries = decode_entries(value[entries_start:])
    except ValueError as error:
        raise UndecodableRecordError("entries", str(error)) from error
    if len({entry.topic_id_partition for entry in entries}) != 1:
        raise UndecodableRecordError("dead_entries", "they are not of one partition")
    return RemoteWalLogSegmentMetadataUpdate(segment_id, entries, broker_id, leader_epoch, event_timestamp_ms)


def _node_key(broker_id: int) -> bytes:
    try:
        return _NODE_KEY + _NODE_ID.pack(broker_id)
    except struct.error as error:
        raise ValueError(f"registration of broker {broker_id}: {error}") from error


def _encode_node(record: RemoteWalNodeRegistration) -> bytes:
    if min(record.broker_id, record.caretaker_broker_id) < 0 or not 0 <= record.incarnation <= _MAX_INCARNATION:
        raise ValueError(f"{record} is out of range")
    try:
        return _NODE.pack(
            FORMAT_VERSION,
            NODE_REGISTRATION,
            record.broker_id,
            record.caretaker_broker_id,
            record.incarnation,
            record.event_timestamp_ms,
        )
    except struct.error as error:
        raise ValueError(f"registration of broker {record.broker_id}: {error}") from error


def _decode_node(key: bytes, value: bytes) -> RemoteWalNodeRegistration:
    if len(value) != _NODE.size:
        raise UndecodableRecordError("node", f"{len(value)} bytes, a registration has {_NODE.size}")
    _, _, broker_id, caretaker_broker_id, incarnation, event_timestamp_ms = _NODE.unpack(value)
    if min(broker_id, caretaker_broker_id) < 0 or not 0 <= incarnation <= _MAX_INCARNATION:
        raise UndecodableRecordError("node", "a broker id or the incarnation is out of range")
    if key != _node_key(broker_id):
        raise UndecodableRecordError("key_mismatch", "key and value name different brokers")
    return RemoteWalNodeRegistration(broker_id, incarnation, caretaker_broker_id, event_timestamp_ms)


def _decode_rebuild(key: bytes, value: bytes) -> RemoteWalTopicRebuilt:
    if len(value) != _TOPIC.size or key != _TOPIC_KEY:
        raise UndecodableRecordError("topic", f"{len(value)} bytes, the record of a rebuild has {_TOPIC.size}")
    _, _, topic_id, event_timestamp_ms = _TOPIC.unpack(value)
    return RemoteWalTopicRebuilt(TopicId(topic_id), event_timestamp_ms)
