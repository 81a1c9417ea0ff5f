"""Rules about settings: contradictions, and a metadata topic that keeps records too short. Sans-IO."""

from collections.abc import Callable
from typing import Final

from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_requirements import retention_needed_ms, retention_problems
from retention_job.findings.kinds import Kind, SmallFinding
from retention_job.settings import LifeTimes
from retention_job.sources.kafka_cluster import Cluster, Topic


def topic_findings(cluster: Cluster, life_times: LifeTimes) -> list[SmallFinding]:
    """Return contradicting settings, and a metadata topic that keeps records too short."""
    enabled = [topic for topic in cluster.topics if topic.settings.enable]
    found = [
        SmallFinding(Kind.CONTRADICTION, detail, heal, topic.name)
        for topic in cluster.topics
        for rule in _CONTRADICTIONS
        for detail, heal in rule(topic)
    ]
    known = [kept.lagging_ms for topic in enabled if (kept := topic.kept_longest) is not None]
    if known:
        longest_ms = -1 if min(known) < 0 else max(known)
        needed_ms = retention_needed_ms(longest_ms, life_times.delete_grace_ms)
        config = dict(cluster.config_of(METADATA_TOPIC))
        found += [
            SmallFinding(Kind.METADATA_RETENTION, problem.found, problem.change, METADATA_TOPIC)
            for problem in retention_problems(METADATA_TOPIC, config, needed_ms, "HOST:PORT")
        ]
    return found


_Contradiction = tuple[str, str]


def _alter(topic: Topic, setting: str) -> str:
    return f"kafka-configs.sh --alter --topic {topic.name} --add-config {setting}"


def _local_beyond_whole(topic: Topic) -> list[_Contradiction]:
    found = []
    for kind in ("ms", "bytes"):
        local, whole = topic.local(kind), topic.number(f"retention.{kind}")
        if topic.is_tiered and local is not None and whole is not None and whole >= 0 and not 0 <= local <= whole:
            detail = f"local.retention.{kind} is {local}, longer than retention.{kind}, {whole}"
            found.append((detail, _alter(topic, f"local.retention.{kind}=-2")))
    return found


def _archived_without_upload(topic: Topic) -> list[_Contradiction]:
    if not topic.settings.archive or topic.settings.enable:
        return []
    detail = "remote.wal.archive.enable is true and remote.wal.storage.enable is not: there is nothing to archive"
    return [(detail, f"remote-wal topics disable {topic.name}")]


_CONTRADICTIONS: Final[tuple[Callable[[Topic], list[_Contradiction]], ...]] = (
    _local_beyond_whole,
    _archived_without_upload,
)
