"""What is wrong, as one table: every rule is one function that gives rows of `schemas.FINDINGS`.

Severities: `critical` where data is missing or will be, `warning` where something is kept, or left undone, that costs
money or will do harm, `info` for what is worth knowing and needs nobody. A rule says nothing of what it cannot know: of
segments whose entries were not read, of topics whose settings are not known, of objects that are younger than the time
to live.
"""

from functools import reduce
from typing import TYPE_CHECKING, Final

from metadata_topic.topic import METADATA_TOPIC
from retention_job.archive_findings import archive_findings
from retention_job.chains import Chains, chains_of
from retention_job.early_deletions import early_deletions
from retention_job.finding_kinds import SEVERITIES, Kind, SmallFinding
from retention_job.history import History
from retention_job.joins import of_segments
from retention_job.object_rules import AGENT, ObjectRule, judged, writer_name
from retention_job.schemas import FINDINGS, SEGMENT_KEY
from retention_job.settings import LifeTimes
from retention_job.topic_findings import topic_findings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

APPLY: Final = "remote-wal report --apply"
_ORPHANS: Final = "remote-wal orphans --heal --broker-config <server.properties of broker {}>"

FEW_WITHOUT_METADATA: Final = 1000
"""So many objects without metadata are no reason to doubt the metadata, as with agents (`rlm.orphans`)."""


