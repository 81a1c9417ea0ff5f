"""Per-topic settings and agents' registrations, as they stand in `__remote_wal_topic_settings`.

An unmodified broker refuses topic settings that it does not know, so ours live in a compacted topic: one record for
each key, the last one counts, none (or a tombstone) means the defaults. `settings_records` has the topic's other
records. Values are JSON:

===================  ==============================================================================
key                  value
===================  ==============================================================================
``topic:<name>``     ``remote.wal.storage.enable``, ``remote.wal.link.policy``,
                     ``remote.wal.link.latency.bound.ms``, ``remote.wal.archive.enable``,
                     ``remote.wal.retention.ms``, ``remote.wal.durable.enable``,
                     ``remote.wal.link.upload.wait.max.ms``, ``remote.wal.pack.enable``,
                     ``topic_id`` in hexadecimal digits, ``origin``
``pattern:<regex>``  like a topic's, for all topics with such names that have no settings of their own
``agent:<broker>``   ``broker_id``, ``incarnation``, ``http_endpoint``, ``peer_endpoint``,
                     ``version``, ``started_ms``, ``archive``, ``directory_ids``,
                     ``wal_retention_ms``, ``wal_retention_lagging_max_ms``, ``peer_address``
===================  ==============================================================================

A reader ignores fields that it does not know, so that newer agents may add some.

Settings belong to the topic with that id: a topic that is recreated under the name does not inherit them. A record
without an id counts for whichever topic has the name, until the agent that leads partition 0 binds it to that topic
(`agent.wiring.kafka_following`).

A topic without settings of its own inherits them: from the pattern that matches its name, else from the broker's file.
The agent that leads its partition 0 writes them as the topic's record, with the `origin`
(`agent.wiring.inherited_settings`). So every reader finds a topic's settings in one place.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from kafka_log.topic_partition import TopicId
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

T = TypeVar("T")

OWN: Final = "topic"
"""The origin of settings that the topic itself was given; records without an origin are its own, too."""
FILE: Final = "server.properties"
"""The origin of settings by the file of the broker that leads partition 0."""

_TOPIC_ID: Final = "topic_id"
_ORIGIN: Final = "origin"
_TOPIC_ID_BYTES: Final = 16
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class LinkPolicy(StrEnum):
    """When a follower's fetch is answered by a link."""

    COST = "cost"
    """If it is cheaper than the bytes."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic's settings."""

    enable: bool = False
    """`remote.wal.storage.enable`"""
    link_policy: LinkPolicy = LinkPolicy.COST
    """`remote.wal.link.policy`"""
    link_latency_bound_ms: int | None = None
    """`remote.wal.link.latency.bound.ms`; None: no bound of its own"""
    archive: bool = False
    """`remote.wal.archive.enable`"""
    wal_retention_ms: int | None = None
    """`remote.wal.retention.ms`; None: the agent's, or with one or two replicas the local retention"""
    durable: bool = False
    """`remote.wal.durable.enable`"""
    upload_wait_max_ms: int | None = None
    """`remote.wal.link.upload.wait.max.ms`; None: the agent's, which is also the maximum"""
    topic_id: TopicId | None = None
    """The topic they belong to; None: whichever topic has the name."""
    origin: str = ""
    """Where they come from: OWN or empty, FILE, or `pattern <regex>`."""
    pack: bool = True
    """`remote.wal.pack.enable`"""

    @property
    def is_inherited(self) -> bool:
        """Whether an agent wrote them for the topic, by a pattern or the broker's file."""
        return self.origin not in ("", OWN)

    @property
    def is_own(self) -> bool:
        """Whether the topic itself was given them."""
        return not self.is_inherited and not self.is_default

    @property
    def is_durable(self) -> bool:
        """Whether producers are answered only once their records are stored."""
        return self.enable and self.durable

    @property
    def is_default(self) -> bool:
        """Whether they equal the defaults, which hold without a record."""
        return replace(self, topic_id=None) == TopicSettings()

    def is_of(self, topic_id: TopicId | None) -> bool:
        """Whether they belong to this topic, not to an earlier one of that name; True also while an id is unknown."""
        return None in (topic_id, self.topic_id) or topic_id == self.topic_id

    def bound_to(self, topic_id: TopicId) -> "TopicSettings":
        """Return these settings bound to this topic, if they name no topic yet."""
        return self if self.is_default or self.topic_id is not None else replace(self, topic_id=topic_id)


