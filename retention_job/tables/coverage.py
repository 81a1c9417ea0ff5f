"""Finds the offsets of each leader epoch that are in objects, the gaps, and what elections killed, over all runs.

Ranges. Entries come by the million, and nearly in the order of their logs, so most entries of a batch are neighbours. A
batch is therefore first merged by numpy into runs without a hole, per partition and leader epoch, and only those runs
are shuffled: some thousands instead of millions of entries. A partition with nine tenths of all entries becomes a few
long runs, so skew makes the job faster, not slower. Nothing is lost: an offset is in two objects exactly when two
entries of one batch hold it (found in that batch) or two runs do (found when runs are merged).

Chains. A run merges the ranges of its own entries with those of the run before, so an incremental run shuffles only its
own ranges and the merged ones, which are few. An entry that a later epoch made dead may be from any run; older runs'
entries are searched only for partitions with an epoch whose end has changed.

Declarations. Agents declare offsets that are in no object without being lost. As in
`metadata_topic.records.declared_gaps`, a declaration counts up to the start of the first epoch that is newer than the
declarer's. It never overrides stored records, and says nothing of uploads in progress: it fills holes between objects'
ranges, and makes no new ones. Holes stay in the chains that runs hand on, so the declarations stay too, joined if they
touch; those of records that their logs no longer hold are dropped. Records that should have been stored and are lost
remain a gap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as fn

from metadata_topic.records.declared_gaps import GapReason
from retention_job.schemas import DECLARED, EPOCH_KEY, SEGMENT_KEY
from retention_job.sources.decoding import GAP_ROW
from retention_job.spark.joins import of_segments, small_side, union
from retention_job.tables.history import History

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

_ROWS_AT_ONCE: Final = 400_000
_COLUMNS: Final = ("topic_id", "partition", "leader_epoch", "first_offset", "last_offset", "event_timestamp_ms")

RANGES_SCHEMA: Final = (
    "is_twice BOOLEAN, topic_id BINARY, partition INT, leader_epoch INT, first_offset LONG, last_offset LONG, "
    "first_event_ms LONG"
)
RANGE_COLUMNS: Final = tuple(column.split()[0] for column in RANGES_SCHEMA.split(", "))
_DEAD_COLUMNS: Final = (*SEGMENT_KEY, *EPOCH_KEY, "first_offset", "last_offset", "start_position", "end_position")
_NOT_WANTED: Final = f"reason = '{GapReason.NOT_WANTED.name}'"
_IS_BEGIN: Final = f"reason = '{GapReason.BEFORE_UPLOAD.name}'"
_LEFT_OUT: Final = ", ".join(
    f"'{reason.name}'" for reason in GapReason if reason.is_loss or reason is GapReason.COMPACTED
)
"""The reasons to leave out: losses are gaps, and no gaps are reported for compacted logs."""


# Ranges.


def ranges_of(entries: "DataFrame") -> "DataFrame":
    """Return RANGES_SCHEMA from entries, batch by batch: the offsets in an object and, with `is_twice`, those in
    two."""
    return entries.select(*_COLUMNS).mapInArrow(merge_batches, RANGES_SCHEMA)


def merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge entries, as Arrow batches, to RANGES_SCHEMA; each batch that is yielded covers many entries."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= _ROWS_AT_ONCE:
            yield from _merged(waiting)
            waiting, rows = [], 0
    if rows:
        yield from _merged(waiting)


def _merged(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).combine_chunks()
    topic_ids = table.column("topic_id").combine_chunks().dictionary_encode()
    numbers = {name: table.column(name).to_numpy().astype(np.int64) for name in _COLUMNS[1:]}
    codes = topic_ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    partition = (codes << 32) | numbers["partition"]
    epoch, first, last = numbers["leader_epoch"], numbers["first_offset"], numbers["last_offset"]
    order = np.lexsort((first, epoch, partition))
    partition, epoch, first, last = partition[order], epoch[order], first[order], last[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (partition[1:] != partition[:-1]) | (epoch[1:] != epoch[:-1])
    reached = _reached_before(np.cumsum(is_first), last)
    chosen = topic_ids.dictionary.take(pa.array(codes[order]))
    begins = np.flatnonzero(is_first | (first > reached + 1))
    event_ms = numbers["event_timestamp_ms"][order]
    longest = np.maximum.reduceat(last, begins), np.minimum.reduceat(event_ms, begins)
    twice = np.flatnonzero(~is_first & (first <= reached))
    shared = np.minimum(last, reached)[twice], event_ms[twice]
    for is_twice, at, (last_offset, first_event_ms) in ((False, begins, longest), (True, twice, shared)):
        if len(at):
            columns = [
                pa.repeat(is_twice, len(at)),
                chosen.take(pa.array(at)).cast(pa.binary()),
                pa.array((partition & 0xFFFFFFFF)[at].astype(np.int32)),
                pa.array(epoch[at].astype(np.int32)),
                pa.array(first[at]),
                pa.array(last_offset),
                pa.array(first_event_ms),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=list(RANGE_COLUMNS))


def _reached_before(group: Any, last: Any) -> Any:
    """Return per row the highest last offset among earlier rows of its group; anything for a group's first row.

    Ranks of a later group are above all those of earlier ones, so one running maximum serves all groups.
    """
    by_rank = np.lexsort((last, group))
    rank = np.empty(len(last), dtype=np.int64)
    rank[by_rank] = np.arange(len(last))
    highest = last[by_rank[np.maximum.accumulate(rank)]]
    return np.concatenate((highest[:1], highest[:-1]))


def merged_ranges(ranges: "DataFrame") -> "DataFrame":
    """Return RANGES_SCHEMA with the longest ranges, each kind for itself; the part that two ranges share is
    `is_twice`.
    """
    covered = ranges.filter("NOT is_twice")
    shared = covered.withColumn("reached", _reached()).filter("first_offset <= reached")
    twice = shared.withColumn("last_offset", fn.least("last_offset", "reached")).drop("reached")
    twice = union(ranges.filter("is_twice"), twice.withColumn("is_twice", fn.lit(True)))
    return union(_as_long_as_can_be(covered), _as_long_as_can_be(twice))


def _in_order() -> "WindowSpec":
    return Window.partitionBy(*EPOCH_KEY).orderBy("first_offset", "last_offset")


def _reached() -> "Column":
    """Return the highest last offset of the ranges before this one in its epoch; null for the first."""
    return fn.max("last_offset").over(_in_order().rowsBetween(Window.unboundedPreceding, -1))


def _as_long_as_can_be(ranges: "DataFrame") -> "DataFrame":
    begins = fn.coalesce((fn.col("first_offset") > _reached() + 1).cast("int"), fn.lit(1))
    return (
        ranges.withColumn("begins", begins)
        .withColumn("run", fn.sum("begins").over(_in_order().rowsBetween(Window.unboundedPreceding, 0)))
        .groupBy("is_twice", *EPOCH_KEY, "run")
        .agg(
            fn.min("first_offset").alias("first_offset"),
            fn.max("last_offset").alias("last_offset"),
            fn.min("first_event_ms").alias("first_event_ms"),
        )
        .drop("run")
    )


def joined_ranges(*covered: "DataFrame") -> "DataFrame":
    """Return RANGES_SCHEMA without `is_twice`: the offsets that any of the tables holds, in the longest ranges."""
    once = (frame.withColumn("is_twice", fn.lit(False)).select(*RANGE_COLUMNS) for frame in covered)
    return _as_long_as_can_be(union(*once))


def with_epoch_ends(covered: "DataFrame") -> "DataFrame":
    """Add `epoch_end` and `succeeded_ms` to ranges.

    `epoch_end` is where a later epoch of the partition begins (null: none does), `succeeded_ms` the time when the first
    object of a later epoch was written. Records of an epoch from `epoch_end` on are dead: a leader of a later epoch had
    other records there, or none.
    """
    epochs = covered.groupBy(*EPOCH_KEY).agg(
        fn.min("first_offset").alias("epoch_start"), fn.min("first_event_ms").alias("epoch_ms")
    )
    later = Window.partitionBy("topic_id", "partition").orderBy(fn.desc("leader_epoch"))
    later = later.rowsBetween(Window.unboundedPreceding, -1)
    ends = epochs.select(
        *EPOCH_KEY,
        fn.min("epoch_start").over(later).alias("epoch_end"),
        fn.min("epoch_ms").over(later).alias("succeeded_ms"),
    )
    return covered.join(ends, list(EPOCH_KEY))


def gaps(covered: "DataFrame") -> "DataFrame":
    """Return the holes in a partition's chain of leader epochs:

    (topic_id, partition, leader_epoch, first_offset, last_offset).

    `covered` comes from `with_epoch_ends`; `leader_epoch` is that of the range before the hole.
    """
    end = fn.coalesce(fn.col("epoch_end") - 1, fn.col("last_offset"))
    alive = covered.filter("epoch_end IS NULL OR first_offset < epoch_end").withColumn(
        "last_offset", fn.least("last_offset", end)
    )
    ordered = Window.partitionBy("topic_id", "partition").orderBy("first_offset", "last_offset")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    furthest = fn.max(fn.struct("last_offset", "leader_epoch")).over(before)
    return (
        alive.withColumn("furthest", furthest)
        .filter("first_offset > furthest.last_offset + 1")
        .select(
            "topic_id",
            "partition",
            fn.col("furthest.leader_epoch").alias("leader_epoch"),
            (fn.col("furthest.last_offset") + 1).alias("first_offset"),
            (fn.col("first_offset") - 1).alias("last_offset"),
        )
    )


# Chains.


@dataclass(frozen=True, slots=True)
class Chains:
    """The ranges of each partition's leader epochs, and their gaps, made by `chains_of`."""

    covered: "DataFrame"
    """Ranges with `epoch_end` and `succeeded_ms`."""
    twice: "DataFrame"
    """Ranges that are in two objects."""
    gaps: "DataFrame"
    """Ranges in neither a combined segment nor the archive, without those that agents declared as no loss."""
    archived: "DataFrame"
    """The ranges of committed archive objects: RANGES_SCHEMA."""
    dead: "DataFrame"
    """Entries that reach beyond their epoch's end: ENTRIES without the time, with `epoch_end` and `succeeded_ms`."""