def find(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """FINDINGS, by all rules. Writes the run's chains down beside its tables."""
    chains = chains_of(history)
    parts = [
        segment_findings(history, now_ms, life_times),
        archive_findings(history, now_ms, life_times),
        _deleted_early(history, chains, now_ms),
        _gaps(history, chains),
        _overlaps(history, chains),
        _dead(history, now_ms),
        _dead_untold(history, chains, now_ms, life_times),
        _quarantined(history),
        _small(history, [*topic_findings(history.cluster, life_times), *_lost_metadata(history, now_ms, life_times)]),
    ]
    return reduce(lambda one, other: one.unionByName(other), parts).select(*FINDINGS.fieldNames())


# Rules about single segments: one pass over the segment table.

_RULES: Final = (
    ObjectRule(
        Kind.EXPIRED,
        "has_metadata AND state = 1 AND coalesce(is_stored, true) AND finished_ms < {now} - {slack} - retention_ms",
        "finished_ms",
        "none of its %d entries is wanted for longer than %d ms after its upload",
        ("entry_count", "retention_ms"),
        APPLY,
    ),
    ObjectRule(
        Kind.UPLOAD_UNFINISHED,
        "has_metadata AND state = 0 AND started_ms < {now} - {ttl} - {slack}",
        "started_ms",
        "COPY_SEGMENT_STARTED, and nothing since",
        (),
        APPLY,
    ),
    ObjectRule(
        Kind.DELETION_STUCK,
        "has_metadata AND state = 2 AND coalesce(is_stored, true) AND deleting_ms < {now} - {grace} - {slack}",
        "deleting_ms",
        "DELETE_SEGMENT_STARTED, and nothing since",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.DELETED_BUT_THERE,
        "has_metadata AND state = 3 AND is_stored AND deleted_ms < {inventory} - {ttl}",
        "deleted_ms",
        "DELETE_SEGMENT_FINISHED, and the object is in the store",
        (),
        _ORPHANS,
    ),
    ObjectRule(
        Kind.NO_METADATA,
        "NOT has_metadata AND stored_ms < {inventory} - {ttl} AND refused_state IS NULL",
        "stored_ms",
        "an object of which no record tells",
        (),
        APPLY,
    ),
    ObjectRule(
        Kind.NO_METADATA,
        "NOT has_metadata AND stored_ms < {inventory} - {ttl} AND refused_state IS NOT NULL",
        "stored_ms",
        "an object whose records are refused: when its agent published them, a newer incarnation was registered",
        (),
        APPLY,
    ),
    ObjectRule(
        Kind.NO_OBJECT,
        "has_metadata AND state = 1 AND NOT is_stored AND finished_ms < {inventory} - {ttl}",
        "finished_ms",
        "COPY_SEGMENT_FINISHED, and no object in the store",
        (),
        _ORPHANS,
    ),
    ObjectRule(
        Kind.OTHER_SIZE,
        "has_metadata AND state = 1 AND is_stored AND stored_bytes <> size_bytes",
        "finished_ms",
        "the object has %d bytes, its metadata says %d",
        ("stored_bytes", "size_bytes"),
        "remote-wal verify",
    ),
)


def segment_findings(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Everything that one row of the segment table tells."""
    from pyspark.sql import functions as f

    times = {
        "now": now_ms,
        "inventory": history.read.inventory_ms or 0,
        "ttl": life_times.uncommitted_ttl_ms,
        "grace": life_times.delete_grace_ms,
        "slack": life_times.slack_ms,
    }
    named = history.segment_facts.select(
        "*", f.lit(None).alias("topic"), f.lit(None).alias("topic_partition"), writer_name().alias("segment")
    )
    return judged(named, _RULES, times)


# Rules about partitions.


def _rows(
    found: "DataFrame", kind: Kind, detail: "Column", heal: str, age_ms: "Column", size_bytes: "Column"
) -> "DataFrame":
    """FINDINGS from rows with `topic`, `partition` and `segment`."""
    from pyspark.sql import functions as f

    return found.select(
        f.lit(kind.value).alias("kind"),
        f.lit(SEVERITIES[kind].value).alias("severity"),
        "topic",
        "partition",
        f.col("segment").cast("string").alias("segment"),
        detail.alias("detail"),
        age_ms.cast("long").alias("age_ms"),
        size_bytes.cast("long").alias("size_bytes"),
        f.lit(heal).alias("heal"),
    )


def _named(history: History, frame: "DataFrame") -> "DataFrame":
    """With the topic's name, or its id where it is gone."""
    from pyspark.sql import functions as f

    named = history.with_topic_names(frame)
    return named.withColumn("topic", f.coalesce("topic", f.concat(f.lit("deleted, id "), f.lower(f.hex("topic_id")))))


def _gaps(history: History, chains: Chains) -> "DataFrame":
    """Of topics that are there, in offsets that their logs still hold. Compacted logs have holes of their own."""
    from pyspark.sql import functions as f

    kept = history.topics.filter("NOT coalesce(cleanup_policy, '') LIKE '%compact%'").select("topic_id", "topic")
    starts = history.partitions.select("topic_id", "partition", "log_start_offset")
    found = (
        chains.gaps.join(f.broadcast(kept), "topic_id")
        .join(f.broadcast(starts), ["topic_id", "partition"])
        .filter("last_offset >= coalesce(log_start_offset, 0)")
        .withColumn("segment", f.lit(None))
    )
    detail = f.format_string(
        "offsets %d to %d are in no object, behind leader epoch %d",
        f.greatest("first_offset", f.coalesce("log_start_offset", f.lit(0))),
        f.col("last_offset"),
        f.col("leader_epoch"),
    )
    nothing = f.lit(None)
    return _rows(
        found, Kind.GAP, detail, "none: the records are on the brokers; they go with the log", nothing, nothing
    )


def _overlaps(history: History, chains: Chains) -> "DataFrame":
    from pyspark.sql import functions as f

    found = _named(history, chains.twice).withColumn("segment", f.lit(None))
    detail = f.format_string(
        "offsets %d to %d of leader epoch %d are in more than one object", "first_offset", "last_offset", "leader_epoch"
    )
    return _rows(found, Kind.OVERLAP, detail, "none: readers take either copy", f.lit(None), f.lit(None))


def _dead(history: History, now_ms: int) -> "DataFrame":
    """What agents declared dead and is still stored, by election."""
    from pyspark.sql import functions as f

    by_election = ("topic_id", "partition", "leader_epoch", "declared_epoch")
    once = history.dead_entries.dropDuplicates([*SEGMENT_KEY, *by_election, "first_offset"])
    found = (
        of_segments(history.segments.filter("state < 3"), once)
        .groupBy(*by_election)
        .agg(
            f.count("*").alias("entries"),
            f.min("first_offset").alias("first_offset"),
            f.sum(f.col("end_position") - f.col("start_position")).alias("bytes"),
            f.min("event_timestamp_ms").alias("since_ms"),
        )
    )
    detail = f.format_string(
        "%d entries of leader epoch %d from offset %d on are dead: leader epoch %d does not have them",
        "entries", "leader_epoch", "first_offset", "declared_epoch",
    )  # fmt: skip
    named = _named(history, found).withColumn("segment", f.lit(None))
    heal = "none: they go with their objects"
    return _rows(named, Kind.DEAD, detail, heal, f.lit(now_ms) - f.col("since_ms"), f.col("bytes"))


def _dead_untold(history: History, chains: Chains, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Entries beyond their epoch's end that no agent declared dead, long after the election."""
    from pyspark.sql import functions as f

    told = history.dead_entries.groupBy(*SEGMENT_KEY, "topic_id", "partition", "leader_epoch").agg(
        f.min("first_offset").alias("told_from")
    )
    found = (
        of_segments(
            history.segments.filter("state = 1"),
            chains.dead.filter(f.col("succeeded_ms") < now_ms - life_times.slack_ms),
        )
        .join(told, [*SEGMENT_KEY, "topic_id", "partition", "leader_epoch"], "left")
        .withColumn("dead_from", f.greatest("first_offset", "epoch_end"))
        .filter("told_from IS NULL OR told_from > dead_from")
    )
    named = _named(history, found).withColumn("segment", writer_name())
    detail = f.format_string(
        "offsets %d to %d of leader epoch %d are dead, as a later epoch begins at %d, and no agent has said so",
        "dead_from", "last_offset", "leader_epoch", "epoch_end",
    )  # fmt: skip
    heal = AGENT.format("that leads the partition")
    size = f.col("end_position") - f.col("start_position")
    return _rows(named, Kind.DEAD_UNTOLD, detail, heal, f.lit(now_ms) - f.col("succeeded_ms"), size)


def _deleted_early(history: History, chains: Chains, now_ms: int) -> "DataFrame":
    from pyspark.sql import functions as f

    found = early_deletions(history, chains).withColumn("segment", writer_name())
    detail = f.format_string(
        "offsets %d to %d of leader epoch %d were to be kept for %s ms, and were deleted after %d ms",
        f.col("first_offset"),
        f.col("last_offset"),
        f.col("leader_epoch"),
        f.coalesce(f.col("kept_ms").cast("string"), f.lit("ever")),
        f.col("deleting_ms") - f.col("finished_ms"),
    )
    heal = "none: the brokers still have the records; find out what deletes with remote-wal describe --objects"
    size = f.col("end_position") - f.col("start_position")
    return _rows(found, Kind.DELETED_EARLY, detail, heal, f.lit(now_ms) - f.col("deleting_ms"), size)


def _quarantined(history: History) -> "DataFrame":
    from pyspark.sql import functions as f

    found = history.quarantine.groupBy("topic", "partition", "reason").agg(
        f.count("*").alias("records"), f.min("offset").alias("first"), f.max("offset").alias("last")
    )
    detail = f.format_string(
        "%d records were not understood (%s), offsets %d to %d", "records", "reason", "first", "last"
    )
    heal = "find out who writes to the topic; the table `quarantine` has all offsets"
    return _rows(found.withColumn("segment", f.lit(None)), Kind.QUARANTINED, detail, heal, f.lit(None), f.lit(None))


# Rules about everything at once.


def _small(history: History, found: list[SmallFinding]) -> "DataFrame":
    rows = [
        (one.kind.value, SEVERITIES[one.kind].value, one.topic, None, None, one.detail, None, None, one.heal)
        for one in found
    ]
    return history.spark.createDataFrame(rows, FINDINGS)


def metadata_is_doubtful(history: History, now_ms: int, life_times: LifeTimes) -> tuple[int, int] | None:
    """(objects without metadata, objects) where most have none, so that it is the metadata that was lost."""
    if history.read.inventory_ms is None:
        return None
    before_ms = history.read.inventory_ms - life_times.uncommitted_ttl_ms
    counted = (
        history.segment_facts.filter("stored_ms IS NOT NULL")
        .selectExpr("count(*)", f"count_if(NOT has_metadata AND stored_ms < {before_ms})")
        .collect()[0]
    )
    objects, unknown = counted[0], counted[1]
    return (unknown, objects) if unknown > FEW_WITHOUT_METADATA and unknown * 2 > objects else None


def _lost_metadata(history: History, now_ms: int, life_times: LifeTimes) -> list[SmallFinding]:
    doubtful = metadata_is_doubtful(history, now_ms, life_times)
    if doubtful is None:
        return []
    detail = f"{doubtful[0]} of {doubtful[1]} objects have no metadata: nothing is deleted on that ground"
    return [SmallFinding(Kind.METADATA_LOST, detail, "remote-wal doctor", METADATA_TOPIC)]
