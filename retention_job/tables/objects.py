"""Makes one row per object, from records, a listing and the run before.

Combined segments and archive objects are two kinds of one table: every step takes either, and `COMBINED_SEGMENT` and
`ARCHIVE_OBJECT` have the differences. Each kind's rows have a directory of their own, because segments come by the
million, and are shuffled without columns that only the few archive objects have.

Everything is one aggregation over the union of all facts, one for each state in any source: a single shuffle of narrow
rows, whatever the sources are. A key has only the few records of its object, so nothing can be skewed. The effect of a
record depends on the furthest state only (`metadata_topic.records.states`), so neither order nor repetition matters.

An archive object's commit is published again from time to time under a newer time stamp, because the object may outlive
the topic's retention. So `finished_ms` is the time of the commit or, if older records are gone, a later time, while
`stored_ms` is right if the store is listed.

A run reads news of few objects, and all others stay as they were. So the table of a kind has layers: a whole one, and
above it complete rows of the objects that each later run had news of; the topmost row of an object counts. Each layer
costs every reading its keys, so the layers are merged into one when there are many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from metadata_topic.records.serde import REBUILT_SEGMENT
from retention_job.schemas import ARCHIVE_KEY, ARCHIVE_OBJECTS, SEGMENT_KEY, SEGMENTS
from retention_job.sources.decoding import ARCHIVE_ROW, SEGMENT_ROW
from retention_job.spark.joins import small_side, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_LAYERS: Final = 24
"""The maximum number of layers beneath a run's own."""
_TIMES: Final = ("started_ms", "finished_ms", "deleting_ms", "deleted_ms")
"""The times when an object reached each of its states, 0 to 3."""

_FINISHED: Final = 1
_OF_FACTS: Final[Mapping[str, DataType]] = {
    "state": IntegerType(),
    "event_timestamp_ms": LongType(),
    "size_bytes": LongType(),
    "record_id": LongType(),
    "refused_state": IntegerType(),
    "stored_bytes": LongType(),
    "stored_ms": LongType(),
}
_OF_THE_JOB: Final = (
    StructField("has_metadata", BooleanType()),
    StructField("finished_records", IntegerType()),
    StructField("first_record", LongType()),
    StructField("refused_state", IntegerType()),
)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectKind:
    """A kind of objects, and how it differs from the other. There are two, and each is equal only to itself."""

    table: str
    """The table's name under a run's directory."""
    listing: str
    """The name of the table LISTED of this kind, under the same directory."""
    schema: StructType
    staged_row: str
    """The kind of rows of `sources.decoding` that has the records."""
    publisher: str
    """The column of these rows with the incarnation that published the record."""
    refused_up_to: int
    """The furthest state for which a fenced publisher's records do not count."""
    key: Sequence[str]
    """The columns that name an object."""
    told: Sequence[str]
    """The columns that only this kind has, from its records. Of all values, the largest counts."""

    @property
    def schema_with_facts(self) -> StructType:
        """The kind's schema with columns that only the job uses; it includes objects without metadata, which have state
        -1.

        The columns: `has_metadata`, `finished_records` (how often its end was read in this run), `first_record` (the
        first of these, -1 if an earlier run read it) and `refused_state` (the furthest state that its publisher
        published while fenced).
        """
        return StructType([*self.schema.fields, *_OF_THE_JOB])


COMBINED_SEGMENT: Final = ObjectKind(
    "segments",
    "listed",
    SEGMENTS,
    SEGMENT_ROW,
    "incarnation",
    _FINISHED,  # what it says of a deletion counts, as agents do it (`metadata_topic.store.store_state`)
    SEGMENT_KEY,
    ("elsewhere_bytes", "entry_count", "retention_ms"),
)
ARCHIVE_OBJECT: Final = ObjectKind(
    "archive",
    "archive_listed",
    ARCHIVE_OBJECTS,
    ARCHIVE_ROW,
    "publisher",
    len(_TIMES),  # all of it (`metadata_topic.store.archive.archive_store`)
    ARCHIVE_KEY,
    ("spans", "expires_ms"),
)


def _facts(kind: ObjectKind, rows: "DataFrame", **told: "Column") -> "DataFrame":
    """Return a fact for each row, with nulls in the columns that are not given."""
    types = {**_OF_FACTS, **{name: kind.schema[name].dataType for name in kind.told}}
    nothing = fn.lit(None)
    return rows.select(*kind.key, *(told.get(name, nothing).cast(column).alias(name) for name, column in types.items()))


def _columns(*names: str) -> "dict[str, Column]":
    return {name: fn.col(name) for name in names}


def facts_of_records(kind: ObjectKind, staged: "DataFrame") -> "DataFrame":
    """Return facts from staged rows of this kind, which have `is_fenced`.

    Records of a rebuild of the topic are never refused, as in the agents (`metadata_topic.store.store_state`).
    """
    is_rebuilt = fn.coalesce("record_type", fn.lit(-1)) == REBUILT_SEGMENT
    refused = fn.col("is_fenced") & (fn.col("state") <= kind.refused_up_to) & ~is_rebuilt
    told = _columns("state", "event_timestamp_ms", "size_bytes", *kind.told)
    told["record_id"] = fn.when(fn.col("state") == _FINISHED, fn.col("record_id"))
    counted = {name: fn.when(~refused, column) for name, column in told.items()}
    return _facts(kind, staged, **counted, refused_state=fn.when(refused, fn.col("state")))


