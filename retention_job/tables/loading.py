"""Reads all sources, once, into a run's directory: the tables of `History`.

The order of reading decides what a difference between store and metadata means. The stores are listed first, and only
then the end of the metadata topic is asked for. So every listed object has its metadata among what is read, except for
objects whose publication is still in progress, which are younger than the time to live.

The metadata topic is decoded once, into staged tables (`decoding`); everything after that reads columns of those. An
incremental run stages only the new records and joins them with the tables of objects of the run before, which have
every object that is not deleted yet. It continues from there only if nothing has changed that the older rows depend on:
the same metadata topic, not cut off before the last run's offsets, the same retentions. Otherwise it reads everything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.errors import PySparkException

from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records.serde import NODE_REGISTRATION
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import SourceError, one_line
from retention_job.schemas import SEGMENT_KEY
from retention_job.settings import Sources
from retention_job.sources.decoding import decoder
from retention_job.sources.kafka_cluster import Cluster
from retention_job.sources.kafka_reading import Kafka
from retention_job.sources.release_facts import ReleaseFacts
from retention_job.sources.staged_rows import OTHER_ROW, STAGED
from retention_job.spark.file_system import FileSystem
from retention_job.spark.joins import small_side, union
from retention_job.tables import tier
from retention_job.tables.declared import declared_of
from retention_job.tables.fences import REGISTRATIONS, registrations_of, with_refusals
from retention_job.tables.history import History
from retention_job.tables.inventories import Inventories
from retention_job.tables.objects import (
    ARCHIVE_OBJECT,
    COMBINED_SEGMENT,
    MAX_LAYERS,
    ObjectKind,
    facts_of_inventory,
    facts_of_records,
    facts_of_refusals,
    facts_of_state,
    facts_of_stored,
    object_table,
)
from retention_job.tables.read_plan import kept_ms, plan_reading
from retention_job.tables.state import RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

_DELETED_REMEMBERED_MS: Final = 2 * 24 * 60 * 60 * 1000
"""The time for which a deleted object stays in the tables of incremental runs, for late records."""


def load(
    spark: "SparkSession",
    sources: Sources,
    now_ms: int,
    run_id: str,
    kafka: Kafka | None = None,
    progress: Callable[[str], None] = lambda _line: None,
) -> History:
    """Read everything, once, into the state path. Raises SourceError, StateError."""
    kafka = kafka or Kafka()
    if sources.state_path is None:
        raise SourceError("load", "state_path", "the job needs a place for its tables")
    state = RunState(FileSystem(spark, sources.state_path))
    last = state.last()
    state.begin(run_id, last)
    try:
        inventories = Inventories(spark, sources, state, run_id)
        if inventories.are_listings:
            progress("listing the store")
            inventories.write_listings(kafka.cluster(sources.kafka).brokers, now_ms)
        progress("asking the cluster")
        cluster = kafka.cluster(sources.kafka)
        plan = plan_reading(sources, cluster, last if sources.is_incremental else None, now_ms)
        if plan.full_because is not None:
            log.info("incremental_run_reads_all", reason=plan.full_because)
        progress(f"reading the metadata topic: {plan.records:,} records")
        tier_events = _tier_events(spark, sources, kafka, cluster, state.path_of(run_id, "tier"))
        facts = _release_facts(cluster, tier.tiered_up_to(tier.segments_of(tier_events)))
        raw = kafka.topic(spark, sources.kafka, METADATA_TOPIC, plan.starting_offsets, plan.ending_offsets)
        staged = raw.mapInArrow(decoder(facts), STAGED)
        staged.write.partitionBy("row").parquet(state.path_of(run_id, "staged"))
        from_last = last if plan.is_incremental else None
        layers = _layers_beneath(from_last, inventories)
        inventories.write_files(from_last if layers else None)
        progress("putting objects and records together")
        read = replace(plan, inventory_ms=inventories.known_ms)
        history = History(spark, state, run_id, cluster, read, from_last, tier_events, layers, inventories.read)
        _write_objects(history, inventories)
        history.keep("declared", declared_of(history))
    except PySparkException as error:
        raise SourceError("read", "sources", one_line(error)) from error
    return history


def _layers_beneath(last: RunRecord | None, inventories: Inventories) -> Sequence[str]:
    """Return the last run's layers; none if objects without new records may have changed, or there are too many."""
    if last is None or len(last.layers) >= MAX_LAYERS or not inventories.goes_on_from(last):
        return ()
    return last.layers