def chains_of(history: History) -> Chains:
    """Compute the chains and write them beside the run's tables: several findings and the next run read
    them.
    """
    declared = history.keep("declared", _declared_of(history))
    ranges = ranges_of(history.entries)
    if history.last is not None:
        ranges = union(ranges, history.table("chains", run_id=history.last.run_id).select(*RANGE_COLUMNS))
    # The next step uses each of these several times; unless kept, it would be computed again from the entries each
    # time.
    merged = history.keep("merged_ranges", merged_ranges(history.keep("ranges", ranges)))
    covered = with_epoch_ends(merged.filter("NOT is_twice"))
    chains = history.keep("chains", union(covered, merged.filter("is_twice")))
    known = chains.filter("NOT is_twice")
    dead = history.keep("dead", _dead(history, known))
    spans = history.archive.filter("state = 1").select(
        "topic_id", "partition", fn.inline("spans"), fn.col("finished_ms").alias("first_event_ms")
    )
    archived = history.keep("archived_ranges", joined_ranges(spans))
    held = known if archived.isEmpty() else with_epoch_ends(joined_ranges(known, archived))
    accounted = held if declared.isEmpty() else union(held, no_loss_within(held, declared))
    return Chains(known, chains.filter("is_twice"), gaps(accounted), archived, dead)


