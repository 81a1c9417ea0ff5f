"""Reads and writes `__remote_wal_topic_settings`, whose content is a `SettingsTable`."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import NO_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.plain_records import PlainFile
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError, TopicAbsentError
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import Kind, N, SettingsTable, V
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.topic.topic import SETTINGS_TOPIC
from metadata_topic.topic.topic_consumer import ConsumerFactory
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord
from metadata_topic.topic.topic_producer import ProducerFactory, confluent_producer

log = structlog.get_logger(__name__)

OnChange = Callable[[SettingsTable], object]

_CLIENT_ID = "remote-wal-settings"
_TIMEOUT_S = 30.0
_TRIES = 3
"""So many questions without an answer fit into the time of reading the topic. Guessed."""
_QUICK = FollowSettings(fetch_min_bytes=1, fetch_wait_ms=100, batch_wait_ms=100, absence_check_ms=1000)

FOLLOW_SETTINGS = FollowSettings(fetch_min_bytes=1, batch_wait_ms=200, new_partitions_check_ms=10_000)
"""Changes are rare, and should be seen soon, as should the topic's loss."""


class SettingsReader(TopicFollower):
    """Follows the settings topic on its own thread."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        on_change: OnChange = lambda _table: None,
        rack: str | None = None,
        consumer_factory: ConsumerFactory | None = None,
        settings: FollowSettings = FOLLOW_SETTINGS,
        memory: SettingsMemory | None = None,
    ) -> None:
        """`on_change` is called with the table after each batch of changes, on the reader's thread; it must not raise.

        `memory` has what counts if the topic was lost.
        """
        self.memory = memory or SettingsMemory()
        self._on_change = on_change
        self._table: tuple[tuple[int, bool], SettingsTable] = ((-1, False), SettingsTable())
        super().__init__(client_config, SETTINGS_TOPIC, self._apply, settings, rack, consumer_factory)

    def start(self) -> None:
        self.begin(continuity=self.memory)

    @property
    def table(self) -> SettingsTable:
        """The values that count; until the topic was read to its end once, those that are remembered."""
        state = self.memory.changes, self.ready
        if self._table[0] != state:
            self._table = state, self.memory.table(is_read=state[1])
        return self._table[1]

    @property
    def topics(self) -> Mapping[str, TopicSettings]:
        """Settings by topic name; a snapshot."""
        return self.table.topics

    @property
    def agents(self) -> Mapping[int, AgentRegistration]:
        """Registrations by broker id; a snapshot."""
        return self.table.agents

    def _apply(self, records: Sequence[TopicRecord]) -> None:
        before = self.memory.changes
        self.memory.apply_all(records)
        if self.memory.changes != before:
            self._on_change(self.table)


def read_settings(
    client_config: KafkaClientConfig,
    timeout_s: float = _TIMEOUT_S,
    consumer_factory: ConsumerFactory | None = None,
    memory: SettingsMemory | None = None,
) -> SettingsTable:
    """Read the topic to its end and return its content. Blocks.

    Unless `memory` has what an earlier topic held, it waits until agents have put that back, and raises
    TopicAbsentError when there is no such topic. Raises MetadataTopicError when its end was not reached in time, or
    when it may still lack something.
    """
    changed = threading.Event()
    # One question may go to a broker that is frozen, and the next to another.
    patience_ms = min(_QUICK.request_timeout_ms, int(timeout_s * 1000 / _TRIES))
    settings = replace(_QUICK, request_timeout_ms=patience_ms)
    reader = SettingsReader(
        client_config, lambda _: changed.set(), settings=settings, consumer_factory=consumer_factory, memory=memory
    )
    reader.start()
    try:
        if reader.wait_until_ready(timeout_s):
            while (why := reader.memory.may_lack()) is not None:
                if not changed.wait(timeout_s):
                    hint = "run it again in a minute; are the agents up?"
                    raise MetadataTopicError("read settings", SETTINGS_TOPIC, why, hint)
                changed.clear()
            return reader.table
        if reader.is_there is False:
            if reader.memory.has_remembered:
                log.warning("settings_topic_absent", consequence="what this host's agent remembers of it counts")
                return reader.table
            raise TopicAbsentError(
                "read settings", SETTINGS_TOPIC, "the topic does not exist", "an agent makes it when it starts"
            )
        raise MetadataTopicError(
            "read settings",
            SETTINGS_TOPIC,
            f"not read to its end within {timeout_s} s",
            "is the cluster up, and did an agent start once, so that the topic is there?",
        )
    finally:
        reader.close()


def read_known_settings(client_config: KafkaClientConfig, timeout_s: float = _TIMEOUT_S) -> SettingsTable:
    """Read the topic to its end and return its content, with settings of deleted topics kept apart. Blocks.

    Raises MetadataTopicError when there is no such topic, or its end was not reached in time.
    """
    table = read_settings(client_config, timeout_s)
    bound = [name for name, settings in table.topics.items() if settings.topic_id is not None]
    described = KafkaCluster(client_config, _CLIENT_ID, timeout_s).topics(bound)
    orphaned = orphaned_settings(table.topics, described)
    return replace(
        table,
        topics={name: settings for name, settings in table.topics.items() if name not in orphaned},
        orphaned={name: settings for name, settings in orphaned.items() if not settings.is_inherited},
    )


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
    """Writes values of the settings topic. Thread-safe."""

    def __init__(
        self, client_config: KafkaClientConfig, producer_factory: ProducerFactory = confluent_producer
    ) -> None:
        self._producer = producer_factory(
            {
                **client_config.for_confluent(
                    client_id=_CLIENT_ID,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=0,
                    message_timeout_ms=int(_TIMEOUT_S * 1000),
                )
            }
        )

    def put(self, kind: Kind[N, V], values: Mapping[N, V | None]) -> None:
        """Write values of a kind under their names (None removes one). They are durable when this returns.

        Raises MetadataTopicError, and TopicSettingsError or ValueError for a name that has no meaning.
        """
        self.write({kind.key(name): None if value is None else kind.encode(value) for name, value in values.items()})

    def put_soon(self, kind: Kind[N, V], name: N, value: V) -> None:
        """Queue a value to be written, and return at once; delivery is not awaited."""
        self._producer.produce(
            SETTINGS_TOPIC, value=kind.encode(value), key=kind.key(name), partition=0, on_delivery=_log_failure
        )
        self._producer.poll(0)

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait until the queued records are delivered, or time runs out. Idempotent."""
        self._producer.flush(timeout_s)

    def write(self, records: Mapping[bytes, bytes | None]) -> None:
        """Write records; durable on return. Raises MetadataTopicError."""
        delivered: list[object | None] = []
        for key, value in records.items():
            self._producer.produce(
                SETTINGS_TOPIC,
                value=value,
                key=key,
                partition=0,
                on_delivery=lambda error, _message: delivered.append(error),
            )
        self._producer.flush(_TIMEOUT_S)
        errors = [error for error in delivered if error is not None]
        if errors or len(delivered) < len(records):
            raise MetadataTopicError(
                "write setting",
                ", ".join(key.decode() for key in list(records)[:3]),
                str(errors[0]) if errors else f"not acknowledged within {_TIMEOUT_S} s",
                f"does {SETTINGS_TOPIC} exist, and has it min.insync.replicas brokers in sync?",
            )


def _log_failure(error: object | None, _message: object) -> None:
    if error is not None:
        log.warning("setting_not_written", error=str(error))


_DIRECTORY: Final = f"{SETTINGS_TOPIC}-0"


def read_settings_log(log_dir: Path) -> SettingsTable | None:
    """Return the log's content; None if the topic is not in this directory, or may lack what an earlier one held.

    Records at its end may not be committed. Raises LogDirectoryError when it cannot be read, MalformedFileError when it
    is damaged or of another format: a setting behind the damage could be a longer retention.
    """
    directory = log_dir / _DIRECTORY
    if not directory.is_dir():
        return None
    content = SettingsMemory()
    try:
        for base_offset in list_segments(directory):
            file_path = directory / log_file_name(base_offset)
            file = PlainFile(file_path)
            for batch in file.batches:
                content.apply_all([TopicRecord(0, *record[:3]) for record in file.records(batch)])
            if file.damaged is not None:
                raise MalformedFileError(file_path, 0, f"the batch at offset {file.damaged.base_offset} is damaged")
    except OSError as error:
        raise LogDirectoryError(directory, str(error)) from error
    return None if content.may_lack() else content.table(is_read=True)
