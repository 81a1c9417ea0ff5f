"""All that the sources say, as tables. `loading` makes them, and has the theory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

from metadata_topic.topic import METADATA_TOPIC
from retention_job import tier
from retention_job.decoding import (
    DEAD_ROW,
    ENTRY_ROW,
    OTHER_ROW,
    PARTITION_SHIFT,
    QUARANTINE_ROW,
    STAGED,
)
from retention_job.joins import small_side
from retention_job.kafka_cluster import Cluster, Topic, read_cluster
from retention_job.kafka_reading import read_topic
from retention_job.read_plan import (
    ReadSummary,
    metadata_retention_ms,
    metadata_topic_id,
    retentions,
)
from retention_job.schemas import (
    ARCHIVE_OBJECTS,
    DEAD_ENTRIES,
    ENTRIES,
    OTHER_RECORDS,
    PARTITIONS,
    QUARANTINE,
    SEGMENT_KEY,
    SEGMENTS,
    TIERED,
    TOPICS,
)
from retention_job.settings import KafkaSource
from retention_job.state import RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OFFSET_MASK: Final = (1 << PARTITION_SHIFT) - 1
_NO_RECORD: Final = -2


@dataclass(frozen=True)
class History:
    """The tables of `schemas`, each read from disk when it is used; `loading.load` makes it."""

    spark: "SparkSession"
    state: RunState
    run_id: str
    cluster: Cluster
    read: ReadSummary
    last: RunRecord | None
    """The run that this one goes on from."""
    tier_events: "DataFrame"
    has_inventory: bool
    has_archive_inventory: bool = False

    def table(self, name: str) -> "DataFrame":
        """One of the run's own tables, by the directory that it has."""
        return self.spark.read.parquet(self.state.path_of(self.run_id, name))

    def staged(self, row: str, run_id: str | None = None) -> "DataFrame":
        """Staged rows of one kind (`decoding`), of this run or one before it."""
        path = self.state.path_of(run_id or self.run_id, "staged")
        return self.spark.read.schema(STAGED).parquet(path).filter(f"row = '{row}'")

    @cached_property
    def segment_facts(self) -> "DataFrame":
        """SEGMENTS and what `segment_table` adds for the job's own use: objects without metadata, too."""
        return self.table("segments")

    @cached_property
    def segments(self) -> "DataFrame":
        """SEGMENTS."""
        return self.segment_facts.filter("has_metadata").select(*SEGMENTS.fieldNames())

    @cached_property
    def entries(self) -> "DataFrame":
        """ENTRIES, with `record_id`."""
        return self._entries_of(self.run_id)

    def _entries_of(self, run_id: str) -> "DataFrame":
        """Without those of records that were published twice or, by a fenced writer, in vain."""
        staged = self.staged(ENTRY_ROW, run_id).select("record_id", *ENTRIES.fieldNames())
        doubted = self.spark.read.parquet(self.state.path_of(run_id, "segments")).filter(
            "finished_records > 1 OR (finished_records > 0 AND first_record < 0) OR refused_state = 1"
        )
        if doubted.isEmpty():
            return staged
        right = doubted.selectExpr(*SEGMENT_KEY, f"coalesce(first_record, {_NO_RECORD}) AS right_record")
        kept = staged.join(small_side(right), list(SEGMENT_KEY), "left")
        return kept.filter("right_record IS NULL OR record_id = right_record").drop("right_record")

    def entries_of_all_runs(self) -> "DataFrame":
        """ENTRIES of this run and of those before it, as far as they are kept."""
        known = [
            self._entries_of(run_id).select(*ENTRIES.fieldNames())
            for run_id in (self.last.entry_runs if self.last else ())
        ]
        return reduce(lambda one, other: one.unionByName(other), known, self.entries.select(*ENTRIES.fieldNames()))

    @cached_property
    def dead_entries(self) -> "DataFrame":
        """DEAD_ENTRIES, of earlier runs as well."""
        found = self.staged(DEAD_ROW).select(*DEAD_ENTRIES.fieldNames())
        if self.last is None:
            return found
        for run_id in self.last.entry_runs:
            found = found.unionByName(self.staged(DEAD_ROW, run_id).select(*DEAD_ENTRIES.fieldNames()))
        return found

    @cached_property
    def inventory(self) -> "DataFrame | None":
        """INVENTORY; None without a source for it."""
        return self.table("inventory") if self.has_inventory else None

    @cached_property
    def archive_facts(self) -> "DataFrame":
        """ARCHIVE_OBJECTS and `has_metadata`, `refused_records`: objects without metadata, too."""
        return self.table("archive")

    @cached_property
    def archive(self) -> "DataFrame":
        """ARCHIVE_OBJECTS."""
        return self.archive_facts.filter("has_metadata").select(*ARCHIVE_OBJECTS.fieldNames())

    @cached_property
    def topics(self) -> "DataFrame":
        """TOPICS."""
        return self.spark.createDataFrame([_topic_row(topic) for topic in self.cluster.topics], TOPICS)

    @cached_property
    def partitions(self) -> "DataFrame":
        """PARTITIONS."""
        rows = [
            (bytearray(topic.topic_id), number, leader, offsets.earliest.get(number), offsets.latest.get(number))
            for topic in self.cluster.topics
            for offsets in (self.cluster.offsets[topic.name],)
            for number, leader in zip(topic.partitions, topic.leaders, strict=True)
        ]
        return self.spark.createDataFrame(rows, PARTITIONS)

    @cached_property
    def tiered(self) -> "DataFrame":
        """TIERED."""
        return tier.segments_of(self.tier_events).select(*TIERED.fieldNames())

    @cached_property
    def tiered_up_to(self) -> Mapping[tuple[bytes, int], int]:
        """By (topic id, partition), the first offset that KIP-405's tier does not hold. Archived topics are left out:
        their objects wait for the archive.
        """
        archived = {topic.topic_id for topic in self.cluster.topics if topic.settings.archive}
        return {key: up_to for key, up_to in tier.tiered_up_to(self.tiered).items() if key[0] not in archived}

    @cached_property
    def quarantine(self) -> "DataFrame":
        """QUARANTINE, of this run's records."""
        from pyspark.sql import functions as f

        found = self.staged(QUARANTINE_ROW).select(
            f.lit(METADATA_TOPIC).alias("topic"),
            *_place(),
            "reason",
            "detail",
            "key_bytes",
            "value_bytes",
        )
        return found.select(*QUARANTINE.fieldNames()).unionByName(tier.quarantine_of(self.tier_events))

    @cached_property
    def other_records(self) -> "DataFrame":
        """OTHER_RECORDS, of this run."""
        found = self.staged(OTHER_ROW).select("record_type", "key", "value", *_place())
        return found.select(*OTHER_RECORDS.fieldNames())

    def with_topic_names(self, frame: "DataFrame") -> "DataFrame":
        """The frame with the column `topic`, null for topics that are gone. Best after an aggregation."""
        from pyspark.sql import functions as f

        return frame.join(f.broadcast(self.topics.select("topic_id", "topic")), "topic_id", "left")

    def commit(self) -> None:
        """The next incremental run goes on from here. Call it when everything else is written."""
        now_ms = self.read.now_ms
        kept_ms = metadata_retention_ms(self.cluster)
        older = self.last.entry_runs if self.last else {}
        runs = {run_id: at_ms for run_id, at_ms in older.items() if kept_ms is None or now_ms - at_ms < kept_ms}
        topic_id = metadata_topic_id(self.cluster)
        self.state.commit(
            RunRecord(
                self.run_id,
                now_ms,
                dict(self.read.ending_offsets),
                topic_id,
                retentions(self.cluster),
                {**runs, self.run_id: now_ms},
            )
        )


