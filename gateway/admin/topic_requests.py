"""Handles requests that name our topic settings, which brokers do not know. Sans-IO except the store.

Our keys are cut out and the rest goes to the broker, which authorises and decides: if it refuses, nothing of ours is
set. A request with only our keys still goes there, without changes for the resource, so that the broker authorises it.
If one of our values is refused, the topic is taken out of the request, because Kafka changes all of a resource or
nothing, and our refusal is added to the broker's answer. Then the part that the broker accepted is written.

Keys with our prefix that are unknown stay in the request: the broker refuses them by name.

The older AlterConfigs replaces all of a topic's settings, including ours: a key that it does not name returns to its
default, even if it names none of ours. A tool that reads through this port, changes and writes back loses nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final, Protocol

from gateway.admin.admin_frames import MAX_READ_BYTES, AdminApi, read_answer, read_request, written
from kafka_cluster.errors import KafkaClusterError
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.setting_keys import SETTING_KEYS, SettingKey, changed_settings
from metadata_topic.settings.topic_settings import DURABLE_KEY, WAL_RETENTION_KEY, TopicSettings, check_topic
from metadata_topic.settings.wal_retention import AS_LOCAL, Config, why_not_as_local
from replication.wire.kafka_frame import MalformedFrameError, RequestHeader

_NO_ERROR: Final = 0
_UNKNOWN_SERVER_ERROR: Final = -1
"""An error that clients do not retry by themselves: the broker's part is done."""
_INVALID_CONFIG: Final = 40
_TOPIC: Final = 2
"""The type of a resource that is a topic."""
_IS_DYNAMIC_TOPIC_CONFIG, _IS_DEFAULT_CONFIG = 1, 5
_DOCUMENTED_FROM: Final = 3

Changes = dict[str, str | None]
"""Texts by key; None: back to the default."""


class _Operation(IntEnum):
    """Operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1


class TopicSettingsStore(Protocol):
    """The store of topic settings. Blocks."""

    def read(self) -> Mapping[str, TopicSettings]:
        """Return the settings as of now, by topic. Raises MetadataTopicError."""

    def why_not_durable(self) -> str | None:
        """Return why topics cannot be durable; None if they can. Raises MetadataTopicError."""

    def topic_config(self, topic: str) -> Mapping[str, str | None]:
        """Return the topic's configuration in Kafka, without our keys. Raises MetadataTopicError."""

    def write(self, settings: Mapping[str, TopicSettings]) -> None:
        """Write settings, durable when this returns. Raises MetadataTopicError."""

    def change(self, changes: Mapping[str, Callable[[TopicSettings], TopicSettings]]) -> None:
        """Write what each function makes of the topic's settings, safe against concurrent changes; raises like
        `write`.
        """


class PendingRequest(ABC):
    """A request whose answer must be merged."""

    @abstractmethod
    def settle(self, answer: Buffer, store: TopicSettingsStore) -> tuple[bytes, str]:
        """Return the answer for the client, and the result of our part in a word. Blocks.

        Raises MalformedFrameError when the broker's answer is not understood, so that its decision is unknown.
        """


def look_at(header: RequestHeader, frame: Buffer, store: TopicSettingsStore) -> tuple[Buffer, PendingRequest | None]:
    """Return what goes to the broker, and the pending request; None if nothing in it is ours. Blocks.

    Raises MalformedFrameError when the request is not understood: it may be passed on unchanged.
    """
    api = AdminApi(header.api_key)
    if api in (AdminApi.CREATE_TOPICS, AdminApi.INCREMENTAL_ALTER_CONFIGS) and not _names_ours(frame):
        return frame, None
    message = read_request(api, header.api_version, frame)
    if api is AdminApi.DESCRIBE_CONFIGS:
        return frame, _described(header.api_version, message)
    pending = _LOOKED_AT[api](header.api_version, message, _Verdicts(store))
    return (written(message), pending) if pending is not None else (frame, None)