def known_ranges(history: History) -> "DataFrame":
    """Return the ranges that objects hold by this run, those before it, and the archive. Call it after `chains_of`.

    They have the columns of `Chains.covered`. An epoch's end is known for combined segments only.
    """
    return union(history.table("chains").filter("NOT is_twice"), history.table("archived_ranges", RANGES_SCHEMA))


def _dead(history: History, covered: "DataFrame") -> "DataFrame":
    ends = small_side(
        covered.filter("last_offset >= epoch_end").select(*EPOCH_KEY, "epoch_end", "succeeded_ms").distinct()
    ).frame
    found = _reaching_beyond(history.entries, ends)
    if history.last is None:
        return found
    before = history.table("chains", run_id=history.last.run_id).filter("NOT is_twice")
    moved = ends.join(before, [*EPOCH_KEY, "epoch_end"], "left_anti")
    held = before.select(*EPOCH_KEY, fn.col("last_offset").alias("held_to"))
    # What an epoch's end cuts off is of this run, unless what was known before it reached as far.
    cut = small_side(moved.join(held, list(EPOCH_KEY)).filter("held_to >= epoch_end").select(*ends.columns).distinct())
    found = union(found, history.table("dead", run_id=history.last.run_id))
    if not cut.is_empty:
        found = union(found, _reaching_beyond(history.entries_of_all_runs(), cut.frame))
    newest = fn.min("epoch_end").alias("epoch_end"), fn.min("succeeded_ms").alias("succeeded_ms")
    living = of_segments(history.segments.filter("state < 2"), found)
    return living.groupBy(*_DEAD_COLUMNS).agg(*newest)


