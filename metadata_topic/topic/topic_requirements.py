"""The requirements for an existing metadata topic, and the command that fixes each problem. Sans-IO.

Only its operator alters an existing topic. Some problems make published records be lost at once, or never be accepted:
then nothing may be published or uploaded until they are fixed (`loses_records`). Others make it forget objects too
early, or rely on too few brokers: those are only logged clearly, because the cluster would be no safer without links,
and snapshots remember what the topic forgets. The number of its partitions does not matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
"""Kafka's retention.ms without end."""
MAX_BATCH_BYTES: Final = 1_000_000
"""The largest batch that agents publish."""
_KAFKAS_MESSAGE_BYTES: Final = 1_048_588
"""The default of max.message.bytes."""


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """A setting of a metadata topic that is not as required, and the command that fixes it."""

    key: str
    found: str
    change: str
    """The command that fixes it."""
    loses_records: bool = False
    """Whether publishing now would lose records, or never end."""

    def __str__(self) -> str:
        return f"{self.found}: {self.change}"


@dataclass(frozen=True, slots=True)
class TopicNeeds:
    """What this cluster requires of its metadata topics: retention and replicas."""

    replication_factor: int
    min_insync_replicas: int
    retention_ms: int | None = None
    """`retention_needed_ms`; None if unknown."""


def retention_needed_ms(longest_kept_ms: int, grace_ms: int) -> int:
    """Return how long the topic must remember an object; -1 for ever.

    An object lives as long as the enabled topic with the longest retention wants, by the WAL's retention or by
    `local.retention.ms` (-1: for ever), and its deletion is published after the grace time. Its metadata must not be
    removed before that.
    """
    if longest_kept_ms < 0:
        return UNLIMITED
    return longest_kept_ms + max(grace_ms, 0)


def longer_retention(one_ms: int, other_ms: int) -> int:
    """Return the longer of two retentions; UNLIMITED is the longest."""
    return UNLIMITED if UNLIMITED in (one_ms, other_ms) else max(one_ms, other_ms)


def topic_problems(
    topic: str, config: Mapping[str, str], replicas: int, needs: TopicNeeds, servers: str
) -> list[TopicProblem]:
    """Return all problems of the metadata topic, the worst first. `servers` are for the commands."""
    problems = [*cleanup_problems(topic, config, servers), *message_problems(topic, config, servers)]
    if needs.retention_ms is not None:
        problems += retention_problems(topic, config, needs.retention_ms, servers)
    return problems + replication_problems(topic, config, replicas, needs, servers)


def settings_problems(
    topic: str, config: Mapping[str, str], replicas: int, needs: TopicNeeds, servers: str
) -> list[TopicProblem]:
    """Return all problems of the settings topic, the worst first: what retention removes never comes back."""
    return [
        *settings_cleanup_problems(topic, config, servers),
        *replication_problems(topic, config, replicas, needs, servers),
    ]


def settings_cleanup_problems(topic: str, config: Mapping[str, str], servers: str) -> list[TopicProblem]:
    """Check whether age removes settings that count."""
    if (policy := config.get("cleanup.policy")) == "compact":
        return []
    found = f"{topic}: cleanup.policy is {policy}, not compact: settings that count are removed by age"
    return [TopicProblem("cleanup.policy", found, _alter(topic, servers, "cleanup.policy=compact"))]


def cleanup_problems(topic: str, config: Mapping[str, str], servers: str) -> list[TopicProblem]:
    """Check whether compaction loses records."""
    policy = config.get("cleanup.policy", "")
    if "compact" not in policy:
        return []
    found = f"{topic}: cleanup.policy is {policy}, not delete: compaction loses states"
    return [TopicProblem("cleanup.policy", found, _alter(topic, servers, "cleanup.policy=delete"), loses_records=True)]


def message_problems(topic: str, config: Mapping[str, str], servers: str) -> list[TopicProblem]:
    """Check whether a batch may be too large for the topic: nothing after it would ever be published."""
    key = "max.message.bytes"
    size = number(config.get(key), None)
    if size is None or size >= MAX_BATCH_BYTES:
        return []
    found = f"{topic}: {key} is {size}, batches have up to {MAX_BATCH_BYTES}"
    return [TopicProblem(key, found, _alter(topic, servers, f"{key}={_KAFKAS_MESSAGE_BYTES}"), loses_records=True)]


def retention_problems(topic: str, config: Mapping[str, str], needed_ms: int, servers: str) -> list[TopicProblem]:
    """Check which limits are below `needed_ms` (`retention_needed_ms`)."""
    problems = []
    if number(config.get("retention.bytes"), UNLIMITED) != UNLIMITED:
        found = f"{topic}: retention.bytes is {config['retention.bytes']}, and time alone may cut it"
        problems.append(TopicProblem("retention.bytes", found, _alter(topic, servers, "retention.bytes=-1")))
    retention_ms = number(config.get("retention.ms"), None)
    change = _alter(topic, servers, f"retention.ms={needed_ms}")
    if retention_ms is None:
        problems.append(TopicProblem("retention.ms", f"{topic}: retention.ms is not known", change))
    elif longer_retention(retention_ms, needed_ms) != retention_ms:
        found = (
            f"{topic}: retention.ms is {retention_ms}, what objects are kept for at most and the grace time need "
            f"{needed_ms}"
        )
        problems.append(TopicProblem("retention.ms", found, change))
    return problems


def replication_problems(
    topic: str, config: Mapping[str, str], replicas: int, needs: TopicNeeds, servers: str
) -> list[TopicProblem]:
    """Check whether the loss of a broker may lose metadata."""
    problems = []
    if replicas < needs.replication_factor:
        found = f"{topic}: a partition has {replicas} replicas, not {needs.replication_factor}"
        change = (
            f"kafka-reassign-partitions.sh --bootstrap-server {servers} --execute --reassignment-json-file FILE, where "
            f"FILE gives each partition {needs.replication_factor} replicas"
        )
        problems.append(TopicProblem("replication.factor", found, change))
    in_sync = number(config.get("min.insync.replicas"), 1) or 1
    if in_sync < needs.min_insync_replicas:
        found = f"{topic}: min.insync.replicas is {in_sync}, not {needs.min_insync_replicas}"
        change = _alter(topic, servers, f"min.insync.replicas={needs.min_insync_replicas}")
        problems.append(TopicProblem("min.insync.replicas", found, change))
    if config.get("unclean.leader.election.enable") == "true":
        found = f"{topic}: unclean.leader.election.enable is true: what was acknowledged may be lost"
        change = _alter(topic, servers, "unclean.leader.election.enable=false")
        problems.append(TopicProblem("unclean.leader.election.enable", found, change))
    return problems


def number(text: str | None, default: int | None) -> int | None:
    """Return a setting's number; the default if it is absent or no number."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


def _alter(topic: str, servers: str, setting: str) -> str:
    return f"kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config {setting}"