def _release_facts(cluster: Cluster, tiered_up_to: Mapping[tuple[bytes, int], int]) -> ReleaseFacts:
    retention = {topic.topic_id: kept_ms(topic) for topic in cluster.topics}
    before = {
        (topic.topic_id, number): max(log_start, tiered_up_to.get((topic.topic_id, number), 0))
        for topic in cluster.topics
        if not topic.settings.archive
        for number, log_start in cluster.offsets[topic.name].earliest.items()
    }
    return ReleaseFacts.of(retention, before)


def _tier_events(spark: "SparkSession", sources: Sources, kafka: Kafka, cluster: Cluster, path: str) -> "DataFrame":
    offsets = cluster.offsets.get(REMOTE_LOG_METADATA_TOPIC)
    starting = dict(offsets.earliest) if offsets else {}
    ending = dict(offsets.latest) if offsets else {}
    raw = kafka.topic(spark, sources.kafka, REMOTE_LOG_METADATA_TOPIC, starting, ending)
    tier.decode_events(raw).write.parquet(path)
    return spark.read.parquet(path)


def _write_objects(history: History, inventories: Inventories) -> None:
    """Write the tables of both kinds of objects; records of fenced writers do not count."""
    registrations = registrations_of(_write_registrations(history).collect())
    for kind in (COMBINED_SEGMENT, ARCHIVE_OBJECT):
        staged = with_refusals(history.staged(kind.staged_row), registrations, kind.publisher)
        told = facts_of_records(kind, staged)
        inventory = inventories.table(kind)
        before = None
        if history.last is not None:
            before = history.objects_before(kind)
            if history.layers:
                before = _touched(kind, before, told, inventory)
        store_classes = _store_classes(inventory, before if history.layers else None)
        facts = [told]
        if inventory is not None:
            facts.append(facts_of_inventory(kind, inventory, store_classes))
        if before is not None:
            facts += [facts_of_state(kind, before.filter(_is_remembered(history))), facts_of_refusals(kind, before)]
            if history.layers:
                facts.append(facts_of_stored(kind, before, store_classes))
        objects = object_table(kind, union(*facts), inventory is not None, store_classes)
        # This order lets later runs read few pages of the table when they look for few objects.
        history.keep(kind.table, objects.sortWithinPartitions(*SEGMENT_KEY))


def _touched(kind: ObjectKind, before: "DataFrame", told: "DataFrame", inventory: "DataFrame | None") -> "DataFrame":
    """Return the objects that new records or an inventory name."""
    keys = told.select(*kind.key)
    if inventory is not None:
        keys = union(keys, facts_of_inventory(kind, inventory, ()).select(*kind.key))
    asked = small_side(keys)
    found = before.filter(asked.where_to_look()).join(asked.frame, list(kind.key), "left_semi")
    return found.localCheckpoint()


def _store_classes(*stored: "DataFrame | None") -> list[str]:
    found = [frame.select("store_class") for frame in stored if frame is not None and "store_class" in frame.columns]
    classes = union(*found).distinct().collect() if found else []
    return sorted(row.store_class for row in classes if row.store_class is not None)


def _write_registrations(history: History) -> "DataFrame":
    """Write REGISTRATIONS of this run and those before it."""
    found = history.staged(OTHER_ROW).filter(f"record_type = {NODE_REGISTRATION}").select("key", "value", "record_id")
    if history.last is not None:
        found = union(found, history.table("registrations", REGISTRATIONS, history.last.run_id))
    return history.keep("registrations", found.coalesce(1))


def _is_remembered(history: History) -> str:
    """Return SQL that is true for rows of the run before to keep: not deleted, or deleted a short time ago."""
    remembered_ms = history.read.now_ms - _DELETED_REMEMBERED_MS
    return f"has_metadata AND (state < 3 OR coalesce(deleted_ms, 0) > {remembered_ms})"
