"""The tables of all sources, which are read once, into a run's directory.

The order of reading decides what a difference between store and metadata means. The stores are listed first, and only
then the end of the metadata topic is asked for. So every listed object has its metadata among what is read, except for
objects whose publication is still in progress, which are younger than the time to live.

The metadata topic is decoded once, into staged tables (`decoding`); everything after that reads columns of those. An
incremental run stages only the new records and joins them with the tables of objects of the run before, which have
every object that is not deleted yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from kafka_log.topic_partition import TopicId
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records import serde
from metadata_topic.records.records import RemoteWalTopicRebuilt
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import SourceError, one_line
from retention_job.schemas import (
    ARCHIVE_OBJECTS,
    DEAD_ENTRIES,
    DECLARED,
    ENTRIES,
    PARTITIONS,
    QUARANTINE,
    SEGMENT_KEY,
    SEGMENTS,
    TOPICS,
)
from retention_job.settings import Sources
from retention_job.sources.decoding import (
    DEAD_ROW,
    ENTRY_ROW,
    OTHER_ROW,
    PARTITION_SHIFT,
    QUARANTINE_ROW,
    SEGMENT_ROW,
    STAGED,
    decoder,
    retention_of_entries,
)
from retention_job.sources.kafka import Cluster, Kafka, Offsets
from retention_job.sources.release_facts import ReleaseFacts
from retention_job.spark.file_system import FileSystem
from retention_job.spark.joins import small_side, union
from retention_job.tables import tier
from retention_job.tables.fences import REGISTRATIONS, registrations_of, with_refusals
from retention_job.tables.listings import Listings
from retention_job.tables.objects import (
    ARCHIVE_OBJECT,
    COMBINED_SEGMENT,
    MAX_LAYERS,
    ObjectKind,
    facts_of_listing,
    facts_of_none,
    facts_of_records,
    facts_of_refusals,
    facts_of_state,
    listed_otherwise,
    object_table,
    topmost,
    untouched,
)
from retention_job.tables.state import CHECKPOINTS, ReadSummary, RunRecord, RunState, plan_reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

_NO_RECORD: Final = -2
_DELETED_REMEMBERED_MS: Final = 2 * 24 * 60 * 60 * 1000
"""The time for which a deleted object stays in the tables of incremental runs, for late records."""


@dataclass(frozen=True)
class History:
    """All tables of a run, each read from disk when it is used; made by `load`."""

    spark: "SparkSession"
    state: RunState
    run_id: str
    cluster: Cluster
    read: ReadSummary
    last: RunRecord | None
    """The run that this one continues from."""
    tier_events: "DataFrame"
    layers: Sequence[str]
    """The runs with the tables of objects beneath this one's, the newest last; none: this run's tables are whole."""
    listed: Sequence[str]
    """The kinds of objects whose stores were listed, by their tables."""

    def table(self, name: str, schema: StructType | str | None = None, run_id: str | None = None) -> "DataFrame":
        """Return a table of this run, or of an earlier one, by the name of its directory."""
        reader = self.spark.read if schema is None else self.spark.read.schema(schema)
        return reader.parquet(self.state.path_of(run_id or self.run_id, name))

    def keep(self, name: str, frame: "DataFrame") -> "DataFrame":
        """Write a table into the run's directory, because it is used several times or by the next run."""
        frame.write.parquet(self.state.path_of(self.run_id, name))
        return self.table(name, frame.schema)

    def staged(self, row: str, run_id: str | None = None) -> "DataFrame":
        """Return staged rows of one kind (`sources.decoding`), of this run or an earlier one."""
        return self.table("staged", STAGED, run_id).filter(f"row = '{row}'")

    def objects(self, kind: ObjectKind) -> "DataFrame":
        """Return the table of a kind of objects, with the columns of `ObjectKind.schema_with_facts`."""
        if kind.table not in self._objects:
            own = self.table(kind.table, kind.schema_with_facts)
            before = map(untouched, self.layers_before(kind)) if self.layers else ()
            self._objects[kind.table] = topmost(kind, [own, *before])
        return self._objects[kind.table]

    @cached_property
    def _objects(self) -> "dict[str, DataFrame]":
        return {}

    def layers_before(self, kind: ObjectKind) -> "list[DataFrame]":
        """Return the rows that each earlier run wrote of a kind's table, newest first: objects that it had news of."""
        last = self.last.layers if self.last else ()
        return [self.table(kind.table, kind.schema_with_facts, run_id) for run_id in reversed(last)]

    @cached_property
    def segments(self) -> "DataFrame":
        return self.objects(COMBINED_SEGMENT).filter("has_metadata").select(*SEGMENTS.fieldNames())

    @cached_property
    def archive(self) -> "DataFrame":
        """The table ARCHIVE_OBJECTS."""
        return self.objects(ARCHIVE_OBJECT).filter("has_metadata").select(*ARCHIVE_OBJECTS.fieldNames())

    @cached_property
    def entries(self) -> "DataFrame":
        """The table ENTRIES, with `record_id`."""
        return self._entries_of(self.run_id)

    def entries_of_all_runs(self) -> "DataFrame":
        """Return ENTRIES of this run and of the earlier runs whose entries are kept."""
        return union(self.entries, *self.entries_before()).select(*ENTRIES.fieldNames())

    def entries_before(self) -> "list[DataFrame]":
        """Return ENTRIES of each earlier run whose entries are kept."""
        return [self._entries_of(run_id) for run_id in self._entry_runs]

    @property
    def _entry_runs(self) -> Mapping[str, int]:
        """The earlier runs whose entries still count, with their times in ms."""
        return self.last.entry_runs if self.last else {}

    def _entries_of(self, run_id: str) -> "DataFrame":
        """Return a run's entries, without repeated records and without those of fenced writers."""
        staged = self.staged(ENTRY_ROW, run_id).select("record_id", *ENTRIES.fieldNames())
        doubted = self.table(COMBINED_SEGMENT.table, COMBINED_SEGMENT.schema_with_facts, run_id).filter(
            "finished_records > 1 OR (finished_records > 0 AND first_record < 0) OR refused_state = 1"
        )
        right = small_side(doubted.selectExpr(*SEGMENT_KEY, f"coalesce(first_record, {_NO_RECORD}) AS right_record"))
        if right.is_empty:
            return staged
        kept = staged.join(right.frame, list(SEGMENT_KEY), "left")
        return kept.filter("right_record IS NULL OR record_id = right_record").drop("right_record")

    @cached_property
    def dead_entries(self) -> "DataFrame":
        """The table DEAD_ENTRIES, of earlier runs as well."""
        found = (self.staged(DEAD_ROW, run_id) for run_id in (self.run_id, *self._entry_runs))
        return union(*found).select(*DEAD_ENTRIES.fieldNames())

    @cached_property
    def declared(self) -> "DataFrame":
        return self.table("declared", DECLARED)

    @cached_property
    def topics(self) -> "DataFrame":
        rows = [
            (
                bytearray(topic.topic_id),
                topic.name,
                topic.replication_factor,
                topic.settings.enable,
                topic.settings.archive,
                topic.config.get("cleanup.policy"),
                None if (kept := topic.kept_shortest) is None else kept.retention_ms,
            )
            for topic in self.cluster.topics
        ]
        return self.spark.createDataFrame(rows, TOPICS)

    @cached_property
    def partitions(self) -> "DataFrame":
        rows = [
            (bytearray(topic.topic_id), number, offsets.earliest.get(number), offsets.latest.get(number))
            for topic in self.cluster.topics
            for offsets in (self.cluster.offsets[topic.name],)
            for number in topic.partitions
        ]
        return self.spark.createDataFrame(rows, PARTITIONS)

    @cached_property
    def tiered(self) -> "DataFrame":
        return tier.segments_of(self.tier_events)

    @cached_property
    def tiered_up_to(self) -> Mapping[tuple[bytes, int], int]:
        """The first offset that KIP-405's tier does not hold, by (topic id, partition).

        Archived topics are left out, because their objects wait for the archive.
        """
        archived = {topic.topic_id for topic in self.cluster.topics if topic.settings.archive}
        return {key: up_to for key, up_to in tier.tiered_up_to(self.tiered).items() if key[0] not in archived}

    @property
    def is_wholly_read(self) -> bool:
        """Whether all records that still count were decoded: any other may be about any object."""
        return all(
            self.staged(row, run_id).filter(unread).isEmpty()
            for run_id in (self.run_id, *self._entry_runs)
            for row, unread in ((QUARANTINE_ROW, "true"), (OTHER_ROW, "reason = 'record_type'"))
        )

    @cached_property
    def lacks_records(self) -> bool:
        """Whether the metadata topic lost records, in this run or an earlier one, and was not rebuilt since."""
        if self.read.whole_ms >= self.read.now_ms:
            return False
        found = self.staged(OTHER_ROW).filter(f"record_type = {serde.TOPIC_REBUILT}").select("key", "value").collect()
        rebuilt = (serde.decode(bytes(row.key), bytes(row.value)) for row in found)
        return not any(
            isinstance(one, RemoteWalTopicRebuilt)
            and one.topic_id == self.cluster.metadata_topic.topic_id
            and one.event_timestamp_ms > self.read.whole_ms
            for one in rebuilt
        )

    @cached_property
    def quarantine(self) -> "DataFrame":
        """The table QUARANTINE, of this run's records."""
        found = self.staged(QUARANTINE_ROW).selectExpr(
            f"'{METADATA_TOPIC}' AS topic",
            f"CAST(shiftright(record_id, {PARTITION_SHIFT}) AS INT) AS partition",
            f"record_id & {(1 << PARTITION_SHIFT) - 1} AS offset",
            "event_timestamp_ms AS timestamp_ms",
            *("reason", "detail", "key_bytes", "value_bytes"),
        )
        return union(found, tier.quarantine_of(self.tier_events)).select(*QUARANTINE.fieldNames())

    def with_topic_names(self, frame: "DataFrame") -> "DataFrame":
        """Add the column `topic`, null for topics that are gone. Best done after an aggregation."""
        return frame.join(fn.broadcast(self.topics.select("topic_id", "topic")), "topic_id", "left")

    def commit(self) -> None:
        """Commit the state from which the next incremental run continues. Call it when all else is written."""
        now_ms, metadata = self.read.now_ms, self.cluster.metadata_topic
        kept_ms = metadata.number("retention.ms")
        runs = {
            run_id: at_ms
            for run_id, at_ms in self._entry_runs.items()
            if kept_ms is None or kept_ms < 0 or now_ms - at_ms < kept_ms
        }
        self.state.commit(
            RunRecord(
                self.run_id,
                now_ms,
                self.last.full_ms if self.last else now_ms,
                dict(self.read.ending_offsets),
                metadata.topic_id.hex(),
                self.cluster.retentions,
                {**runs, self.run_id: now_ms},
                [*self.layers, self.run_id],
                self.listed,
                self.cluster.metadata_epochs,
                self.read.whole_ms if self.lacks_records else now_ms,
            )
        )


