"""Values of the settings topic: topics' settings, and agents' registrations. `settings_table` has their keys.

An unmodified broker refuses topic settings that it does not know, so ours live in a compacted topic.

Settings belong to the topic with that id: a topic that is recreated under the name does not inherit them. A record
without an id counts for whichever topic has the name.

A topic without settings of its own inherits them: from the pattern that matches its name, else from the broker's file.
The agent that leads its partition 0 writes them as the topic's record, with the `origin`
(`agent.settings_keeping`). So every reader finds a topic's settings in one place. Until the record is there,
the strictest pattern that matches the name counts (`SettingsTable.of`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, with_config

from kafka_log.topic_partition import TOPIC_ID_BYTES, TopicId, is_topic_name
from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.patterns import fault_in
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC

ENABLE_KEY: Final = "remote.wal.storage.enable"
POLICY_KEY: Final = "remote.wal.link.policy"
LATENCY_BOUND_KEY: Final = "remote.wal.link.latency.bound.ms"
PACK_KEY: Final = "remote.wal.pack.enable"
UPLOAD_WAIT_KEY: Final = "remote.wal.link.upload.wait.max.ms"
ARCHIVE_KEY: Final = "remote.wal.archive.enable"
WAL_RETENTION_KEY: Final = "remote.wal.retention.ms"
DURABLE_KEY: Final = "remote.wal.durable.enable"

LOWEST_RETENTION_MS: Final = -2
"""Kafka's values below 0: -1 has no end, -2 means another setting's value."""

INTERNAL_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
        METADATA_TOPIC,
        SETTINGS_TOPIC,
    }
)
"""Never linked or uploaded, because the agents themselves, and Kafka's own bookkeeping, depend on them."""

OWN: Final = "topic"
"""The origin of settings that the topic itself was given; records without an origin are its own, too."""
FILE: Final = "server.properties"
"""The origin of settings by the file of the broker that leads partition 0."""

