"""Reads all sources, once, into a run's directory: the tables that `History` is.

Theory. The order of reading decides what a difference between store and metadata means. The stores are listed first,
and only then the end of the metadata topic is asked for. So whatever was listed has its metadata among what is read,
but for objects whose publication is still under way, which are younger than the time to live.

The metadata topic is decoded once, into staged tables (`decoding`); everything after that reads columns of those. An
incremental run stages the new records alone and joins them with the tables of objects of the run before, in which every
object is that is not deleted yet. It goes on from there only if nothing has changed that the older rows depend on: the
same metadata topic, not cut off before the last run's offsets, the same retentions. Else it reads all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records.serde import NODE_REGISTRATION
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import SourceError, one_line
from retention_job.schemas import INVENTORY
from retention_job.settings import InventoryFile, Sources, StoreListing
from retention_job.sources.decoding import decoder
from retention_job.sources.inventory import list_archive, list_store, read_inventory_file
from retention_job.sources.inventory_manifest import files_of
from retention_job.sources.kafka_cluster import Cluster
from retention_job.sources.kafka_reading import Kafka
from retention_job.sources.release_facts import ReleaseFacts
from retention_job.sources.staged_rows import OTHER_ROW, STAGED
from retention_job.sources.tier_events import decode_events
from retention_job.spark.file_system import FileSystem
from retention_job.spark.joins import union
from retention_job.tables import tier
from retention_job.tables.declared import declared_of
from retention_job.tables.fences import REGISTRATIONS, registrations_of, with_refusals
from retention_job.tables.history import History
from retention_job.tables.objects import (
    ARCHIVE_OBJECT,
    COMBINED_SEGMENT,
    facts_of_inventory,
    facts_of_records,
    facts_of_refusals,
    facts_of_state,
    object_table,
)
from retention_job.tables.read_plan import kept_ms, plan_reading
from retention_job.tables.state import RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

_BUCKET: Final = "bucket"
"""A column beside INVENTORY's: which of several inventories an object is in."""
_DELETED_REMEMBERED_MS: Final = 2 * 24 * 60 * 60 * 1000
"""So long a deleted object stays in the tables of incremental runs, for records that come late."""


def load(spark: "SparkSession", sources: Sources, now_ms: int, run_id: str, kafka: Kafka | None = None) -> History:
    """Read everything, once, into the state path. Raises SourceError, StateError."""
    kafka = kafka or Kafka()
    if sources.state_path is None:
        raise SourceError("load", "state_path", "the job needs a place for its tables")
    state = RunState(FileSystem(spark, sources.state_path))
    last = state.last()
    state.begin(run_id, last)
    before = kafka.cluster(sources.kafka)
    try:
        inventory_ms = _write_inventories(spark, sources, before, state, run_id, now_ms)
        cluster = kafka.cluster(sources.kafka)
        plan = plan_reading(sources, cluster, last if sources.is_incremental else None, now_ms)
        if plan.full_because is not None:
            log.info("incremental_run_reads_all", reason=plan.full_because)
        tier_events = _tier_events(spark, sources, kafka, cluster, state.path_of(run_id, "tier"))
        facts = _release_facts(cluster, tier.tiered_up_to(tier.segments_of(tier_events)))
        raw = kafka.topic(spark, sources.kafka, METADATA_TOPIC, plan.starting_offsets, plan.ending_offsets)
        staged = raw.mapInArrow(decoder(facts), STAGED)
        staged.write.partitionBy("row").parquet(state.path_of(run_id, "staged"))
        read = replace(plan, inventory_ms=inventory_ms)
        history = History(spark, state, run_id, cluster, read, last if plan.is_incremental else None, tier_events)
        _write_objects(history)
        history.keep("declared", declared_of(history))
    except PySparkException as error:
        raise SourceError("read", "sources", one_line(error)) from error
    return history


def _release_facts(cluster: Cluster, tiered_up_to: Mapping[tuple[bytes, int], int]) -> ReleaseFacts:
    retention = {topic.topic_id: kept_ms(topic) for topic in cluster.topics}
    before = {
        (topic.topic_id, number): max(log_start, tiered_up_to.get((topic.topic_id, number), 0))
        for topic in cluster.topics
        if not topic.settings.archive
        for number, log_start in cluster.offsets[topic.name].earliest.items()
    }
    return ReleaseFacts.of(retention, before)


