"""Sizes and ages of objects, upload times, and how far uploads are behind: from the tables to a report's bars."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.cost.usage_table import DAY_MS
from retention_job.page.report_data import Bar, Objects, PartitionLag, UploadTimes
from retention_job.tables.declared import not_wanted_offsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from retention_job.tables.history import History

_AGES_MS: Final = (
    ("< 1 min", 60_000), ("< 10 min", 600_000), ("< 1 h", 3_600_000), ("< 6 h", 21_600_000), ("< 1 d", DAY_MS),
    ("< 2 d", 2 * DAY_MS), ("< 4 d", 4 * DAY_MS), ("< 8 d", 8 * DAY_MS),
)  # fmt: skip
_OLDEST: Final = "older"
_LAGS: Final = 20
_MAX_LOG2: Final = 40


def summarise_objects(history: "History", now_ms: int) -> Objects:
    """Of all objects that are stored as far as metadata tells, and of the uploads that this run read."""
    stored = history.segments.where("state IN (1, 2) AND size_bytes >= 0")
    return Objects(
        _sizes(stored),
        _ages(stored, now_ms),
        _upload_times(history.segments),
        _lags(history),
        not_wanted_offsets(history),
    )


def _sizes(stored: "DataFrame") -> list[Bar]:
    power = fn.least(fn.floor(fn.log2(fn.greatest(fn.col("size_bytes"), fn.lit(1)))), fn.lit(_MAX_LOG2)).cast("int")
    rows = {row.power: row for row in _counted(stored, power.alias("power"))}
    if not rows:
        return []
    return [
        Bar(size_label(power), rows[power]["count"] if power in rows else 0, rows[power].bytes if power in rows else 0)
        for power in range(min(rows), max(rows) + 1)
    ]


def size_label(power: int) -> str:
    """The least size of a bar, 2**power bytes."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    return f"{2 ** (power % 10)} {units[power // 10]}"


def _ages(stored: "DataFrame", now_ms: int) -> list[Bar]:
    age = fn.lit(now_ms) - fn.coalesce("finished_ms", "started_ms")
    bar: Column = fn.lit(_OLDEST)
    for label, below_ms in reversed(_AGES_MS):
        bar = fn.when(age < below_ms, fn.lit(label)).otherwise(bar)
    rows = {row.age: row for row in _counted(stored, bar.alias("age"))}
    labels = [label for label, _ in _AGES_MS] + [_OLDEST]
    return [Bar(label, rows[label]["count"] if label in rows else 0, rows[label].bytes if label in rows else 0)
            for label in labels] if rows else []  # fmt: skip


def _counted(stored: "DataFrame", by: "Column") -> "list[Row]":
    counted = stored.groupBy(by).agg(fn.count("*").alias("count"), fn.sum("size_bytes").alias("bytes"))
    return list(counted.collect())


def _upload_times(segments: "DataFrame") -> list[UploadTimes]:
    took = (fn.col("finished_ms") - fn.col("started_ms")).alias("took")
    day = fn.floor(fn.col("finished_ms") / DAY_MS).cast("int").alias("day")
    both = segments.where("is_new AND started_ms IS NOT NULL AND finished_ms >= started_ms").select(day, took)
    rows = both.groupBy("day").agg(
        fn.count("*").alias("objects"),
        fn.percentile_approx("took", [0.5, 0.99], 1000).alias("quantiles"),
        fn.max("took").alias("longest"),
    ).orderBy("day").collect()  # fmt: skip
    return [
        UploadTimes(row.day, row.objects, float(row.quantiles[0]), float(row.quantiles[1]), float(row.longest))
        for row in rows
    ]


def _lags(history: "History") -> list[PartitionLag]:
    """Of an incremental run, only partitions with new entries are known."""
    stored = history.entries.groupBy("topic_id", "partition").agg((fn.max("last_offset") + 1).alias("stored_up_to"))
    enabled = history.topics.where("is_enabled").select("topic_id", "topic")
    ends = history.partitions.where("log_end_offset IS NOT NULL").select("topic_id", "partition", "log_end_offset")
    how = "inner" if history.read.is_incremental else "left"
    known = ends.join(fn.broadcast(enabled), "topic_id").join(stored, ["topic_id", "partition"], how)
    behind = fn.col("log_end_offset") - fn.coalesce("stored_up_to", fn.lit(0))
    rows = known.where(behind > 0).orderBy(behind.desc(), "topic", "partition").limit(_LAGS).collect()
    return [PartitionLag(row.topic, row.partition, row.log_end_offset, row.stored_up_to) for row in rows]
