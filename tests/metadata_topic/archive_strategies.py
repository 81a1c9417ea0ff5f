"""Strategies and builders for the archive's records."""

from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import (
    ArchiveObjectCommitted,
    ArchiveObjectDeleted,
    ArchiveObjectPrepared,
    ArchiveRecord,
)
from metadata_topic.records.states import DELETED, DELETING
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.metadata_topic.metadata_strategies import ORDERS
from tests.plugin.id_strategies import combined_segment_ids

T0 = 1_700_000_000_000


def object_id(
    sequence: int, first: int, last: int, partition: TopicIdPartition = ORDERS, broker_id: int = 1, incarnation: int = 1
) -> ArchiveObjectId:
    return ArchiveObjectId(partition, first, last, CombinedSegmentId(broker_id, incarnation, sequence))


def tiles(named: ArchiveObjectId, *epochs: tuple[int, int]) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """Runs of (epoch, last offset) that tile the object; by default one of epoch 0."""
    runs, first, position = [], named.first_offset, 112
    for epoch, last in epochs or ((0, named.last_offset),):
        size = 70 * (last - first + 1)
        runs.append(
            RemoteLogSegmentMetadataEntry(
                named.topic_id_partition, epoch, first, last, position, position + size, (first * 31 + last) % 2**32
            )
        )
        first, position = last + 1, position + size
    return tuple(runs)


def prepared(named: ArchiveObjectId, at_ms: int = T0, ttl_ms: int = 1000) -> ArchiveObjectPrepared:
    return ArchiveObjectPrepared(named, named.writer_id.incarnation, ttl_ms, at_ms)


def committed(named: ArchiveObjectId, *epochs: tuple[int, int], at_ms: int = T0 + 10) -> ArchiveObjectCommitted:
    return ArchiveObjectCommitted(named, named.writer_id.incarnation, tiles(named, *epochs), 1000, at_ms)


def deleting(named: ArchiveObjectId, at_ms: int = T0 + 20) -> ArchiveObjectDeleted:
    return ArchiveObjectDeleted(named, named.writer_id.incarnation, DELETING, at_ms)


def deleted(named: ArchiveObjectId, at_ms: int = T0 + 30) -> ArchiveObjectDeleted:
    return ArchiveObjectDeleted(named, named.writer_id.incarnation, DELETED, at_ms)


incarnations = st.integers(0, 2**48 - 1)
timestamps = st.integers(0, 2**43)


@st.composite
def archive_records(draw: st.DrawFn) -> ArchiveRecord:
    partition = TopicIdPartition(TopicId(draw(st.binary(min_size=16, max_size=16))), draw(st.integers(0, 2**31 - 1)))
    first = draw(st.integers(0, 2**48))
    lengths = draw(st.lists(st.integers(1, 2**20), min_size=1, max_size=6))
    named = ArchiveObjectId(partition, first, first + sum(lengths) - 1, draw(combined_segment_ids))
    kind = draw(st.sampled_from([ArchiveObjectPrepared, ArchiveObjectCommitted, ArchiveObjectDeleted]))
    if kind is ArchiveObjectPrepared:
        return ArchiveObjectPrepared(named, draw(incarnations), draw(st.integers(0, 2**40)), draw(timestamps))
    if kind is ArchiveObjectDeleted:
        return ArchiveObjectDeleted(
            named, draw(incarnations), draw(st.sampled_from([DELETING, DELETED])), draw(timestamps)
        )
    ends = [(0, first + sum(lengths[: n + 1]) - 1) for n in range(len(lengths))]
    size = draw(st.integers(0, 2**40))
    return ArchiveObjectCommitted(named, draw(incarnations), tiles(named, *ends), size, draw(timestamps))