def _write_inventories(
    spark: "SparkSession", sources: Sources, cluster: Cluster, state: RunState, run_id: str, now_ms: int
) -> dict[str, int]:
    """As they are used several times; returns up to when each knows, by the table of its kind. A listing knows of now;
    an inventory file of nothing that is newer than its newest object.
    """
    known_ms: dict[str, int] = {}
    for kind, source in ((COMBINED_SEGMENT, sources.inventory), (ARCHIVE_OBJECT, sources.archive)):
        if source is None:
            continue
        if isinstance(source, StoreListing):
            is_archive = kind is ARCHIVE_OBJECT
            found = list_archive(spark, source) if is_archive else list_store(spark, source, cluster.brokers)
        elif kind is ARCHIVE_OBJECT and source == sources.inventory:  # both are in the same buckets
            found = spark.read.parquet(state.path_of(run_id, COMBINED_SEGMENT.inventory))
        else:
            found = union(*(_of_bucket(spark, number, one) for number, one in enumerate(source)))
        path = state.path_of(run_id, kind.inventory)
        (found.filter(kind.is_listed) if kind is ARCHIVE_OBJECT else found).write.parquet(path)
        known_ms[kind.table] = now_ms if isinstance(source, StoreListing) else _known_ms(spark, source, path)
    return known_ms


def _of_bucket(spark: "SparkSession", number: int, source: InventoryFile) -> "DataFrame":
    return read_inventory_file(spark, source).withColumn(_BUCKET, fn.lit(number))


def _known_ms(spark: "SparkSession", sources: Sequence[InventoryFile], path: str) -> int:
    """Up to when the inventories of all buckets know: each up to its newest object. Of a bucket that has none of these,
    its manifest tells when it was looked at.
    """
    rows = spark.read.parquet(path).groupBy(_BUCKET).agg(fn.max("last_modified_ms").alias("newest_ms")).collect()
    newest = {row[_BUCKET]: int(row.newest_ms) for row in rows}
    return min(
        newest[number] if number in newest else files_of(spark, source).made_ms or 0
        for number, source in enumerate(sources)
    )


def _tier_events(spark: "SparkSession", sources: Sources, kafka: Kafka, cluster: Cluster, path: str) -> "DataFrame":
    offsets = cluster.offsets.get(REMOTE_LOG_METADATA_TOPIC)
    starting = dict(offsets.earliest) if offsets else {}
    ending = dict(offsets.latest) if offsets else {}
    raw = kafka.topic(spark, sources.kafka, REMOTE_LOG_METADATA_TOPIC, starting, ending)
    decode_events(raw).write.parquet(path)
    return spark.read.parquet(path)


def _write_objects(history: History) -> None:
    """The tables of both kinds of objects; what fenced writers say of them counts for nothing."""
    registrations = registrations_of(_write_registrations(history).collect())
    for kind in (COMBINED_SEGMENT, ARCHIVE_OBJECT):
        staged = with_refusals(history.staged(kind.staged_row), registrations, kind.publisher)
        facts = [facts_of_records(kind, staged)]
        has_inventory = kind.table in history.read.inventory_ms
        store_classes: list[str] = []
        if has_inventory:
            inventory = history.table(kind.inventory, INVENTORY)
            store_classes = _store_classes(inventory)
            facts.append(facts_of_inventory(kind, inventory, store_classes))
        if history.last is not None:
            before = history.table(kind.table, kind.schema_with_facts, history.last.run_id)
            facts += [facts_of_state(kind, before.filter(_is_remembered(history))), facts_of_refusals(kind, before)]
        history.keep(kind.table, object_table(kind, union(*facts), has_inventory, store_classes))


def _store_classes(inventory: "DataFrame") -> list[str]:
    classes = inventory.select("store_class").distinct().collect()
    return sorted(row.store_class for row in classes if row.store_class is not None)


def _write_registrations(history: History) -> "DataFrame":
    """REGISTRATIONS of this run and those before it."""
    found = history.staged(OTHER_ROW).filter(f"record_type = {NODE_REGISTRATION}").select("key", "value", "record_id")
    if history.last is not None:
        found = union(found, history.table("registrations", REGISTRATIONS, history.last.run_id))
    return history.keep("registrations", found.coalesce(1))


def _is_remembered(history: History) -> str:
    """SQL over a table of the run before."""
    remembered_ms = history.read.now_ms - _DELETED_REMEMBERED_MS
    return f"has_metadata AND (state < 3 OR coalesce(deleted_ms, 0) > {remembered_ms})"