def settings_of(topics: Mapping[str, TopicSettings], name: str, topic_id: TopicId) -> TopicSettings | None:
    """Return the settings of this topic; None if there are none, or they belong to an earlier topic of that name."""
    found = topics.get(name)
    return found if found is not None and found.is_of(topic_id) else None


class GatewayPart(StrEnum):
    """A part of the zone gateway that works only if agents at both ends, or all of them, have it on."""

    CLIENTS = "clients"
    PRODUCE = "produce"
    ADOPT = "adopt"
    LINKS = "links"
    DURABLE = "durable"
    """Answers to producers are held."""


@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """An agent that runs, or ran last, beside a broker."""

    broker_id: int
    incarnation: int
    http_endpoint: str
    peer_endpoint: str
    version: str
    started_ms: int
    """Its wall clock at its start, milliseconds since 1970."""
    archive: bool = False
    """Whether it archives what it leads: the agent's `remote.wal.archive.enable`."""
    directory_ids: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The ids of its broker's log directories, by path: a rebuilt directory gets its old id."""
    wal_retention_ms: int | None = None
    """The agent's `remote.wal.retention.ms`; None if it keeps objects for the local retention."""
    wal_retention_lagging_max_ms: int | None = None
    """The agent's `remote.wal.retention.lagging.max.ms`; None if it keeps objects for the local retention."""
    peer_address: str | None = None
    """Address for other agents, host:port; None: only by their own lists, or not any more."""
    bypass_address: str | None = None
    """Its broker's address for agents that bypass it, host:port; None: only by their own lists, or nowhere."""
    gateway: tuple[str, ...] | None = None
    """The parts of the zone gateway that it runs, by `GatewayPart`; None: an older agent, which does not say."""
    is_gone: bool = False
    """Whether its broker was removed for good since (`remote-wal decommission`)."""
    zone: str | None = None
    """Its broker's `broker.rack`; None: none, or an older agent, which does not say."""
    is_shadow: bool = False
    """Whether nobody replicates through it (`remote.wal.agent.mode=shadow`)."""


class MalformedSettingError(ValueError):
    """A record of the settings topic that has no meaning for us."""


SettingsRecord = tuple[str, TopicSettings | None] | tuple[int, AgentRegistration | None]
"""A topic's name with its settings, or a broker's id with its agent; None: removed."""


def check_topic(topic: str) -> None:
    """Raise TopicSettingsError if the feature cannot be set on this topic."""
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise TopicSettingsError("set topic settings", topic, "not a topic name that Kafka allows")
    if topic in INTERNAL_TOPICS:
        raise TopicSettingsError(
            "set topic settings", topic, "an internal topic; replication of it must not depend on the agents"
        )


def topic_key(topic: str) -> bytes:
    """Return the key of a topic's record."""
    return f"topic:{topic}".encode()


def pattern_key(pattern: str) -> bytes:
    """Return the key of a pattern's record."""
    return f"pattern:{pattern}".encode()


def check_pattern(pattern: str) -> None:
    """Raise TopicSettingsError if RE2 does not understand the pattern."""
    if (fault := fault_in(pattern)) is not None:
        raise TopicSettingsError("set topic settings", pattern, fault)


def is_pattern_key(key: bytes | None) -> bool:
    """Whether a record with this key is a pattern's."""
    return key is not None and key.startswith(b"pattern:")


