"""Strategies and builders for the metadata topic's records."""

from dataclasses import replace
from hashlib import sha256

from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.plugin.id_strategies import combined_segment_ids

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState

ORDERS = TopicIdPartition(TopicId(b"orders..........".ljust(16)), 0)
PAYMENTS = TopicIdPartition(TopicId(b"payments........".ljust(16)), 7)


def segment_id(sequence: int, broker_id: int = 1, incarnation: int = 1) -> CombinedSegmentId:
    return CombinedSegmentId(broker_id, incarnation, sequence)


def entry(
    first: int, last: int, epoch: int = 0, partition: TopicIdPartition = ORDERS, start: int = 100
) -> RemoteLogSegmentMetadataEntry:
    length = 70 * (last - first + 1)
    return RemoteLogSegmentMetadataEntry(
        partition, epoch, first, last, start, start + length, (first * 31 + last) % 2**32
    )


def segment(
    sequence: int,
    *entries: RemoteLogSegmentMetadataEntry,
    state: RemoteLogSegmentState = FINISHED,
    broker_id: int = 1,
    size_bytes: int = 1000,
    timestamp_ms: int = 1_700_000_000_000,
) -> RemoteWalCombinedLogSegmentMetadata:
    return RemoteWalCombinedLogSegmentMetadata(
        segment_id(sequence, broker_id), entries, state, timestamp_ms, size_bytes, b"bucket-1"
    )


def dead(
    sequence: int, *entries: RemoteLogSegmentMetadataEntry, broker_id: int = 1, leader_epoch: int = 9
) -> RemoteWalLogSegmentMetadataUpdate:
    return RemoteWalLogSegmentMetadataUpdate(segment_id(sequence, broker_id), entries, 2, leader_epoch, 1)


partitions = st.builds(TopicIdPartition, st.binary(min_size=16, max_size=16).map(TopicId), st.integers(0, 2**31 - 1))


@st.composite
def entries(draw: st.DrawFn, partition: TopicIdPartition | None = None) -> RemoteLogSegmentMetadataEntry:
    first = draw(st.integers(0, 2**48))
    start = draw(st.integers(0, 2**31))
    return RemoteLogSegmentMetadataEntry(
        topic_id_partition=partition or draw(partitions),
        leader_epoch=draw(st.integers(0, 2**31 - 1)),
        first_offset=first,
        last_offset=first + draw(st.integers(0, 2**20)),
        start_file_position=start,
        end_file_position=start + draw(st.integers(61, 2**24)),
        crc32c=draw(st.integers(0, 2**32 - 1)),
    )


def with_digests(
    found: list[RemoteLogSegmentMetadataEntry], *, digests: bool = True
) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """The entries, each with a SHA-256 of its own, or none."""
    return tuple([replace(one, sha256=sha256(repr(one).encode()).digest()) if digests else one for one in found])


segments = st.builds(
    RemoteWalCombinedLogSegmentMetadata,
    combined_segment_id=combined_segment_ids,
    entries=st.builds(with_digests, st.lists(entries(), max_size=5), digests=st.booleans()),
    state=st.sampled_from(RemoteLogSegmentState),
    event_timestamp_ms=st.integers(0, 2**43),
    size_bytes=st.integers(-1, 2**40),
    custom_metadata=st.binary(max_size=40),
)


@st.composite
def dead_entries(draw: st.DrawFn) -> RemoteWalLogSegmentMetadataUpdate:
    partition = draw(partitions)
    return RemoteWalLogSegmentMetadataUpdate(
        combined_segment_id=draw(combined_segment_ids),
        entries=tuple(draw(st.lists(entries(partition), min_size=1, max_size=4))),
        broker_id=draw(st.integers(0, 2**31 - 1)),
        leader_epoch=draw(st.integers(0, 2**31 - 1)),
        event_timestamp_ms=draw(st.integers(0, 2**43)),
    )