def load(
    spark: "SparkSession",
    sources: Sources,
    now_ms: int,
    run_id: str,
    kafka: Kafka | None = None,
    progress: Callable[[str], None] = lambda _line: None,
) -> History:
    """Read all sources once and write their tables into the run's directory. Raises SourceError, StateError."""
    kafka = kafka or Kafka(sources.kafka)
    state = RunState(FileSystem(spark, sources.state_path))
    last = state.last()
    state.begin(run_id, last)
    spark.sparkContext.setCheckpointDir(state.path_of(run_id, CHECKPOINTS))
    try:
        listings = Listings(spark, sources, state, run_id)
        if listings.kinds:
            progress("listing the store")
            listings.write(kafka.cluster().brokers)
        progress("asking the cluster")
        judged = (TopicId(bytes.fromhex(topic_id)) for topic_id in (last.retention if last is not None else ()))
        cluster = kafka.with_hidden(kafka.cluster(), judged)
        epoch_ends = kafka.epoch_ends(last.epochs if last is not None else {})
        plan = plan_reading(cluster, last, now_ms, epoch_ends, is_incremental=sources.is_incremental)
        if plan.full_because is not None:
            log.info("incremental_run_reads_all", reason=plan.full_because)
        progress(f"reading the metadata topic: {plan.records:,} records")
        of_tier = cluster.offsets.get(REMOTE_LOG_METADATA_TOPIC, Offsets({}, {}))
        raw = kafka.records(spark, REMOTE_LOG_METADATA_TOPIC, of_tier.earliest, of_tier.latest)
        tier.decode_events(raw).write.parquet(state.path_of(run_id, "tier"))
        tier_events = spark.read.parquet(state.path_of(run_id, "tier"))
        tiered_up_to = tier.tiered_up_to(tier.segments_of(tier_events))
        raw = kafka.records(spark, METADATA_TOPIC, plan.starting_offsets, plan.ending_offsets)
        while True:
            facts = _release_facts(cluster, tiered_up_to)
            staged = raw.mapInArrow(decoder(facts), STAGED)
            staged.write.mode("overwrite").partitionBy("row").parquet(state.path_of(run_id, "staged"))
            # A topic without settings that this client may not describe is not deleted: once seen, all is judged anew.
            entries = spark.read.schema(STAGED).parquet(state.path_of(run_id, "staged")).filter(f"row = '{ENTRY_ROW}'")
            told = (TopicId(row.topic_id) for row in entries.select("topic_id").distinct().collect())
            if (seen := kafka.with_hidden(cluster, told)) == cluster:
                break
            cluster = seen
        from_last = last if plan.is_incremental else None
        layers: Sequence[str] = ()  # none if what earlier runs saw of a store cannot be compared, or if there are many
        if from_last is not None and from_last.listed == listings.kinds and len(from_last.layers) < MAX_LAYERS:
            layers = from_last.layers
        progress("putting objects and records together")
        history = History(spark, state, run_id, cluster, plan, from_last, tier_events, layers, listings.kinds)
        if history.lacks_records:
            log.warning("metadata_topic_lacks_records", since_ms=plan.whole_ms, hint="remote-wal metadata rebuild")
        listings.add_brokers(_brokers_told(history))
        _write_objects(history, listings, facts)
    except PySparkException as error:
        raise SourceError("read", "sources", one_line(error)) from error
    return history


