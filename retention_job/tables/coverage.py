"""Finds the offsets of each leader epoch that are in objects, from millions of entries, by numpy within each batch.

Entries come nearly in the order of their logs, so most entries of a batch are neighbours. A batch is therefore first
merged into runs without a hole, per partition and leader epoch, and only those runs are shuffled: some thousands
instead of millions of entries. A partition with nine tenths of all entries becomes a few long runs, so skew makes the
job faster, not slower. Nothing is lost: an offset is in two objects exactly when two entries of one batch hold it
(found in that batch) or two runs do (found when runs are merged).
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as fn

from retention_job.schemas import EPOCH_KEY
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROWS_AT_ONCE: Final = 400_000
_COLUMNS: Final = ("topic_id", "partition", "leader_epoch", "first_offset", "last_offset", "event_timestamp_ms")

RANGES_SCHEMA: Final = (
    "is_twice BOOLEAN, topic_id BINARY, partition INT, leader_epoch INT, first_offset LONG, last_offset LONG, "
    "first_event_ms LONG"
)
RANGE_COLUMNS: Final = tuple(column.split()[0] for column in RANGES_SCHEMA.split(", "))


def ranges_of(entries: "DataFrame") -> "DataFrame":
    """Return RANGES_SCHEMA by batch: the offsets in an object and, with `is_twice`, those in two."""
    return entries.select(*_COLUMNS).mapInArrow(merge_batches, RANGES_SCHEMA)


def merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the work of `ranges_of` over Arrow batches."""
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
    yield _ranges(
        False,
        chosen.take(pa.array(begins)),
        (partition & 0xFFFFFFFF)[begins],
        epoch[begins],
        first[begins],
        np.maximum.reduceat(last, begins),
        np.minimum.reduceat(event_ms, begins),
    )
    twice = np.flatnonzero(~is_first & (first <= reached))
    if len(twice):
        yield _ranges(
            True,
            chosen.take(pa.array(twice)),
            (partition & 0xFFFFFFFF)[twice],
            epoch[twice],
            first[twice],
            np.minimum(last, reached)[twice],
            event_ms[twice],
        )


def _reached_before(group: Any, last: Any) -> Any:
    """Return per row the highest last offset among earlier rows of its group; anything for a group's first row.

    Ranks of a later group are above all those of earlier ones, so one running maximum serves all groups.
    """
    by_rank = np.lexsort((last, group))
    rank = np.empty(len(last), dtype=np.int64)
    rank[by_rank] = np.arange(len(last))
    highest = last[by_rank[np.maximum.accumulate(rank)]]
    return np.concatenate((highest[:1], highest[:-1]))


def _ranges(is_twice: bool, topic_ids: Any, *numbers: Any) -> pa.RecordBatch:
    partition, epoch, first, last, event_ms = numbers
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(is_twice, len(first)),
            topic_ids.cast(pa.binary()),
            pa.array(partition, pa.int32()),
            pa.array(epoch, pa.int32()),
            pa.array(first, pa.int64()),
            pa.array(last, pa.int64()),
            pa.array(event_ms, pa.int64()),
        ],
        names=list(RANGE_COLUMNS),
    )


def merged_ranges(ranges: "DataFrame") -> "DataFrame":
    """Return RANGES_SCHEMA with the longest ranges, each kind for itself; the part that two ranges share is
    `is_twice`.
    """
    covered = ranges.filter("NOT is_twice")
    before = Window.partitionBy(*EPOCH_KEY).orderBy("first_offset", "last_offset")
    reached = fn.max("last_offset").over(before.rowsBetween(Window.unboundedPreceding, -1))
    shared = covered.withColumn("reached", reached).filter("first_offset <= reached")
    twice = shared.withColumn("last_offset", fn.least("last_offset", "reached")).drop("reached")
    twice = union(ranges.filter("is_twice"), twice.withColumn("is_twice", fn.lit(True)))
    return union(_as_long_as_can_be(covered), _as_long_as_can_be(twice))


def _as_long_as_can_be(ranges: "DataFrame") -> "DataFrame":
    before = Window.partitionBy(*EPOCH_KEY).orderBy("first_offset", "last_offset")
    reached = fn.max("last_offset").over(before.rowsBetween(Window.unboundedPreceding, -1))
    begins = fn.coalesce((fn.col("first_offset") > reached + 1).cast("int"), fn.lit(1))
    return (
        ranges.withColumn("begins", begins)
        .withColumn("run", fn.sum("begins").over(before.rowsBetween(Window.unboundedPreceding, 0)))
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
    furthest: Column = fn.max(fn.struct("last_offset", "leader_epoch")).over(before)
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
