"""The tables of all sources. `loading` makes them, and explains the theory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.schemas import (
    ARCHIVE_OBJECTS,
    DEAD_ENTRIES,
    DECLARED,
    ENTRIES,
    OTHER_RECORDS,
    PARTITIONS,
    QUARANTINE,
    SEGMENT_KEY,
    SEGMENTS,
    TIERED,
    TOPICS,
)
from retention_job.sources.kafka_cluster import Cluster, Topic
from retention_job.sources.staged_rows import (
    DEAD_ROW,
    ENTRY_ROW,
    OTHER_ROW,
    PARTITION_SHIFT,
    QUARANTINE_ROW,
    STAGED,
)
from retention_job.spark.joins import small_side, union
from retention_job.tables import tier
from retention_job.tables.objects import ARCHIVE_OBJECT, COMBINED_SEGMENT, ObjectKind, beneath, topmost
from retention_job.tables.read_plan import (
    ReadSummary,
    metadata_retention_ms,
    metadata_topic_id,
    retentions,
)
from retention_job.tables.state import InventoryRead, RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OFFSET_MASK: Final = (1 << PARTITION_SHIFT) - 1
_NO_RECORD: Final = -2


@dataclass(frozen=True)
class History:
    """The tables of `schemas`, each read from disk when it is used; made by `loading.load`."""

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
    inventories: Mapping[str, InventoryRead]
    """The parts of inventories that have been read, by all runs."""

    def table(self, name: str, schema: StructType | str | None = None, run_id: str | None = None) -> "DataFrame":
        """Return a table of this run, or of an earlier one, by the name of its directory."""
        reader = self.spark.read if schema is None else self.spark.read.schema(schema)
        return reader.parquet(self.state.path_of(run_id or self.run_id, name))

    def keep(self, name: str, frame: "DataFrame") -> "DataFrame":
        """Write the frame as a table of this run, because it is used several times or by the next run."""
        frame.write.parquet(self.state.path_of(self.run_id, name))
        return self.table(name, frame.schema)

    def staged(self, row: str, run_id: str | None = None) -> "DataFrame":
        """Return staged rows of one kind (`staged_rows`), of this run or an earlier one."""
        return self.table("staged", STAGED, run_id).filter(f"row = '{row}'")

    def objects(self, kind: ObjectKind) -> "DataFrame":
        """Return the table of a kind: `ObjectKind.schema_with_facts`."""
        if kind.table not in self._objects:
            own = self.table(kind.table, kind.schema_with_facts)
            self._objects[kind.table] = beneath(kind, own, self.objects_before(kind)) if self.layers else own
        return self._objects[kind.table]

    @cached_property
    def _objects(self) -> "dict[str, DataFrame]":
        return {}

    def objects_before(self, kind: ObjectKind) -> "DataFrame":
        """Return the table of a kind as the runs left it that this one continues from."""
        last = self.last.layers if self.last else ()
        return topmost(kind, [self.table(kind.table, kind.schema_with_facts, run_id) for run_id in reversed(last)])

    @cached_property
    def segments(self) -> "DataFrame":
        """The table SEGMENTS."""
        return self.objects(COMBINED_SEGMENT).filter("has_metadata").select(*SEGMENTS.fieldNames())

    @cached_property
    def archive(self) -> "DataFrame":
        """The table ARCHIVE_OBJECTS."""
        return self.objects(ARCHIVE_OBJECT).filter("has_metadata").select(*ARCHIVE_OBJECTS.fieldNames())

    @cached_property
    def entries(self) -> "DataFrame":
        """The table ENTRIES, with `record_id`."""
        return _entries_of(self, self.run_id)

    def entries_of_all_runs(self) -> "DataFrame":
        """Return ENTRIES of this run and of earlier ones, as far as they are kept."""
        found = (self.entries, *(_entries_of(self, run_id) for run_id in _entry_runs(self.last)))
        return union(*found).select(*ENTRIES.fieldNames())

    @cached_property
    def dead_entries(self) -> "DataFrame":
        """The table DEAD_ENTRIES, of earlier runs as well."""
        found = (self.staged(DEAD_ROW, run_id) for run_id in (self.run_id, *_entry_runs(self.last)))
        return union(*found).select(*DEAD_ENTRIES.fieldNames())

    @cached_property
    def declared(self) -> "DataFrame":
        """The table DECLARED."""
        return self.table("declared", DECLARED)

    @cached_property
    def topics(self) -> "DataFrame":
        """The table TOPICS."""
        return self.spark.createDataFrame([_topic_row(topic) for topic in self.cluster.topics], TOPICS)

    @cached_property
    def partitions(self) -> "DataFrame":
        """The table PARTITIONS."""
        rows = [
            (bytearray(topic.topic_id), number, offsets.earliest.get(number), offsets.latest.get(number))
            for topic in self.cluster.topics
            for offsets in (self.cluster.offsets[topic.name],)
            for number in topic.partitions
        ]
        return self.spark.createDataFrame(rows, PARTITIONS)

    @cached_property
    def tiered(self) -> "DataFrame":
        """The table TIERED."""
        return tier.segments_of(self.tier_events).select(*TIERED.fieldNames())

    @cached_property
    def tiered_up_to(self) -> Mapping[tuple[bytes, int], int]:
        """The first offset that KIP-405's tier does not hold, by (topic id, partition).

        Archived topics are left out, because their objects wait for the archive.
        """
        archived = {topic.topic_id for topic in self.cluster.topics if topic.settings.archive}
        return {key: up_to for key, up_to in tier.tiered_up_to(self.tiered).items() if key[0] not in archived}

    @cached_property
    def quarantine(self) -> "DataFrame":
        """The table QUARANTINE, of this run's records."""
        found = self.staged(QUARANTINE_ROW).select(
            fn.lit(METADATA_TOPIC).alias("topic"),
            *_place(),
            "reason",
            "detail",
            "key_bytes",
            "value_bytes",
        )
        return union(found, tier.quarantine_of(self.tier_events)).select(*QUARANTINE.fieldNames())

    @cached_property
    def other_records(self) -> "DataFrame":
        """The table OTHER_RECORDS, of this run."""
        found = self.staged(OTHER_ROW).select("record_type", "key", "value", *_place())
        return found.select(*OTHER_RECORDS.fieldNames())

    def with_topic_names(self, frame: "DataFrame") -> "DataFrame":
        """Add the column `topic`, null for topics that are gone. Best done after an aggregation."""
        return frame.join(fn.broadcast(self.topics.select("topic_id", "topic")), "topic_id", "left")

    def commit(self) -> None:
        """Commit the state that the next incremental run continues from. Call it when everything else is written."""
        now_ms = self.read.now_ms
        kept_ms = metadata_retention_ms(self.cluster)
        runs = {
            run_id: at_ms
            for run_id, at_ms in _entry_runs(self.last).items()
            if kept_ms is None or now_ms - at_ms < kept_ms
        }
        topic_id = metadata_topic_id(self.cluster)
        self.state.commit(
            RunRecord(
                self.run_id,
                now_ms,
                dict(self.read.ending_offsets),
                topic_id,
                retentions(self.cluster),
                {**runs, self.run_id: now_ms},
                [*self.layers, self.run_id],
                self.inventories,
            )
        )


