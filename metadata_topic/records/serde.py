"""The metadata topic's records as bytes.

The key of a record about an object is the combined segment's id (16 bytes), that of a node registration
`rwm:node:` and the broker's id (4 bytes), that of a rebuild of the topic `rwm:topic`. Keys of future kinds begin
with `rwm:` and never have 16 bytes, so that a reader can tell our records from foreign ones.
Declared gaps have their own layout (`metadata_topic.records.gap_record`, record type 6). The value, big endian:

====  ========================  ==========================================================
size  field                     in which record type
====  ========================  ==========================================================
1     format version            all; 1, or 2 where entry columns have digests (1 and 4 alone)
1     record type               all; 1 = combined segment, 2 = dead entries, 3 = node, 4 = rebuilt
                                segment, 5 = rebuild of the topic
16    combined segment id       1, 2, 4, equal to the key
8     event timestamp, ms       1, 2, 4
1     state                     1, 4
8     object's size, bytes      1, 4; -1 = unknown
2     custom metadata's length  1, 4, followed by that many bytes
4     broker id                 2
4     leader epoch              2
rest  entry columns             1, 2, 4 (`plugin.format.entry_columns`), absent when there are no entries
4     broker id                 3, equal to the key's
4     caretaker's broker id     3
8     incarnation               3, 0 to 2**48 - 1
8     event timestamp, ms       3
16    topic id                  5
8     event timestamp, ms       5
====  ========================  ==========================================================

A COPY_SEGMENT_STARTED record has no entries, so its value has 37 bytes.

A record of another format version, or of a record type that is not known, is refused: a reader logs it once, counts it
and goes on. A change of these bytes takes a new version of the snapshot as well, so that an upgraded agent reads the
topic from its beginning.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_log.topic_partition import TopicId
from metadata_topic.records.gap_record import (
    GAPS,
    RemoteWalGapDeclaration,
    decode_gaps,
    encode_gaps,
    gaps_key,
)
from metadata_topic.records.record_fields import (
    DIGEST_VERSION,
    FOREIGN_KEY,
    FORMAT_VERSION,
    HIGHEST_INCARNATION,
    RecordReader,
    UndecodableRecordError,
    packed,
    value_of_known_version,
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
from plugin.format import entry_columns
from plugin.segment_metadata import (
    CUSTOM_METADATA_MAX_BYTES,
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

COMBINED_SEGMENT: Final = 1
DEAD_ENTRIES: Final = 2
NODE_REGISTRATION: Final = 3
REBUILT_SEGMENT: Final = 4
TOPIC_REBUILT: Final = 5

_OUR_KEYS: Final = b"rwm:"
_NODE_KEY: Final = b"rwm:node:"
_TOPIC_KEY: Final = b"rwm:topic"
_ID_BYTES: Final = 16

_STATES: Final = frozenset(map(int, RemoteLogSegmentState))

_HEAD: Final = struct.Struct(">BB16sq")
_SEGMENT: Final = struct.Struct(">BqH")
_WHOLE_SEGMENT: Final = struct.Struct(_HEAD.format + _SEGMENT.format[1:])
_DEAD: Final = struct.Struct(">ii")
_NODE: Final = struct.Struct(">BBiiqq")
_NODE_ID: Final = struct.Struct(">i")
_TOPIC: Final = struct.Struct(">BB16sq")


def encode_key(combined_segment_id: CombinedSegmentId) -> bytes:
    """Return the key of a record about an object, 16 bytes."""
    return combined_segment_id.to_bytes()


def key_of(record: PublishableRecord) -> bytes:
    """Return the key under which a record is published. Raises ValueError when a field does not fit the format."""
    if isinstance(record, RemoteWalNodeRegistration):
        return _node_key(record.broker_id)
    if isinstance(record, RemoteWalTopicRebuilt):
        return _TOPIC_KEY
    if isinstance(record, RemoteWalGapDeclaration):
        return gaps_key(record)
    return encode_key(record.combined_segment_id)


def encode(record: PublishableRecord) -> bytes:
    """Return the value of a record. Raises ValueError when a field does not fit the format."""
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        return _encode_dead_entries(record)
    if isinstance(record, RemoteWalNodeRegistration):
        return _encode_node(record)
    if isinstance(record, RemoteWalGapDeclaration):
        return encode_gaps(record)
    if isinstance(record, RemoteWalTopicRebuilt):
        return _TOPIC.pack(FORMAT_VERSION, TOPIC_REBUILT, record.topic_id, record.event_timestamp_ms)
    if isinstance(record, RemoteWalRebuiltSegment):
        return _encode_segment(record.segment, REBUILT_SEGMENT, record.segment.entry_block)
    return _encode_segment(record, COMBINED_SEGMENT, encode_entries(record.entries, digests=True))


def _encode_segment(
    record: RemoteWalCombinedLogSegmentMetadata | PublishedSegment, record_type: int, entry_block: bytes
) -> bytes:
    # KIP-405 caps custom metadata too (remote.log.metadata.custom.metadata.max.bytes), so that none fills the topic.
    if len(record.custom_metadata) > CUSTOM_METADATA_MAX_BYTES:
        raise ValueError(
            f"custom metadata of {record.combined_segment_id} has {len(record.custom_metadata)} bytes, "
            f"at most {CUSTOM_METADATA_MAX_BYTES} are taken"
        )
    subject = f"metadata of {record.combined_segment_id}"
    version = DIGEST_VERSION if entry_columns.has_digests(entry_block) else FORMAT_VERSION
    head = _head(subject, record_type, record.combined_segment_id, record.event_timestamp_ms, version)
    segment = packed(subject, _SEGMENT, record.state, record.size_bytes, len(record.custom_metadata))
    return b"".join((head, segment, record.custom_metadata, entry_block))


def decode(key: bytes | None, value: bytes | None) -> _Decoded:
    """Decode a record. Raises UndecodableRecordError for anything that `encode` does not make, and nothing else."""
    if key is None or (len(key) != _ID_BYTES and not key.startswith(_OUR_KEYS)):
        raise UndecodableRecordError(FOREIGN_KEY, f"the key is not one of ours: {_size(key)} bytes")
    value = value_of_known_version(value)
    decode_type = _DECODERS.get(value[1])
    if decode_type is None:
        raise UndecodableRecordError("record_type", f"record type {value[1]} is not known")
    return decode_type(key, RecordReader(value))


def decode_or_keep_out(key: bytes | None, value: bytes | None) -> MetadataRecord:
    """Decode a record, or return UnknownRecord for one that cannot be decoded: for readers that must continue."""
    try:
        return decode(key, value)
    except UndecodableRecordError as error:
        return UnknownRecord(error.reason, str(error))


def _size(raw: bytes | None) -> int:
    return 0 if raw is None else len(raw)


def _head(
    subject: str,
    record_type: int,
    segment_id: CombinedSegmentId,
    event_timestamp_ms: int,
    version: int = FORMAT_VERSION,
) -> bytes:
    return packed(subject, _HEAD, version, record_type, segment_id.to_bytes(), event_timestamp_ms)


def _named(key: bytes, raw_id: bytes) -> CombinedSegmentId:
    """Return the segment that both key and value name."""
    if raw_id != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different segments")
    return CombinedSegmentId.from_bytes(raw_id)


def _encode_dead_entries(record: RemoteWalLogSegmentMetadataUpdate) -> bytes:
    subject = f"dead entries of {record.combined_segment_id}"
    if len({entry.topic_id_partition for entry in record.entries}) != 1:
        raise ValueError(f"{subject} must be of one partition")
    head = _head(subject, DEAD_ENTRIES, record.combined_segment_id, record.event_timestamp_ms)
    dead = packed(subject, _DEAD, record.broker_id, record.leader_epoch)
    return b"".join((head, dead, encode_entries(record.entries)))


def _decode_segment(key: bytes, reader: RecordReader) -> PublishedSegment:
    fields: tuple[Any, ...] = reader.fields(_WHOLE_SEGMENT)
    _, record_type, raw_id, event_timestamp_ms, state, size_bytes, custom_length = fields
    segment_id = _named(key, raw_id)
    if custom_length > CUSTOM_METADATA_MAX_BYTES:
        raise UndecodableRecordError("custom_metadata", f"{custom_length} bytes of custom metadata")
    custom_metadata = bytes(reader.take(custom_length))
    if state not in _STATES:
        raise UndecodableRecordError("state", f"state {state} is not known")
    if size_bytes < UNKNOWN_POSITION:
        raise UndecodableRecordError("size", f"an object of {size_bytes} bytes")
    entry_block = reader.read_rest()
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
        custom_metadata,
        entry_block,
        is_rebuilt=record_type == REBUILT_SEGMENT,
    )


def _decode_dead_entries(key: bytes, reader: RecordReader) -> RemoteWalLogSegmentMetadataUpdate:
    fields: tuple[Any, ...] = reader.fields(_HEAD)
    _, _, raw_id, event_timestamp_ms = fields
    segment_id = _named(key, raw_id)
    broker_id, leader_epoch = reader.fields(_DEAD)
    try:
        entries = decode_entries(reader.read_rest())
    except ValueError as error:
        raise UndecodableRecordError("entries", str(error)) from error
    if len({entry.topic_id_partition for entry in entries}) != 1:
        raise UndecodableRecordError("dead_entries", "they are not of one partition")
    return RemoteWalLogSegmentMetadataUpdate(segment_id, entries, broker_id, leader_epoch, event_timestamp_ms)


def _node_key(broker_id: int) -> bytes:
    return _NODE_KEY + packed(f"registration of broker {broker_id}", _NODE_ID, broker_id)


def _encode_node(record: RemoteWalNodeRegistration) -> bytes:
    if min(record.broker_id, record.caretaker_broker_id) < 0 or not 0 <= record.incarnation <= HIGHEST_INCARNATION:
        raise ValueError(f"{record} is out of range")
    return packed(
        f"registration of broker {record.broker_id}", _NODE, FORMAT_VERSION, NODE_REGISTRATION, record.broker_id,
        record.caretaker_broker_id, record.incarnation, record.event_timestamp_ms,
    )  # fmt: skip


def _decode_node(key: bytes, reader: RecordReader) -> RemoteWalNodeRegistration:
    if reader.left != _NODE.size:
        raise UndecodableRecordError("node", f"{reader.left} bytes, a registration has {_NODE.size}")
    _, _, broker_id, caretaker_broker_id, incarnation, event_timestamp_ms = reader.fields(_NODE)
    if min(broker_id, caretaker_broker_id) < 0 or not 0 <= incarnation <= HIGHEST_INCARNATION:
        raise UndecodableRecordError("node", "a broker id or the incarnation is out of range")
    if key != _node_key(broker_id):
        raise UndecodableRecordError("key_mismatch", "key and value name different brokers")
    return RemoteWalNodeRegistration(broker_id, incarnation, caretaker_broker_id, event_timestamp_ms)


def _decode_rebuild(key: bytes, reader: RecordReader) -> RemoteWalTopicRebuilt:
    if reader.left != _TOPIC.size or key != _TOPIC_KEY:
        raise UndecodableRecordError("topic", f"{reader.left} bytes, the record of a rebuild has {_TOPIC.size}")
    fields: tuple[Any, ...] = reader.fields(_TOPIC)
    return RemoteWalTopicRebuilt(TopicId(fields[2]), fields[3])


_DECODERS: Final[Mapping[int, Callable[[bytes, RecordReader], _Decoded]]] = {
    COMBINED_SEGMENT: _decode_segment,
    DEAD_ENTRIES: _decode_dead_entries,
    NODE_REGISTRATION: _decode_node,
    REBUILT_SEGMENT: _decode_segment,
    TOPIC_REBUILT: _decode_rebuild,
    GAPS: decode_gaps,
}
