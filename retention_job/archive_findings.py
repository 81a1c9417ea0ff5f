"""What is wrong with archive objects: one pass over their table.

Whether records are missing from the archive is judged elsewhere: `chains` tells offsets that are in neither kind of
object, and `early_deletions` combined segments that were deleted although the archive does not hold all that was in
them.
"""

from typing import TYPE_CHECKING, Final

from retention_job.finding_kinds import Kind
from retention_job.history import History
from retention_job.object_rules import AGENT, ObjectRule, judged, writer_name
from retention_job.settings import LifeTimes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RULES: Final = (
    ObjectRule(
        Kind.ARCHIVE_UNFINISHED,
        "has_metadata AND state = 0 AND coalesce(expires_ms, started_ms) < {now} - {slack}",
        "started_ms",
        "an archive object was prepared, was not committed in its time, and is not given up",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.ARCHIVE_DELETION_STUCK,
        "has_metadata AND state = 2 AND coalesce(is_stored, true) AND deleting_ms < {now} - {grace} - {slack}",
        "deleting_ms",
        "an archive object is to be deleted, and nothing was done since",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.ARCHIVE_DELETED_BUT_THERE,
        "has_metadata AND state = 3 AND is_stored AND deleted_ms < {inventory} - {ttl}",
        "deleted_ms",
        "an archive object is deleted, says its metadata, and is in the store",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.ARCHIVE_NO_METADATA,
        "NOT has_metadata AND stored_ms < {inventory} - {ttl} AND coalesce(refused_records, 0) = 0",
        "stored_ms",
        "an archive object of which no record tells",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.ARCHIVE_NO_METADATA,
        "NOT has_metadata AND stored_ms < {inventory} - {ttl} AND refused_records > 0",
        "stored_ms",
        "an archive object whose records are refused: a newer incarnation was registered when they were published",
        (),
        AGENT,
    ),
    ObjectRule(
        Kind.ARCHIVE_NO_OBJECT,
        "has_metadata AND state = 1 AND NOT is_stored AND finished_ms < {inventory} - {ttl}",
        "finished_ms",
        "an archive object is committed, and not in the store: offsets %d to %d",
        ("first_offset", "last_offset"),
        "none: find out who deletes in the archive's store; the brokers have the records that local retention kept",
    ),
    ObjectRule(
        Kind.ARCHIVE_OTHER_SIZE,
        "has_metadata AND state = 1 AND is_stored AND stored_bytes <> size_bytes",
        "finished_ms",
        "the archive object has %d bytes, its metadata says %d",
        ("stored_bytes", "size_bytes"),
        "remote-wal verify",
    ),
)


def archive_findings(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Everything that one row of the archive's table tells; `segment` is the object's name."""
    from pyspark.sql import functions as f

    times = {
        "now": now_ms,
        "inventory": history.read.archive_inventory_ms or 0,
        "ttl": life_times.uncommitted_ttl_ms,
        "grace": life_times.archive_delete_grace_ms,
        "slack": life_times.slack_ms,
    }
    topic = f.coalesce("topic", f.concat(f.lit("deleted, id "), f.lower(f.hex("topic_id"))))
    name = f.format_string("archive:%d-%d:%s", "first_offset", "last_offset", writer_name())
    named = history.with_topic_names(history.archive_facts)
    named = named.withColumn("topic", topic).withColumn("topic_partition", f.col("partition"))
    return judged(named.withColumn("segment", name), _RULES, times)
