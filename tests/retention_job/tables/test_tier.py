"""What KIP-405's tier holds, from records as Kafka writes them."""

from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.kip405 import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from plugin.segment_metadata import RemoteLogSegmentState
from retention_job.sources.kafka import RAW_COLUMNS
from retention_job.tables.tier import decode_events, quarantine_of, segments_of, tiered_up_to
from tests.metadata_topic.kip405_writer import write

TOPIC = TopicId(b"o" * 16)
STARTED, FINISHED, DELETING, _ = RemoteLogSegmentState


def copied(number: int, start: int, end: int) -> tuple[bytes, bytes]:
    """A segment file's two records."""
    segment_id = RemoteLogSegmentId(TopicIdPartition(TOPIC, 3), bytes([number]) * 16)
    begun = RemoteLogSegmentMetadata(
        segment_id, "orders", start, end, 1, 77, 1000 + number, ((0, start),), 500, None, STARTED
    )
    return write(begun), write(RemoteLogSegmentMetadataUpdate(segment_id, "orders", 1, 2000 + number, None, FINISHED))


def test_a_segments_records_are_one_row_and_the_tier_reaches_up_to_its_first_gap(spark: SparkSession) -> None:
    values = [*copied(1, 0, 9), *copied(2, 10, 19), *copied(3, 30, 39), b"foreign"]
    raw = spark.createDataFrame([(b"", value, 0, at, 5) for at, value in enumerate(values)], RAW_COLUMNS)
    events = decode_events(raw)
    segments = segments_of(events)

    found = {bytes(row.segment_uuid)[0]: row for row in segments.collect()}
    assert [(row.start_offset, row.end_offset, row.size_bytes) for _, row in sorted(found.items())] == [
        (0, 9, 500), (10, 19, 500), (30, 39, 500)
    ]  # fmt: skip
    assert (bytes(found[1].topic_id), found[1].partition, found[1].state) == (TOPIC, 3, FINISHED)
    assert (found[1].started_ms, found[1].finished_ms, found[1].deleting_ms) == (1001, 2001, None)
    assert tiered_up_to(segments) == {(bytes(TOPIC), 3): 20}
    [unknown] = quarantine_of(events).collect()
    assert (unknown.partition, unknown.offset, unknown.timestamp_ms, unknown.value_bytes) == (0, 6, 5, 7)