def _names_ours(frame: Buffer) -> bool:
    raw = bytes(frame)
    return any(name.encode() in raw for name in SETTING_KEYS)


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """The wanted changes of our keys, by topic."""

    store: TopicSettingsStore
    wanted: dict[str, Changes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons by topic."""

    def judge(self, topic: str, changes: Changes, config: Callable[[], Config]) -> None:
        """Check one topic's changes; `config` returns the topic's configuration in Kafka after the request."""
        try:
            wanted = changed_settings(topic, TopicSettings(), changes)
            if wanted.wal_retention_ms == AS_LOCAL and (reason := why_not_as_local(config())) is not None:
                raise TopicSettingsError("set topic settings", topic, f"{WAL_RETENTION_KEY}=-2: {reason}")
            if wanted.durable and (reason := self.store.why_not_durable()) is not None:
                raise TopicSettingsError("set topic settings", topic, f"{DURABLE_KEY}: {reason}")
            if not _is_ours(topic):
                raise TopicSettingsError("set topic settings", topic, f"{', '.join(changes)}: not for internal topics")
        except TopicSettingsError as error:
            self.refuse(topic, error.reason)
        except KafkaClusterError as error:
            self.refuse(topic, f"{', '.join(changes)}: what that depends on could not be read: {error}")
        else:
            self.wanted[topic] = changes

    def refuse(self, topic: str, reason: str) -> None:
        self.wanted.pop(topic, None)
        self.refused.setdefault(topic, reason)

    def refuse_twice_named(self, topic: str, keys: Sequence[Any]) -> None:
        names = {one.name for one in keys}
        if len(names) < len(keys):
            self.refuse(topic, f"a key is named twice ({', '.join(sorted(names))})")

    @property
    def are_any(self) -> bool:
        return bool(self.wanted or self.refused)


def _created(version: int, message: Any, verdicts: _Verdicts) -> PendingRequest | None:
    for topic in message.topics:
        changes = {one.name: one.value for one in _cut_out(topic)}
        if changes:
            verdicts.judge(topic.name, changes, partial(_config, topic))
    message.topics = [topic for topic in message.topics if topic.name not in verdicts.refused]
    return _CreatedTopics(version, verdicts, bool(message.validate_only)) if verdicts.are_any else None


def _altered(version: int, message: Any, verdicts: _Verdicts) -> PendingRequest | None:
    for resource in message.resources:
        ours = _cut_out(resource) if resource.resource_type == _TOPIC else []
        if not ours:
            continue
        verdicts.judge(
            resource.resource_name,
            {one.name: None if one.config_operation == _Operation.DELETE else one.value or "" for one in ours},
            partial(_altered_config, resource, verdicts.store),
        )
        for one in ours:
            if one.config_operation not in list(_Operation):
                verdicts.refuse(resource.resource_name, f"{one.name} is no list: it can be set or deleted")
        verdicts.refuse_twice_named(resource.resource_name, ours)
    return _awaited(AdminApi.INCREMENTAL_ALTER_CONFIGS, version, message, verdicts)


def _replaced(version: int, message: Any, verdicts: _Verdicts) -> PendingRequest | None:
    for resource in message.resources:
        ours = _cut_out(resource) if resource.resource_type == _TOPIC else []
        if ours or (resource.resource_type == _TOPIC and _is_ours(resource.resource_name)):
            changes: Changes = {one.name: one.value or "" for one in ours}
            verdicts.judge(resource.resource_name, changes, partial(_config, resource))
            verdicts.refuse_twice_named(resource.resource_name, ours)
    return _awaited(AdminApi.ALTER_CONFIGS, version, message, verdicts)


def _config(named: Any) -> Config:
    """Return what a resource of a request sets in Kafka."""
    return {one.name: one.value for one in named.configs}


def _altered_config(resource: Any, store: TopicSettingsStore) -> Config:
    """Return the topic's configuration in Kafka after a request's changes. Raises MetadataTopicError."""
    return {**store.topic_config(resource.resource_name), **_config(resource)}


def _cut_out(named: Any) -> list[Any]:
    """Remove our keys from a resource of a request, and return them."""
    ours = [one for one in named.configs if one.name in SETTING_KEYS]
    named.configs = [one for one in named.configs if one.name not in SETTING_KEYS]
    return ours


def _awaited(api: AdminApi, version: int, message: Any, verdicts: _Verdicts) -> PendingRequest | None:
    message.resources = [
        one for one in message.resources if one.resource_type != _TOPIC or one.resource_name not in verdicts.refused
    ]
    return _AlteredTopics(api, version, verdicts, bool(message.validate_only)) if verdicts.are_any else None


def _described(version: int, message: Any) -> PendingRequest | None:
    asked = {
        one.resource_name: frozenset(one.configuration_keys or ())  # brokers describe all keys if none is named
        for one in message.resources
        if one.resource_type == _TOPIC
    }
    wanted = {
        topic: [key for key in SETTING_KEYS.values() if not names or key.name in names]
        for topic, names in asked.items()
        if _is_ours(topic)
    }
    if not any(wanted.values()):
        return None
    is_documented = version >= _DOCUMENTED_FROM and bool(message.include_documentation)
    return _DescribedTopics(version, wanted, bool(message.include_synonyms), is_documented)


def _is_ours(topic: str) -> bool:
    try:
        check_topic(topic)
    except TopicSettingsError:
        return False
    return True


def _failures(topics: Iterable[str], write: Callable[[], object]) -> tuple[dict[str, str], str]:
    """Write what the broker accepted. Returns the reasons of failures by topic, and the outcome."""
    try:
        write()
    except (KafkaClusterError, TopicSettingsError) as error:
        told = f"the broker has done its part, but remote.wal.* was not written, or nobody knows: {error}"
        return dict.fromkeys(topics, told), "not_written"
    return {}, "written"


@dataclass(frozen=True, slots=True)
class _CreatedTopics(PendingRequest):
    version: int
    verdicts: _Verdicts
    is_dry_run: bool

    def settle(self, answer: Buffer, store: TopicSettingsStore) -> tuple[bytes, str]:
        message = read_answer(AdminApi.CREATE_TOPICS, self.version, answer)
        accepted = {
            one.name: changed_settings(one.name, _new_topic(one), self.verdicts.wanted[one.name])
            for one in message.topics
            if one.error_code == _NO_ERROR and one.name in self.verdicts.wanted
        }
        failed: dict[str, str] = {}
        outcome = "refused"
        if accepted and not self.is_dry_run:
            failed, outcome = _failures(accepted, lambda: store.write(accepted))
        result = type(message).CreatableTopicResult
        for one in message.topics:
            if one.name in failed:
                one.error_code, one.error_message = _UNKNOWN_SERVER_ERROR, failed[one.name]
        for topic, reason in self.verdicts.refused.items():
            message.topics.append(
                result(version=self.version, name=topic, error_code=_INVALID_CONFIG, error_message=reason, configs=None)
            )
        return written(message), outcome


def _new_topic(created: Any) -> TopicSettings:
    """Return the defaults for a topic that was just created; brokers tell its id from version 7 of the answer on."""
    topic_id = created.topic_id
    return TopicSettings(topic_id=TopicId(topic_id.bytes) if topic_id is not None and topic_id.int else None)


@dataclass(frozen=True, slots=True)
class _AlteredTopics(PendingRequest):
    api: AdminApi
    version: int
    verdicts: _Verdicts
    is_dry_run: bool

    def _changed(self, topic: str, before: TopicSettings) -> TopicSettings:
        kept = TopicSettings() if self.api is AdminApi.ALTER_CONFIGS else before
        return changed_settings(topic, kept, self.verdicts.wanted[topic])

    def settle(self, answer: Buffer, store: TopicSettingsStore) -> tuple[bytes, str]:
        message = read_answer(self.api, self.version, answer)
        accepted = [
            one.resource_name
            for one in message.responses
            if one.error_code == _NO_ERROR and one.resource_type == _TOPIC and one.resource_name in self.verdicts.wanted
        ]

        def write() -> None:
            store.change({topic: partial(self._changed, topic) for topic in accepted})

        failed: dict[str, str] = {}
        outcome = "refused"
        if accepted and not self.is_dry_run:
            failed, outcome = _failures(accepted, write)
        for one in message.responses:
            if one.resource_type == _TOPIC and one.resource_name in failed:
                one.error_code, one.error_message = _UNKNOWN_SERVER_ERROR, failed[one.resource_name]
        result = type(message).AlterConfigsResourceResponse
        for topic, reason in self.verdicts.refused.items():
            message.responses.append(
                result(
                    version=self.version,
                    error_code=_INVALID_CONFIG,
                    error_message=reason,
                    resource_type=_TOPIC,
                    resource_name=topic,
                )
            )
        return written(message), outcome


@dataclass(frozen=True, slots=True)
class _DescribedTopics(PendingRequest):
    version: int
    wanted: Mapping[str, list[SettingKey]]
    has_synonyms: bool
    is_documented: bool

    def settle(self, answer: Buffer, store: TopicSettingsStore) -> tuple[bytes, str]:
        if len(answer) > MAX_READ_BYTES:
            return bytes(answer), "too_large"
        try:
            message = read_answer(AdminApi.DESCRIBE_CONFIGS, self.version, answer)
        except MalformedFrameError:
            return bytes(answer), "not_understood"
        found = [
            one
            for one in message.results
            if one.error_code == _NO_ERROR and one.resource_type == _TOPIC and one.resource_name in self.wanted
        ]
        if not found:
            return bytes(answer), "refused"
        try:
            known = store.read()
        except KafkaClusterError:
            return bytes(answer), "not_read"
        for one in found:
            settings = known.get(one.resource_name, TopicSettings())
            one.configs = [
                *one.configs,
                *(self._told(type(one), key, settings) for key in self.wanted[one.resource_name]),
            ]
        return written(message), "described"

    def _told(self, result: Any, key: SettingKey, settings: TopicSettings) -> Any:
        kind = result.DescribeConfigsResourceResult
        source = _IS_DYNAMIC_TOPIC_CONFIG if key.is_set(settings) else _IS_DEFAULT_CONFIG
        default = key.text_of(TopicSettings())
        synonyms = [(key.text_of(settings), source)] if source == _IS_DYNAMIC_TOPIC_CONFIG else []
        if default is not None:
            synonyms.append((default, _IS_DEFAULT_CONFIG))
        return kind(
            version=self.version,
            name=key.name,
            value=key.text_of(settings),
            read_only=False,
            is_sensitive=False,
            **({"config_source": source} if self.version else {"is_default": source == _IS_DEFAULT_CONFIG}),
            synonyms=[
                kind.DescribeConfigsSynonym(version=self.version, name=key.name, value=text, source=its)
                for text, its in (synonyms if self.has_synonyms else [])
            ],
            config_type=key.kind.value,
            documentation=key.told if self.is_documented else None,
        )


_LOOKED_AT: Final[Mapping[AdminApi, Callable[[int, Any, _Verdicts], PendingRequest | None]]] = {
    AdminApi.CREATE_TOPICS: _created,
    AdminApi.ALTER_CONFIGS: _replaced,
    AdminApi.INCREMENTAL_ALTER_CONFIGS: _altered,
}
"""Cuts our keys out of each request; None if it is passed on unchanged."""
