"""Objects that were deleted while records in them were wanted.

The segment table names the suspects: deletion was started sooner than the longest retention among the entries that are
in a log today. The suspects' entries then decide, one by one: a dead entry, or one that a log no longer holds, is no
loss, and neither is one that the archive holds, which is all that entries of archived topics wait for. Where agents
differ in how long they keep entries, the shortest counts. A retention that was raised since makes suspects of what was
right at its time, and is told as what it is: deleted sooner than the settings of today ask.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from retention_job.schemas import EPOCH_KEY, SEGMENT_KEY
from retention_job.spark.joins import small_side
from retention_job.tables.chains import Chains
from retention_job.tables.history import History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def early_deletions(history: History, chains: Chains) -> "DataFrame | None":
    """The entries: ENTRIES with `topic`, `kept_ms` (null: for ever), `finished_ms`, `deleting_ms`. None: nobody is
    suspected.
    """
    # Where the deletion's start was lost, its end is later, so it accuses nobody wrongly.
    deleted = history.segments.withColumn("deleting_ms", fn.coalesce("deleting_ms", "deleted_ms"))
    suspected = deleted.filter(
        "state >= 2 AND entry_count > 0 AND finished_ms IS NOT NULL AND deleting_ms IS NOT NULL "
        "AND (retention_ms IS NULL OR deleting_ms - finished_ms < retention_ms)"
    ).select(*SEGMENT_KEY, "finished_ms", "deleting_ms", "is_new")
    suspects = small_side(suspected)
    if suspects.is_empty:
        return None
    of_this_run = suspects.rows is not None and all(suspects.rows.column("is_new").to_pylist())
    entries = history.entries if of_this_run else history.entries_of_all_runs()
    archived = small_side(chains.archived.select(*EPOCH_KEY, "first_offset", "last_offset")).frame
    # All that was archived is suspected, so most of it is cleared before anything is shuffled.
    entries = _outside(archived, entries.filter(suspects.where_to_look()), "first_offset", "last_offset")
    topics = history.topics.selectExpr(
        "topic_id", "topic", "wal_retention_ms IS NOT NULL AS is_known",
        "CASE WHEN wal_retention_ms >= 0 AND NOT is_archived THEN wal_retention_ms END AS kept_ms",
    )  # fmt: skip
    starts = history.partitions.select("topic_id", "partition", "log_start_offset")
    told = history.dead_entries.groupBy(*SEGMENT_KEY, *EPOCH_KEY).agg(fn.min("first_offset").alias("told_from"))
    # Few, and broadcast, so that a crowded partition is not shuffled into one task.
    ended = chains.covered.filter("epoch_end IS NOT NULL").select(*EPOCH_KEY, "epoch_end").distinct()
    ends = small_side(ended).frame
    found = (
        entries.join(suspects.frame.drop("is_new"), list(SEGMENT_KEY))
        .join(fn.broadcast(topics), "topic_id")
        .join(fn.broadcast(starts), ["topic_id", "partition"])
        .join(told, [*SEGMENT_KEY, *EPOCH_KEY], "left")
        .join(ends, list(EPOCH_KEY), "left")
        .join(_tiered_up_to(history), ["topic_id", "partition"], "left")
        .filter("is_known AND (kept_ms IS NULL OR deleting_ms - finished_ms < kept_ms)")
        .filter("last_offset >= coalesce(log_start_offset, 0) AND last_offset >= coalesce(tiered_up_to, 0)")
        .filter("first_offset < coalesce(epoch_end, 9223372036854775807)")
        .filter("first_offset < coalesce(told_from, 9223372036854775807)")
    )
    return _outside(
        archived,
        found,
        "greatest(first_offset, coalesce(log_start_offset, 0))",
        "least(last_offset, coalesce(epoch_end, 9223372036854775807) - 1)",
    )


def _outside(archived: "DataFrame", entries: "DataFrame", first: str, last: str) -> "DataFrame":
    """The entries of which the archive does not hold all from `first` to `last`, which are SQL over them."""
    asked = entries.withColumn("_first", fn.expr(first)).withColumn("_last", fn.expr(last)).alias("asked")
    held = archived.alias("held")
    holds = [fn.col(f"asked.{name}") == fn.col(f"held.{name}") for name in EPOCH_KEY]
    holds += [
        fn.col("held.first_offset") <= fn.col("asked._first"),
        fn.col("held.last_offset") >= fn.col("asked._last"),
    ]
    return asked.join(held, holds, "left_anti").drop("_first", "_last")


def _tiered_up_to(history: History) -> "DataFrame":
    rows = [(bytearray(topic_id), partition, up_to) for (topic_id, partition), up_to in history.tiered_up_to.items()]
    return history.spark.createDataFrame(rows, "topic_id BINARY, partition INT, tiered_up_to LONG")
