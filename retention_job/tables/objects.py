"""One row per object, from what the records, an inventory and the run before say of it.

Combined segments and archive objects are two kinds of one table: every step takes either, and what sets them apart
stands in `COMBINED_SEGMENT` and `ARCHIVE_OBJECT`. Each kind's rows have a directory of their own, as segments come by
the million, and their rows are shuffled without columns that only the few archive objects have.

Theory. Everything is one aggregation over the union of all facts, one for each state that somebody tells of: a single
shuffle of narrow rows, whatever the sources are, and no key is rarer or more frequent than an object's few records, so
nothing can be skewed. What a record does depends on the furthest state alone (`metadata_topic.records.states`), so
neither order nor repetition matters.

An archive object's commit is published again from time to time under a newer time stamp, as the object may outlive the
topic's retention. So `finished_ms` is when it was committed or, where older records are gone, later, while `stored_ms`
tells the truth where there is an inventory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from metadata_topic.records.serde import REBUILT_SEGMENT
from retention_job.schemas import ARCHIVE_KEY, ARCHIVE_OBJECTS, SEGMENT_KEY, SEGMENTS
from retention_job.sources.release_facts import FOREVER
from retention_job.sources.staged_rows import ARCHIVE_ROW, SEGMENT_ROW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIMES: Final = ("started_ms", "finished_ms", "deleting_ms", "deleted_ms")
"""When an object came to each of its states, 0 to 3."""

_FINISHED: Final = 1
_OF_FACTS: Final[Mapping[str, DataType]] = {
    "state": IntegerType(),
    "event_timestamp_ms": LongType(),
    "size_bytes": LongType(),
    "record_id": LongType(),
    "refused_state": IntegerType(),
    "stored_bytes": LongType(),
    "stored_ms": LongType(),
    "store_class_code": IntegerType(),  # as a text, its largest could not be taken in a hash aggregation
}
_OF_THE_JOB: Final = (
    StructField("has_metadata", BooleanType()),
    StructField("finished_records", IntegerType()),
    StructField("first_record", LongType()),
    StructField("refused_state", IntegerType()),
)


@dataclass(frozen=True, slots=True)
class Told:
    """How a column comes about that objects of one kind alone have, as SQL."""

    of_record: str
    """Of a staged record."""
    of_before: str
    """Of a row of the run before."""
    of_largest: str
    """Of the largest that was told."""


@dataclass(frozen=True, slots=True, eq=False)
class ObjectKind:
    """What sets the objects of a kind apart. There are two, each the same as itself alone."""

    table: str
    """Under a run's directory."""
    inventory: str
    """The table of what is stored, likewise."""
    schema: StructType
    staged_row: str
    """In which rows of `sources.staged_rows` the records are."""
    publisher: str
    """The column of these rows that names the incarnation that said so."""
    refused_up_to: int
    """The furthest state of which a fenced publisher's word counts for nothing."""
    key: Mapping[str, str]
    """What names an object, and the columns of INVENTORY that do."""
    told: Mapping[str, Told]

    @property
    def is_listed(self) -> str:
        """SQL over INVENTORY: which rows are of this kind."""
        return f"archive_topic_id IS {'NOT ' if 'topic_id' in self.key else ''}NULL"

    @property
    def schema_with_facts(self) -> StructType:
        """The schema and, for the job's own use, `has_metadata`, `finished_records` (how often its end was read in this
        run), `first_record` (the first of these, -1 if a run before read it) and `refused_state` (the furthest state
        that its publisher told when it was fenced). With objects without metadata, of which the state is -1.
        """
        return StructType([*self.schema.fields, *_OF_THE_JOB])


COMBINED_SEGMENT: Final = ObjectKind(
    "segments",
    "inventory",
    SEGMENTS,
    SEGMENT_ROW,
    "incarnation",
    _FINISHED,  # what it says of a deletion counts, as agents do it (`metadata_topic.store.store_state`)
    {name: name for name in SEGMENT_KEY},
    {
        "copies": Told("IF(state = 1, copies, NULL)", "copies", "copies"),
        "elsewhere_bytes": Told("IF(state = 1, elsewhere_bytes, NULL)", "elsewhere_bytes", "elsewhere_bytes"),
        # A deletion's entries are a copy of what was told before.
        "entry_count": Told("IF(state = 1, entry_count, NULL)", "entry_count", "entry_count"),
        "retention_ms": Told(
            "IF(state = 1, retention_ms, NULL)",
            f"IF(entry_count IS NULL, NULL, coalesce(retention_ms, {FOREVER}))",
            f"nullif(retention_ms, {FOREVER})",
        ),
    },
)
ARCHIVE_OBJECT: Final = ObjectKind(
    "archive",
    "archive_inventory",
    ARCHIVE_OBJECTS,
    ARCHIVE_ROW,
    "publisher",
    len(TIMES),  # all of it (`metadata_topic.store.archive.archive_store`)
    {name: name if name in SEGMENT_KEY else f"archive_{name}" for name in ARCHIVE_KEY},
    {
        "run_count": Told("entry_count", "run_count", "run_count"),
        "spans": Told("spans", "spans", "coalesce(spans, array())"),
        "expires_ms": Told("expires_ms", "expires_ms", "expires_ms"),
    },
)