def _entry_runs(last: RunRecord | None) -> Mapping[str, int]:
    """Return the earlier runs whose entries still count, with their times in ms."""
    return last.entry_runs if last else {}


def _entries_of(history: History, run_id: str) -> "DataFrame":
    """Return a run's entries, without repeated records and without those of fenced writers."""
    staged = history.staged(ENTRY_ROW, run_id).select("record_id", *ENTRIES.fieldNames())
    doubted = history.table(COMBINED_SEGMENT.table, COMBINED_SEGMENT.schema_with_facts, run_id).filter(
        "finished_records > 1 OR (finished_records > 0 AND first_record < 0) OR refused_state = 1"
    )
    right = small_side(doubted.selectExpr(*SEGMENT_KEY, f"coalesce(first_record, {_NO_RECORD}) AS right_record"))
    if right.is_empty:
        return staged
    kept = staged.join(right.frame, list(SEGMENT_KEY), "left")
    return kept.filter("right_record IS NULL OR record_id = right_record").drop("right_record")


def _topic_row(topic: Topic) -> tuple[Any, ...]:
    return (
        bytearray(topic.topic_id),
        topic.name,
        topic.replication_factor,
        topic.settings.enable,
        topic.settings.archive,
        topic.config.get("cleanup.policy"),
        None if (kept := topic.kept_shortest) is None else kept.retention_ms,
    )


def _place() -> list[Any]:
    """Return the columns with the position of a staged record in its topic."""
    return [
        fn.shiftright("record_id", PARTITION_SHIFT).cast("int").alias("partition"),
        fn.col("record_id").bitwiseAND(fn.lit(_OFFSET_MASK)).alias("offset"),
        fn.col("event_timestamp_ms").alias("timestamp_ms"),
    ]
