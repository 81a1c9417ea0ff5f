"""Fetch frames made by kafka-python's codec, which knows nothing of our scanner, and strategies for their contents."""

import uuid
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse

from kafka_log.topic_partition import TopicId, TopicIdPartition

VERSIONS = (12, 13, 14, 15, 16, 17, 18)
TOPIC_ID = TopicId(bytes(range(1, 17)))
Topic = FetchResponse.FetchableTopicResponse
PartitionData = Topic.PartitionData


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, number)


def response(
    records: dict[int, bytes | None],
    *,
    version: int = 17,
    correlation_id: int = 7,
    high_watermark: int = 0,
    errors: dict[int, int] | None = None,
) -> bytes:
    """A response for one topic: records by partition."""
    partitions = [
        PartitionData(
            partition_index=number,
            error_code=(errors or {}).get(number, 0),
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=0,
            aborted_transactions=None,
            records=raw,
        )
        for number, raw in records.items()
    ]
    topic = Topic(topic="topic", topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=partitions)
    return encode(FetchResponse(responses=[topic], session_id=3, version=version), correlation_id)


def request(
    offsets: dict[int, int],
    *,
    version: int = 17,
    correlation_id: int = 7,
    replica_id: int = 2,
    session_epoch: int = -1,
    forgotten: Sequence[int] = (),
) -> bytes:
    """A follower's request for one topic: fetch offsets by partition. With replica id -1, a consumer's."""
    partitions = [
        FetchRequest.FetchTopic.FetchPartition(partition=number, fetch_offset=offset, current_leader_epoch=0)
        for number, offset in offsets.items()
    ]
    topic = FetchRequest.FetchTopic(topic="topic", topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=partitions)
    fields: dict[str, Any] = {"topics": [topic], "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 10_000_000}
    fields["session_epoch"] = session_epoch
    if forgotten:
        of_topic = {"topic": "topic", "topic_id": uuid.UUID(bytes=TOPIC_ID), "partitions": list(forgotten)}
        fields["forgotten_topics_data"] = [FetchRequest.ForgottenTopic(**of_topic)]
    if version < 15:
        fields["replica_id"] = replica_id
    elif replica_id >= 0:
        fields["replica_state"] = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=1)
    message = FetchRequest(version=version, **fields)
    message.with_header(correlation_id=correlation_id, client_id=f"broker-{replica_id}-fetcher-0")
    return bytes(message.encode(header=True))


def encode(message: Any, correlation_id: int) -> bytes:
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True))


def decode(frame: bytes, version: int) -> Any:
    return FetchResponse.decode(frame, version=version, header=True)


_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_names = st.text("abcXYZ019._-", min_size=1, max_size=20)
_uuids = st.binary(min_size=16, max_size=16).map(lambda raw: uuid.UUID(bytes=raw))
_records = st.none() | st.binary(max_size=40) | st.integers(120, 20_000).map(lambda size: b"\x5a" * size)

_aborted = st.none() | st.lists(
    st.builds(lambda p, o: PartitionData.AbortedTransaction(producer_id=p, first_offset=o), _int64, _int64), max_size=3
)


@st.composite
def partitions(draw: st.DrawFn) -> Any:
    tags: dict[str, Any] = {}
    if draw(st.booleans()):
        tags["diverging_epoch"] = PartitionData.EpochEndOffset(epoch=draw(_int32), end_offset=draw(_int64))
    if draw(st.booleans()):
        tags["current_leader"] = PartitionData.LeaderIdAndEpoch(leader_id=draw(_int32), leader_epoch=draw(_int32))
    if draw(st.booleans()):
        tags["snapshot_id"] = PartitionData.SnapshotId(end_offset=draw(_int64), epoch=draw(_int32))
    return PartitionData(
        partition_index=draw(st.integers(0, 2**31 - 1)),
        error_code=draw(st.sampled_from([0, 0, 1, 6, 74])),
        high_watermark=draw(_int64),
        last_stable_offset=draw(_int64),
        log_start_offset=draw(_int64),
        aborted_transactions=draw(_aborted),
        preferred_read_replica=draw(_int32),
        records=draw(_records),
        **tags,
    )


_topics = st.builds(
    lambda name, topic_id, parts: Topic(topic=name, topic_id=topic_id, partitions=parts),
    _names,
    _uuids,
    st.lists(partitions(), max_size=4),
)
_endpoints = st.lists(
    st.builds(
        lambda n, h, p, r: FetchResponse.NodeEndpoint(node_id=n, host=h, port=p, rack=r),
        _int32,
        _names,
        _int32,
        st.none() | _names,
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, Sequence[Any], bytes]:
    """(version, topics, frame)."""
    version = draw(st.sampled_from(VERSIONS))
    topics = draw(st.lists(_topics, max_size=4))
    tags = {"node_endpoints": draw(_endpoints)} if version >= 16 and draw(st.booleans()) else {}
    message = FetchResponse(
        throttle_time_ms=draw(_int32),
        error_code=draw(st.sampled_from([0, 0, 70])),
        session_id=draw(_int32),
        responses=topics,
        version=version,
        **tags,
    )
    return version, topics, encode(message, draw(_int32))


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, Any, bytes]:
    """(version, message, frame)."""
    version = draw(st.sampled_from(VERSIONS))
    replica_id = draw(st.integers(-1, 2**31 - 1))
    fetched = st.builds(
        lambda p, e, o, d, h: FetchRequest.FetchTopic.FetchPartition(
            partition=p,
            current_leader_epoch=e,
            fetch_offset=o,
            **({"replica_directory_id": d} if version >= 17 and d is not None else {}),
            **({"high_watermark": h} if version >= 18 and h is not None else {}),
        ),
        st.integers(0, 2**31 - 1),
        _int32,
        _int64,
        st.none() | _uuids,
        st.none() | _int64,
    )
    topics = st.builds(
        lambda name, topic_id, parts: FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=parts),
        _names,
        _uuids,
        st.lists(fetched, max_size=3),
    )
    forgotten = st.builds(
        lambda name, topic_id, numbers: FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=numbers),
        _names,
        _uuids,
        st.lists(_int32, max_size=3),
    )
    fields: dict[str, Any] = {}
    if version < 15:
        fields["replica_id"] = replica_id
    elif replica_id >= 0:
        fields["replica_state"] = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=draw(_int64))
    if draw(st.booleans()):
        fields["cluster_id"] = draw(_names)
    message = FetchRequest(
        topics=draw(st.lists(topics, max_size=3)),
        forgotten_topics_data=draw(st.lists(forgotten, max_size=3)),
        rack_id=draw(st.just("") | _names),
        session_id=draw(_int32),
        session_epoch=draw(st.integers(-1, 2)),
        version=version,
        **fields,
    )
    message.with_header(correlation_id=draw(_int32), client_id=draw(_names))
    return version, (replica_id, message), bytes(message.encode(header=True))
