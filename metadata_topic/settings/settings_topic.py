"""Writes and reads `__remote_wal_topic_settings`.

The topic has one partition and is compacted; a reader keeps the last value of each key. The reader's view is replaced
as a whole with each batch that changes it, so a caller may keep using an old one. Meaningless records are counted and
change nothing, because one bad record must not switch topics off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar, cast

import structlog

from kafka_cluster.answers import NO_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_records import (
    LEASE_PREFIX,
    PAUSE_PREFIX,
    TAIL_PREFIX,
    Leases,
    Pause,
    Pauses,
    TailRequest,
    TailStored,
    TopicPartitionName,
    decode_leases,
    decode_pause_record,
    decode_tail,
    encode_leases,
    encode_pause,
    encode_tail,
    lease_key,
    pause_key,
    request_key,
    stored_key,
)
from metadata_topic.settings.topic_settings import (
    AgentRegistration,
    MalformedSettingError,
    TopicSettings,
    agent_key,
    check_pattern,
    check_topic,
    decode_pattern,
    decode_setting,
    encode_agent,
    encode_topic_settings,
    is_pattern_key,
    pattern_key,
    topic_key,
)
from metadata_topic.topic.topic import SETTINGS_TOPIC
from metadata_topic.topic.topic_consumer import ConsumerFactory, MessageLike, confluent_reader
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicReader, TopicRecord
from metadata_topic.topic.topic_producer import ProducerFactory, confluent_producer

log = structlog.get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")
OnChange = Callable[[Mapping[str, TopicSettings]], None]
TailRequests = Mapping[TopicPartitionName, TailRequest]
Change = Callable[[TopicSettings], TopicSettings]
"""Changes a topic's settings."""

_CHANGES_AT_ONCE = 10
_CLIENT_ID = "remote-wal-settings"
_QUICK = FollowSettings(fetch_min_bytes=1, fetch_wait_ms=100, batch_wait_ms=100, absence_check_ms=1000)

FOLLOW_SETTINGS = FollowSettings(fetch_min_bytes=1, batch_wait_ms=200)
"""Changes are rare, and should be seen soon."""


class SettingsView:
    """The last value of every key, from records in the topic's order. Sans-IO; not thread-safe."""

    def __init__(self) -> None:
        self.topics: Mapping[str, TopicSettings] = MappingProxyType({})
        self.agents: Mapping[int, AgentRegistration] = MappingProxyType({})
        self.tail_requests: TailRequests = MappingProxyType({})
        self.tails_stored: Mapping[TopicPartitionName, TailStored] = MappingProxyType({})
        self.leases: Mapping[int, Leases] = MappingProxyType({})
        self.pauses: Pauses = MappingProxyType({})
        self.patterns: Mapping[str, TopicSettings] = MappingProxyType({})
        self.malformed = 0
        self.told: set[str | int] = set()
        """Topics by name and agents by broker id that had a record, even if it has only defaults."""

    def apply_all(self, records: Sequence[TopicRecord]) -> bool:
        """Apply records; return whether a topic's settings changed."""
        topics, agents = dict(self.topics), dict(self.agents)
        for record in records:
            try:
                if self._apply_other(record):
                    continue
                name, value = decode_setting(record.key, record.value)
            except MalformedSettingError as error:
                self.malformed += 1
                log.warning("malformed_setting_skipped", offset=record.offset, error=str(error))
                continue
            self.told.add(name)
            target = cast(dict[str | int, object], topics if isinstance(name, str) else agents)
            if value is None:
                target.pop(name, None)
            else:
                target[name] = value
        changed = topics != self.topics
        self.topics, self.agents = MappingProxyType(topics), MappingProxyType(agents)
        return changed

    def _apply_other(self, record: TopicRecord) -> bool:
        """Apply a record unless it is a topic's or an agent's; return whether it did. Raises MalformedSettingError."""
        key = record.key or b""
        if key.startswith(TAIL_PREFIX):
            self._apply_tail(key, record.value)
        elif key.startswith(LEASE_PREFIX):
            broker_id, leases = decode_leases(key, record.value)
            self.leases = MappingProxyType({**self.leases, broker_id: leases})
        elif key.startswith(PAUSE_PREFIX):
            self.pauses = _with(self.pauses, *decode_pause_record(key, record.value))
        elif is_pattern_key(key):
            self.patterns = _with(self.patterns, *decode_pattern(key, record.value))
        else:
            return False
        return True

    def _apply_tail(self, key: bytes, value: bytes | None) -> None:
        where, kind, tail = decode_tail(key, value)
        if kind is TailRequest:
            self.tail_requests = _with(self.tail_requests, where, tail if isinstance(tail, TailRequest) else None)
        else:
            self.tails_stored = _with(self.tails_stored, where, tail if isinstance(tail, TailStored) else None)


