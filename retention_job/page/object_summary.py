"""Summarises sizes of objects and the upload lag for the bars of a report."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.page.report_data import Bar, Objects, PartitionLag
from retention_job.schemas import EPOCH_KEY
from retention_job.tables.chains import known_ranges
from retention_job.tables.coverage import joined_ranges
from retention_job.tables.declared import no_loss, not_wanted_offsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from retention_job.tables.history import History

_PARTITION: Final = ("topic_id", "partition")
_LAGS: Final = 20
_MAX_LOG2: Final = 40


def summarise_objects(history: "History") -> Objects:
    """Summarise all objects that are stored according to metadata."""
    stored = history.segments.where("state IN (1, 2) AND size_bytes >= 0")
    return Objects(
        _sizes(stored),
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
    """Return the smallest size of a bar, 2**power bytes."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    return f"{2 ** (power % 10)} {units[power // 10]}"


def _counted(stored: "DataFrame", by: "Column") -> "list[Row]":
    counted = stored.groupBy(by).agg(fn.count("*").alias("count"), fn.sum("size_bytes").alias("bytes"))
    return list(counted.collect())


def _lags(history: "History") -> list[PartitionLag]:
    """Return the lags, by all that objects were ever known to hold and all that was declared as no loss, in any run."""
    held = known_ranges(history).select(*EPOCH_KEY, "first_offset", "last_offset", "epoch_end")
    stored = held.groupBy(*_PARTITION).agg(
        (fn.max(fn.expr("least(last_offset, epoch_end - 1)")) + 1).alias("stored_up_to")
    )
    enabled = history.topics.where("is_enabled").select("topic_id", "topic")
    ends = history.partitions.where("log_end_offset IS NOT NULL")
    tails = ends.join(fn.broadcast(enabled), "topic_id").join(stored, list(_PARTITION), "left")
    tails = tails.withColumn("tail_from", fn.expr("greatest(log_start_offset, coalesce(stored_up_to, 0))"))
    no_one_wants = joined_ranges(no_loss(held, history.declared).withColumn("leader_epoch", fn.lit(0)))
    left_out = (
        tails.join(no_one_wants.select(*_PARTITION, "first_offset", "last_offset"), list(_PARTITION))
        .withColumn("first_offset", fn.greatest("first_offset", "tail_from"))
        .withColumn("last_offset", fn.expr("least(last_offset, log_end_offset - 1)"))
        .where("first_offset <= last_offset")
        .groupBy(*_PARTITION)
        .agg(fn.sum(fn.expr("last_offset + 1 - first_offset")).alias("left_out"))
    )
    known = tails.join(left_out, list(_PARTITION), "left").withColumn("left_out", fn.coalesce("left_out", fn.lit(0)))
    behind = fn.expr("log_end_offset - tail_from - left_out")
    rows = known.where(behind > 0).orderBy(behind.desc(), "topic", "partition").limit(_LAGS)
    found = rows.select("topic", "partition", "log_end_offset", "stored_up_to", "left_out", behind.alias("behind"))
    return [
        PartitionLag(
            row.topic,
            row.partition,
            row.log_end_offset,
            row.stored_up_to,
            row.left_out,
            None if row.stored_up_to is None and not row.left_out else row.behind,
        )
        for row in found.collect()
    ]
