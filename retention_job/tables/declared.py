"""Tables of what agents declared of offsets that are in no object without being lost.

As in `metadata_topic.records.declared_gaps`, a declaration counts up to the start of the first epoch that is newer than
the declarer's. It never overrides stored records, and says nothing of uploads in progress: it fills holes between
objects' ranges, and makes no new ones. Holes stay in the chains that runs hand on, so the declarations stay too, joined
if they touch; those of records that their logs no longer hold are dropped. Records that should have been stored and are
lost remain a gap.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from metadata_topic.records.declared_gaps import GapReason
from retention_job.schemas import DECLARED, EPOCH_KEY
from retention_job.sources.staged_rows import GAP_ROW
from retention_job.spark.joins import union
from retention_job.tables.coverage import joined_ranges
from retention_job.tables.history import History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITION: Final = ("topic_id", "partition")
_NOT_WANTED: Final = f"reason = '{GapReason.NOT_WANTED.name}'"
_IS_BEGIN: Final = f"reason = '{GapReason.BEFORE_UPLOAD.name}'"
_LEFT_OUT: Final = ", ".join(
    f"'{reason.name}'" for reason in GapReason if reason.is_loss or reason is GapReason.COMPACTED
)
"""The reasons to leave out: losses are gaps, and no gaps are reported for compacted logs."""


def declared_of(history: History) -> "DataFrame":
    """Return DECLARED of this run and those before it."""
    found = history.staged(GAP_ROW).filter(f"reason NOT IN ({_LEFT_OUT})")
    found = found.withColumnRenamed("event_timestamp_ms", "first_event_ms").select(*DECLARED.fieldNames())
    if history.last is not None:
        found = union(found, history.table("declared", DECLARED, history.last.run_id))
    not_wanted = joined_ranges(found.filter(_NOT_WANTED)).withColumn("reason", fn.lit(GapReason.NOT_WANTED.name))
    # These begin with the log. A later leader that begins to upload knows of the earlier ones, so the first one counts.
    bounds = (
        found.filter(f"NOT {_NOT_WANTED}")
        .groupBy(*EPOCH_KEY, "reason")
        .agg(
            fn.min("first_offset").alias("first_offset"),
            fn.when(fn.expr(_IS_BEGIN), fn.min("last_offset")).otherwise(fn.max("last_offset")).alias("last_offset"),
            fn.min("first_event_ms").alias("first_event_ms"),
        )
    )
    return union(_in_logs(history, not_wanted), bounds).select(*DECLARED.fieldNames())


def _in_logs(history: History, declared: "DataFrame") -> "DataFrame":
    """Add `log_start_offset`, and drop rows that are in no log any more."""
    starts = history.partitions.select(
        *_PARTITION, fn.coalesce("log_start_offset", fn.lit(0)).alias("log_start_offset")
    )
    return declared.join(fn.broadcast(starts), list(_PARTITION)).filter("last_offset >= log_start_offset")


def no_loss_within(held: "DataFrame", declared: "DataFrame") -> "DataFrame":
    """Return declared ranges between the first and the last offset that the partition has in `held`.

    Both are ranges as `with_epoch_ends` returns them.
    """
    logs = held.groupBy(*_PARTITION).agg(
        fn.min("first_offset").alias("held_from"), fn.max(fn.expr("least(last_offset, epoch_end - 1)")).alias("held_to")
    )
    return (
        no_loss(held, declared)
        .join(logs, list(_PARTITION))
        .withColumn("first_offset", fn.greatest("first_offset", "held_from"))
        .withColumn("last_offset", fn.least("last_offset", "held_to"))
        .filter("first_offset <= last_offset")
        .select(*EPOCH_KEY, "first_offset", "last_offset", fn.lit(None).cast("long").alias("epoch_end"))
    )


def no_loss(held: "DataFrame", declared: "DataFrame") -> "DataFrame":
    """Return DECLARED as far as it counts: up to the first epoch in `held` that is newer than the declarer's."""
    epochs = held.groupBy(*EPOCH_KEY).agg(fn.min("first_offset").alias("start"))
    logs = epochs.groupBy(*_PARTITION).agg(
        fn.collect_list(fn.struct(fn.col("leader_epoch").alias("epoch"), "start")).alias("epochs")
    )
    newer = "array_min(transform(filter(epochs, e -> e.epoch > leader_epoch), e -> e.start))"
    of_reason = Window.partitionBy(*_PARTITION, "reason")
    return (
        declared.join(logs, list(_PARTITION), "left")
        .withColumn("last_offset", fn.expr(f"least(last_offset, {newer} - 1)"))
        .withColumn(
            "last_offset",
            fn.when(fn.expr(_IS_BEGIN), fn.min("last_offset").over(of_reason)).otherwise(fn.col("last_offset")),
        )
        .filter("first_offset <= last_offset")
        .drop("epochs")
    )


def not_wanted_offsets(history: History) -> int:
    """Return how many of the offsets in logs were declared as not wanted in objects."""
    declared = history.declared.filter(_NOT_WANTED).withColumn("leader_epoch", fn.lit(0))
    found = _in_logs(history, joined_ranges(declared)).selectExpr(
        "sum(last_offset + 1 - greatest(first_offset, log_start_offset)) AS offsets"
    )
    return int(found.collect()[0].offsets or 0)
