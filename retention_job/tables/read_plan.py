"""Plans which part of the metadata topic a run reads, and whether it may continue from the run before. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.settings import Sources
from retention_job.sources.kafka_cluster import Cluster, Topic
from retention_job.tables.state import RunRecord


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """The part that was read."""

    now_ms: int
    starting_offsets: Mapping[int, int]
    ending_offsets: Mapping[int, int]
    is_incremental: bool
    full_because: str | None
    """The reason why an incremental run reads everything after all."""
    inventory_ms: Mapping[str, int] = field(default_factory=dict)
    """The time up to which the inventory of a kind is complete, by the kind's table, if there is an inventory."""

    @property
    def records(self) -> int:
        """The number of offsets between start and end."""
        return sum(max(0, end - self.starting_offsets.get(number, 0)) for number, end in self.ending_offsets.items())


def plan_reading(sources: Sources, cluster: Cluster, last: RunRecord | None, now_ms: int) -> ReadSummary:
    """Plan the offsets to read, and decide whether the run can continue from the last run's state."""
    offsets = cluster.offsets[METADATA_TOPIC]
    because = None
    if sources.is_incremental:
        because = _why_not(cluster, last)
    is_incremental = sources.is_incremental and because is None
    starting = dict(last.offsets) if is_incremental and last is not None else dict(offsets.earliest)
    for number, earliest in offsets.earliest.items():
        starting.setdefault(number, earliest)
    return ReadSummary(now_ms, starting, dict(offsets.latest), is_incremental, because)


def _why_not(cluster: Cluster, last: RunRecord | None) -> str | None:
    if last is None:
        return "no finished run to go on from"
    offsets = cluster.offsets[METADATA_TOPIC]
    if last.topic_id != metadata_topic_id(cluster):
        return "the metadata topic is another one"
    if any(offsets.earliest.get(number, 0) > offset for number, offset in last.offsets.items()):
        return "the metadata topic no longer holds what followed the last run"
    if any(offsets.latest.get(number, 0) < offset for number, offset in last.offsets.items()):
        return "the metadata topic ends before the last run's end"
    now = retentions(cluster)
    if any(now.get(topic_id, "gone") != kept_ms for topic_id, kept_ms in last.retention.items()):
        return "a topic was deleted, or its retention was changed"
    return None


def metadata_topic_id(cluster: Cluster) -> str:
    """Return the topic id of `__remote_wal_log_metadata`, hexadecimal."""
    return next(topic.topic_id.hex() for topic in cluster.topics if topic.name == METADATA_TOPIC)


def metadata_retention_ms(cluster: Cluster) -> int | None:
    """Return the retention of the metadata topic; None: for ever."""
    text = cluster.config_of(METADATA_TOPIC).get("retention.ms", "-1")
    return int(text) if text.isdigit() else None


def retentions(cluster: Cluster) -> dict[str, int | None]:
    """Return the retentions by which segments are judged:

    `kept_ms` of each topic with the feature on, by hexadecimal id.
    """
    return {topic.topic_id.hex(): kept_ms(topic) for topic in cluster.topics if topic.settings.enable}


def kept_ms(topic: Topic) -> int | None:
    """Return how long the agent that keeps its entries longest keeps them, while all replicas are in sync.

    -1: as long as the log. None: unknown, or the entries wait for the archive.
    """
    return None if topic.settings.archive else topic.age_limit_ms
