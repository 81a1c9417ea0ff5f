"""Amounts of objects written and stored, by topic, broker and day.

A combined segment's PUT, upload and storage are shared out by the bytes of its entries, and count once for each bucket
that holds a copy; a segment without entries here, such as one of earlier runs, has no topic. Records that a segment
names in gateways' objects are stored as long as the segment, once; their PUT and upload are the gateway's, in the usage
records.

An archive object belongs to one topic, so nothing is shared out. It counts as written, on the day of its commit, if the
run read that it was prepared: a commit is published again later, a preparation never is. It counts as stored from its
writing on (from its commit if no listing has it), and only within the time that the run covers, because it may be
much older than everything else that the run knows.

Bytes over life times become byte-milliseconds of each day without a row for each object and day. The overlap of [start,
end) with a day is linear in start and end, so it may be summed first: a group of objects that begin on one day and end
on another needs its bytes, and its bytes times the offsets of start and end in their days. Days between count in full.
So millions of objects become one row for each pair of days, and only those are spread.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from plugin.prices import BYTES_PER_GB, STANDARD, PriceTable
from retention_job.cost.usage_table import DAY_MS
from retention_job.schemas import SEGMENT_KEY
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BYTE_MS_PER_GB_MONTH: Final = BYTES_PER_GB * 720 * 3_600_000.0
"""A month has 30 days, as in the price comparisons."""
_DAY: Final = 1.0 * DAY_MS
_WRITTEN: Final = ("objects", "puts", "upload_bytes")
_BY: Final = ("topic_id", "broker_id")
ARCHIVE_AMOUNTS: Final = ("archive_objects", "archive_puts", "archive_upload_bytes", "archive_stored_byte_ms")


def segments_by_topic(segments: "DataFrame", entries: "DataFrame", now_ms: int, counted_until_ms: int) -> "DataFrame":
    """Return (topic_id, broker_id, day, objects, puts, upload_bytes, stored_byte_ms) of SEGMENTS and
    ENTRIES.

    Storage counts from `counted_until_ms` until `now_ms`. `entries`, of new objects alone, is shuffled once, by object.
    """
    shares = (
        entries.select(*SEGMENT_KEY, "topic_id", (fn.col("end_position") - fn.col("start_position")).alias("b"))
        .repartition(*SEGMENT_KEY)
        .groupBy(*SEGMENT_KEY, "topic_id")
        .agg(fn.sum("b").alias("entry_bytes"))
        .withColumn("all_bytes", fn.sum("entry_bytes").over(Window.partitionBy(*SEGMENT_KEY)))
    )
    finished = segments.where("state >= 1 AND finished_ms IS NOT NULL").select(
        *SEGMENT_KEY,
        "finished_ms",
        "deleted_ms",
        "size_bytes",
        "is_new",
        fn.coalesce("elsewhere_bytes", fn.lit(0)).alias("elsewhere_bytes"),
    )
    share = fn.coalesce(fn.col("entry_bytes") / fn.col("all_bytes"), fn.lit(1.0))
    size = fn.coalesce(fn.when(fn.col("size_bytes") >= 0, fn.col("size_bytes")), fn.col("all_bytes"), fn.lit(0))
    # No entries are here of objects that are not new, which are many and so are not shuffled.
    shared = finished.where("is_new").join(shares, list(SEGMENT_KEY), "left")
    lives = union(shared, finished.where("NOT is_new")).select(
        *_BY,
        "finished_ms",
        "deleted_ms",
        "is_new",
        share.alias("share"),
        (share * size).alias("bytes"),
        (share * fn.col("elsewhere_bytes")).alias("elsewhere_bytes"),
    )
    return _written_and_stored(lives, fn.greatest(fn.col("finished_ms"), fn.lit(counted_until_ms)), now_ms)


def archive_by_topic(archive: "DataFrame", now_ms: int, since_ms: int) -> "DataFrame":
    """Return (topic_id, broker_id, day, ARCHIVE_AMOUNTS) of ARCHIVE_OBJECTS; `broker_id` is the writer's.

    Storage counts from `since_ms` until `now_ms`.
    """
    committed = archive.where("state >= 1 AND finished_ms IS NOT NULL AND size_bytes IS NOT NULL")
    lives = committed.select(
        *_BY,
        "finished_ms",
        "deleted_ms",
        (fn.col("is_new") & fn.col("started_ms").isNotNull()).alias("is_new"),
        fn.lit(0).alias("elsewhere_bytes"),
        fn.lit(1).alias("share"),
        fn.col("size_bytes").alias("bytes"),
        fn.least(fn.col("finished_ms"), fn.coalesce("stored_ms", "finished_ms")).alias("written_ms"),
    )
    found = _written_and_stored(lives, fn.greatest(fn.col("written_ms"), fn.lit(since_ms)), now_ms)
    return found.withColumnsRenamed({name: f"archive_{name}" for name in (*_WRITTEN, "stored_byte_ms")})


def _written_and_stored(lives: "DataFrame", start: "Column", now_ms: int) -> "DataFrame":
    """Return what was written and stored by the objects in `lives`, each stored from `start` on.

    The rows have `finished_ms`, `deleted_ms`, `is_new`, `elsewhere_bytes`, `share` and `bytes`.
    """
    end = fn.coalesce("deleted_ms", fn.lit(now_ms))
    new = fn.col("is_new").cast("int")
    grouped = lives.groupBy(*_BY, _day_of(fn.col("finished_ms")).alias("written_day"), *_life_days(start, end)).agg(
        fn.sum(new).alias("objects"),
        fn.sum(new * fn.col("share")).alias("puts"),
        fn.sum(new * fn.col("bytes")).alias("upload_bytes"),
        *_life_sums(start, end, fn.col("bytes") + fn.col("elsewhere_bytes")),
    ).cache()  # fmt: skip
    written = grouped.groupBy(*_BY, fn.col("written_day").alias("day")).agg(
        *(fn.sum(name).alias(name) for name in _WRITTEN)
    )
    return union(written.where("objects > 0"), _byte_ms_by_day(grouped, _BY))


def tiered_cost(tiered: "DataFrame", prices: PriceTable, now_ms: int, since_ms: int = 0) -> "DataFrame":
    """Return (topic_id, day, stored_byte_ms, storage_usd): KIP-405's storage, which stock Kafka pays as well."""
    start, end = fn.greatest(fn.col("finished_ms"), fn.lit(since_ms)), fn.coalesce("deleted_ms", fn.lit(now_ms))
    lives = tiered.where("finished_ms is not null and size_bytes is not null")
    grouped = lives.groupBy("topic_id", *_life_days(start, end)).agg(*_life_sums(start, end, fn.col("size_bytes")))
    rate = prices.usd(STANDARD, "storage_gb_month") / BYTE_MS_PER_GB_MONTH
    return _byte_ms_by_day(grouped, ["topic_id"]).withColumn("storage_usd", fn.col("stored_byte_ms") * rate)


def _life_days(start_ms: "Column", end_ms: "Column") -> "list[Column]":
    """Return the columns to group by, besides one's own keys: `first_day` and `last_day` of a life."""
    return [_day_of(start_ms).alias("first_day"), _day_of(end_ms).alias("last_day")]


def _life_sums(start_ms: "Column", end_ms: "Column", size_bytes: "Column") -> "list[Column]":
    """Return the aggregates of these groups: `life_bytes`, `life_start`, `life_end`.

    A life that ends before it begins (by the clocks of two agents) counts as none.
    """
    size = fn.when(end_ms > start_ms, size_bytes.cast("double")).otherwise(fn.lit(0.0))
    return [
        fn.sum(size).alias("life_bytes"),
        fn.sum(size * (start_ms - _day_of(start_ms) * _DAY)).alias("life_start"),
        fn.sum(size * (end_ms - _day_of(end_ms) * _DAY)).alias("life_end"),
    ]


def _byte_ms_by_day(grouped: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """Return (keys, day, stored_byte_ms) of rows with `_life_days` and `_life_sums`."""
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
