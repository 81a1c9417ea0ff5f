"""Produce frames made by kafka-python's codec, which knows nothing of our scanner, and strategies for more."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from kafka_log.topic_partition import TopicId
from tests.kafka_log.batches import batch

VERSIONS = (9, 10, 11, 12, 13)
TOPIC_ID = TopicId(bytes(range(1, 17)))
TOPICS = {"topic": TOPIC_ID}
TIMEOUT_MS = 30_000
Topic = ProduceRequest.TopicProduceData
PartitionData = Topic.PartitionProduceData


def records(size: int = 300) -> bytes:
    """One batch with so many bytes of payload."""
    return batch(0, 1, -1, b"r" * size)


def produce(
    by_partition: Mapping[int, bytes | None],
    *,
    version: int = 13,
    correlation_id: int = 7,
    acks: int = -1,
    client_id: str | None = "producer-1",
    transactional_id: str | None = None,
    topics: Mapping[str, TopicId] = TOPICS,
) -> bytes:
    """A request for each topic's partitions: records by partition."""
    partitions = [PartitionData(index=number, records=raw) for number, raw in by_partition.items()]
    message = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[
            Topic(name=name, topic_id=uuid.UUID(bytes=topic_id), partition_data=partitions)
            for name, topic_id in topics.items()
        ],
        version=version,
    )
    return encode(message, correlation_id, client_id)


def produced(
    outcomes: Iterable[tuple[str, TopicId, Iterable[tuple[int, int]]]],
    *,
    version: int,
    correlation_id: int,
    throttle_ms: int = 0,
) -> bytes:
    """A response: of each topic, error and base offset by partition."""
    kind = ProduceResponse.TopicProduceResponse
    responses = [
        kind(
            name=name,
            topic_id=uuid.UUID(bytes=topic_id),
            partition_responses=[
                kind.PartitionProduceResponse(
                    index=index, error_code=error, base_offset=base_offset, log_append_time_ms=-1,
                    log_start_offset=0, record_errors=[], error_message=None,
                )
                for index, (error, base_offset) in enumerate(of_partitions)
            ],
        )
        for name, topic_id, of_partitions in outcomes
    ]  # fmt: skip
    message = ProduceResponse(responses=responses, throttle_time_ms=throttle_ms, version=version)
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True))


def encode(message: Any, correlation_id: int, client_id: str | None) -> bytes:
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(message.encode(header=True))


def decode(frame: bytes, version: int) -> Any:
    return ProduceRequest.decode(frame, version=version, header=True)


_int32 = st.integers(-(2**31), 2**31 - 1)
_names = st.text("abcXYZ019._-é", min_size=1, max_size=20)
_uuids = st.binary(min_size=16, max_size=16).map(lambda raw: uuid.UUID(bytes=raw))
_records = (
    st.none() | st.binary(max_size=40) | st.integers(60, 20_000).map(lambda size: b"\x5a" * size) | st.just(records(99))
)
_partitions = st.builds(lambda index, raw: PartitionData(index=index, records=raw), st.integers(0, 2**31 - 1), _records)
_topics = st.builds(
    lambda name, topic_id, parts: Topic(name=name, topic_id=topic_id, partition_data=parts),
    _names,
    _uuids,
    st.lists(_partitions, max_size=4),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, Any, bytes]:
    """(version, message, frame)."""
    version = draw(st.sampled_from(VERSIONS))
    message = ProduceRequest(
        transactional_id=draw(st.none() | _names),
        acks=draw(st.sampled_from([-1, 0, 1])),
        timeout_ms=draw(_int32),
        topic_data=draw(st.lists(_topics, max_size=4)),
        version=version,
    )
    return version, message, encode(message, draw(_int32), draw(st.none() | _names))
