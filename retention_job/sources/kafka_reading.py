"""Topics through Spark's Kafka connector, between offsets that are known before the reading begins."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from retention_job.settings import KafkaSource
from retention_job.sources.kafka_cluster import Cluster, read_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORDS_PER_TASK: Final = 250_000
"""So that a long partition is not one task. A short one is, as each begins with a dozen round trips of its consumer."""
FETCHING: Final = {
    "kafka.allow.auto.create.topics": "false",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.min.bytes": str(1024 * 1024),
    "kafka.fetch.max.wait.ms": "100",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}

RAW_COLUMNS: Final = "key BINARY, value BINARY, partition INT, offset LONG, timestamp_ms LONG"


class Kafka:
    """What is asked of the cluster: by the admin client, and by Spark's connector."""

    def cluster(self, source: KafkaSource, /) -> Cluster:
        """Topics, settings and offsets, as they are now. Raises SourceError."""
        return read_cluster(source)

    def topic(
        self,
        spark: "SparkSession",
        source: KafkaSource,
        topic: str,
        starting: Mapping[int, int],
        ending: Mapping[int, int],
        /,
    ) -> "DataFrame":
        """A topic's records between offsets: RAW_COLUMNS."""
        return read_topic(spark, source, topic, starting, ending)


def read_topic(
    spark: "SparkSession", source: KafkaSource, topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
) -> "DataFrame":
    """The records [starting, ending) of each partition: RAW_COLUMNS."""
    records = sum(max(0, end - starting.get(partition, 0)) for partition, end in ending.items())
    if not records:
        return spark.createDataFrame([], RAW_COLUMNS)
    reader = spark.read.format("kafka").options(**FETCHING)
    for name, value in source.client_properties.items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("kafka.bootstrap.servers", source.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", _as_json(topic, starting))
        .option("endingOffsets", _as_json(topic, ending))
        .option("maxRecordsPerPartition", str(_RECORDS_PER_TASK))
        # What the topic's own retention removes while it is read is gone; it is not an error.
        .option("failOnDataLoss", "false")
        .load()
        .selectExpr("key", "value", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
    )


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
