"""Calculates how long a combined segment is kept for followers, from agent, topic and Kafka settings. Sans-IO.

In-sync followers read records that are seconds old, so the WAL keeps its objects for an hour and not as long as the
brokers keep the log: days of storage would cost more than the links save. No object is kept longer than the brokers
keep the log, because Kafka itself wants no copy then. If nothing says how long (the feature is off, the topic's
settings or its replicas are unknown), objects are kept as long as the log.

Brokers delete by the records' timestamps, in whole segments, by size, and on request, and with KIP-405 nothing that is
not on the tier, which takes closed segments only. So if objects are kept as long as the log, no age releases them, but
the log's start or the tier: then NO_LIMIT counts as the local retention. Only what a tiered topic without the feature
has left goes by its local retention (`ends_by_local_retention`): its log may begin on the tier for ever.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self

from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings

AS_LOCAL: Final = -2
"""A retention equal to the topic's local retention, as in Kafka's own `local.retention.ms`."""
NO_LIMIT: Final = -1
"""A retention that does not end (Kafka's own value)."""
_FEW_REPLICAS: Final = 2
"""With so many replicas, objects may be the only other copy. A single replica that moves counts as two."""
DEFAULT_MS: Final = 3_600_000
LAGGING_MAX_MS: Final = 86_400_000
"""How long objects are kept at most while a replica is not in sync: then links cost less than bytes (guessed)."""
ARCHIVE_DELETE_GRACE_MS: Final = 600_000
"""The time from an archive object's mark until it is deleted: longer than any read (guessed)."""


_CLEANUP: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_LOCAL_RETENTION: Final = "local.retention.ms"
_TIERED: Final = "remote.storage.enable"
_COPY_DISABLED: Final = "remote.log.copy.disable"

Config = Mapping[str, str | None]
"""A topic's configuration in Kafka; an absent key is unknown, or has Kafka's default."""


def is_tiered(config: Config) -> bool:
    """Whether KIP-405 copies the topic's segments, so that `local.retention.ms` counts."""
    return config.get(_TIERED) == "true" and config.get(_COPY_DISABLED) != "true"


def is_deleted_by_age(config: Config) -> bool:
    """Whether brokers delete records from their disks by age.

    Compaction alone keeps the newest record of each key for ever, and no policy at all keeps everything (Kafka 4.2),
    except on the disks of brokers that have it on the tier.
    """
    policy = _policy(config)
    return "delete" in policy or (not policy and is_tiered(config))


def _policy(config: Config) -> str:
    policy = config.get(_CLEANUP)
    return "delete" if policy is None else policy.strip()


def local_retention_ms(config: Config) -> int | None:
    """Return how long a topic's records stay on the brokers' disks; NO_LIMIT for always, None if unknown."""
    if not is_deleted_by_age(config):
        return NO_LIMIT
    local = config.get(_LOCAL_RETENTION) if is_tiered(config) else None
    text = config.get(_RETENTION) if local in (None, str(AS_LOCAL)) else local
    try:
        value = int(text) if text is not None else None
    except ValueError:
        return None
    return value if value is None or value >= 0 else NO_LIMIT


def log_retention_ms(config: Config) -> int | None:
    """Return how long brokers keep a topic's log, on their disks or on the tier; NO_LIMIT for always, None if
    unknown.
    """
    return local_retention_ms({**config, _TIERED: None})


def ends_by_local_retention(topic: TopicSettings | None, *, tiered: bool) -> bool:
    """Whether the local retention limits the age of a topic's entries; `topic` is None if the topic has no settings."""
    return tiered and (topic is None or not topic.enable)


def why_not_as_local(config: Config) -> str | None:
    """Return why a topic's objects cannot be kept for as long as its log on the brokers' disks; None if they can."""
    policy = _policy(config)
    if "compact" not in policy or "delete" in policy:
        return None
    return (
        "the topic is compacted and never deleted by age, and objects hold what was written before compaction: "
        "storage would grow without bound. Give a time in ms, -1 to keep all of it in spite of that, or add delete to "
        "cleanup.policy"
    )


@dataclass(frozen=True, slots=True)
class KeptFor:
    """For how long entries of a topic are kept, in ms since their object was written; NO_LIMIT: for ever."""

    retention_ms: int
    lagging_ms: int
    """For partitions with a replica that is not in sync; never shorter."""


@dataclass(frozen=True, slots=True)
class WalRetention:
    """An agent's retention settings."""

    default_ms: int = DEFAULT_MS
    """`remote.wal.retention.ms`; AS_LOCAL, NO_LIMIT"""
    lagging_max_ms: int = LAGGING_MAX_MS

    def of(self, topic: TopicSettings | None, replication_factor: int, local_ms: int) -> KeptFor:
        """Return for how long a topic's entries are kept; `local_ms` is its local retention, or NO_LIMIT.

        `topic` is None, and the replication factor 0, if unknown.
        """
        if topic is None or not topic.enable or replication_factor < 1:
            return KeptFor(local_ms, local_ms)
        chosen_ms = self.chosen_ms(topic, replication_factor)
        kept_ms = local_ms if chosen_ms == AS_LOCAL else _shorter(chosen_ms, local_ms)
        return KeptFor(kept_ms, _shorter(longer(kept_ms, self.lagging_max_ms), local_ms))

    def chosen_ms(self, topic: TopicSettings, replication_factor: int) -> int:
        """Return the retention that settings ask for, before the local retention limits it: in ms, AS_LOCAL or
        NO_LIMIT. What producers were told is stored is never kept for less than its log."""
        if topic.wal_retention_ms is not None and not (topic.is_durable and topic.wal_retention_ms >= 0):
            return topic.wal_retention_ms
        return AS_LOCAL if topic.is_durable or replication_factor <= _FEW_REPLICAS else self.default_ms

    def is_kept(self, topic: TopicSettings, replication_factor: int) -> bool:
        """Whether a topic's objects are stored for more than links.

        That is so if the archive merges them, if producers wait for them, or if they are kept as long as the log, as
        for a recovery.
        """
        return topic.archive or topic.is_durable or self.chosen_ms(topic, replication_factor) in (AS_LOCAL, NO_LIMIT)


AS_BEFORE: Final = WalRetention(AS_LOCAL)
"""For agents that do not register a retention: they know none for the WAL."""


@dataclass(frozen=True, slots=True)
class AgentsRetention:
    """The retention settings of the registered agents, which may differ. Each agent decides for the objects that it
    owns."""

    agents: tuple[WalRetention, ...]

    @classmethod
    def registered(cls, agents: Iterable[AgentRegistration]) -> Self:
        """Return these agents' settings; without any, objects are kept as long as the brokers keep the log."""
        told = {
            AS_BEFORE if agent.wal_retention_ms is None else WalRetention(agent.wal_retention_ms) for agent in agents
        }
        return cls(tuple(told) or (AS_BEFORE,))

    def shortest_of(self, topic: TopicSettings | None, replication_factor: int, local_ms: int) -> KeptFor:
        """Return for how long every agent keeps a topic's entries: the shortest of the agents' retentions."""
        kept = self._all_of(topic, replication_factor, local_ms)
        return KeptFor(
            reduce(_shorter, (one.retention_ms for one in kept)), reduce(_shorter, (one.lagging_ms for one in kept))
        )

    def longest_of(self, topic: TopicSettings | None, replication_factor: int, local_ms: int) -> KeptFor:
        """Return after how long no agent keeps a topic's entries: the longest of the agents' retentions."""
        kept = self._all_of(topic, replication_factor, local_ms)
        return KeptFor(
            reduce(longer, (one.retention_ms for one in kept)), reduce(longer, (one.lagging_ms for one in kept))
        )

    def _all_of(self, topic: TopicSettings | None, replication_factor: int, local_ms: int) -> list[KeptFor]:
        return [agent.of(topic, replication_factor, local_ms) for agent in self.agents]


ALL_AS_BEFORE: Final = AgentsRetention((AS_BEFORE,))
"""Used if no agent registers a retention."""


def longer(one_ms: int, other_ms: int) -> int:
    """Return the longer of two retentions; NO_LIMIT is the longest."""
    return NO_LIMIT if NO_LIMIT in (one_ms, other_ms) else max(one_ms, other_ms)


def _shorter(one_ms: int, other_ms: int) -> int:
    return max(one_ms, other_ms) if NO_LIMIT in (one_ms, other_ms) else min(one_ms, other_ms)
