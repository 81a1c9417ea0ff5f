"""One row per archive object, from what the records, the archive's inventory and the run before say of it.

As `segment_table` does it for combined segments: one aggregation over the union of all facts, in which neither order
nor repetition matters. Two things differ. A committed record is published again from time to time under a newer time
stamp, as an object may outlive the topic's retention; so `finished_ms` is when it was committed or, where older records
are gone, later, while `stored_ms` tells the truth where there is an inventory. And an object names its topic, so that
it needs no entries to be judged or priced.
"""

from typing import TYPE_CHECKING, Final

from retention_job.object_facts import TIMES, first_times, is_stored, nulls, with_events
from retention_job.schemas import ARCHIVE_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FACTS: Final = (
    *ARCHIVE_KEY,
    "state",
    "event_timestamp_ms",
    "size_bytes",
    "run_count",
    "spans",
    "expires_ms",
    "record_id",
    "is_refused",
    "stored_bytes",
    "stored_ms",
)
_SPANS: Final = "array<struct<leader_epoch:int,first_offset:bigint,last_offset:bigint>>"


def facts_of_archive_records(staged: "DataFrame") -> "DataFrame":
    """From the staged rows of the kind `archive`, with `is_fenced`. A fenced publisher's records are refused, all of
    them, as agents do it (`metadata_topic.archive_store`).
    """
    from pyspark.sql import functions as f

    taken = ~f.col("is_fenced")

    def told(name: str) -> "Column":
        return f.when(taken, f.col(name))

    return staged.select(
        *ARCHIVE_KEY,
        *(told(name).alias(name) for name in ("state", "event_timestamp_ms", "size_bytes")),
        told("entry_count").alias("run_count"),
        told("spans").alias("spans"),
        told("expires_ms").alias("expires_ms"),
        f.when(taken & (f.col("state") == 1), f.col("record_id")).alias("record_id"),
        f.col("is_fenced").alias("is_refused"),
        *nulls("long", "stored_bytes", "stored_ms"),
    ).select(*_FACTS)


def facts_of_archive_inventory(inventory: "DataFrame") -> "DataFrame":
    """From INVENTORY; combined segments are left out."""
    from pyspark.sql import functions as f

    key = (
        f.col("archive_topic_id").alias("topic_id"),
        f.col("archive_partition").alias("partition"),
        f.col("archive_first_offset").alias("first_offset"),
        f.col("archive_last_offset").alias("last_offset"),
        "broker_id",
        "incarnation",
        "sequence",
    )
    return (
        inventory.filter("archive_topic_id IS NOT NULL")
        .select(
            *key,
            *nulls("int", "state", "run_count"),
            *nulls("long", "event_timestamp_ms", "expires_ms", "record_id"),
            *nulls(_SPANS, "spans"),
            f.lit(False).alias("is_refused"),
            f.col("size_bytes").alias("stored_bytes"),
            f.col("last_modified_ms").alias("stored_ms"),
        )
        .withColumn("size_bytes", f.lit(None).cast("long"))
        .select(*_FACTS)
    )


def facts_of_archive_state(before: "DataFrame") -> "DataFrame":
    """From the archive table of the run before: a fact for each state that an object was seen in."""
    from pyspark.sql import functions as f

    return (
        with_events(before)
        .select(
            *ARCHIVE_KEY,
            "state",
            "event_timestamp_ms",
            "size_bytes",
            "run_count",
            "spans",
            "expires_ms",
            f.when(f.col("state") == 1, f.lit(-1)).cast("long").alias("record_id"),
            f.lit(False).alias("is_refused"),
            *nulls("long", "stored_bytes", "stored_ms"),
        )
        .select(*_FACTS)
    )


def archive_table(facts: "DataFrame", has_inventory: bool) -> "DataFrame":
    """ARCHIVE_OBJECTS and, for the job's use, `has_metadata` and `refused_records`: objects without metadata, too."""
    from pyspark.sql import functions as f

    found = facts.groupBy(*ARCHIVE_KEY).agg(
        f.max("state").alias("state"),
        *first_times(),
        *(f.max(name).alias(name) for name in ("expires_ms", "size_bytes", "run_count", "spans")),
        *(f.max(name).alias(name) for name in ("stored_bytes", "stored_ms")),
        f.sum(f.col("is_refused").cast("int")).cast("int").alias("refused_records"),
        f.min("record_id").alias("first_record"),
    )
    return found.select(
        *ARCHIVE_KEY,
        f.coalesce("state", f.lit(-1)).alias("state"),
        *TIMES,
        "expires_ms",
        "size_bytes",
        "run_count",
        f.coalesce("spans", f.array().cast(_SPANS)).alias("spans"),
        is_stored(has_inventory).alias("is_stored"),
        "stored_bytes",
        "stored_ms",
        f.coalesce(f.col("first_record") >= 0, f.lit(False)).alias("is_new"),
        f.col("state").isNotNull().alias("has_metadata"),
        "refused_records",
    )


def archived_spans(archive: "DataFrame") -> "DataFrame":
    """(topic_id, partition, leader_epoch, first_offset, last_offset, first_event_ms): what committed objects hold."""
    from pyspark.sql import functions as f

    spans = archive.filter("state = 1").select(
        "topic_id", "partition", f.explode("spans").alias("span"), f.col("finished_ms").alias("first_event_ms")
    )
    return spans.select("topic_id", "partition", "span.*", "first_event_ms")
