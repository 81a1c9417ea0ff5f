"""A history in memory: a cluster whose topics are lists, and a directory with what is stored.

Spark's connector and the admin client are tried against real brokers elsewhere.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kafka_log.topic_partition import TopicId
from metadata_topic.records.topic_doubt import NOT_ASKED, EpochEnds
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.archive_storage import StoredArchiveObject
from plugin.format.object_keys import ObjectKeyFactory
from retention_job.sources.kafka import RAW_COLUMNS, Cluster, Kafka, Offsets
from tests.retention_job.recorded.defects import planted
from tests.retention_job.recorded.history import (
    CLUSTER_ID,
    HistorySpec,
    Planted,
    Record,
    StoredObject,
    bulk_segments,
    cluster_of,
    record_of,
)

Topics = Mapping[str, Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]]


@dataclass(frozen=True)
class RecordedKafka(Kafka):
    topics: Topics
    seen: Cluster

    def cluster(self) -> Cluster:
        offsets = {
            name: Offsets(dict.fromkeys(partitions, 0), {number: len(log) for number, log in partitions.items()})
            for name, partitions in self.topics.items()
        }
        return replace(self.seen, offsets={**self.seen.offsets, **offsets})

    def epoch_ends(self, epochs: Mapping[int, int]) -> EpochEnds:
        return NOT_ASKED

    def with_hidden(self, cluster: Cluster, topic_ids: Iterable[TopicId]) -> Cluster:
        return cluster

    def records(
        self, spark: SparkSession, topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
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
    spec: HistorySpec
    planted: Planted
    records: Mapping[int, Sequence[Record]]
    """The metadata topic by partition, of which there is one for each broker, and one more."""
    objects: Sequence[StoredObject]
    archive_objects: Sequence[StoredArchiveObject]

    def kafka(self) -> RecordedKafka:
        offsets = Offsets({}, dict.fromkeys(self.records, 0))
        return RecordedKafka({METADATA_TOPIC: self.records}, cluster_of(self.spec, self.planted, offsets))


def small_world(spec: HistorySpec) -> World:
    found = planted(spec)
    records: dict[int, list[Record]] = {number: [] for number in range(spec.brokers + 1)}
    objects = list(found.objects)
    for broker_id in spec.broker_ids:
        for segment in bulk_segments(spec, broker_id):
            name = (broker_id, segment.combined_segment_id.sequence)
            if name not in found.unpublished:
                records[broker_id].append(record_of(segment))
            if name not in found.lost:
                stored = StoredObject(segment.combined_segment_id, segment.size_bytes, segment.event_timestamp_ms)
                objects.append(stored)
    for broker_id, record in found.records:
        records[broker_id].append(record)
    return World(spec, found, records, objects, found.archive_objects)


def write_store(directory: Path, objects: Sequence[StoredObject], archived: Sequence[StoredArchiveObject] = ()) -> None:
    """Make the files of a store on a directory: these objects, without content, and no others."""
    keys = ObjectKeyFactory.of("", CLUSTER_ID)
    shutil.rmtree(directory, ignore_errors=True)
    named: list[tuple[str, StoredObject | StoredArchiveObject]] = [
        (keys.key_of(one.segment_id), one) for one in objects
    ]
    named += [(one.key, one) for one in archived]
    for key, stored in named:
        file = directory / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.truncate(file, stored.size_bytes)
        os.utime(file, ns=(0, stored.last_modified_ms * 1_000_000))
