"""Computes the leader-epoch chains of all partitions, and what elections killed, over all runs so far.

A run merges the ranges of its own entries with those of the run before, so an incremental run shuffles only its own
ranges and the merged ones, which are few. An entry that a later epoch made dead may be from any run; older runs'
entries are searched only for partitions with an epoch whose end has changed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.schemas import EPOCH_KEY, SEGMENT_KEY
from retention_job.spark.joins import of_segments, small_side, union
from retention_job.tables.coverage import (
    RANGE_COLUMNS,
    RANGES_SCHEMA,
    gaps,
    joined_ranges,
    merged_ranges,
    ranges_of,
    with_epoch_ends,
)
from retention_job.tables.declared import no_loss_within
from retention_job.tables.history import History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEAD_COLUMNS: Final = (*SEGMENT_KEY, *EPOCH_KEY, "first_offset", "last_offset", "start_position", "end_position")


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains, made by `chains_of`."""

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
    archived = history.keep("archived_ranges", joined_ranges(_archived_spans(history.archive)))
    held = known if archived.isEmpty() else with_epoch_ends(joined_ranges(known, archived))
    accounted = held if history.declared.isEmpty() else union(held, no_loss_within(held, history.declared))
    return Chains(known, chains.filter("is_twice"), gaps(accounted), archived, dead)


def known_ranges(history: History) -> "DataFrame":
    """Return the ranges that objects hold by this run and those before it, and the archive's. Call after `chains_of`.

    They have the columns of `Chains.covered`. An epoch's end is known for combined segments only.
    """
    return union(history.table("chains").filter("NOT is_twice"), history.table("archived_ranges", RANGES_SCHEMA))


def _archived_spans(archive: "DataFrame") -> "DataFrame":
    """Return committed objects' (topic_id, partition, leader_epoch, first_offset, last_offset, first_event_ms)."""
    spans = archive.filter("state = 1").select(
        "topic_id", "partition", fn.explode("spans").alias("span"), fn.col("finished_ms").alias("first_event_ms")
    )
    return spans.select("topic_id", "partition", "span.*", "first_event_ms")


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
