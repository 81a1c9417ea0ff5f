"""A cluster whose topics are lists. Spark's connector and the admin client are tried against real brokers elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.archive_storage import StoredArchiveObject
from retention_job.settings import KafkaSource
from retention_job.sources.kafka_cluster import Cluster, Offsets
from retention_job.sources.kafka_reading import RAW_COLUMNS, Kafka
from tests.retention_job.recorded.defects import planted
from tests.retention_job.recorded.history import (
    HistorySpec,
    Planted,
    Record,
    StoredObject,
    broker_ids,
    bulk_inventory,
    bulk_records,
    cluster_of,
    sequences_of,
)

Topics = Mapping[str, Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]]


@dataclass(frozen=True)
class RecordedKafka(Kafka):
    """Answers out of memory."""

    topics: Topics
    seen: Cluster

    def cluster(self, source: KafkaSource, /) -> Cluster:
        offsets = {
            name: Offsets(dict.fromkeys(partitions, 0), {number: len(log) for number, log in partitions.items()})
            for name, partitions in self.topics.items()
        }
        return replace(self.seen, offsets={**self.seen.offsets, **offsets})

    def topic(
        self,
        spark: SparkSession,
        source: KafkaSource,
        topic: str,
        starting: Mapping[int, int],
        ending: Mapping[int, int],
        /,
    ) -> DataFrame:
        rows = [
            (key, value, number, offset, 1_000)
            for number, log in self.topics.get(topic, {}).items()
            for offset, (key, value) in enumerate(log)
            if starting.get(number, 0) <= offset < ending[number]
        ]
        return spark.createDataFrame(rows, RAW_COLUMNS)


@dataclass(frozen=True)
class World:
    """A history with defects, all in memory."""

    spec: HistorySpec
    planted: Planted
    records: Mapping[int, Sequence[Record]]
    objects: Sequence[StoredObject]
    archive_objects: Sequence[StoredArchiveObject]

    def kafka(self) -> RecordedKafka:
        offsets = Offsets({}, dict.fromkeys(self.records, 0))
        return RecordedKafka({METADATA_TOPIC: self.records}, cluster_of(self.spec, [self.planted], offsets))


def small_world(spec: HistorySpec) -> World:
    """The bulk and the defects of a history; the metadata topic has a partition per broker, and one more."""
    found = planted(spec)
    records: dict[int, list[Record]] = {number: [] for number in range(spec.brokers + 1)}
    objects = list(found.objects)
    for broker_id in broker_ids(spec):
        sequences = sequences_of(spec, 0, spec.per_broker)
        keys, values = bulk_records(spec, broker_id, sequences)
        for sequence, key, value in zip(sequences.tolist(), keys, values, strict=True):
            if (broker_id, sequence) not in found.unpublished:
                records[broker_id].append((key.tobytes(), value.tobytes()))
        objects += bulk_inventory(spec, broker_id, sequences, found)
    for broker_id, record in found.records:
        records[broker_id].append(record)
    return World(spec, found, records, objects, found.archive_objects)
