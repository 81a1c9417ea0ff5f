"""Reads topics through Spark's Kafka connector, between offsets that are known before the reading begins."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from retention_job.settings import KafkaSource
from retention_job.sources.kafka_cluster import Cluster, read_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORDS_PER_TASK: Final = 250_000
"""Limits a task, so that a long partition is several tasks. A short one is one, as each costs a dozen round trips."""
FETCHING: Final = {
    "kafka.allow.auto.create.topics": "false",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.min.bytes": str(1024 * 1024),
    "kafka.fetch.max.wait.ms": "100",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}

RAW_COLUMNS: Final = "key BINARY, value BINARY, partition INT, offset LONG, timestamp_ms LONG"


class Kafka:
    """The job's questions to the cluster, by the admin client and by Spark's connector."""

    def cluster(self, source: KafkaSource, /) -> Cluster:
        """Return topics, settings and offsets as they are now. Raises SourceError."""
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
        """Return a topic's records between offsets: RAW_COLUMNS."""
        return read_topic(spark, source, topic, starting, ending)


def read_topic(
    spark: "SparkSession", source: KafkaSource, topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
) -> "DataFrame":
    """Return the records [starting, ending) of each partition: RAW_COLUMNS."""
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
        # The topic's own retention may remove records during the reading; that is not an error.
        .option("failOnDataLoss", "false")
        .load()
        .selectExpr("key", "value", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
    )


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
