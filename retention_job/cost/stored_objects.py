"""Amounts of objects written and stored, by topic, broker and day.

A combined segment's PUT, upload and storage are shared out by the bytes of its entries, and count once for each bucket
that holds a copy; a segment without entries here, such as one of earlier runs, has no topic. Records that a segment
names in gateways' objects are stored as long as the segment, once; their PUT and upload are the gateway's, in the usage
records.

An archive object belongs to one topic, so nothing is shared out. It counts as written, on the day of its commit, if the
run read that it was prepared: a commit is published again later, a preparation never is. It counts as stored from its
writing on (from its commit if no inventory has it), and only within the time that the run covers, because it may be
much older than everything else that the run knows.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from retention_job.cost.storage_days import byte_ms_by_day, life_days, life_sums
from retention_job.cost.usage_table import DAY_MS
from retention_job.schemas import SEGMENT_KEY
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WRITTEN: Final = ("objects", "puts", "upload_bytes", "copied_bytes")
_BY: Final = ("topic_id", "broker_id")
ARCHIVE_AMOUNTS: Final = ("archive_objects", "archive_puts", "archive_upload_bytes", "archive_stored_byte_ms")


def segments_by_topic(segments: "DataFrame", entries: "DataFrame", now_ms: int, counted_until_ms: int) -> "DataFrame":
    """Return (topic_id, broker_id, day, objects, puts, upload_bytes, copied_bytes, stored_byte_ms) of SEGMENTS and
    ENTRIES.

    Storage counts from `counted_until_ms` until `now_ms`. `entries` is shuffled once, by object.
    """
    shares = (
        entries.select(*SEGMENT_KEY, "topic_id", (fn.col("end_position") - fn.col("start_position")).alias("b"))
        .repartition(*SEGMENT_KEY)
        .groupBy(*SEGMENT_KEY, "topic_id")
        .agg(fn.sum("b").alias("entry_bytes"))
    )
    finished = segments.where("state >= 1 AND finished_ms IS NOT NULL").select(
        *SEGMENT_KEY,
        "finished_ms",
        "deleted_ms",
        "size_bytes",
        "is_new",
        fn.coalesce("copies", fn.lit(1)).alias("copies"),
        fn.coalesce("elsewhere_bytes", fn.lit(0)).alias("elsewhere_bytes"),
    )
    of_object = fn.sum("entry_bytes").over(Window.partitionBy(*SEGMENT_KEY))
    share = fn.coalesce(fn.col("entry_bytes") / of_object, fn.lit(1.0))
    size = fn.coalesce(fn.when(fn.col("size_bytes") >= 0, fn.col("size_bytes")), of_object, fn.lit(0))
    lives = finished.join(shares, list(SEGMENT_KEY), "left").select(
        *_BY,
        "finished_ms",
        "deleted_ms",
        "is_new",
        "copies",
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
        fn.lit(1).alias("copies"),
        fn.lit(0).alias("elsewhere_bytes"),
        fn.lit(1).alias("share"),
        fn.col("size_bytes").alias("bytes"),
        fn.least(fn.col("finished_ms"), fn.coalesce("stored_ms", "finished_ms")).alias("written_ms"),
    )
    found = _written_and_stored(lives, fn.greatest(fn.col("written_ms"), fn.lit(since_ms)), now_ms)
    return found.withColumnsRenamed({name: f"archive_{name}" for name in (*_WRITTEN, "stored_byte_ms")})


def _written_and_stored(lives: "DataFrame", start: "Column", now_ms: int) -> "DataFrame":
    """Return what was written and stored by the objects in `lives`, each stored from `start` on.

    The rows have `finished_ms`, `deleted_ms`, `is_new`, `copies`, `elsewhere_bytes`, and the `share` and `bytes` of one
    copy.
    """
    end = fn.coalesce("deleted_ms", fn.lit(now_ms))
    new = fn.col("is_new").cast("int")
    day = fn.floor(fn.col("finished_ms") / DAY_MS).cast("int")
    grouped = lives.groupBy(*_BY, day.alias("written_day"), *life_days(start, end)).agg(
        fn.sum(new).alias("objects"),
        fn.sum(new * fn.col("share") * fn.col("copies")).alias("puts"),
        fn.sum(new * fn.col("bytes") * fn.col("copies")).alias("upload_bytes"),
        fn.sum(new * fn.col("bytes") * (fn.col("copies") - 1)).alias("copied_bytes"),
        *life_sums(start, end, fn.col("bytes") * fn.col("copies") + fn.col("elsewhere_bytes")),
    ).cache()  # fmt: skip
    written = grouped.groupBy(*_BY, fn.col("written_day").alias("day")).agg(
        *(fn.sum(name).alias(name) for name in _WRITTEN)
    )
    return union(written.where("objects > 0"), byte_ms_by_day(grouped, _BY))
