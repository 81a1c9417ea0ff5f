"""Rules about partitions: data missing, stored twice, dead, or deleted too early, and records that were not
understood.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.findings.kinds import Kind
from retention_job.findings.object_rules import AGENT, hidden_name, named, writer_name
from retention_job.schemas import EPOCH_KEY, SEGMENT_KEY
from retention_job.settings import LifeTimes
from retention_job.spark.joins import of_segments, small_side
from retention_job.tables.coverage import Chains
from retention_job.tables.history import History

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def partition_findings(history: History, chains: Chains, now_ms: int, life_times: LifeTimes) -> "list[DataFrame]":
    """Return FINDINGS about partitions, a table for each rule."""
    early = _early_deletions(history, chains)
    return [
        *([] if early is None else [_deleted_early(early, now_ms)]),
        _gaps(history, chains),
        _overlaps(history, chains),
        _dead(history, now_ms),
        _dead_untold(history, chains, now_ms, life_times),
        _quarantined(history),
        _unanswered(history),
        _hidden(history),
    ]


_NOTHING: Final = "NULL"
_BYTES: Final = "end_position - start_position"


def _rows(
    found: "DataFrame",
    kind: Kind,
    detail: "Column",
    heal: str,
    *,
    segment: "Column | None" = None,
    age_ms: "Column | None" = None,
    size_bytes: str = _NOTHING,
) -> "DataFrame":
    """Return FINDINGS from rows with `topic` and `partition`; `size_bytes` is SQL."""
    nothing = fn.lit(None)
    return found.select(
        fn.lit(kind.value).alias("kind"),
        fn.lit(kind.severity.value).alias("severity"),
        "topic",
        "partition",
        (nothing if segment is None else segment).cast("string").alias("segment"),
        detail.alias("detail"),
        (nothing if age_ms is None else age_ms).cast("long").alias("age_ms"),
        fn.expr(size_bytes).cast("long").alias("size_bytes"),
        fn.lit(heal).alias("heal"),
    )


def _gaps(history: History, chains: Chains) -> "DataFrame":
    """Find gaps in offsets that the logs of existing topics still hold. Compacted logs have holes of their own."""
    kept = history.topics.filter("NOT coalesce(cleanup_policy, '') LIKE '%compact%'").select("topic_id", "topic")
    starts = _known_starts(history)
    found = (
        chains.gaps.join(fn.broadcast(kept), "topic_id")
        .join(fn.broadcast(starts), ["topic_id", "partition"])
        .filter("last_offset >= coalesce(log_start_offset, 0)")
    )
    detail = fn.format_string(
        "offsets %d to %d are in no object, behind leader epoch %d",
        fn.greatest("first_offset", fn.coalesce("log_start_offset", fn.lit(0))),
        fn.col("last_offset"),
        fn.col("leader_epoch"),
    )
    return _rows(found, Kind.GAP, detail, "none: the records are on the brokers; they go with the log")


def _known_starts(history: History) -> "DataFrame":
    """Return where logs start; those whose leader did not say are left out, and reported by `_unanswered`."""
    return history.partitions.filter("log_start_offset IS NOT NULL").select("topic_id", "partition", "log_start_offset")


def _unanswered(history: History) -> "DataFrame":
    rows = sorted(history.cluster.unanswered)
    found = history.spark.createDataFrame(rows, "topic STRING, partition INT")
    detail = fn.lit("no leader says where its log begins and ends: gaps and early deletions were not looked for")
    return _rows(found, Kind.UNANSWERED, detail, "see why none of its replicas leads, and run the report again")


def _hidden(history: History) -> "DataFrame":
    rows = [(hidden_name(topic_id), None) for topic_id in sorted(history.cluster.hidden)]
    found = history.spark.createDataFrame(rows, "topic STRING, partition INT")
    detail = fn.lit("it may exist, and this client does not see it: nothing of it counts as released")
    return _rows(found, Kind.HIDDEN, detail, "allow the report's principal to describe it")


def _overlaps(history: History, chains: Chains) -> "DataFrame":
    detail = fn.format_string(
        "offsets %d to %d of leader epoch %d are in more than one object", "first_offset", "last_offset", "leader_epoch"
    )
    return _rows(named(history, chains.twice), Kind.OVERLAP, detail, "none: readers take either copy")


def _dead(history: History, now_ms: int) -> "DataFrame":
    """Find entries that agents declared dead and that are still stored, by election."""
    by_election = (*EPOCH_KEY, "declared_epoch")
    once = history.dead_entries.dropDuplicates([*SEGMENT_KEY, *by_election, "first_offset"])
    found = (
        of_segments(history.segments.filter("state < 3"), once)
        .groupBy(*by_election)
        .agg(
            fn.count("*").alias("entries"),
            fn.min("first_offset").alias("first_offset"),
            fn.sum(fn.col("end_position") - fn.col("start_position")).alias("bytes"),
            fn.min("event_timestamp_ms").alias("since_ms"),
        )
    )
    detail = fn.format_string(
        "%d entries of leader epoch %d from offset %d on are dead: leader epoch %d does not have them",
        "entries", "leader_epoch", "first_offset", "declared_epoch",
    )  # fmt: skip
    heal, age_ms = "none: they go with their objects", fn.lit(now_ms) - fn.col("since_ms")
    return _rows(named(history, found), Kind.DEAD, detail, heal, age_ms=age_ms, size_bytes="bytes")


def _dead_untold(history: History, chains: Chains, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Find entries beyond their epoch's end that no agent declared dead, long after the election."""
    told = history.dead_entries.groupBy(*SEGMENT_KEY, *EPOCH_KEY).agg(fn.min("first_offset").alias("told_from"))
    found = (
        of_segments(
            history.segments.filter("state = 1"),
            chains.dead.filter(fn.col("succeeded_ms") < now_ms - life_times.slack_ms),
        )
        .join(told, [*SEGMENT_KEY, *EPOCH_KEY], "left")
        .withColumn("dead_from", fn.greatest("first_offset", "epoch_end"))
        .filter("told_from IS NULL OR told_from > dead_from")
    )
    detail = fn.format_string(
        "offsets %d to %d of leader epoch %d are dead, as a later epoch begins at %d, and no agent has said so",
        "dead_from", "last_offset", "leader_epoch", "epoch_end",
    )  # fmt: skip
    heal, age_ms = AGENT.format("that leads the partition"), fn.lit(now_ms) - fn.col("succeeded_ms")
    return _rows(
        named(history, found), Kind.DEAD_UNTOLD, detail, heal, segment=writer_name(), age_ms=age_ms, size_bytes=_BYTES
    )