def facts_of_listing(kind: ObjectKind, listed: "DataFrame") -> "DataFrame":
    """Return facts about objects from a table LISTED: size and time in the store."""
    return _facts(kind, listed, **_columns("stored_bytes", "stored_ms"))


def listed_otherwise(kind: ObjectKind, before: "DataFrame", stored: "DataFrame") -> "DataFrame":
    """Return the keys of objects that are new in the store, gone, or other than in the last run's table.

    `stored`: `facts_of_listing` of now. All other objects are as they were, because objects never change.
    """
    was = before.filter("stored_ms IS NOT NULL").selectExpr(
        *kind.key, "stored_bytes AS was_bytes", "stored_ms AS was_ms"
    )
    columns = ("stored_bytes", "stored_ms", "was_bytes", "was_ms")
    seen = union(stored.select(*kind.key, "stored_bytes", "stored_ms"), was).groupBy(*kind.key)
    compared = seen.agg(*(fn.max(name).alias(name) for name in columns))
    return compared.filter("NOT (stored_bytes <=> was_bytes AND stored_ms <=> was_ms)").select(*kind.key)


def facts_of_state(kind: ObjectKind, before: "DataFrame") -> "DataFrame":
    """Return facts from the last run's table, one for each state that an object was seen in."""
    events = fn.array(
        *(
            fn.struct(fn.lit(state).alias("state"), fn.col(name).alias("event_timestamp_ms"))
            for state, name in enumerate(_TIMES)
        )
    )
    seen = fn.filter(events, lambda event: event.event_timestamp_ms.isNotNull())
    return _facts(
        kind,
        before.drop("state").select("*", fn.inline(seen)),
        **_columns("state", "event_timestamp_ms", "size_bytes", *kind.told),
        record_id=fn.when(fn.col("state") == _FINISHED, fn.lit(-1)),
    )


def facts_of_refusals(kind: ObjectKind, before: "DataFrame") -> "DataFrame":
    """Return facts from the last run's table, for objects known only by refused records."""
    refused = before.filter("NOT has_metadata AND is_stored AND refused_state IS NOT NULL")
    return _facts(kind, refused, **_columns("refused_state"))


def facts_of_none(kind: ObjectKind, before: "DataFrame") -> "DataFrame":
    """Return an empty fact for each object, so that the new row of one without other facts replaces its older rows."""
    return _facts(kind, before)


def object_table(kind: ObjectKind, facts: "DataFrame", is_listed: bool) -> "DataFrame":
    """Build from facts the table of a kind of objects: `ObjectKind.schema_with_facts`."""
    largest = ("state", "size_bytes", *kind.told, "stored_bytes", "stored_ms", "refused_state")
    found = facts.groupBy(*kind.key).agg(
        *(fn.max(name).alias(name) for name in largest),
        *first_times(),
        fn.max(fn.when(fn.col("state") == _FINISHED, fn.col("size_bytes"))).alias("finished_bytes"),
        fn.count_if(fn.col("record_id") >= 0).cast("int").alias("finished_records"),
        fn.min("record_id").alias("first_record"),
    )
    columns = {
        "state": fn.coalesce("state", fn.lit(-1)),
        "size_bytes": fn.coalesce("finished_bytes", "size_bytes"),
        "is_stored": fn.col("stored_ms").isNotNull() if is_listed else fn.lit(None).cast("boolean"),
        "is_new": fn.coalesce(fn.col("first_record") >= 0, fn.lit(False)),
        "has_metadata": fn.col("state").isNotNull(),
    }
    return found.withColumns(columns).select(*kind.schema_with_facts.fieldNames())


def first_times() -> "list[Column]":
    """Return columns that aggregate facts (`state`, `event_timestamp_ms`) to the first time of each state."""
    return [
        fn.min(fn.when(fn.col("state") == state, fn.col("event_timestamp_ms"))).alias(name)
        for state, name in enumerate(_TIMES)
    ]


def topmost(kind: ObjectKind, layers: "Sequence[DataFrame]") -> "DataFrame":
    """Merge the tables of several runs, given newest first, into one with the newest row of each object."""
    numbered = [layer.withColumn("_age", fn.lit(age)) for age, layer in enumerate(layers)]
    if len(numbered) == 1:
        return layers[0]
    newest = union(*(layer.select(*kind.key, "_age") for layer in numbered[:-1])).groupBy(*kind.key)
    newest_age = small_side(newest.agg(fn.min("_age").alias("_newest"))).frame
    found = union(*numbered).join(newest_age, list(kind.key), "left")
    return found.filter("_newest IS NULL OR _age = _newest").drop("_age", "_newest")


def untouched(before: "DataFrame") -> "DataFrame":
    """Return an earlier run's rows with those columns reset that say what a run itself has read of an object."""
    return before.withColumns(
        {
            "is_new": fn.lit(False),
            "finished_records": fn.lit(0),
            "first_record": fn.expr("IF(finished_ms IS NULL, NULL, -1L)"),
            "refused_state": fn.expr("IF(has_metadata, NULL, refused_state)"),
        }
    )
