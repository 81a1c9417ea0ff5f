"""Finds what is wrong, as one table: every rule is one function that gives rows of `schemas.FINDINGS`.

Severities: `critical` if data is missing or will be, `warning` if something that is kept or left undone costs money or
will do harm, `info` for what is worth knowing and needs no action. A rule reports nothing that it cannot know: of
segments whose entries were not read, topics whose settings are unknown, objects younger than the time to live.
"""

from typing import TYPE_CHECKING, Final

from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.findings.kinds import Kind, SmallFinding
from retention_job.findings.object_rules import object_findings
from retention_job.findings.partition_rules import partition_findings
from retention_job.findings.topic_findings import topic_findings
from retention_job.schemas import FINDINGS
from retention_job.settings import LifeTimes
from retention_job.spark.joins import union
from retention_job.tables.chains import chains_of
from retention_job.tables.history import History
from retention_job.tables.objects import COMBINED_SEGMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_WITHOUT_METADATA: Final = 1000
"""Up to this number, objects without metadata cast no doubt on the metadata; agents use the same
(`rlm.lifecycle.orphans`)."""


def find(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Return FINDINGS by all rules. Writes the run's chains beside its tables."""
    parts = [
        object_findings(history, now_ms, life_times),
        *partition_findings(history, chains_of(history), now_ms, life_times),
        _small(history, [*topic_findings(history.cluster, life_times), *_lost_metadata(history, life_times)]),
    ]
    return union(*parts).select(*FINDINGS.fieldNames())


def _small(history: History, found: list[SmallFinding]) -> "DataFrame":
    rows = [
        (one.kind.value, one.kind.severity.value, one.topic, None, None, one.detail, None, None, one.heal)
        for one in found
    ]
    return history.spark.createDataFrame(rows, FINDINGS)


def metadata_is_doubtful(history: History, life_times: LifeTimes) -> tuple[int, int] | None:
    """Return (objects without metadata, objects) if most have none, so that the metadata seems to be lost."""
    inventory_ms = history.read.inventory_ms.get(COMBINED_SEGMENT.table)
    if inventory_ms is None:
        return None
    before_ms = inventory_ms - life_times.uncommitted_ttl_ms
    objects = history.objects(COMBINED_SEGMENT).filter("stored_ms IS NOT NULL")
    unknown = objects.filter(f"NOT has_metadata AND stored_ms < {before_ms}").count()
    if unknown <= FEW_WITHOUT_METADATA:
        return None  # which is quick to see: few pages hold any
    stored = objects.count()
    return (unknown, stored) if unknown * 2 > stored else None


def _lost_metadata(history: History, life_times: LifeTimes) -> list[SmallFinding]:
    doubtful = metadata_is_doubtful(history, life_times)
    if doubtful is None:
        return []
    detail = f"{doubtful[0]} of {doubtful[1]} objects have no metadata: nothing is deleted on that ground"
    return [SmallFinding(Kind.METADATA_LOST, detail, "remote-wal doctor", METADATA_TOPIC)]
