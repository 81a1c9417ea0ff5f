"""Asks brokers and agents. Changes nothing."""

import logging
import urllib.error
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent.http.http_asking import ask_agent_page
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import HttpSettings
from agent.settings.setting_types import AgentSettingsError
from doctor.facts import Unknown
from kafka_log.errors import BrokerPropertiesError
from kafka_log.server_properties import BrokerProperties, parse_broker_properties
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.topic.client_config import LIBRDKAFKA_LOGGER, KafkaClientConfig
from metadata_topic.topic.topic import SETTINGS_TOPIC
from rollout.facts import AgentFacts, AgentState, ClusterFacts

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_CLIENT_ID = "remote-wal-rollout"
_ANSWER_BYTES = 2000
_AT_ONCE = 16


class ClusterUnknownError(Exception):
    """The cluster does not answer, so nothing is known."""


def gather(client: KafkaClientConfig, asking: HttpSettings | None, timeout_s: float) -> ClusterFacts:
    """Blocks. `asking` says how agents want to be asked. Raises ClusterUnknownError, MetadataTopicError."""
    from confluent_kafka import KafkaException

    admin = _admin(client)
    try:
        metadata: Any = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise ClusterUnknownError(f"{client.bootstrap_servers}: {error.args[0].str()}") from error
    hosts = {int(one.id): str(one.host) for one in metadata.brokers.values()}
    topics: Mapping[str, TopicSettings] = {}
    registered: Mapping[int, AgentRegistration] = {}
    if SETTINGS_TOPIC in metadata.topics:
        topics, registered = read_settings(client, timeout_s)
    replicas = {
        one for topic in metadata.topics.values() for part in topic.partitions.values() for one in part.replicas
    }
    return ClusterFacts(
        {one: _properties(admin, one, timeout_s) for one in sorted(hosts)},
        hosts,
        frozenset(replicas - set(hosts)),
        tuple(sorted(_names(metadata, lambda part: part.leader < 0 or len(part.isrs) < len(part.replicas)))),
        tuple(sorted(_names(metadata, lambda part: len(part.replicas) == 1))),
        ask_agents(registered, hosts, asking, timeout_s),
        tuple(sorted(name for name, settings in topics.items() if settings.enable)),
    )


def ask_properties(
    client: KafkaClientConfig, broker_ids: Iterable[int], timeout_s: float
) -> dict[int, BrokerProperties | Unknown]:
    """What these brokers run with. Blocks."""
    admin = _admin(client)
    return {one: _properties(admin, one, timeout_s) for one in sorted(broker_ids)}


def _admin(client: KafkaClientConfig) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    return AdminClient(client.for_confluent(client_id=_CLIENT_ID), logger=logging.getLogger(LIBRDKAFKA_LOGGER))


def _names(metadata: Any, wanted: Any) -> Iterable[str]:
    for topic in metadata.topics.values():
        for number, part in topic.partitions.items():
            if wanted(part):
                yield f"{topic.topic}-{number}"


def _properties(admin: "AdminClient", broker_id: int, timeout_s: float) -> BrokerProperties | Unknown:
    """What the broker runs with, by its own word."""
    from concurrent.futures import TimeoutError as FutureTimeoutError

    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    try:
        [future] = admin.describe_configs([resource], request_timeout=timeout_s).values()
        entries: Any = future.result(timeout_s)
    except KafkaException as error:
        return Unknown(error.args[0].str())
    except FutureTimeoutError:
        return Unknown(f"no answer within {timeout_s:g} s")
    default = ConfigSource.DEFAULT_CONFIG.value
    told = {key: one.value for key, one in entries.items() if one.value is not None and one.source != default}
    try:
        return parse_broker_properties(told, Path(f"broker {broker_id}"))
    except BrokerPropertiesError as error:
        return Unknown(str(error))


def ask_agents(
    registered: Mapping[int, AgentRegistration], hosts: Mapping[int, str], asking: HttpSettings | None, timeout_s: float
) -> dict[int, AgentFacts]:
    """Whether each is ready, by its own word. `hosts` says by which names clients reach their brokers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {
            one: pool.submit(_agent, agent, hosts.get(one, ""), asking, timeout_s) for one, agent in registered.items()
        }
        return {one: answer.result() for one, answer in sorted(asked.items())}


def _agent(agent: AgentRegistration, host: str, asking: HttpSettings | None, timeout_s: float) -> AgentFacts:
    url = urlsplit(agent.http_endpoint if "://" in agent.http_endpoint else f"//{agent.http_endpoint}")
    if is_loopback(url.hostname or "") and not is_loopback(host):
        told = f"it listens at {agent.http_endpoint} alone; give its remote.wal.agent.http.listener the host's address"
        return AgentFacts(agent.version, AgentState.UNKNOWN, told)
    try:
        with ask_agent_page(agent.http_endpoint, "/readyz", timeout_s, asking) as answer:
            lines = answer.read(_ANSWER_BYTES).decode(errors="replace").splitlines()
            return AgentFacts(agent.version, AgentState.READY, "; ".join(lines[1:]))
    except urllib.error.HTTPError as error:
        with error:
            told = "; ".join(error.read(_ANSWER_BYTES).decode(errors="replace").splitlines())
        return AgentFacts(agent.version, AgentState.NOT_READY, told or str(error))
    except (OSError, HTTPException, AgentSettingsError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # Only who refuses is known to be away; a firewall, a certificate or a name may be in the way of the others.
        state = AgentState.SILENT if isinstance(reason, ConnectionRefusedError) else AgentState.UNKNOWN
        return AgentFacts(agent.version, state, f"{agent.http_endpoint}: {reason}")