def _reaching_beyond(entries: "DataFrame", ends: "DataFrame") -> "DataFrame":
    reaching = entries.join(ends, list(EPOCH_KEY)).filter("last_offset >= epoch_end")
    return reaching.select(*_DEAD_COLUMNS, "epoch_end", "succeeded_ms")


# Declarations.


def _declared_of(history: History) -> "DataFrame":
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
        "topic_id", "partition", fn.coalesce("log_start_offset", fn.lit(0)).alias("log_start_offset")
    )
    return declared.join(fn.broadcast(starts), ["topic_id", "partition"]).filter("last_offset >= log_start_offset")


def no_loss_within(held: "DataFrame", declared: "DataFrame") -> "DataFrame":
    """Return the declared ranges that lie between the first and the last offset that the partition has in `held`.

    Both are ranges as `with_epoch_ends` returns them.
    """
    logs = held.groupBy("topic_id", "partition").agg(
        fn.min("first_offset").alias("held_from"), fn.max(fn.expr("least(last_offset, epoch_end - 1)")).alias("held_to")
    )
    return (
        no_loss(held, declared)
        .join(logs, ["topic_id", "partition"])
        .withColumn("first_offset", fn.greatest("first_offset", "held_from"))
        .withColumn("last_offset", fn.least("last_offset", "held_to"))
        .filter("first_offset <= last_offset")
        .select(*EPOCH_KEY, "first_offset", "last_offset", fn.lit(None).cast("long").alias("epoch_end"))
    )


def no_loss(held: "DataFrame", declared: "DataFrame") -> "DataFrame":
    """Return each declaration (DECLARED) as far as it counts: up to the first epoch in `held` that is newer than the
    declarer's."""
    epochs = held.groupBy(*EPOCH_KEY).agg(fn.min("first_offset").alias("start"))
    logs = epochs.groupBy("topic_id", "partition").agg(
        fn.collect_list(fn.struct(fn.col("leader_epoch").alias("epoch"), "start")).alias("epochs")
    )
    newer = "array_min(transform(filter(epochs, e -> e.epoch > leader_epoch), e -> e.start))"
    of_reason = Window.partitionBy("topic_id", "partition", "reason")
    return (
        declared.join(logs, ["topic_id", "partition"], "left")
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