def _release_facts(cluster: Cluster, tiered_up_to: Mapping[tuple[bytes, int], int]) -> ReleaseFacts:
    retention: dict[bytes, int | None] = {topic.topic_id: topic.kept_ms for topic in cluster.topics}
    retention |= dict.fromkeys(cluster.hidden)
    before = {
        (topic.topic_id, number): max(log_start, tiered_up_to.get((topic.topic_id, number), 0))
        for topic in cluster.topics
        if not topic.settings.archive
        for number, log_start in cluster.offsets[topic.name].earliest.items()
    }
    return ReleaseFacts.of(retention, before)


def _brokers_told(history: History) -> frozenset[int]:
    """Return the brokers of which records, or earlier runs, name objects that are not deleted.

    A broker may be gone, and its registration with a lost settings topic.
    """
    frames = (history.staged(SEGMENT_ROW), *history.layers_before(COMBINED_SEGMENT))
    rows = union(*(frame.filter("state < 3").select("broker_id").distinct() for frame in frames)).collect()
    return frozenset(int(row.broker_id) for row in rows)


def _write_objects(history: History, listings: Listings, release: ReleaseFacts) -> None:
    """Write the tables of both kinds of objects; records of fenced writers do not count."""
    registered = history.staged(OTHER_ROW).filter(f"record_type = {serde.NODE_REGISTRATION}")
    registered = registered.select("key", "value", "record_id")
    if history.last is not None:
        registered = union(registered, history.table("registrations", REGISTRATIONS, history.last.run_id))
    registrations = registrations_of(history.keep("registrations", registered.coalesce(1)).collect())
    remembered_ms = history.read.now_ms - _DELETED_REMEMBERED_MS
    is_remembered = f"has_metadata AND (state < 3 OR coalesce(deleted_ms, 0) > {remembered_ms})"
    for kind in (COMBINED_SEGMENT, ARCHIVE_OBJECT):
        staged = with_refusals(history.staged(kind.staged_row), registrations, kind.publisher)
        facts = [facts_of_records(kind, staged)]
        listed = listings.table(kind)
        if listed is not None:
            facts.append(facts_of_listing(kind, listed))
        if history.last is not None:
            before = topmost(kind, history.layers_before(kind))
            again = _kept_again(history, release) if kind is COMBINED_SEGMENT and history.read.changed_topics else None
            if history.layers:
                facts, before = _of_touched(kind, facts, before, again)
            if again is not None:
                before = before.join(again, list(SEGMENT_KEY), "left")
                before = before.withColumn("retention_ms", fn.coalesce("kept_ms", "retention_ms")).drop("kept_ms")
            facts += [facts_of_state(kind, before.filter(is_remembered)), facts_of_refusals(kind, before)]
        objects = object_table(kind, union(*facts), listed is not None)
        # This order lets later runs read few pages of the table when they look for few objects.
        history.keep(kind.table, objects.sortWithinPartitions(*SEGMENT_KEY))


