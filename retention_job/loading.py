"""Reads all sources, once, into a run's directory: the tables that `History` is.

Theory. The order of reading decides what a difference between store and metadata means. The stores are listed first,
and only then the end of the metadata topic is asked for. So whatever was listed has its metadata among what is read,
but for objects whose publication is still under way, which are younger than the time to live.

The metadata topic is decoded once, into staged tables (`decoding`); everything after that reads columns of those. An
incremental run stages the new records alone and joins them with the tables of objects of the run before, in which every
object is that is not deleted yet. It goes on from there only if nothing has changed that the older rows depend on: the
same metadata topic, not cut off before the last run's offsets, the same local retentions. Else it reads all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from metadata_topic.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.serde import NODE_REGISTRATION
from metadata_topic.topic import METADATA_TOPIC
from retention_job import tier
from retention_job.archive_table import (
    archive_table,
    facts_of_archive_inventory,
    facts_of_archive_records,
    facts_of_archive_state,
)
from retention_job.decoding import ARCHIVE_ROW, OTHER_ROW, SEGMENT_ROW, STAGED, decoder
from retention_job.errors import SourceError, one_line
from retention_job.fences import REGISTRATIONS, registrations_of, with_refusals
from retention_job.file_system import FileSystem
from retention_job.history import History, Kafka, RealKafka
from retention_job.inventory import list_archive, list_store, read_inventory_file
from retention_job.kafka_cluster import Cluster
from retention_job.read_plan import plan_reading
from retention_job.release_facts import ReleaseFacts
from retention_job.schemas import INVENTORY
from retention_job.segment_table import (
    facts_of_inventory,
    facts_of_records,
    facts_of_refusals,
    facts_of_state,
    segment_table,
)
from retention_job.settings import InventoryFile, Sources, StoreListing
from retention_job.state import RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

_DELETED_REMEMBERED_MS: Final = 2 * 24 * 60 * 60 * 1000
"""So long a deleted object stays in the tables of incremental runs, for records that come late."""

Inventory = StoreListing | InventoryFile | None


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
        _stage_archive_inventory(spark, sources, state, run_id)
        cluster = kafka.cluster(sources.kafka)
        plan = plan_reading(sources, cluster, last if sources.is_incremental else None, now_ms)
        if plan.full_because is not None:
            log.info("incremental_run_reads_all", reason=plan.full_because)
        tier_events = _tier_events(spark, sources, kafka, cluster, state.path_of(run_id, "tier"))
        facts = _release_facts(cluster, tier.tiered_up_to(tier.segments_of(tier_events)))
        raw = kafka.topic(spark, sources.kafka, METADATA_TOPIC, plan.starting_offsets, plan.ending_offsets)
        staged = raw.mapInArrow(decoder(facts), STAGED)
        staged.write.partitionBy("row").parquet(state.path_of(run_id, "staged"))
        read = replace(
            plan,
            inventory_ms=_inventory_ms(spark, sources.inventory, state.path_of(run_id, "inventory"), now_ms),
            archive_inventory_ms=_inventory_ms(
                spark, sources.archive, state.path_of(run_id, "archive_inventory"), now_ms
            ),
        )
        history = History(
            spark, state, run_id, cluster, read, last if plan.is_incremental else None, tier_events,
            sources.inventory is not None, sources.archive is not None,
        )  # fmt: skip
        _write_objects(history, store_classes)
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


def _stage_archive_inventory(spark: "SparkSession", sources: Sources, state: RunState, run_id: str) -> None:
    """Of archive objects alone; both kinds may be in one bucket, and then in one inventory."""
    if isinstance(sources.archive, StoreListing):
        found = list_archive(spark, sources.archive)
    elif sources.archive is None:
        return
    elif sources.archive == sources.inventory:
        found = spark.read.schema(INVENTORY).parquet(state.path_of(run_id, "inventory"))
    else:
        found = read_inventory_file(spark, sources.archive)
    found.filter("archive_topic_id IS NOT NULL").write.parquet(state.path_of(run_id, "archive_inventory"))


def _inventory_ms(spark: "SparkSession", source: Inventory, path: str, now_ms: int) -> int | None:
    """A listing knows of now; an inventory file of nothing that is newer than its newest object."""
    if source is None or isinstance(source, StoreListing):
        return None if source is None else now_ms
    newest = spark.read.schema(INVENTORY).parquet(path)
    return int(newest.agg({"last_modified_ms": "max"}).collect()[0][0] or 0)


def _tier_events(spark: "SparkSession", sources: Sources, kafka: Kafka, cluster: Cluster, path: str) -> "DataFrame":
    offsets = cluster.offsets.get(REMOTE_LOG_METADATA_TOPIC)
    starting = dict(offsets.earliest) if offsets else {}
    ending = dict(offsets.latest) if offsets else {}
    raw = kafka.topic(spark, sources.kafka, REMOTE_LOG_METADATA_TOPIC, starting, ending)
    tier.decode_events(raw).write.parquet(path)
    return spark.read.parquet(path)


def _write_objects(history: History, store_classes: list[str]) -> None:
    """The tables of combined segments and of archive objects; what fenced writers say of them counts for nothing."""
    registrations = registrations_of(_write_registrations(history).collect())
    segments = with_refusals(history.staged(SEGMENT_ROW), registrations, "incarnation")
    _write_segments(history, facts_of_records(segments), store_classes)
    _write_archive(
        history, facts_of_archive_records(with_refusals(history.staged(ARCHIVE_ROW), registrations, "publisher"))
    )


def _write_registrations(history: History) -> "DataFrame":
    """REGISTRATIONS of this run and those before it."""
    found = history.staged(OTHER_ROW).filter(f"record_type = {NODE_REGISTRATION}").select("key", "value", "record_id")
    if history.last is not None:
        path = history.state.path_of(history.last.run_id, "registrations")
        found = found.unionByName(history.spark.read.schema(REGISTRATIONS).parquet(path))
    path = history.state.path_of(history.run_id, "registrations")
    found.coalesce(1).write.parquet(path)
    return history.spark.read.schema(REGISTRATIONS).parquet(path)


def _write_archive(history: History, facts: "DataFrame") -> None:
    if history.has_archive_inventory:
        facts = facts.unionByName(facts_of_archive_inventory(history.table("archive_inventory")))
    if history.last is not None:
        before = history.spark.read.parquet(history.state.path_of(history.last.run_id, "archive"))
        facts = facts.unionByName(facts_of_archive_state(before.filter(_is_remembered(history))))
    table = archive_table(facts, history.has_archive_inventory)
    table.write.parquet(history.state.path_of(history.run_id, "archive"))


def _is_remembered(history: History) -> str:
    """SQL over a table of the run before."""
    remembered_ms = history.read.now_ms - _DELETED_REMEMBERED_MS
    return f"has_metadata AND (state < 3 OR coalesce(deleted_ms, 0) > {remembered_ms})"


def _write_segments(history: History, facts: "DataFrame", store_classes: list[str]) -> None:
    if history.inventory is not None:
        facts = facts.unionByName(facts_of_inventory(history.inventory, store_classes))
    if history.last is not None:
        before = history.spark.read.parquet(history.state.path_of(history.last.run_id, "segments"))
        facts = facts.unionByName(facts_of_state(before.filter(_is_remembered(history))))
        facts = facts.unionByName(facts_of_refusals(before))
    table = segment_table(facts, store_classes, history.has_inventory)
    table.write.parquet(history.state.path_of(history.run_id, "segments"))
