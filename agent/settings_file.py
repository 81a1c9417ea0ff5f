"""Reads the agent's settings from the broker's server.properties, and checks combinations."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agent.settings.agent_settings import OUR_PREFIXES, AgentSettings
from agent.settings.bypass import check_bypass
from agent.settings.gateway_settings import check_gateway, left_to_broker
from agent.settings.http_listener import check_http_listener, is_loopback
from agent.settings.kafka_client import check_client
from agent.settings.memory_shares import least_memory_bytes
from agent.settings.plain_peers import check_plain_peers
from agent.settings.setting_types import MAX_PORT, AgentSettingsError
from agent.tls.broker_tls import broker_tls_plan
from kafka_log.broker_files.server_properties import BrokerProperties, load_broker_properties
from metadata_topic.settings.topic_settings import DURABLE_KEY, POLICY_KEY
from plugin.errors import fault_text, meant
from plugin.loading import STORE_PREFIXES, settings_under_prefix


def read_settings_file(
    file: Path, overrides: Mapping[str, str] = MappingProxyType({})
) -> tuple[BrokerProperties, AgentSettings]:
    """Return the broker's properties, and the settings of its agent; `overrides` replace keys of the file.

    Raises AgentSettingsError, BrokerPropertiesError, OSError.
    """
    broker = load_broker_properties(file, overrides)
    return broker, agent_settings(broker, file)


def agent_settings(broker: BrokerProperties, file: Path) -> AgentSettings:
    """Return the agent's settings from server.properties.

    Raises AgentSettingsError naming every wrong key, BrokerPropertiesError naming one that no provider has.
    """
    own = {key: broker.raw[key] for key in broker.raw if key.startswith(OUR_PREFIXES)}
    for key in broker.raw:
        if key.startswith("rsm.wal.") and not key.startswith(STORE_PREFIXES):
            raise AgentSettingsError(
                f"{file}: {key}: no such setting; those of stores begin with {' or '.join(STORE_PREFIXES)}"
            )
    for prefix in STORE_PREFIXES:  # report a missing provider value now, not when the store is opened
        settings_under_prefix(broker.raw, prefix)
    try:
        settings = AgentSettings.model_validate(own)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)
        raise AgentSettingsError(f"{file}: {'; '.join(map(_told, wrong))}") from None
    try:
        (_check_shadow if settings.is_shadow else _check_relaying)(settings, broker)
        _check_together(settings, broker)
        _check_memory(settings)
        check_bypass(settings, broker)
        check_client(broker, settings)
        check_gateway(settings.gateway, settings.peers, broker)
        if settings.gateway.enable and settings.gateway.durable_listener and not settings.storage.system_enable:
            told = "who produces would wait for records to be stored, and remote.log.wal.storage.system.enable is off"
            raise AgentSettingsError(f"remote.wal.gateway.durable.listener: {told}")
        settings = settings.model_copy(update={"gateway": left_to_broker(settings.gateway, broker)})
        check_plain_peers(broker, settings)
    except AgentSettingsError as error:
        raise AgentSettingsError(f"{file}: {error}") from None
    return settings


def _told(wrong: ErrorDetails) -> str:
    key = str(wrong["loc"][:2][-1])  # a section and its key, or a key of no section
    if wrong["type"] != "extra_forbidden":
        return f"{key}: {fault_text(wrong)}"
    if key in (POLICY_KEY, DURABLE_KEY):
        return f"{key}: it is a topic's setting: remote-wal topics enable --help"
    return f"{key}: no such setting{meant(key, AgentSettings.documented())}"


def _check_shadow(settings: AgentSettings, broker: BrokerProperties) -> None:
    """Refuse what an agent in shadow cannot do: it opens no port but its HTTP listener."""
    refused = {
        "remote.log.wal.storage.system.enable: must be true": not settings.storage.system_enable,
        "remote.wal.gateway.enable: must be false": settings.gateway.enable,
        "remote.wal.agent.bypass: must be empty": bool(settings.bypass.brokers),
        "remote.wal.archive.enable: must be false": settings.archive.enable,
    }
    advertised = broker.advertised_listeners[broker.inter_broker_listener_name]
    agents_port = settings.peers.replica_port_base + broker.node_id
    refused[
        f"advertised.listeners: {broker.inter_broker_listener_name} leads other brokers to agents of their own hosts, "
        "which relay nothing"
    ] = is_loopback(advertised.host) and advertised.port == agents_port
    if told := [reason for reason, is_wrong in refused.items() if is_wrong]:
        raise AgentSettingsError(f"with remote.wal.agent.mode=shadow: {'; '.join(told)}")


def _check_relaying(settings: AgentSettings, broker: BrokerProperties) -> None:
    plan = broker_tls_plan(broker, settings.broker_tls)
    tls = settings.tls.certificate_file, settings.tls.key_file, settings.tls.ca_file
    if any(tls) and not all(tls):
        raise AgentSettingsError("remote.wal.agent.ssl.*: certificate, key and ca file belong together")
    listener = settings.peers.peer_listener
    if not all(tls) and not settings.process.plaintext_enable and not is_loopback(listener.host):
        raise AgentSettingsError(
            f"remote.wal.agent.peer.listener: {listener} is open to other hosts; set remote.wal.agent.ssl.* "
            "or, in a network that you trust, remote.wal.agent.plaintext.enable=true"
        )
    if plan is not None and plan.vouches and not all(tls) and not settings.process.plaintext_enable:
        raise AgentSettingsError(
            "remote.wal.agent.ssl.*: the inter-broker listener knows brokers by their certificates, and the "
            "agent shows one for whoever reaches remote.wal.agent.peer.listener; set these, too, or, where all who do "
            "may act as a broker, remote.wal.agent.plaintext.enable=true"
        )
    replica_host = settings.peers.replica_listen_host
    if not settings.process.plaintext_enable and not is_loopback(replica_host):
        raise AgentSettingsError(
            f"remote.wal.agent.replica.listen.host: {replica_host} is open to other hosts, which would reach "
            "the brokers through this agent; take a loopback address or, in a network that you trust, set "
            "remote.wal.agent.plaintext.enable=true"
        )
    highest_port = settings.peers.replica_port_base + max(settings.peers.peers, default=0)
    if highest_port > MAX_PORT:
        raise AgentSettingsError(
            f"remote.wal.agent.replica.port.base: the port of the highest broker id would be {highest_port}"
        )


def _check_together(settings: AgentSettings, broker: BrokerProperties) -> None:
    if settings.link.takes_digests and settings.gateway.produce_enable:
        raise AgentSettingsError(
            "remote.wal.link.digest: what gateways store of produce requests has no SHA-256; leave it at "
            "crc32c, or remote.wal.gateway.produce.enable=false"
        )
    check_http_listener(settings.http.listener, settings.http)
    state_directory = settings.process.state_directory.resolve()
    for directory in broker.log_dirs:
        if state_directory.is_relative_to(directory.resolve()):
            raise AgentSettingsError(f"remote.wal.agent.state.directory: must not lie in the log directory {directory}")


def _check_memory(settings: AgentSettings) -> None:
    least = least_memory_bytes(settings)
    if settings.process.memory_bytes < least:
        raise AgentSettingsError(
            f"remote.wal.agent.memory.bytes: must be {least} at least with these queues and caches; raise it, "
            "or lower remote.wal.log.manager.combiner.task.upload.bytes"
        )
