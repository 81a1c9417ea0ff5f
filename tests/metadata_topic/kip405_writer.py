"""Writes the records of `__remote_log_metadata` as Kafka does, and makes them up for property tests."""

import struct
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.kip405 import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from plugin.segment_metadata import RemoteLogSegmentState

Known = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata


def varint(number: int) -> bytes:
    raw = bytearray()
    while number > 0x7F:
        raw.append(number & 0x7F | 0x80)
        number >>= 7
    raw.append(number)
    return bytes(raw)


def tags(fields: dict[int, bytes]) -> bytes:
    return varint(len(fields)) + b"".join(varint(tag) + varint(len(raw)) + raw for tag, raw in fields.items())


def write(record: Known, unknown_tags: dict[int, bytes] | None = None, *, version: int = 0) -> bytes:
    """The value; `unknown_tags` stand at the end of every structure."""
    end = tags(unknown_tags or {})
    match record:
        case RemoteLogSegmentMetadata():
            api_key, body = 0, _segment_id(record.topic, record.segment_id, end) + _body(record, end)
        case RemoteLogSegmentMetadataUpdate():
            api_key = 1
            body = _segment_id(record.topic, record.segment_id, end)
            body += struct.pack(">iq", record.broker_id, record.event_timestamp_ms)
            body += _nullable(record.custom_metadata) + bytes([record.state])
        case RemotePartitionDeleteMetadata():
            api_key = 2
            body = _partition(record.topic, record.topic_id_partition, end)
            body += struct.pack(">iqb", record.broker_id, record.event_timestamp_ms, record.state)
    return b"\x01" + varint(api_key) + varint(version) + body + end


def _partition(topic: str, topic_id_partition: TopicIdPartition, end: bytes) -> bytes:
    name = topic.encode()
    topic_id, partition = topic_id_partition
    return varint(len(name) + 1) + name + topic_id + struct.pack(">i", partition) + end


def _segment_id(topic: str, segment_id: RemoteLogSegmentId, end: bytes) -> bytes:
    return _partition(topic, segment_id.topic_id_partition, end) + segment_id.id + end


def _nullable(raw: bytes | None) -> bytes:
    return varint(0) if raw is None else varint(len(raw) + 1) + raw


def _body(record: RemoteLogSegmentMetadata, end: bytes) -> bytes:
    epochs = b"".join(struct.pack(">iq", *entry) + end for entry in record.leader_epochs)
    return b"".join(
        (
            struct.pack(
                ">qqiqq",
                record.start_offset,
                record.end_offset,
                record.broker_id,
                record.max_timestamp_ms,
                record.event_timestamp_ms,
            ),
            varint(len(record.leader_epochs) + 1),
            epochs,
            struct.pack(">i", record.size_bytes),
            _nullable(record.custom_metadata),
            bytes([record.state]),
        )
    )


_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_UUIDS = st.binary(min_size=16, max_size=16)
_NAMES = st.text(max_size=60)
_CUSTOM = st.none() | st.binary(max_size=200)
_PARTITIONS = st.builds(TopicIdPartition, _UUIDS.map(TopicId), st.integers(0, 2**31 - 1))
_SEGMENT_IDS = st.builds(RemoteLogSegmentId, _PARTITIONS, _UUIDS)
_STATES = st.sampled_from(RemoteLogSegmentState)


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[Any, ...]:
    start = draw(st.integers(0, 2**40))
    length = draw(st.integers(0, 2**31))
    offsets = sorted([start, *draw(st.lists(st.integers(start, start + length), max_size=5))])
    first_epoch = draw(st.integers(0, 1000))
    steps = draw(st.lists(st.integers(1, 9), min_size=len(offsets) - 1, max_size=len(offsets) - 1))
    epochs = accumulate(steps, initial=first_epoch)
    return (
        start,
        start + length,
        draw(_INT32),
        draw(_INT64),
        draw(_INT64),
        tuple(zip(epochs, offsets, strict=True)),
        draw(_INT32),
        draw(_CUSTOM),
        draw(_STATES),
    )


KNOWN_RECORDS: st.SearchStrategy[Known] = st.one_of(
    st.tuples(_SEGMENT_IDS, _NAMES, _bodies()).map(lambda made: RemoteLogSegmentMetadata(*made[:2], *made[2])),
    st.builds(RemoteLogSegmentMetadataUpdate, _SEGMENT_IDS, _NAMES, _INT32, _INT64, _CUSTOM, _STATES),
    st.builds(
        RemotePartitionDeleteMetadata,
        _PARTITIONS,
        _NAMES,
        _INT32,
        _INT64,
        st.sampled_from(RemotePartitionDeleteState),
    ),
)
TAGGED_FIELDS = st.dictionaries(st.integers(0, 2**31), st.binary(max_size=40), max_size=3)