def _facts(kind: ObjectKind, rows: "DataFrame", **told: "Column") -> "DataFrame":
    """A fact for each row. Of what is not told, it says nothing."""
    types = {**_OF_FACTS, **{name: kind.schema[name].dataType for name in kind.told}}
    nothing = fn.lit(None)
    return rows.select(*kind.key, *(told.get(name, nothing).cast(column).alias(name) for name, column in types.items()))


def facts_of_records(kind: ObjectKind, staged: "DataFrame") -> "DataFrame":
    """From the kind's staged rows, with `is_fenced`. What a rebuild of the topic tells is never refused: so do agents
    (`metadata_topic.store.store_state`).
    """
    is_rebuilt = fn.coalesce("record_type", fn.lit(-1)) == REBUILT_SEGMENT
    refused = fn.col("is_fenced") & (fn.col("state") <= kind.refused_up_to) & ~is_rebuilt
    told = {name: fn.col(name) for name in ("state", "event_timestamp_ms", "size_bytes")}
    told |= {name: fn.expr(column.of_record) for name, column in kind.told.items()}
    told["record_id"] = fn.when(fn.col("state") == _FINISHED, fn.col("record_id"))
    counted = {name: fn.when(~refused, column) for name, column in told.items()}
    return _facts(kind, staged, **counted, refused_state=fn.when(refused, fn.col("state")))


def facts_of_inventory(kind: ObjectKind, inventory: "DataFrame", store_classes: Sequence[str]) -> "DataFrame":
    """From INVENTORY; objects of the other kind are left out. `store_classes` are all that occur."""
    key = [fn.col(listed).alias(name) for name, listed in kind.key.items()]
    stored = inventory.filter(kind.is_listed).select(*key, "size_bytes", "last_modified_ms", "store_class")
    return _facts(
        kind,
        stored,
        stored_bytes=fn.col("size_bytes"),
        stored_ms=fn.col("last_modified_ms"),
        store_class_code=_code_in(store_classes),
    )


def _classes(store_classes: Sequence[str]) -> "Column":
    return fn.array(*map(fn.lit, store_classes)).cast("array<string>")


def facts_of_state(kind: ObjectKind, before: "DataFrame") -> "DataFrame":
    """From the table of the run before: a fact for each state that an object was seen in."""
    events = fn.array(
        *(
            fn.struct(fn.lit(state).alias("state"), fn.col(name).alias("event_timestamp_ms"))
            for state, name in enumerate(TIMES)
        )
    )
    seen = fn.filter(events, lambda event: event.event_timestamp_ms.isNotNull())
    return _facts(
        kind,
        before.drop("state").select("*", fn.inline(seen)),
        **{name: fn.col(name) for name in ("state", "event_timestamp_ms", "size_bytes")},
        **{name: fn.expr(column.of_before) for name, column in kind.told.items()},
        record_id=fn.when(fn.col("state") == _FINISHED, fn.lit(-1)),
    )


def facts_of_refusals(kind: ObjectKind, before: "DataFrame") -> "DataFrame":
    """From the table of the run before: objects of which it knew only that their records are refused."""
    refused = before.filter("NOT has_metadata AND is_stored AND refused_state IS NOT NULL")
    return _facts(kind, refused, refused_state=fn.col("refused_state"))


def facts_of_stored(kind: ObjectKind, before: "DataFrame", store_classes: Sequence[str]) -> "DataFrame":
    """From the table of the run before: what inventories told that are not read again."""
    told = {name: fn.col(name) for name in ("stored_bytes", "stored_ms")}
    if "store_class" in kind.schema.fieldNames():
        told["store_class_code"] = _code_in(store_classes)
    return _facts(kind, before.filter("stored_ms IS NOT NULL"), **told)


def _code_in(store_classes: Sequence[str]) -> "Column":
    code = fn.array_position(_classes(store_classes), fn.col("store_class"))
    return fn.when(code > 0, code)


def object_table(
    kind: ObjectKind, facts: "DataFrame", has_inventory: bool, store_classes: Sequence[str]
) -> "DataFrame":
    """`ObjectKind.schema_with_facts`."""
    largest = ("size_bytes", *kind.told, "stored_bytes", "stored_ms", "store_class_code", "refused_state")
    found = facts.groupBy(*kind.key).agg(
        fn.max("state").alias("state"),
        *first_times(),
        fn.max(fn.when(fn.col("state") == _FINISHED, fn.col("size_bytes"))).alias("finished_bytes"),
        *(fn.max(name).alias(name) for name in largest),
        fn.count_if(fn.col("record_id") >= 0).cast("int").alias("finished_records"),
        fn.min("record_id").alias("first_record"),
    )
    columns = {
        "state": fn.coalesce("state", fn.lit(-1)),
        "size_bytes": fn.coalesce("finished_bytes", "size_bytes"),
        **{name: fn.expr(column.of_largest) for name, column in kind.told.items()},
        "is_stored": fn.col("stored_ms").isNotNull() if has_inventory else fn.lit(None).cast("boolean"),
        "store_class": fn.get(_classes(store_classes), fn.col("store_class_code") - 1),
        "is_new": fn.coalesce(fn.col("first_record") >= 0, fn.lit(False)),
        "has_metadata": fn.col("state").isNotNull(),
    }
    return found.withColumns(columns).select(*kind.schema_with_facts.fieldNames())


def first_times() -> "list[Column]":
    """TIMES, as aggregates of facts with `state` and `event_timestamp_ms`."""
    return [
        fn.min(fn.when(fn.col("state") == state, fn.col("event_timestamp_ms"))).alias(name)
        for state, name in enumerate(TIMES)
    ]