def decode_pattern(key: bytes, value: bytes | None) -> tuple[str, TopicSettings | None]:
    """Decode a pattern's record; None: removed. Raises MalformedSettingError, and nothing else."""
    try:
        pattern = key.decode().partition(":")[2]
        check_pattern(pattern)
        return pattern, None if value is None else replace(_topic_settings(_fields(value)), origin=f"pattern {pattern}")
    except (ValueError, KeyError, TypeError, RecursionError, TopicSettingsError) as error:
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error


def agent_key(broker_id: int) -> bytes:
    """Return the key of an agent's record."""
    return f"agent:{broker_id}".encode()


def encode_topic_settings(settings: TopicSettings) -> bytes:
    """Return the value of a topic's record."""
    fields: dict[str, bool | str | int] = {
        ENABLE_KEY: settings.enable,
        POLICY_KEY: settings.link_policy.value,
        ARCHIVE_KEY: settings.archive,
    }
    if settings.origin:
        fields[_ORIGIN] = settings.origin
    if settings.durable:
        fields[DURABLE_KEY] = True
    if not settings.pack:
        fields[PACK_KEY] = False
    if settings.link_latency_bound_ms is not None:
        fields[LATENCY_BOUND_KEY] = settings.link_latency_bound_ms
    if settings.upload_wait_max_ms is not None:
        fields[UPLOAD_WAIT_KEY] = settings.upload_wait_max_ms
    if settings.wal_retention_ms is not None:
        fields[WAL_RETENTION_KEY] = settings.wal_retention_ms
    if settings.topic_id is not None:
        fields[_TOPIC_ID] = settings.topic_id.hex()
    return json.dumps(fields, sort_keys=True).encode()


def encode_agent(agent: AgentRegistration) -> bytes:
    """Return the value of an agent's record."""
    return json.dumps({name: getattr(agent, name) for name in AgentRegistration.__slots__}, sort_keys=True).encode()


def decode_setting(key: bytes | None, value: bytes | None) -> SettingsRecord:
    """Decode a record of the settings topic. Raises MalformedSettingError, and nothing else."""
    try:
        kind, _, name = (key or b"").decode("utf-8").partition(":")
        if kind == "topic" and name:
            check_topic(name)
            return name, None if value is None else _topic_settings(_fields(value))
        if kind == "agent" and name.isascii() and name.isdigit():
            return int(name), None if value is None else _agent(int(name), _fields(value))
    except (ValueError, KeyError, TypeError, RecursionError, TopicSettingsError) as error:
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
    raise MalformedSettingError(f"a key of an unknown kind, {len(key or b'')} bytes")


def _fields(value: bytes) -> Mapping[str, object]:
    fields = json.loads(value.decode("utf-8"))
    if not isinstance(fields, dict):
        raise TypeError("the value is not a JSON object")
    return fields


def _topic_settings(fields: Mapping[str, object]) -> TopicSettings:
    told = {
        ENABLE_KEY: False,
        POLICY_KEY: LinkPolicy.COST.value,
        ARCHIVE_KEY: False,
        DURABLE_KEY: False,
        PACK_KEY: True,
        **fields,
    }
    policy = LinkPolicy(typed(told, POLICY_KEY, str))
    return TopicSettings(
        typed(told, ENABLE_KEY, bool),
        policy,
        _milliseconds(fields, LATENCY_BOUND_KEY, 0),
        typed(told, ARCHIVE_KEY, bool),
        _milliseconds(fields, WAL_RETENTION_KEY, LOWEST_RETENTION_MS),
        typed(told, DURABLE_KEY, bool),
        _milliseconds(fields, UPLOAD_WAIT_KEY, 1),
        _topic_id(fields),
        "" if fields.get(_ORIGIN) is None else typed(fields, _ORIGIN, str),
        typed(told, PACK_KEY, bool),
    )


