"""What a metadata store takes of the process's memory: docs/operations.md tells operators to reckon with it."""

import gc
import tracemalloc

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)

BYTES_AN_OBJECT = 300
BYTES_AN_ENTRY = 32
OBJECTS = 3000


def uploaded(sequence: int, partitions: int) -> PublishedSegment:
    entries = tuple(
        RemoteLogSegmentMetadataEntry(
            TopicIdPartition(TopicId(b"orders".ljust(16)), number),
            0,
            10 * sequence,
            10 * sequence + 9,
            64 + 100 * number,
            164 + 100 * number,
            hash((sequence, number)) & 0xFFFFFFFF,
        )
        for number in range(partitions)
    )
    return PublishedSegment.of(
        RemoteWalCombinedLogSegmentMetadata(
            CombinedSegmentId(1, 1, sequence), entries, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 10**12 + sequence
        )
    )


@pytest.mark.parametrize("partitions", [1, 20])
def test_what_is_known_of_objects_takes_what_operators_reckon_with(partitions: int) -> None:
    tracemalloc.start()
    try:
        store = RemoteWalMetadataStore()
        for sequence in range(OBJECTS):
            store.apply(uploaded(sequence, partitions))
        gc.collect()
        of_each = tracemalloc.get_traced_memory()[0] / OBJECTS
        assert len(list(store.published_segments())) == OBJECTS
    finally:
        tracemalloc.stop()
    assert of_each <= 1.25 * (BYTES_AN_OBJECT + BYTES_AN_ENTRY * partitions)
