"""Strategies for the ids of objects, over all that an id may hold."""

from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId

combined_segment_ids = st.builds(
    CombinedSegmentId, st.integers(0, 2**31 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1)
)
archive_object_ids = st.builds(
    lambda topic_id, partition, first, count, writer: ArchiveObjectId(
        TopicIdPartition(TopicId(topic_id), partition), first, first + count, writer
    ),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**61),
    st.integers(0, 2**40),
    combined_segment_ids,
)