def _topic_id(fields: Mapping[str, object]) -> TopicId | None:
    if fields.get(_TOPIC_ID) is None:
        return None
    topic_id = bytes.fromhex(typed(fields, _TOPIC_ID, str))
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise ValueError(f"{_TOPIC_ID} has {len(topic_id)} bytes")
    return TopicId(topic_id)


def _milliseconds(fields: Mapping[str, object], name: str, lowest: int) -> int | None:
    """Return a field in milliseconds; None if it is absent. Raises ValueError below `lowest`, and TypeError."""
    value = None if fields.get(name) is None else typed(fields, name, int)
    if value is not None and value < lowest:
        raise ValueError(f"{name} must be a number of milliseconds, {lowest} or more")
    return value


def _agent(broker_id: int, fields: Mapping[str, object]) -> AgentRegistration:
    agent = AgentRegistration(
        broker_id=typed(fields, "broker_id", int),
        incarnation=typed(fields, "incarnation", int),
        http_endpoint=typed(fields, "http_endpoint", str),
        peer_endpoint=typed(fields, "peer_endpoint", str),
        version=typed(fields, "version", str),
        started_ms=typed(fields, "started_ms", int),
        archive=fields.get("archive") is True,
        directory_ids=_texts(fields.get("directory_ids", {})),
        wal_retention_ms=_milliseconds(fields, "wal_retention_ms", LOWEST_RETENTION_MS),
        wal_retention_lagging_max_ms=_milliseconds(fields, "wal_retention_lagging_max_ms", 0),
        peer_address=None if fields.get("peer_address") is None else typed(fields, "peer_address", str),
        bypass_address=None if fields.get("bypass_address") is None else typed(fields, "bypass_address", str),
        is_gone=fields.get("is_gone") is True,
        gateway=None if fields.get("gateway") is None else tuple(map(str, typed(fields, "gateway", list))),
        zone=None if fields.get("zone") is None else typed(fields, "zone", str),
        is_shadow=fields.get("is_shadow") is True,
    )
    if agent.broker_id != broker_id:
        raise ValueError(f"key and value name brokers {broker_id} and {agent.broker_id}")
    return agent


def _texts(value: object) -> Mapping[str, str]:
    """Return a map from text to text; other content is ignored."""
    if not isinstance(value, dict):
        raise TypeError("directory_ids must be an object")
    return {key: text for key, text in value.items() if isinstance(text, str)}


def typed(fields: Mapping[str, object], name: str, kind: type[T]) -> T:
    """Return the field, of exactly this type (true is no number). Raises KeyError, TypeError."""
    value = fields[name]
    if type(value) is not kind:
        raise TypeError(f"{name} must be of type {kind.__name__}")
    return value


def why_not_durable(agents: Mapping[int, AgentRegistration], broker_ids: Collection[int] = ()) -> str | None:
    """Return why topics cannot be durable, by what agents registered at their start; None if they can.

    `broker_ids` are brokers that may lead, beside those whose agents have registered.
    """
    there = {one: agent for one, agent in agents.items() if one in broker_ids or not _is_gone(agent)}
    silent = {one for one, agent in there.items() if agent.gateway is None}
    reasons = {
        "no agent has registered for broker": set(broker_ids) - agents.keys(),
        "an older release, that does not say so, runs beside broker": silent,
        "answers are not held beside broker": {
            one
            for one, agent in there.items()
            if GatewayPart.DURABLE not in (agent.gateway or ()) and one not in silent
        },
    }
    told = [f"{reason} {', '.join(map(str, sorted(brokers)))}" for reason, brokers in reasons.items() if brokers]
    return f"{'; '.join(told)}: who produces there would be answered before records are stored" if told else None


def _is_gone(agent: AgentRegistration) -> bool:
    """Whether the agent's broker is gone, also if an older release decommissioned it, which only unset the address."""
    return agent.is_gone or (agent.gateway is None and agent.peer_address is None)
