"""Rules that need one row of a table of objects: all of them in one pass over the table of each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from metadata_topic.settings.wal_retention import NO_LIMIT
from retention_job.findings.kinds import Kind
from retention_job.schemas import SEGMENT_KEY
from retention_job.settings import LifeTimes
from retention_job.sources.release_facts import FOREVER
from retention_job.spark.joins import union
from retention_job.tables.history import History
from retention_job.tables.objects import ARCHIVE_OBJECT, COMBINED_SEGMENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AGENT: Final = "remote-wal agent --broker-config <server.properties of broker {}>"
_APPLY: Final = "remote-wal report --apply"
_ORPHANS: Final = "remote-wal orphans --heal --broker-config <server.properties of broker {}>"
_VERIFY: Final = "remote-wal verify"
_ARCHIVE_STORE: Final = (
    "none: find out who deletes in the archive's store; the brokers have the records that local retention kept"
)


@dataclass(frozen=True, slots=True)
class _Told:
    """The text of a finding about objects of one kind, and the action to take."""

    kind: Kind
    detail: str
    """A format string of SQL for the columns in `shown`."""
    heal: str
    """`{}` stands for the broker of the object's writer."""
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule about objects of either kind."""

    condition: str
    """SQL over `ObjectKind.schema_with_facts`; `{now}` and the like are filled in. Without metadata, `state` is -1."""
    since: str
    """SQL for the time that the finding's age counts from."""
    segment: _Told | None
    """The text for combined segments; None: the rule does not apply to them."""
    archive: _Told | None
    """The text for archive objects; None: the rule does not apply to them."""


_SIZES: Final = ("stored_bytes", "size_bytes")

# Whether records are missing from the archive is judged elsewhere: `tables.coverage` tells offsets that are in neither
# kind of object, and `partition_rules` combined segments that were deleted before the archive held all of them.
_RULES: Final = (
    _Rule(
        "state = 1 AND coalesce(is_stored, true) AND finished_ms < {now} - {slack} - retention_ms "
        "AND finished_ms < {now} - {slack} - {held}",
        "finished_ms",
        _Told(
            Kind.EXPIRED,
            "none of its %d entries is wanted for longer than %d ms after its upload",
            AGENT,
            ("entry_count", "retention_ms"),
        ),
        None,
    ),
    _Rule(
        "state = 0 AND started_ms < {now} - {ttl} - {slack}",
        "started_ms",
        _Told(Kind.UPLOAD_UNFINISHED, "COPY_SEGMENT_STARTED, and nothing since", _APPLY),
        None,
    ),
    _Rule(
        "state = 0 AND coalesce(expires_ms, started_ms) < {now} - {slack}",
        "started_ms",
        None,
        _Told(
            Kind.ARCHIVE_UNFINISHED,
            "an archive object was prepared, was not committed in its time, and is not given up",
            AGENT,
        ),
    ),
    _Rule(
        "state = 2 AND coalesce(is_stored, true) AND deleting_ms < {now} - {grace} - {slack}",
        "deleting_ms",
        _Told(Kind.DELETION_STUCK, "DELETE_SEGMENT_STARTED, and nothing since", AGENT),
        _Told(Kind.ARCHIVE_DELETION_STUCK, "an archive object is to be deleted, and nothing was done since", AGENT),
    ),
    _Rule(
        "state = 3 AND is_stored AND deleted_ms < {now} - {ttl}",
        "deleted_ms",
        _Told(Kind.DELETED_BUT_THERE, "DELETE_SEGMENT_FINISHED, and the object is in the store", _ORPHANS),
        _Told(
            Kind.ARCHIVE_DELETED_BUT_THERE,
            "an archive object is deleted, says its metadata, and is in the store",
            AGENT,
        ),
    ),
    _Rule(
        "NOT has_metadata AND stored_ms < {now} - {ttl} AND refused_state IS NULL",
        "stored_ms",
        _Told(Kind.NO_METADATA, "an object of which no record tells", _APPLY),
        _Told(Kind.ARCHIVE_NO_METADATA, "an archive object of which no record tells", AGENT),
    ),
    _Rule(
        "NOT has_metadata AND stored_ms < {now} - {ttl} AND refused_state IS NOT NULL",
        "stored_ms",
        _Told(
            Kind.NO_METADATA,
            "an object whose records are refused: when its agent published them, a newer incarnation was registered",
            _APPLY,
        ),
        _Told(
            Kind.ARCHIVE_NO_METADATA,
            "an archive object whose records are refused: a newer incarnation was registered when they were published",
            AGENT,
        ),
    ),
    _Rule(
        "state = 1 AND NOT is_stored AND finished_ms < {now} - {ttl}",
        "finished_ms",
        _Told(Kind.NO_OBJECT, "COPY_SEGMENT_FINISHED, and no object in the store", _ORPHANS),
        _Told(
            Kind.ARCHIVE_NO_OBJECT,
            "an archive object is committed, and not in the store: offsets %d to %d",
            _ARCHIVE_STORE,
            ("first_offset", "last_offset"),
        ),
    ),
    _Rule(
        "state = 1 AND is_stored AND stored_bytes <> size_bytes",
        "finished_ms",
        _Told(Kind.OTHER_SIZE, "the object has %d bytes, its metadata says %d", _VERIFY, _SIZES),
        _Told(Kind.ARCHIVE_OTHER_SIZE, "the archive object has %d bytes, its metadata says %d", _VERIFY, _SIZES),
    ),
)


