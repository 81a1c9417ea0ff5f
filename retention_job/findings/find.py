"""Finds what is wrong, as one table: every rule is one function that gives rows of `schemas.FINDINGS`.

Severities: `critical` if data is missing or will be, `warning` if something that is kept or left undone costs money or
will do harm, `info` for what is worth knowing and needs no action. A rule reports nothing that it cannot know: of
segments whose entries were not read, topics whose settings are unknown, objects younger than the time to live.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_requirements import retention_needed_ms, retention_problems
from retention_job.findings.kinds import Kind
from retention_job.findings.object_rules import object_findings
from retention_job.findings.partition_rules import partition_findings
from retention_job.schemas import FINDINGS
from retention_job.settings import LifeTimes
from retention_job.sources.kafka import Cluster, Topic
from retention_job.spark.joins import union
from retention_job.tables.coverage import chains_of
from retention_job.tables.history import History
from retention_job.tables.objects import COMBINED_SEGMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_WITHOUT_METADATA: Final = 1000
"""Up to this number, objects without metadata cast no doubt on the metadata; agents use the same
(`rlm.lifecycle.orphans`)."""


@dataclass(frozen=True, slots=True)
class SmallFinding:
    """A finding of a rule that needs no large table."""

    kind: Kind
    detail: str
    heal: str
    topic: str


def find(history: History, now_ms: int, life_times: LifeTimes) -> "DataFrame":
    """Return FINDINGS by all rules. Writes the run's chains beside its tables."""
    small = topic_findings(history.cluster, life_times)
    doubtful = metadata_is_doubtful(history, life_times)
    if doubtful is not None:
        detail = f"{doubtful[0]} of {doubtful[1]} objects have no metadata: nothing is deleted on that ground"
        small.append(SmallFinding(Kind.METADATA_LOST, detail, "remote-wal doctor", METADATA_TOPIC))
    rows = [
        (one.kind.value, one.kind.severity.value, one.topic, None, None, one.detail, None, None, one.heal)
        for one in small
    ]
    return union(
        object_findings(history, now_ms, life_times),
        *partition_findings(history, chains_of(history), now_ms, life_times),
        history.spark.createDataFrame(rows, FINDINGS),
    ).select(*FINDINGS.fieldNames())


def metadata_is_doubtful(history: History, life_times: LifeTimes) -> tuple[int, int] | None:
    """Return (objects without metadata, objects) if so many lack metadata that it seems to be lost; else None."""
    before_ms = history.read.now_ms - life_times.uncommitted_ttl_ms
    objects = history.objects(COMBINED_SEGMENT).filter("stored_ms IS NOT NULL")
    unknown = objects.filter(f"NOT has_metadata AND stored_ms < {before_ms}").count()
    if unknown <= FEW_WITHOUT_METADATA:
        return None  # which is quick to see: few pages hold any
    stored = objects.count()
    return (unknown, stored) if unknown * 2 > stored else None


def topic_findings(cluster: Cluster, life_times: LifeTimes) -> list[SmallFinding]:
    """Return contradicting settings, and a metadata topic that keeps records too short. Sans-IO."""
    found = [
        SmallFinding(Kind.CONTRADICTION, detail, heal, topic.name)
        for topic in cluster.topics
        for detail, heal in _contradictions(topic)
    ]
    kept = [topic.kept_longest for topic in cluster.topics if topic.settings.enable]
    known = [one.lagging_ms for one in kept if one is not None]
    if known:
        longest_ms = -1 if min(known) < 0 else max(known)
        needed_ms = retention_needed_ms(longest_ms, life_times.delete_grace_ms)
        config = dict(cluster.metadata_topic.config)
        found += [
            SmallFinding(Kind.METADATA_RETENTION, problem.found, problem.change, METADATA_TOPIC)
            for problem in retention_problems(METADATA_TOPIC, config, needed_ms, "HOST:PORT")
        ]
    return found


def _contradictions(topic: Topic) -> Iterator[tuple[str, str]]:
    """Return the contradicting settings of a topic, each with the command that mends them."""
    for kind in ("ms", "bytes"):
        local, whole = topic.local(kind), topic.number(f"retention.{kind}")
        if topic.is_tiered and local is not None and whole is not None and whole >= 0 and not 0 <= local <= whole:
            setting = f"local.retention.{kind}"
            heal = f"kafka-configs.sh --alter --topic {topic.name} --add-config {setting}=-2"
            yield f"{setting} is {local}, longer than retention.{kind}, {whole}", heal
    if topic.settings.archive and not topic.settings.enable:
        detail = "remote.wal.archive.enable is true and remote.wal.storage.enable is not: there is nothing to archive"
        yield detail, f"remote-wal topics disable {topic.name}"
