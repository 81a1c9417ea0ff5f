"""The records of `__remote_log_metadata`, which KIP-405's TopicBasedRemoteLogMetadataManager writes. Read only.

A value is what Kafka's RemoteLogMetadataSerde makes of one message: three unsigned varints (frame version 1, API
key, version), then the message in Kafka's flexible encoding: compact strings, bytes and arrays (a varint of length
+ 1, where 0 is null), and tagged fields at the end of every structure. All versions are 0, up to Kafka 4.3:

=======  ========================================  ===========================================================
API key  message                                   here
=======  ========================================  ===========================================================
0        RemoteLogSegmentMetadataRecord            `RemoteLogSegmentMetadata`; written with COPY_SEGMENT_STARTED
1        RemoteLogSegmentMetadataUpdateRecord      `RemoteLogSegmentMetadataUpdate`; each later state
2        RemotePartitionDeleteMetadataRecord       `RemotePartitionDeleteMetadata`
=======  ========================================  ===========================================================

Tagged fields are skipped: what they add (Kafka 4.0's TxnIndexEmpty) says nothing about offsets. Whatever else
is not understood becomes an UnknownRecord. Lengths and counts are checked against the bytes that are left before
anything is made of them. Offsets are inclusive at both ends, as in Kafka.

Source: storage/src/main/resources/message/*.json and AbstractApiMessageSerde in Apache Kafka.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from kafka_log.flexible_encoding import MalformedMessageError, MessageReader
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import UnknownRecord
from plugin.segment_metadata import RemoteLogSegmentState

REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"

FRAME_VERSION: Final = 1
MESSAGE_VERSION: Final = 0

_EPOCH_ENTRY: Final = struct.Struct(">iq")
_EPOCH_ENTRY_MIN_BYTES: Final = _EPOCH_ENTRY.size + 1  # with its count of tagged fields
_SEGMENT: Final = struct.Struct(">qqiqq")
_UPDATE: Final = struct.Struct(">iq")
_INT8: Final = struct.Struct(">b")
_INT32: Final = struct.Struct(">i")


class RemotePartitionDeleteState(IntEnum):
    """How far the deletion of a whole partition is, with KIP-405's names and ids."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class RemoteLogSegmentId(NamedTuple):
    """One segment on the long-term tier; a second copy of it gets another id."""

    topic_id_partition: TopicIdPartition
    id: bytes
    """16 bytes."""


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """A segment that is being copied, or was copied."""

    segment_id: RemoteLogSegmentId
    topic: str
    """The topic's name when this was written."""
    start_offset: int
    end_offset: int
    """Inclusive."""
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its first offset in this segment), both ascending; the first begins at `start_offset` or
    below.
    """
    size_bytes: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A record that gives a segment of the long-term tier its next state."""

    segment_id: RemoteLogSegmentId
    topic: str
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A record that says how far the deletion of a partition, whose topic was deleted, is."""

    topic_id_partition: TopicIdPartition
    topic: str
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


RemoteLogMetadata = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata | UnknownRecord
)


def decode(value: bytes | None) -> RemoteLogMetadata:
    """Decode a record's value; its key is null. Raises nothing: for a record that cannot be decoded, returns
    UnknownRecord."""
    if value is None:
        return UnknownRecord("no_value", "a tombstone; Kafka writes none to this topic")
    reader = MessageReader(value)
    try:
        record = _decode_message(reader)
        if isinstance(record, UnknownRecord):
            return record
        reader.skip_tagged_fields()
        if reader.left:
            raise MalformedMessageError("trailing_bytes", f"{reader.left} bytes after the message")
    except MalformedMessageError as error:
        return UnknownRecord(error.reason, str(error))
    return record


def _decode_message(reader: MessageReader) -> RemoteLogMetadata:
    frame_version = reader.unsigned_varint()
    if frame_version != FRAME_VERSION:
        return UnknownRecord("frame_version", f"frame version {frame_version}, this reader knows {FRAME_VERSION}")
    api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
    read = _READERS.get(api_key)
    if read is None:
        return UnknownRecord("api_key", f"API key {api_key} is not known")
    if version != MESSAGE_VERSION:
        return UnknownRecord("version", f"version {version} of API key {api_key}, this reader knows {MESSAGE_VERSION}")
    return read(reader)


def _topic_id_partition(reader: MessageReader) -> tuple[str, TopicIdPartition]:
    topic = reader.compact_string()
    topic_id = TopicId(reader.uuid())
    (partition,) = reader.fields(_INT32)
    reader.skip_tagged_fields()
    if partition < 0:
        raise MalformedMessageError("partition", f"partition {partition}")
    return topic, TopicIdPartition(topic_id, partition)


def _segment_id(reader: MessageReader) -> tuple[str, RemoteLogSegmentId]:
    topic, topic_id_partition = _topic_id_partition(reader)
    segment_id = RemoteLogSegmentId(topic_id_partition, reader.uuid())
    reader.skip_tagged_fields()
    return topic, segment_id


def _state(reader: MessageReader) -> RemoteLogSegmentState:
    (state,) = reader.fields(_INT8)
    try:
        return RemoteLogSegmentState(state)
    except ValueError as error:
        raise MalformedMessageError("state", f"segment state {state} is not known") from error


def _leader_epochs(reader: MessageReader, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """Read the leader epochs, sorted: Kafka holds them in a map, and promises no order in the record."""
    entries = []
    for _ in range(reader.compact_array_count(_EPOCH_ENTRY_MIN_BYTES)):
        epoch, offset = reader.fields(_EPOCH_ENTRY)
        reader.skip_tagged_fields()
        entries.append((epoch, offset))
    entries.sort()
    if not entries:
        raise MalformedMessageError("leader_epochs", "a segment without leader epochs")
    if entries[0][1] > start_offset or entries[-1][1] > end_offset:
        raise MalformedMessageError(
            "leader_epochs", f"they do not cover the segment from {start_offset} to {end_offset}"
        )
    for (epoch, offset), (next_epoch, next_offset) in pairwise(entries):
        if next_epoch == epoch or next_offset < offset:
            raise MalformedMessageError("leader_epochs", f"{next_epoch} at {next_offset} after {epoch} at {offset}")
    return tuple(entries)


def _read_segment(reader: MessageReader) -> RemoteLogSegmentMetadata:
    topic, segment_id = _segment_id(reader)
    start_offset, end_offset, broker_id, max_timestamp_ms, event_timestamp_ms = reader.fields(_SEGMENT)
    if not 0 <= start_offset <= end_offset:
        raise MalformedMessageError("offsets", f"a segment from offset {start_offset} to {end_offset}")
    leader_epochs = _leader_epochs(reader, start_offset, end_offset)
    [size_bytes] = reader.fields(_INT32)
    return RemoteLogSegmentMetadata(
        segment_id,
        topic,
        start_offset,
        end_offset,
        broker_id,
        max_timestamp_ms,
        event_timestamp_ms,
        leader_epochs,
        size_bytes,
        reader.compact_nullable_bytes(),
        _state(reader),
    )


def _read_update(reader: MessageReader) -> RemoteLogSegmentMetadataUpdate:
    topic, segment_id = _segment_id(reader)
    broker_id, event_timestamp_ms = reader.fields(_UPDATE)
    custom_metadata = reader.compact_nullable_bytes()
    return RemoteLogSegmentMetadataUpdate(
        segment_id, topic, broker_id, event_timestamp_ms, custom_metadata, _state(reader)
    )


def _read_partition_delete(reader: MessageReader) -> RemotePartitionDeleteMetadata:
    topic, topic_id_partition = _topic_id_partition(reader)
    broker_id, event_timestamp_ms = reader.fields(_UPDATE)
    (state,) = reader.fields(_INT8)
    try:
        delete_state = RemotePartitionDeleteState(state)
    except ValueError as error:
        raise MalformedMessageError("state", f"partition delete state {state} is not known") from error
    return RemotePartitionDeleteMetadata(topic_id_partition, topic, broker_id, event_timestamp_ms, delete_state)


_READERS: Final[Mapping[int, Callable[[MessageReader], RemoteLogMetadata]]] = {
    0: _read_segment,
    1: _read_update,
    2: _read_partition_delete,
}
