"""Tables of KIP-405's tier, from the events of its segments (`sources.tier_events`)."""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from retention_job.schemas import QUARANTINE, TIERED
from retention_job.tables.objects import first_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def segments_of(events: "DataFrame") -> "DataFrame":
    """Return TIERED: the events of each segment as one row."""
    grouped = events.filter("reason IS NULL").groupBy("topic_id", "topic", "partition", "segment_uuid")
    found = grouped.agg(
        fn.max("broker_id").alias("broker_id"),
        fn.max("state").alias("state"),
        *(fn.max(name).alias(name) for name in ("start_offset", "end_offset", "size_bytes", "max_timestamp_ms")),
        *first_times(),
    )
    return found.select(*TIERED.fieldNames())


def quarantine_of(events: "DataFrame") -> "DataFrame":
    """Return QUARANTINE: the records that were not understood."""
    return (
        events.filter("reason IS NOT NULL")
        .select(
            fn.lit(REMOTE_LOG_METADATA_TOPIC).alias("topic"),
            fn.col("record_partition").alias("partition"),
            fn.col("record_offset").alias("offset"),
            fn.col("event_timestamp_ms").alias("timestamp_ms"),
            "reason",
            "detail",
            fn.lit(0).alias("key_bytes"),
            "value_bytes",
        )
        .select(*QUARANTINE.fieldNames())
    )


def tiered_up_to(tiered: "DataFrame") -> dict[tuple[bytes, int], int]:
    """Return the end of the tier's offsets before their first gap, exclusive, by (topic id, partition)."""
    ordered = Window.partitionBy("topic_id", "partition").orderBy("start_offset")
    reached = fn.max("end_offset").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    rows = (
        tiered.filter("state = 1 AND start_offset IS NOT NULL")
        .withColumn("is_behind_gap", fn.coalesce(fn.col("start_offset") > reached + 1, fn.lit(False)))
        .withColumn("gaps", fn.sum(fn.col("is_behind_gap").cast("int")).over(ordered))
        .filter("gaps = 0")
        .groupBy("topic_id", "partition")
        .agg((fn.max("end_offset") + 1).alias("up_to"))
        .collect()
    )
    return {(bytes(row.topic_id), row.partition): row.up_to for row in rows}
