"""One row per combined segment, from what the records, the inventory and the run before say of it.

Everything is one aggregation over their union: a single shuffle of narrow rows, whatever the sources are, and no key is
rarer or more frequent than a segment's few records, so nothing can be skewed. What a record does depends on the
furthest state alone (`metadata_topic.states`), so neither order nor repetition matters.
"""

from typing import TYPE_CHECKING, Final

from retention_job.object_facts import TIMES, first_times, is_stored, nulls, with_events
from retention_job.release_facts import FOREVER
from retention_job.schemas import SEGMENT_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FACTS: Final = (
    *SEGMENT_KEY,
    "state",
    "event_timestamp_ms",
    "size_bytes",
    "entry_count",
    "retention_ms",
    "record_id",
    "refused_state",
    "stored_bytes",
    "stored_ms",
    "store_class_code",
)


def facts_of_records(staged_segments: "DataFrame") -> "DataFrame":
    """From the staged rows of the kind `segment`, with `is_fenced`. What a fenced agent says of an upload is refused,
    what it says of a deletion is not, as agents do it (`metadata_topic.store_state`).
    """
    from pyspark.sql import functions as f

    refused = f.col("is_fenced") & (f.col("state") <= 1)
    told = (
        f.when(~refused, f.col(name)).alias(name)
        for name in ("state", "event_timestamp_ms", "size_bytes", "entry_count", "retention_ms")
    )
    return staged_segments.select(
        *SEGMENT_KEY,
        *told,
        f.when(~refused & (f.col("state") == 1), f.col("record_id")).alias("record_id"),
        f.when(refused, f.col("state")).alias("refused_state"),
        *nulls("long", "stored_bytes", "stored_ms"),
        *nulls("int", "store_class_code"),
    ).select(*_FACTS)


def facts_of_inventory(inventory: "DataFrame", store_classes: list[str]) -> "DataFrame":
    """From INVENTORY; archive objects are left out. `store_classes` are all that occur."""
    from pyspark.sql import functions as f

    code = (
        f.array_position(f.array(*(f.lit(name) for name in store_classes)), f.col("store_class"))
        if store_classes
        else None
    )
    return (
        inventory.filter("archive_topic_id IS NULL")
        .select(
            *SEGMENT_KEY,
            *nulls("int", "state"),
            *nulls("long", "event_timestamp_ms", "size_bytes"),
            *nulls("int", "entry_count"),
            *nulls("long", "retention_ms", "record_id"),
            *nulls("int", "refused_state"),
            f.col("size_bytes").alias("stored_bytes"),
            f.col("last_modified_ms").alias("stored_ms"),
            (f.lit(None) if code is None else f.when(code > 0, code)).cast("int").alias("store_class_code"),
        )
        .select(*_FACTS)
    )


def facts_of_refusals(before: "DataFrame") -> "DataFrame":
    """From the segment table of the run before: objects of which it knew only that their records are refused."""
    from pyspark.sql import functions as f

    kinds = {"state": "int", "entry_count": "int", "store_class_code": "int"}
    refused = before.filter("NOT has_metadata AND is_stored AND refused_state IS NOT NULL")
    given = (*SEGMENT_KEY, "refused_state")
    return refused.select(
        *given,
        *(f.lit(None).cast(kinds.get(name, "long")).alias(name) for name in _FACTS if name not in given),
    ).select(*_FACTS)


def facts_of_state(before: "DataFrame") -> "DataFrame":
    """From the segment table of the run before: a fact for each state that a segment was seen in."""
    from pyspark.sql import functions as f

    return (
        with_events(before)
        .select(
            *SEGMENT_KEY,
            "state",
            "event_timestamp_ms",
            "size_bytes",
            "entry_count",
            f.when(f.col("entry_count").isNotNull(), f.coalesce("retention_ms", f.lit(FOREVER))).alias("retention_ms"),
            f.when(f.col("state") == 1, f.lit(-1)).cast("long").alias("record_id"),
            *nulls("int", "refused_state"),
            *nulls("long", "stored_bytes", "stored_ms"),
            *nulls("int", "store_class_code"),
        )
        .select(*_FACTS)
    )


def segment_table(facts: "DataFrame", store_classes: list[str], has_inventory: bool) -> "DataFrame":
    """SEGMENTS and, for the job's own use, `has_metadata`, `finished_records` (how often COPY_SEGMENT_FINISHED was
    read in this run), `first_record` (the first of these, -1 if a run before read it) and `refused_state` (the furthest
    state, 0 or 1, that the segment's writer told when it was fenced).
    """
    from pyspark.sql import functions as f

    def in_state(state: int, value: str) -> "Column":
        return f.when(f.col("state") == state, f.col(value))

    found = facts.groupBy(*SEGMENT_KEY).agg(
        f.max("state").alias("state"),
        *first_times(),
        f.max(in_state(1, "size_bytes")).alias("finished_bytes"),
        f.max("size_bytes").alias("told_bytes"),
        f.max(in_state(1, "entry_count")).alias("entry_count"),
        f.max(in_state(1, "retention_ms")).alias("retention"),
        f.max("stored_bytes").alias("stored_bytes"),
        f.max("stored_ms").alias("stored_ms"),
        f.max("store_class_code").alias("store_class_code"),
        f.sum(f.when(f.col("record_id") >= 0, 1).otherwise(0)).cast("int").alias("finished_records"),
        f.min("record_id").alias("first_record"),
        f.max("refused_state").alias("refused_state"),
    )
    classes = f.array(*(f.lit(name) for name in store_classes)) if store_classes else None
    return found.select(
        *SEGMENT_KEY,
        f.coalesce("state", f.lit(-1)).alias("state"),
        *TIMES,
        f.coalesce("finished_bytes", "told_bytes").alias("size_bytes"),
        "entry_count",
        f.when(f.col("retention") != FOREVER, f.col("retention")).alias("retention_ms"),
        is_stored(has_inventory).alias("is_stored"),
        "stored_bytes",
        "stored_ms",
        (f.lit(None).cast("string") if classes is None else f.get(classes, f.col("store_class_code") - 1)).alias(
            "store_class"
        ),
        ((f.col("finished_records") > 0) & (f.col("first_record") >= 0)).alias("is_new"),
        f.col("state").isNotNull().alias("has_metadata"),
        "finished_records",
        "first_record",
        "refused_state",
    )