def _with(known: Mapping[K, V], key: K, value: V | None) -> Mapping[K, V]:
    """Return a copy of the mapping with this value; None: without the key."""
    others = {other: one for other, one in known.items() if other != key}
    return MappingProxyType(others if value is None else {**others, key: value})


class SettingsReader(TopicReader):
    """Follows the settings topic on its own thread."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        on_change: OnChange = lambda _topics: None,
        rack: str | None = None,
        consumer_factory: ConsumerFactory = confluent_reader,
        settings: FollowSettings = FOLLOW_SETTINGS,
        memory: SettingsMemory | None = None,
    ) -> None:
        """`on_change` gets all topics' settings after each change, on the reader's thread; it must not raise.

        With a `memory`, the settings that it remembers count if the topic was lost.
        """
        self._view = SettingsView()
        self._memory = memory
        self._on_change = on_change
        self.on_tail_requests: Callable[[TailRequests], object] = lambda _requests: None
        """Called on the reader's thread with all requests for tails after each change. Set it before `start`."""
        self.on_agents: Callable[[], object] = lambda: None
        """Called on the reader's thread when `agents` changed."""
        self.on_pauses: Callable[[], object] = lambda: None
        """Called on the reader's thread when `pauses` changed."""
        super().__init__(TopicFollower(client_config, SETTINGS_TOPIC, self._take, settings, rack, consumer_factory))

    def start(self) -> None:
        """Begin reading."""
        if self._memory is None:
            super().start()
        else:
            self._follower.start(self._remembered, self._view.told.clear, self._memory.continuity)

    def _remembered(self) -> Mapping[int, int]:
        if self._memory is not None and not self._view.told:
            self._memory.load()
        return {}

    @property
    def topics(self) -> Mapping[str, TopicSettings]:
        """Explicit settings by topic name; a snapshot."""
        missing = self._memory.missing if self._memory is not None else {}
        return MappingProxyType({**missing, **self._view.topics}) if missing else self._view.topics

    @property
    def remembered_only(self) -> list[str]:
        """Topics whose settings the topic has lost, by name."""
        return sorted(self._memory.missing) if self._memory is not None else []

    @property
    def agents(self) -> Mapping[int, AgentRegistration]:
        """Registrations by broker id, with those that a lost topic had; a snapshot."""
        return self._view.agents

    def registration_of(self, broker_id: int) -> AgentRegistration | None:
        """Return the registration that the topic has; None if it has none, though a lost topic may have had one."""
        return self._view.agents.get(broker_id) if broker_id in self._view.told else None

    @property
    def pauses(self) -> Pauses:
        """The pauses of links, by scope; a snapshot."""
        return self._view.pauses

    @property
    def patterns(self) -> Mapping[str, TopicSettings]:
        """Settings of topics with such names, by pattern; a snapshot."""
        return self._view.patterns

    @property
    def leases(self) -> Mapping[int, Leases]:
        """The agents' records of the lease in the bucket, by broker id; a snapshot."""
        return self._view.leases

    def read_to_end(self, timeout_s: float) -> bool:
        """Wait until everything that is in the topic now is known; False if that fails. Blocks."""
        return self._follower.read_to_end(timeout_s)

    @property
    def tails_stored(self) -> Mapping[TopicPartitionName, TailStored]:
        """The agents' answers to requests for tails; a snapshot."""
        return self._view.tails_stored

    @property
    def malformed(self) -> int:
        """How many records were skipped."""
        return self._view.malformed

    def _take(self, records: Sequence[TopicRecord]) -> None:
        requests, agents, pauses = self._view.tail_requests, self._view.agents, self._view.pauses
        changed = self._view.apply_all(records)
        if self._memory is not None and (changed or self._memory.missing):
            self._memory.note_read(self._view.topics, self._view.told, max(one.offset for one in records) + 1)
        if changed:
            self._on_change(self.topics)
        if self._view.tail_requests is not requests:
            self.on_tail_requests(self._view.tail_requests)
        if self._view.agents != agents:
            self.on_agents()
        if self._view.pauses != pauses:
            self.on_pauses()


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """The content of the settings topic."""

    topics: Mapping[str, TopicSettings]
    """By name, without those of deleted topics."""
    orphaned: Mapping[str, TopicSettings]
    """By name, deleted topics' own settings, without inherited ones; another topic may have the name now."""
    agents: Mapping[int, AgentRegistration]
    pauses: Pauses = field(default_factory=dict)
    patterns: Mapping[str, TopicSettings] = field(default_factory=dict)


