"""What archive objects were written and stored, by topic, broker and day.

An archive object belongs to one topic, so nothing is shared out. It is one PUT, on the day of its commit, where the run
read that it was prepared: a commit is published again later, a preparation never is. It is stored from its writing on
(from its commit where no inventory tells that), and counts only within the time that the run is of, as it may be much
older than all else that the run knows.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.storage_days import byte_ms_by_day, life_days, life_sums
from retention_job.usage_table import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE_AMOUNTS: Final = ("archive_objects", "archive_puts", "archive_upload_bytes", "archive_stored_byte_ms")


def archive_by_topic(archive: "DataFrame", now_ms: int, since_ms: int) -> "DataFrame":
    """(topic_id, broker_id, day, ARCHIVE_AMOUNTS) of `schemas.ARCHIVE_OBJECTS`; `broker_id` is the writer's.

    Storage counts from `since_ms` until `now_ms`.
    """
    committed = archive.where("state >= 1 AND finished_ms IS NOT NULL AND size_bytes IS NOT NULL")
    made = committed.where("is_new AND started_ms IS NOT NULL").groupBy(
        "topic_id", "broker_id", fn.floor(fn.col("finished_ms") / DAY_MS).cast("int").alias("day")
    ).agg(
        fn.count("*").alias("archive_objects"),
        fn.count("*").alias("archive_puts"),
        fn.sum("size_bytes").alias("archive_upload_bytes"),
    )  # fmt: skip
    written = fn.least(fn.col("finished_ms"), fn.coalesce("stored_ms", "finished_ms"))
    start, end = fn.greatest(written, fn.lit(since_ms)), fn.coalesce("deleted_ms", fn.lit(now_ms))
    grouped = committed.groupBy("topic_id", "broker_id", *life_days(start, end)).agg(
        *life_sums(start, end, fn.col("size_bytes"))
    )
    stored = byte_ms_by_day(grouped, ["topic_id", "broker_id"])
    return made.unionByName(
        stored.withColumnRenamed("stored_byte_ms", "archive_stored_byte_ms"), allowMissingColumns=True
    )