def _deleted_early(found: "DataFrame", now_ms: int) -> "DataFrame":
    detail = fn.format_string(
        "offsets %d to %d of leader epoch %d were to be kept for %s ms, and were deleted after %d ms",
        fn.col("first_offset"),
        fn.col("last_offset"),
        fn.col("leader_epoch"),
        fn.coalesce(fn.col("kept_ms").cast("string"), fn.lit("ever")),
        fn.col("deleting_ms") - fn.col("finished_ms"),
    )
    heal = "none: the brokers still have the records; find out what deletes with remote-wal describe --objects"
    age_ms = fn.lit(now_ms) - fn.col("deleting_ms")
    return _rows(found, Kind.DELETED_EARLY, detail, heal, segment=writer_name(), age_ms=age_ms, size_bytes=_BYTES)


def _early_deletions(history: History, chains: Chains) -> "DataFrame | None":
    """Return the entries of objects that were deleted while records in them were wanted; None if nobody is suspected.

    They are ENTRIES with `topic`, `kept_ms` (null: for ever), `finished_ms` and `deleting_ms`.

    The segment table names the suspects: deletion was started sooner than the longest retention among the entries that
    are in a log today. The suspects' entries then decide, one by one: a dead entry, or one that a log no longer holds,
    is no loss, and neither is one that the archive holds, which is all that entries of archived topics wait for. Where
    agents differ in how long they keep entries, the shortest counts. A retention that was raised since makes suspects
    of what was right at its time, and is told as what it is: deleted sooner than the settings of today ask.
    """
    # Where the deletion's start was lost, its end is later, so it accuses nobody wrongly.
    deleted = history.segments.withColumn("deleting_ms", fn.coalesce("deleting_ms", "deleted_ms"))
    suspected = deleted.filter(
        "state >= 2 AND entry_count > 0 AND finished_ms IS NOT NULL AND deleting_ms IS NOT NULL "
        "AND deleting_ms - finished_ms < retention_ms"
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
    tiered_rows = [(bytearray(where[0]), where[1], up_to) for where, up_to in history.tiered_up_to.items()]
    tiered = history.spark.createDataFrame(tiered_rows, "topic_id BINARY, partition INT, tiered_up_to LONG")
    starts = _known_starts(history)
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
        .join(tiered, ["topic_id", "partition"], "left")
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
    """Return the entries of which the archive does not hold all from `first` to `last`, which are SQL over them."""
    asked = entries.withColumn("_first", fn.expr(first)).withColumn("_last", fn.expr(last)).alias("asked")
    held = archived.alias("held")
    holds = [fn.col(f"asked.{name}") == fn.col(f"held.{name}") for name in EPOCH_KEY]
    holds += [
        fn.col("held.first_offset") <= fn.col("asked._first"),
        fn.col("held.last_offset") >= fn.col("asked._last"),
    ]
    return asked.join(held, holds, "left_anti").drop("_first", "_last")


def _quarantined(history: History) -> "DataFrame":
    found = history.quarantine.groupBy("topic", "partition", "reason").agg(
        fn.count("*").alias("records"), fn.min("offset").alias("first"), fn.max("offset").alias("last")
    )
    detail = fn.format_string(
        "%d records were not understood (%s), offsets %d to %d", "records", "reason", "first", "last"
    )
    heal = "find out who writes to the topic; the table `quarantine` has all offsets"
    return _rows(found, Kind.QUARANTINED, detail, heal)
