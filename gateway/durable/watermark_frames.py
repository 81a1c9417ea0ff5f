"""Frames by which an agent asks a broker for high watermarks, topic ids and ends of leader epochs.

They go on a client's own connection, so the broker judges them by that client's rights: all need Describe on the topic,
which Write implies. A frame here is what follows the four-byte size prefix.

Source: Kafka's message definitions ApiVersions (version 0), ListOffsets (5), OffsetForLeaderEpoch (3) and
DescribeTopicPartitions (0); KIP-320 (current_leader_epoch), KIP-516 (topic ids), KIP-966 (DescribeTopicPartitions).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import FrameCursor, encode_unsigned_varint

_API_VERSIONS: Final = 18
_LIST_OFFSETS: Final = (2, 5)
_OFFSET_FOR_LEADER_EPOCH: Final = (23, 3)
_DESCRIBE_TOPIC_PARTITIONS: Final = (75, 0)
_NEEDED: Final = (_LIST_OFFSETS, _OFFSET_FOR_LEADER_EPOCH, _DESCRIBE_TOPIC_PARTITIONS)
"""API key and version of each question. Brokers before Kafka 3.8 do not know the last one."""

_CONSUMER: Final = -1
_LATEST: Final = -1
ANY_EPOCH: Final = -1
"""Current leader epoch of a question that accepts whichever epoch the broker has."""

_HEADER = struct.Struct(">hhi")  # API key, version, correlation id
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_LIST_OFFSETS_HEAD = struct.Struct(">ib")  # replica id, isolation level: 0 is read_uncommitted
_ASKED_OFFSET = struct.Struct(">iiq")  # partition, current leader epoch, timestamp
_ASKED_EPOCH = struct.Struct(">iii")  # partition, current leader epoch, leader epoch
_OFFSET = struct.Struct(">ihqqi")  # partition, error, timestamp, offset, leader epoch
_EPOCH_END = struct.Struct(">hiiq")  # error, partition, leader epoch, end offset
_API_RANGE = struct.Struct(">hhh")  # API key, lowest version, highest version
_CORRELATION_BYTES = _THROTTLE_BYTES = 4

TopicPartition = tuple[str, int]


class HighWatermark(NamedTuple):
    """What a leader reports of a partition: its high watermark and leader epoch, or an error."""

    error: int
    offset: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in the broker's log: the largest epoch that is not above the one asked for."""

    error: int
    leader_epoch: int
    end_offset: int


class NamedTopic(NamedTuple):
    """The id of the topic that has a name now, as the broker reports it."""

    error: int
    topic_id: TopicId


class Asker(NamedTuple):
    """The header fields of the agent's own requests: a correlation id, and the client's own client id."""

    correlation_id: int
    client_id: bytes
    """Client id of the client's own requests, with its length in front: broker quotas count it with the client's."""


def ask_api_versions(asker: Asker) -> bytes:
    """Encode an ApiVersions request."""
    return _header((_API_VERSIONS, 0), asker)


def answers_all_questions(frame: Buffer) -> bool:
    """Return whether the broker supports the requests of this module, in their versions, by its ApiVersions response.

    Raises MalformedFrameError.
    """
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    if cursor.int16():
        return False
    known: dict[int, tuple[int, int]] = {}
    for _ in range(cursor.inflexible_array_length(_API_RANGE.size)):
        key, lowest, highest = cursor.fields(_API_RANGE)
        known[key] = lowest, highest
    return all(key in known and known[key][0] <= version <= known[key][1] for key, version in _NEEDED)


def ask_high_watermarks(asker: Asker, epochs: Mapping[TopicPartition, int]) -> bytes:
    """Encode a ListOffsets request (latest, read_uncommitted); the broker must confirm `epochs` as current leader
    epochs."""
    asked = ((one, _ASKED_OFFSET.pack(one[1], epoch, _LATEST)) for one, epoch in epochs.items())
    head = _header(_LIST_OFFSETS, asker)
    return head + _LIST_OFFSETS_HEAD.pack(_CONSUMER, 0) + _by_topic(asked)


def scan_high_watermarks(frame: Buffer) -> dict[TopicPartition, HighWatermark]:
    """Read a ListOffsets response. Raises MalformedFrameError."""
    return {
        (topic, partition): HighWatermark(error, offset, epoch)
        for topic, (partition, error, _, offset, epoch) in _each_partition(frame, _OFFSET)
    }


def ask_epoch_ends(asker: Asker, epochs: Mapping[TopicPartition, int]) -> bytes:
    """Encode an OffsetForLeaderEpoch request, which asks where these leader epochs end."""
    asked = ((one, _ASKED_EPOCH.pack(one[1], ANY_EPOCH, epoch)) for one, epoch in epochs.items())
    return _header(_OFFSET_FOR_LEADER_EPOCH, asker) + _INT32.pack(_CONSUMER) + _by_topic(asked)


def scan_epoch_ends(frame: Buffer) -> dict[TopicPartition, EpochEnd]:
    """Read an OffsetForLeaderEpoch response. Raises MalformedFrameError."""
    return {
        (topic, partition): EpochEnd(error, epoch, end_offset)
        for topic, (error, partition, epoch, end_offset) in _each_partition(frame, _EPOCH_END)
    }


def ask_topic_id(asker: Asker, topic: str) -> bytes:
    """Encode a DescribeTopicPartitions request for one topic and at most one partition, to learn the topic's id."""
    name = topic.encode()
    body = b"\x02" + encode_unsigned_varint(len(name) + 1) + name + b"\0"  # one topic, its name, no tags
    limit_and_no_cursor = _INT32.pack(1) + b"\xff"
    return _header(_DESCRIBE_TOPIC_PARTITIONS, asker) + b"\0" + body + limit_and_no_cursor + b"\0"


def scan_topic_id(frame: Buffer) -> NamedTopic:
    """Read the topic in a DescribeTopicPartitions response for one topic. Raises MalformedFrameError."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    cursor.skip_tagged_fields()
    cursor.skip(_THROTTLE_BYTES)
    if cursor.array_length(min_item_bytes=20) != 1:
        raise cursor.fault("topics", "an answer for one topic has none or several")
    error = cursor.int16()
    cursor.compact_string()
    return NamedTopic(error, cursor.topic_id())


def throttle_ms(frame: Buffer, *, is_flexible: bool = False) -> int:
    """Read for how long the broker reads nothing from the connection after this response, in ms. Raises
    MalformedFrameError."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    if is_flexible:
        cursor.skip_tagged_fields()
    return cursor.int32()


def _each_partition(frame: Buffer, layout: struct.Struct) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Read an answer that lists topics by name, and partitions of this layout: each one's topic and fields."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES + _THROTTLE_BYTES)
    for _ in range(cursor.inflexible_array_length(min_item_bytes=6)):
        topic = cursor.string()
        for _ in range(cursor.inflexible_array_length(layout.size)):
            yield topic, cursor.fields(layout)
    cursor.expect_end()


def _header(api: tuple[int, int], asker: Asker) -> bytes:
    return _HEADER.pack(*api, asker.correlation_id) + asker.client_id


def _by_topic(asked: Iterable[tuple[TopicPartition, bytes]]) -> bytes:
    """Encode an array of topics, each with its name and an array of encoded partitions."""
    topics = []
    for topic, of_topic in groupby(sorted(asked), key=lambda one: one[0][0]):
        partitions = [encoded for _, encoded in of_topic]
        name = topic.encode()
        topics.append(_INT16.pack(len(name)) + name + _INT32.pack(len(partitions)) + b"".join(partitions))
    return _INT32.pack(len(topics)) + b"".join(topics)