def read_settings(
    client_config: KafkaClientConfig, timeout_s: float = 30.0, consumer_factory: ConsumerFactory = confluent_reader
) -> tuple[Mapping[str, TopicSettings], Mapping[int, AgentRegistration]]:
    """Return all topics' settings and all agents' registrations as of now; see `read_known_settings`. Blocks."""
    known = read_known_settings(client_config, timeout_s, consumer_factory)
    return known.topics, known.agents


def read_known_settings(
    client_config: KafkaClientConfig, timeout_s: float = 30.0, consumer_factory: ConsumerFactory = confluent_reader
) -> KnownSettings:
    """Return the topic's settings and registrations as of now; settings of topics that are gone stand apart. Blocks.

    Raises MetadataTopicError when there is no such topic, or its end was not reached in time.
    """
    reader = SettingsReader(client_config, settings=_QUICK, consumer_factory=consumer_factory)
    reader.start()
    try:
        if not reader.wait_until_ready(timeout_s):
            if reader.is_there is False:
                raise MetadataTopicError(
                    "read settings", SETTINGS_TOPIC, "the topic does not exist", "an agent makes it when it starts"
                )
            raise MetadataTopicError(
                "read settings",
                SETTINGS_TOPIC,
                f"not read to its end within {timeout_s} s",
                "is the cluster up, and did an agent start once, so that the topic is there?",
            )
        topics, agents, pauses, patterns = reader.topics, reader.agents, reader.pauses, reader.patterns
    finally:
        reader.close()
    bound = [name for name, settings in topics.items() if settings.topic_id is not None]
    described = KafkaCluster(client_config, _CLIENT_ID, timeout_s).topics(bound)
    orphaned = orphaned_settings(topics, described)
    counting = {name: settings for name, settings in topics.items() if name not in orphaned}
    own_orphaned = {name: settings for name, settings in orphaned.items() if not settings.is_inherited}
    return KnownSettings(counting, own_orphaned, agents, pauses, patterns)


def orphaned_settings(
    topics: Mapping[str, TopicSettings], described: Iterable[DescribedTopic]
) -> dict[str, TopicSettings]:
    """Return settings of topics that no longer exist. Topics that this client may not describe count as existing."""
    return {
        one.name: topics[one.name]
        for one in described
        if one.error_code == UNKNOWN_TOPIC_OR_PARTITION or not topics[one.name].is_of(known_id(one))
    }


def known_id(described: DescribedTopic) -> TopicId | None:
    """Return the topic's id; None if the broker did not give it."""
    return None if described.topic_id == NO_TOPIC_ID else described.topic_id


