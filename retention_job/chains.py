"""The leader-epoch chains of all partitions, and what an election killed, over all runs so far.

A run merges what its entries cover with what the run before knew, so an incremental run shuffles its own ranges and the
merged ones of before, which are few. An entry that a later epoch made dead may be of any run; older runs' entries are
looked through only for partitions in which an epoch ends elsewhere than the run before knew.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retention_job.archive_table import archived_spans
from retention_job.coverage import RANGES_SCHEMA, gaps, joined_ranges, merged_ranges, ranges_of, with_epoch_ends
from retention_job.history import History
from retention_job.joins import of_segments, small_side
from retention_job.schemas import SEGMENT_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHAIN: Final = ("topic_id", "partition", "leader_epoch")
_DEAD_COLUMNS: Final = (*SEGMENT_KEY, *_CHAIN, "first_offset", "last_offset", "start_position", "end_position")


@dataclass(frozen=True, slots=True)
class Chains:
    """Made by `chains_of`."""

    covered: "DataFrame"
    """Ranges with `epoch_end` and `succeeded_ms`."""
    twice: "DataFrame"
    """Ranges that are in two objects."""
    gaps: "DataFrame"
    """What neither a combined segment nor the archive holds."""
    archived: "DataFrame"
    """RANGES_SCHEMA: what committed archive objects hold."""
    dead: "DataFrame"
    """Entries that reach beyond their epoch's end, as ENTRIES less the time, with `epoch_end` and `succeeded_ms`."""


def chains_of(history: History) -> Chains:
    """Written down beside the run's tables, as several findings and the next run read them."""
    spark, state, run_id, last = history.spark, history.state, history.run_id, history.last
    ranges = ranges_of(history.entries)
    if last is not None:
        ranges = ranges.unionByName(spark.read.parquet(state.path_of(last.run_id, "chains")).select(*_range_columns()))
    path = state.path_of(run_id, "chains")
    # Each step is used several times by the next one, and would be computed anew each time, from the entries on.
    merged = _written(history, "merged_ranges", merged_ranges(_written(history, "ranges", ranges)))
    covered = with_epoch_ends(merged.filter("NOT is_twice"))
    covered.unionByName(merged.filter("is_twice"), allowMissingColumns=True).write.parquet(path)
    chains = spark.read.parquet(path)
    known = chains.filter("NOT is_twice")
    dead_path = state.path_of(run_id, "dead")
    _dead(history, known).write.parquet(dead_path)
    archived_path = state.path_of(run_id, "archived_ranges")
    spans = archived_spans(history.archive)
    joined_ranges(spans, spans.limit(0)).write.parquet(archived_path)
    archived = spark.read.schema(RANGES_SCHEMA).parquet(archived_path)
    held = known if archived.isEmpty() else with_epoch_ends(joined_ranges(known, archived))
    return Chains(known, chains.filter("is_twice"), gaps(held), archived, spark.read.parquet(dead_path))


def _written(history: History, name: str, frame: "DataFrame") -> "DataFrame":
    path = history.state.path_of(history.run_id, name)
    frame.write.parquet(path)
    return history.spark.read.schema(RANGES_SCHEMA).parquet(path)


def _range_columns() -> list[str]:
    return [column.split()[0] for column in RANGES_SCHEMA.split(", ")]


def _dead(history: History, covered: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    ends = covered.filter("last_offset >= epoch_end").select(*_CHAIN, "epoch_end", "succeeded_ms").distinct()
    found = _reaching_beyond(history.entries, ends)
    if history.last is None:
        return found
    state, last = history.state, history.last
    before = history.spark.read.parquet(state.path_of(last.run_id, "chains")).filter("epoch_end IS NOT NULL")
    moved = ends.join(
        before.select(*_CHAIN, "epoch_end").distinct(), [*_CHAIN, "epoch_end"], "left_anti"
    ).localCheckpoint()
    older = history.spark.read.parquet(state.path_of(last.run_id, "dead"))
    found = found.unionByName(older)
    if not moved.isEmpty():
        found = found.unionByName(_reaching_beyond(history.entries_of_all_runs(), moved))
    newest = f.min("epoch_end").alias("epoch_end"), f.min("succeeded_ms").alias("succeeded_ms")
    living = of_segments(history.segments.filter("state < 2"), found)
    return living.groupBy(*_DEAD_COLUMNS).agg(*newest)


def _reaching_beyond(entries: "DataFrame", ends: "DataFrame") -> "DataFrame":
    reaching = entries.join(small_side(ends), list(_CHAIN)).filter("last_offset >= epoch_end")
    return reaching.select(*_DEAD_COLUMNS, "epoch_end", "succeeded_ms")