class Kafka(Protocol):
    """What is asked of the cluster."""

    def cluster(self, source: KafkaSource, /) -> Cluster:
        """Topics, settings and offsets, as they are now. Raises SourceError."""

    def topic(
        self,
        spark: "SparkSession",
        source: KafkaSource,
        topic: str,
        starting: Mapping[int, int],
        ending: Mapping[int, int],
        /,
    ) -> "DataFrame":
        """A topic's records between offsets, as `kafka_reading.RAW_COLUMNS`."""


class RealKafka:
    """By the admin client, and Spark's connector."""

    def cluster(self, source: KafkaSource, /) -> Cluster:
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
        return read_topic(spark, source, topic, starting, ending)


def _topic_row(topic: Topic) -> tuple[Any, ...]:
    return (
        bytearray(topic.topic_id),
        topic.name,
        len(topic.partitions),
        topic.replication_factor,
        topic.settings.enable,
        topic.settings.link_policy.value,
        topic.settings.archive,
        topic.config.get("cleanup.policy"),
        topic.number("retention.ms"),
        topic.local("ms"),
        topic.number("retention.bytes"),
        topic.local("bytes"),
        topic.is_tiered,
    )


def _place() -> list[Any]:
    """Where a staged record stands in its topic."""
    from pyspark.sql import functions as f

    return [
        f.shiftright("record_id", PARTITION_SHIFT).cast("int").alias("partition"),
        f.col("record_id").bitwiseAND(f.lit(_OFFSET_MASK)).alias("offset"),
        f.col("event_timestamp_ms").alias("timestamp_ms"),
    ]