def object_findings(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Return the FINDINGS that one row of the table of either kind decides."""
    nothing = fn.lit(None)
    segments = history.objects(COMBINED_SEGMENT).select(
        "*", nothing.alias("topic"), nothing.alias("topic_partition"), writer_name().alias("segment")
    )
    archive = named(history, history.objects(ARCHIVE_OBJECT)).select(
        "*",
        fn.col("partition").alias("topic_partition"),
        fn.format_string("archive:%d-%d:%s", "first_offset", "last_offset", writer_name()).alias("segment"),
    )
    # Agents keep more while a replica is not in sync, and which of the objects the job does not know.
    held_ms = history.cluster.held_ms
    held = FOREVER if held_ms == NO_LIMIT else held_ms
    times = {"now": now_ms, "ttl": life_times.uncommitted_ttl_ms, "slack": life_times.slack_ms, "held": held}

    return union(
        _judged(
            segments,
            [(rule, rule.segment) for rule in _RULES if rule.segment is not None],
            {**times, "grace": life_times.delete_grace_ms},
        ),
        _judged(
            archive,
            [(rule, rule.archive) for rule in _RULES if rule.archive is not None],
            {**times, "grace": life_times.archive_delete_grace_ms},
        ),
    )


def writer_name() -> "Column":
    """Return CombinedSegmentId's text form, of the segment or the archive object's writer."""
    return fn.format_string(
        "%d-%s-%s",
        fn.col("broker_id"),
        *(fn.lpad(fn.lower(fn.hex(fn.col(name))), 12, "0") for name in SEGMENT_KEY[1:]),
    )


def named(history: History, frame: "DataFrame") -> "DataFrame":
    """Add the column `topic`: the topic's name, or its id if the topic is gone or hidden."""
    hidden = [fn.when(fn.col("topic_id") == fn.lit(bytearray(one)), hidden_name(one)) for one in history.cluster.hidden]
    unknown = fn.concat(fn.lit("deleted, id "), fn.lower(fn.hex("topic_id")))
    return history.with_topic_names(frame).withColumn("topic", fn.coalesce("topic", *hidden, unknown))


def hidden_name(topic_id: bytes) -> str:
    """Return the name under which a topic is shown that this client may not describe."""
    return f"hidden, id {topic_id.hex()}"


def _judged(objects: "DataFrame", rules: Sequence[tuple[_Rule, _Told]], times: Mapping[str, int]) -> "DataFrame":
    """Return FINDINGS of rows that have `topic`, `topic_partition` and `segment` besides the table's columns."""

    def as_finding(rule: _Rule, told: _Told) -> "Column":
        shown = (fn.coalesce(fn.col(name), fn.lit(-1)) for name in told.shown)
        before, _, after = told.heal.partition("{}")
        broker = fn.col("broker_id").cast("string") if after else fn.lit("")
        heal = fn.concat(fn.lit(before), broker, fn.lit(after))
        return fn.struct(
            fn.lit(told.kind.value).alias("kind"),
            fn.lit(told.kind.severity.value).alias("severity"),
            fn.format_string(told.detail, *shown).alias("detail"),
            (fn.lit(times["now"]) - fn.col(rule.since)).alias("age_ms"),
            heal.alias("heal"),
        )

    conditions = [rule.condition.format(**times) for rule, _ in rules]
    found = fn.array(*(fn.when(fn.expr(one), as_finding(*rule)) for one, rule in zip(conditions, rules, strict=True)))
    wrong = objects.filter(" OR ".join(f"({one})" for one in conditions))
    return wrong.withColumn("finding", fn.explode(fn.filter(found, lambda one: one.isNotNull()))).select(
        "finding.kind",
        "finding.severity",
        fn.col("topic").cast("string").alias("topic"),
        fn.col("topic_partition").cast("int").alias("partition"),
        "segment",
        "finding.detail",
        "finding.age_ms",
        fn.coalesce("stored_bytes", "size_bytes").alias("size_bytes"),
        "finding.heal",
    )
