"""The tables that runs leave lie above each other, as many as there are."""

from unittest.mock import patch

from pyspark.sql import SparkSession

from retention_job.spark.joins import small_side
from retention_job.tables.objects import COMBINED_SEGMENT, topmost


def test_the_newest_row_of_an_object_counts_and_keys_come_to_the_driver_once(spark: SparkSession) -> None:
    told = {"newest": (5, 7), "middle": (5, 3), "oldest": (7, 3, 1)}
    layers = [
        spark.createDataFrame(
            [(1, 1, sequence, name) for sequence in of], "broker_id INT, incarnation LONG, sequence LONG, by STRING"
        )
        for name, of in told.items()
    ]
    with patch("retention_job.tables.objects.small_side", side_effect=small_side) as taken:
        found = {row.sequence: row.by for row in topmost(COMBINED_SEGMENT, layers).collect()}
    assert found == {5: "newest", 7: "newest", 3: "middle", 1: "oldest"}
    assert taken.call_count == 1