def _of_touched(
    kind: ObjectKind, facts: "list[DataFrame]", before: "DataFrame", again: "DataFrame | None"
) -> "tuple[list[DataFrame], DataFrame]":
    """Return facts, and rows of `before`, of those objects alone that may be otherwise than in the tables `before`.

    `facts` are of records, and of a listing if there is one; `again` has the objects whose retention may have changed.
    """
    told, *stored = facts
    touched = [told, *(listed_otherwise(kind, before, one) for one in stored), *([] if again is None else [again])]
    asked = small_side(union(*(one.select(*kind.key) for one in touched)).distinct())
    *facts, before = (
        one.filter(asked.where_to_look()).join(asked.frame, list(kind.key), "left_semi") for one in (*facts, before)
    )
    before = before.checkpoint()
    return [*facts, facts_of_none(kind, before)], before


def _kept_again(history: History, release: ReleaseFacts) -> "DataFrame":
    """Return today's retention, as `kept_ms`, of the objects of earlier runs that hold some of the changed topics."""
    entries = union(*history.entries_before()).select(*SEGMENT_KEY, "topic_id", "partition", "last_offset")
    changed = [fn.lit(bytearray.fromhex(topic_id)) for topic_id in sorted(history.read.changed_topics)]
    asked = small_side(entries.filter(fn.col("topic_id").isin(changed)).select(*SEGMENT_KEY).distinct())
    whole = entries.filter(asked.where_to_look()).join(asked.frame, list(SEGMENT_KEY), "left_semi")
    kept = whole.mapInArrow(
        retention_of_entries(release), "broker_id INT, incarnation LONG, sequence LONG, kept_ms LONG"
    )
    return small_side(kept.groupBy(*SEGMENT_KEY).agg(fn.max("kept_ms").alias("kept_ms"))).frame