AS_READ: Final = ConfigDict(strict=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex")
"""How values are read: an unknown field, or a value of another type, makes a record unreadable."""


class LinkPolicy(StrEnum):
    """When a follower's fetch is answered by a link."""

    COST = "cost"
    """If it is cheaper than the bytes."""
    ALWAYS = "always"


_Ms = Annotated[int, Field(ge=1, lt=2**63)]
_RetentionMs = Annotated[int, Field(ge=LOWEST_RETENTION_MS, lt=2**63)]


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic's settings."""

    enable: bool = False
    """`remote.wal.storage.enable`"""
    link_policy: LinkPolicy = LinkPolicy.COST
    """`remote.wal.link.policy`"""
    link_latency_bound_ms: _Ms | None = None
    """`remote.wal.link.latency.bound.ms`; None: no bound of its own"""
    archive: bool = False
    """`remote.wal.archive.enable`"""
    wal_retention_ms: _RetentionMs | None = None
    """`remote.wal.retention.ms`; None: the agent's, or with one or two replicas the local retention"""
    durable: bool = False
    """`remote.wal.durable.enable`"""
    upload_wait_max_ms: _Ms | None = None
    """`remote.wal.link.upload.wait.max.ms`; None: the agent's, which is also the maximum"""
    topic_id: Annotated[TopicId, Field(min_length=TOPIC_ID_BYTES, max_length=TOPIC_ID_BYTES)] | None = None
    """The topic they belong to; None: whichever topic has the name."""
    origin: str = ""
    """Where they come from: OWN or empty, FILE, or `pattern <regex>`."""
    pack: bool = True
    """`remote.wal.pack.enable`"""

    @property
    def is_inherited(self) -> bool:
        """Whether an agent wrote the settings for the topic, from a pattern or from the broker's file."""
        return self.origin not in ("", OWN)

    @property
    def is_own(self) -> bool:
        """Whether the topic itself was given these settings: they come from no pattern or broker's file."""
        return not self.is_inherited and not self.is_default

    @property
    def is_durable(self) -> bool:
        """Whether acknowledgements are held until the records are stored in object storage."""
        return self.enable and self.durable

    @property
    def is_default(self) -> bool:
        """Whether the settings equal the defaults, which hold without a record."""
        return replace(self, topic_id=None) == TopicSettings()

    def is_of(self, topic_id: TopicId | None) -> bool:
        """Whether the settings belong to the topic with this id, not to an earlier one of its name; True also while
        an id is unknown."""
        return None in (topic_id, self.topic_id) or topic_id == self.topic_id


def settings_of(topics: Mapping[str, TopicSettings], name: str, topic_id: TopicId | None) -> TopicSettings | None:
    """Return the settings of this topic; None if there are none, or they belong to an earlier topic of that name."""
    found = topics.get(name)
    return found if found is not None and found.is_of(topic_id) else None


class GatewayPart(StrEnum):
    """A part of the zone gateway that works only if agents at both ends, or all agents, have it switched on."""

    CLIENTS = "clients"
    PRODUCE = "produce"
    LINKS = "links"
    DURABLE = "durable"
    """Answers to producers are held."""
    PIPELINED = "pipelined"
    """Those to acks=all, too, of all producers: none reaches the broker without its agent."""


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """What an agent wrote about itself at its start: the broker beside it, its address and its settings."""

    broker_id: int
    incarnation: int
    http_endpoint: str
    version: str
    started_ms: int
    """Its wall clock at its start, milliseconds since 1970."""
    archive: bool = False
    """Whether it archives what it leads: the agent's `remote.wal.archive.enable`."""
    directory_ids: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The ids of its broker's log directories, by path: a rebuilt directory gets its old id."""
    wal_retention_ms: _RetentionMs | None = None
    """The agent's `remote.wal.retention.ms`; None if it keeps objects for the local retention."""
    peer_address: str | None = None
    """Address for other agents, host:port; None: only by their own lists, or not any more."""
    bypass_address: str | None = None
    """Its broker's address for agents that bypass it, host:port; None: only by their own lists, or nowhere."""
    gateway: tuple[str, ...] = ()
    """The parts of the zone gateway that it runs, by `GatewayPart`."""
    is_gone: bool = False
    """Whether its broker was removed for good since (`remote-wal decommission`)."""
    zone: str | None = None
    """Its broker's `broker.rack`."""
    is_shadow: bool = False
    """Whether nobody replicates through it (`remote.wal.agent.mode=shadow`)."""


def check_topic(topic: str) -> None:
    """Raise TopicSettingsError if the feature cannot be set on this topic."""
    if not is_topic_name(topic):
        raise TopicSettingsError("set topic settings", topic, "not a topic name that Kafka allows")
    if topic in INTERNAL_TOPICS:
        raise TopicSettingsError(
            "set topic settings", topic, "an internal topic; replication of it must not depend on the agents"
        )


def check_pattern(pattern: str) -> None:
    """Raise TopicSettingsError if RE2 does not understand the pattern."""
    if (fault := fault_in(pattern)) is not None:
        raise TopicSettingsError("set topic settings", pattern, fault)


def why_not_durable(agents: Mapping[int, AgentRegistration], broker_ids: Collection[int] = ()) -> str | None:
    """Return why topics cannot be durable, judged by what agents registered at their start; None if they can.

    `broker_ids` are brokers that may lead, beside those whose agents have registered.
    """
    there = {one: agent for one, agent in agents.items() if one in broker_ids or not agent.is_gone}
    reasons = {
        "no agent has registered for broker": set(broker_ids) - agents.keys(),
        "answers are not held beside broker": {
            one for one, agent in there.items() if GatewayPart.DURABLE not in agent.gateway
        },
    }
    told = [f"{reason} {', '.join(map(str, sorted(brokers)))}" for reason, brokers in reasons.items() if brokers]
    return f"{'; '.join(told)}: who produces there would be answered before records are stored" if told else None
