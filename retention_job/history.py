"""All that the sources say, as tables.

Theory. The order of reading decides what a difference between store and metadata means. The store is listed first,
and only then the end of the metadata topic is asked for. So whatever was listed has its metadata among what is read,
but for objects whose publication is still under way, which are younger than the time to live.

The metadata topic is decoded once, into staged tables (`decoding`); everything after that reads columns of those. An
incremental run stages the new records alone and joins them with the segment table of the run before, in which every
segment is that is not deleted yet. It goes on from there only if nothing has changed that the older rows depend on: the
same metadata topic, not cut off before the last run's offsets, the same local retentions. Else it reads all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from metadata_topic.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.topic import METADATA_TOPIC
from retention_job import tier
from retention_job.decoding import (
    DEAD_ROW,
    ENTRY_ROW,
    OTHER_ROW,
    PARTITION_SHIFT,
    QUARANTINE_ROW,
    SEGMENT_ROW,
    STAGED,
    decoder,
)
from retention_job.errors import SourceError, one_line
from retention_job.file_system import FileSystem
from retention_job.inventory import list_store, read_inventory_file
from retention_job.joins import small_side
from retention_job.kafka_cluster import Cluster, Topic, read_cluster
from retention_job.kafka_reading import read_topic
from retention_job.read_plan import (
    ReadSummary,
    metadata_retention_ms,
    metadata_topic_id,
    plan_reading,
    retentions,
)
from retention_job.release_facts import ReleaseFacts
from retention_job.schemas import (
    DEAD_ENTRIES,
    ENTRIES,
    INVENTORY,
    OTHER_RECORDS,
    PARTITIONS,
    QUARANTINE,
    SEGMENT_KEY,
    SEGMENTS,
    TIERED,
    TOPICS,
)
from retention_job.segment_table import facts_of_inventory, facts_of_records, facts_of_state, segment_table
from retention_job.settings import InventoryFile, KafkaSource, Sources, StoreListing
from retention_job.state import RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

_DELETED_REMEMBERED_MS: Final = 2 * 24 * 60 * 60 * 1000
"""So long a deleted segment stays in the table of incremental runs, for records that come late."""
_OFFSET_MASK: Final = (1 << PARTITION_SHIFT) - 1


@dataclass(frozen=True)
class History:
    """The tables of `schemas`, each read from disk when it is used; `load` makes it."""

    spark: "SparkSession"
    state: RunState
    run_id: str
    cluster: Cluster
    read: ReadSummary
    last: RunRecord | None
    """The run that this one goes on from."""
    tier_events: "DataFrame"
    has_inventory: bool

    def _table(self, name: str) -> "DataFrame":
        return self.spark.read.parquet(self.state.path_of(self.run_id, name))

    def _staged(self, row: str) -> "DataFrame":
        return (
            self.spark.read.schema(STAGED).parquet(self.state.path_of(self.run_id, "staged")).filter(f"row = '{row}'")
        )

    @cached_property
    def segment_facts(self) -> "DataFrame":
        """SEGMENTS and `has_metadata`, `finished_records`, `first_record`: objects without metadata, too."""
        return self._table("segments")

    @cached_property
    def segments(self) -> "DataFrame":
        """SEGMENTS."""
        return self.segment_facts.filter("has_metadata").select(*SEGMENTS.fieldNames())

    @cached_property
    def entries(self) -> "DataFrame":
        """ENTRIES, with `record_id`."""
        staged = self._staged(ENTRY_ROW).select("record_id", *ENTRIES.fieldNames())
        repeated = self.segment_facts.filter("finished_records > 1 OR (finished_records > 0 AND first_record < 0)")
        if repeated.isEmpty():
            return staged
        kept = staged.join(small_side(repeated.select(*SEGMENT_KEY, "first_record")), list(SEGMENT_KEY), "left")
        return kept.filter("first_record IS NULL OR record_id = first_record").drop("first_record")

    def entries_of_all_runs(self) -> "DataFrame":
        """ENTRIES of this run and of those before it, as far as they are kept."""
        known = [
            self.spark.read.schema(STAGED)
            .parquet(self.state.path_of(run_id, "staged"))
            .filter(f"row = '{ENTRY_ROW}'")
            .select(*ENTRIES.fieldNames())
            for run_id in (self.last.entry_runs if self.last else ())
        ]
        return reduce(lambda one, other: one.unionByName(other), known, self.entries.select(*ENTRIES.fieldNames()))

    @cached_property
    def dead_entries(self) -> "DataFrame":
        """DEAD_ENTRIES, of earlier runs as well."""
        found = self._staged(DEAD_ROW).select(*DEAD_ENTRIES.fieldNames())
        if self.last is None:
            return found
        for run_id in self.last.entry_runs:
            path = self.state.path_of(run_id, "staged")
            older = self.spark.read.schema(STAGED).parquet(path).filter(f"row = '{DEAD_ROW}'")
            found = found.unionByName(older.select(*DEAD_ENTRIES.fieldNames()))
        return found

    @cached_property
    def inventory(self) -> "DataFrame | None":
        """INVENTORY; None without a source for it."""
        return self._table("inventory") if self.has_inventory else None

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

        found = self._staged(QUARANTINE_ROW).select(
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
        found = self._staged(OTHER_ROW).select("record_type", "key", "value", *_place())
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


def load(spark: "SparkSession", sources: Sources, now_ms: int, run_id: str, kafka: Kafka | None = None) -> History:
    """Read everything, once, into the state path. Raises SourceError, StateError."""
    kafka = kafka or RealKafka()
    from pyspark.errors import PySparkException

    if sources.state_path is None:
        raise SourceError("load", "state_path", "the job needs a place for its tables")
    state = RunState(FileSystem(spark, sources.state_path))
    last = state.last()
    state.begin(run_id, last)
    before = kafka.cluster(sources.kafka)
    try:
        store_classes = _stage_inventory(spark, sources, before, state.path_of(run_id, "inventory"))
        cluster = kafka.cluster(sources.kafka)
        plan = plan_reading(sources, cluster, last if sources.is_incremental else None, now_ms)
        if plan.full_because is not None:
            log.info("incremental_run_reads_all", reason=plan.full_because)
        tier_events = _tier_events(spark, sources, kafka, cluster, state.path_of(run_id, "tier"))
        facts = _release_facts(cluster, tier.tiered_up_to(tier.segments_of(tier_events)))
        raw = kafka.topic(spark, sources.kafka, METADATA_TOPIC, plan.starting_offsets, plan.ending_offsets)
        staged = raw.mapInArrow(decoder(facts), STAGED)
        staged.write.partitionBy("row").parquet(state.path_of(run_id, "staged"))
        has_inventory = sources.inventory is not None
        read = replace(plan, inventory_ms=_inventory_ms(spark, sources, state, run_id, now_ms))
        history = History(
            spark, state, run_id, cluster, read, last if plan.is_incremental else None, tier_events, has_inventory
        )
        _write_segments(history, store_classes)
    except PySparkException as error:
        raise SourceError("read", "sources", one_line(error)) from error
    return history


def _release_facts(cluster: Cluster, tiered_up_to: Mapping[tuple[bytes, int], int]) -> ReleaseFacts:
    retention = {topic.topic_id: None if topic.settings.archive else topic.local("ms") for topic in cluster.topics}
    before = {
        (topic.topic_id, number): max(log_start, tiered_up_to.get((topic.topic_id, number), 0))
        for topic in cluster.topics
        if not topic.settings.archive
        for number, log_start in cluster.offsets[topic.name].earliest.items()
    }
    return ReleaseFacts.of(retention, before)


def _stage_inventory(spark: "SparkSession", sources: Sources, cluster: Cluster, path: str) -> list[str]:
    """Write the inventory down, as it is used several times; returns the storage classes in it."""
    if isinstance(sources.inventory, StoreListing):
        list_store(spark, sources.inventory, cluster.brokers).write.parquet(path)
    elif isinstance(sources.inventory, InventoryFile):
        read_inventory_file(spark, sources.inventory).write.parquet(path)
    else:
        return []
    classes = spark.read.schema(INVENTORY).parquet(path).select("store_class").distinct().collect()
    return sorted(row.store_class for row in classes if row.store_class is not None)


def _inventory_ms(spark: "SparkSession", sources: Sources, state: RunState, run_id: str, now_ms: int) -> int | None:
    """A listing knows of now; an inventory file of nothing that is newer than its newest object."""
    if sources.inventory is None or isinstance(sources.inventory, StoreListing):
        return None if sources.inventory is None else now_ms
    newest = spark.read.schema(INVENTORY).parquet(state.path_of(run_id, "inventory"))
    return int(newest.agg({"last_modified_ms": "max"}).collect()[0][0] or 0)


def _tier_events(spark: "SparkSession", sources: Sources, kafka: Kafka, cluster: Cluster, path: str) -> "DataFrame":
    offsets = cluster.offsets.get(REMOTE_LOG_METADATA_TOPIC)
    starting = dict(offsets.earliest) if offsets else {}
    ending = dict(offsets.latest) if offsets else {}
    raw = kafka.topic(spark, sources.kafka, REMOTE_LOG_METADATA_TOPIC, starting, ending)
    tier.decode_events(raw).write.parquet(path)
    return spark.read.parquet(path)


def _write_segments(history: History, store_classes: list[str]) -> None:
    facts = facts_of_records(history._staged(SEGMENT_ROW))
    if history.inventory is not None:
        facts = facts.unionByName(facts_of_inventory(history.inventory, store_classes))
    if history.last is not None:
        path = history.state.path_of(history.last.run_id, "segments")
        remembered_ms = history.read.now_ms - _DELETED_REMEMBERED_MS
        alive = history.spark.read.parquet(path).filter(
            f"has_metadata AND (state < 3 OR coalesce(deleted_ms, 0) > {remembered_ms})"
        )
        facts = facts.unionByName(facts_of_state(alive))
    table = segment_table(facts, store_classes, history.has_inventory)
    table.write.parquet(history.state.path_of(history.run_id, "segments"))


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