class SettingsWriter:
    """Writes settings and registrations. Thread-safe."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        timeout_s: float = 30.0,
        producer_factory: ProducerFactory = confluent_producer,
    ) -> None:
        self._timeout_s = timeout_s
        self._producer = producer_factory(
            {
                **client_config.for_confluent(
                    client_id=_CLIENT_ID,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=0,
                    message_timeout_ms=int(timeout_s * 1000),
                )
            }
        )

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        """Write a topic's settings; durable on return. Raises TopicSettingsError, MetadataTopicError."""
        check_topic(topic)
        self._write(topic_key(topic), encode_topic_settings(settings))

    def change_topic(
        self, topic: str, change: Change, written: Callable[[str], Sequence[tuple[int, TopicSettings]]]
    ) -> None:
        """Apply `change` to the topic's settings and write the result; durable on return.

        Each record has all of a topic's settings, so two concurrent writers could undo each other's change. `written`
        returns the records of the topic by offset. If there are others' records between what was read and what was
        written, the change is applied again to them. Raises TopicSettingsError, MetadataTopicError.
        """
        check_topic(topic)
        offset, before = max(written(topic), default=(-1, TopicSettings()), key=lambda one: one[0])
        if (after := change(before)) == before:
            return
        for _ in range(_CHANGES_AT_ONCE):
            own = self._write(topic_key(topic), None if after.is_default else encode_topic_settings(after))
            if own is None:
                return
            known = [(-1, TopicSettings()), *sorted(written(topic), key=lambda one: one[0])]
            others = [(last, one) for (_, last), (at, one) in pairwise(known) if offset < at < own]
            if not others:
                return
            for last, one in others:
                before = replace(before, **_differing(last, one))
            offset, after = own, change(before)
        raise MetadataTopicError("write setting", topic, "others go on changing it", "try again")

    def clear_topic(self, topic: str) -> None:
        """Return a topic to the defaults; durable on return. Raises TopicSettingsError, MetadataTopicError."""
        check_topic(topic)
        self._write(topic_key(topic), None)

    def set_pattern(self, pattern: str, settings: TopicSettings | None) -> None:
        """Write the settings of topics whose names match the pattern; None removes them. Durable on return.

        Raises TopicSettingsError, MetadataTopicError.
        """
        check_pattern(pattern)
        self._write(pattern_key(pattern), None if settings is None else encode_topic_settings(settings))

    def register_agent(self, agent: AgentRegistration) -> None:
        """Write an agent's registration; durable on return. Raises MetadataTopicError."""
        self._write(agent_key(agent.broker_id), encode_agent(agent))

    def pause(self, scope: str, pause: Pause | None) -> None:
        """Pause links, or with None resume them; durable on return. Raises MetadataTopicError."""
        self._write(pause_key(scope), None if pause is None else encode_pause(pause))

    def record_leases(self, broker_id: int, leases: Leases) -> None:
        """Write this broker's agent's leases; durable on return. Raises MetadataTopicError."""
        self._write(lease_key(broker_id), encode_leases(leases))

    def request_tails(self, requests: TailRequests) -> None:
        """Request these tails from the leaders' agents. Raises MetadataTopicError when they were not written."""
        self._write_all({request_key(where): encode_tail(request) for where, request in requests.items()})

    def forget_tails(self, partitions: Iterable[TopicPartitionName]) -> None:
        """Remove the tail requests of these partitions, and the answers. Raises MetadataTopicError."""
        self._write_all({key(where): None for where in partitions for key in (request_key, stored_key)})

    def tail_stored_soon(self, where: TopicPartitionName, stored: TailStored) -> None:
        """Answer a tail request; returns at once."""
        self._produce_soon(stored_key(where), encode_tail(stored))

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait for the delivery of records on their way. Idempotent."""
        self._producer.flush(timeout_s)

    def _produce_soon(self, key: bytes, value: bytes) -> None:
        self._producer.produce(SETTINGS_TOPIC, value=value, key=key, partition=0, on_delivery=_log_failure)
        self._producer.poll(0)

    def _write(self, key: bytes, value: bytes | None) -> int | None:
        """Write a record. Returns its offset, if the client gives it."""
        return self._write_all({key: value})

    def _write_all(self, records: Mapping[bytes, bytes | None]) -> int | None:
        """Write records. Returns the offset of the last one, if the client gives it."""
        acknowledged: list[int | None] = []
        errors: list[object] = []

        def delivered(error: object | None, message: object) -> None:
            if error is None:
                acknowledged.append(cast(MessageLike, message).offset() if message is not None else None)
            else:
                errors.append(error)

        for key, value in records.items():
            self._producer.produce(SETTINGS_TOPIC, value=value, key=key, partition=0, on_delivery=delivered)
        self._producer.flush(self._timeout_s)
        if errors or len(acknowledged) < len(records):
            raise MetadataTopicError(
                "write setting",
                ", ".join(key.decode() for key in list(records)[:3]),
                str(errors[0]) if errors else f"not acknowledged within {self._timeout_s} s",
                f"does {SETTINGS_TOPIC} exist, and has it min.insync.replicas brokers in sync?",
            )
        return acknowledged[-1] if acknowledged else None


class TopicSettingsTopic:
    """All topics' settings in the settings topic: each call reads or writes it. Blocks."""

    def __init__(self, client_config: KafkaClientConfig, timeout_s: float = 10.0) -> None:
        self._client_config = client_config
        self._timeout_s = timeout_s

    def change(self, changes: Mapping[str, Change]) -> None:
        """Change the settings of the topics that have these names now; see `SettingsWriter.change_topic`."""
        described = KafkaCluster(self._client_config, _CLIENT_ID, self._timeout_s).topics(list(changes))
        ids = {one.name: known_id(one) for one in described}
        self._change({topic: changed_of(ids.get(topic), change) for topic, change in changes.items()})

    def bind(self, owners: Mapping[str, TopicId]) -> None:
        """Bind settings that name no topic id to these topics. Raises MetadataTopicError."""
        self._change({topic: partial(TopicSettings.bound_to, topic_id=owner) for topic, owner in owners.items()})

    def _change(self, changes: Mapping[str, Change]) -> None:
        writer = SettingsWriter(self._client_config, self._timeout_s)
        try:
            for topic, change in changes.items():
                writer.change_topic(topic, change, self._written)
        finally:
            writer.close()

    def _written(self, topic: str) -> list[tuple[int, TopicSettings]]:
        found: list[tuple[int, TopicSettings]] = []

        def take(records: Sequence[TopicRecord]) -> None:
            view = SettingsView()
            for record in records:
                if record.key == topic_key(topic):
                    view.apply_all([record])
                    found.append((record.offset, view.topics.get(topic, TopicSettings())))

        follower = TopicFollower(self._client_config, SETTINGS_TOPIC, take, _QUICK)
        follower.start()
        try:
            if not follower.wait_until_ready(self._timeout_s):
                raise MetadataTopicError("read settings", SETTINGS_TOPIC, f"not read within {self._timeout_s} s")
            return found
        finally:
            follower.close()


def changed_of(topic_id: TopicId | None, change: Change) -> Change:
    """Bind a change to this topic: it starts from the defaults if the settings belong to an earlier topic."""

    def changed(before: TopicSettings) -> TopicSettings:
        after = change(before if before.is_of(topic_id) else TopicSettings())
        return after if topic_id is None else replace(after, topic_id=None).bound_to(topic_id)

    return changed


def _differing(last: TopicSettings, one: TopicSettings) -> dict[str, Any]:
    """Return the fields in which `one` differs from `last`, the settings before it."""
    return {name: value for name in one.__slots__ if (value := getattr(one, name)) != getattr(last, name)}


def _log_failure(error: object | None, _message: object) -> None:
    if error is not None:
        log.warning("setting_not_written", error=str(error))
