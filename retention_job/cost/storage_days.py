"""Turns bytes over life times into byte-milliseconds of each day, without a row for each object and day.

The overlap of [start, end) with a day is linear in start and end, so it may be summed first: a group of objects that
begin on one day and end on another needs its bytes, and its bytes times the offsets of start and end in their days.
Days between count in full. So millions of objects become one row for each pair of days, and only those are spread.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.cost.usage_table import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DAY: Final = 1.0 * DAY_MS


def life_days(start_ms: "Column", end_ms: "Column") -> "list[Column]":
    """Return the columns to group by, besides one's own keys: `first_day` and `last_day` of a life."""
    return [_day_of(start_ms).alias("first_day"), _day_of(end_ms).alias("last_day")]


def life_sums(start_ms: "Column", end_ms: "Column", size_bytes: "Column") -> "list[Column]":
    """Return the aggregates of these groups: `life_bytes`, `life_start`, `life_end`.

    A life that ends before it begins (by the clocks of two agents) counts as none.
    """
    size = fn.when(end_ms > start_ms, size_bytes.cast("double")).otherwise(fn.lit(0.0))
    return [
        fn.sum(size).alias("life_bytes"),
        fn.sum(size * (start_ms - _day_of(start_ms) * _DAY)).alias("life_start"),
        fn.sum(size * (end_ms - _day_of(end_ms) * _DAY)).alias("life_end"),
    ]


def byte_ms_by_day(grouped: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """Return (keys, day, stored_byte_ms) of rows with `life_days` and `life_sums`."""
    day = fn.col("day")
    until = fn.when(day == fn.col("last_day"), fn.col("life_end")).otherwise(fn.col("life_bytes") * _DAY)
    since = fn.when(day == fn.col("first_day"), fn.col("life_start")).otherwise(fn.lit(0.0))
    return (
        grouped.where("life_bytes > 0")
        .withColumn("day", fn.explode(fn.sequence("first_day", "last_day")))
        .groupBy(*keys, "day")
        .agg(fn.sum(until - since).alias("stored_byte_ms"))
    )


def _day_of(ms: "Column") -> "Column":
    return fn.floor(ms / DAY_MS).cast("int")
