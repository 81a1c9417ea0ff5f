"""Makes the bypass around dead agents from the settings: the brokers' listeners, and the protocol they speak.

What the local broker sends on its inter-broker connections is passed on unchanged. If that is PLAINTEXT or SSL, this
agent authenticates itself to the other broker: by its certificate, or by the SASL login of its Kafka client. If it is
SASL, the local broker itself logs in there, so the listener must use SASL too, and the agent adds no login.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import AgentSettingsError, has_pair
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.server_properties import BrokerProperties
from replication.follower.leader_bypass import Bypass, RouteLimits

if TYPE_CHECKING:
    from replication.wire.sasl_login import SaslLogin

_KEY = "remote.wal.agent.bypass"
_BROKER_TLS = "remote.wal.agent.broker.ssl"


def check_bypass(settings: AgentSettings, broker: BrokerProperties) -> None:
    """Check the settings of the bypass. Raises AgentSettingsError, naming the key."""
    if not settings.bypass.brokers:
        return
    _check_addresses(settings)
    protocol = settings.bypass.security_protocol
    if protocol.endswith("PLAINTEXT") and not settings.bypass.plaintext_accepted:
        raise AgentSettingsError(
            f"{_KEY}.plaintext.accepted: {_KEY}.security.protocol is {protocol}, so records cross the network "
            "unencrypted, and without SASL everybody who reaches the listener may act as a broker; make it SSL, or "
            "accept that by true"
        )
    if _broker_logs_in(broker) and not protocol.startswith("SASL"):
        raise AgentSettingsError(
            f"{_KEY}.security.protocol: {protocol} does not go with the broker's own inter-broker listener "
            f"{broker.inter_broker_listener_name}, which speaks SASL: the broker logs in past an agent, too; "
            "make it SASL_SSL"
        )
    if protocol.endswith("SSL"):
        _check_files(settings, protocol)


def _check_addresses(settings: AgentSettings) -> None:
    unknown = sorted(settings.bypass.brokers.keys() - settings.peers.peers.keys())
    if unknown:
        raise AgentSettingsError(
            f"{_KEY}: broker {unknown[0]} is not in remote.wal.agent.peers; name the same brokers in both"
        )
    for broker_id, where in settings.bypass.brokers.items():
        if where == settings.peers.peers[broker_id]:
            raise AgentSettingsError(
                f"{_KEY}: {broker_id}@{where} is that broker's agent, which is to be bypassed; name a listener "
                "of the broker itself"
            )


def _check_files(settings: AgentSettings, protocol: str) -> None:
    certificate, key, authority = _files(settings)
    if authority is None:
        raise AgentSettingsError(
            f"{_BROKER_TLS}.ca.file: {_KEY} by {protocol} needs it, or remote.wal.agent.ssl.ca.file"
        )
    if not has_pair(certificate, key, f"{_BROKER_TLS}.*") and protocol == "SSL":
        raise AgentSettingsError(
            f"{_BROKER_TLS}.certificate.file: {_KEY} by SSL needs a client certificate, whose name is the "
            "principal that needs ClusterAction; set it, or remote.wal.agent.ssl.*"
        )


def bypass(
    broker: BrokerProperties, settings: AgentSettings, client: KafkaClientConfig, clock: Callable[[], float]
) -> Bypass | None:
    """Return the way past dead agents to other brokers; None if they are not bypassed. Raises AgentSettingsError when a
    login is missing.

    `clock` gives monotonic seconds.
    """
    if not settings.bypass.brokers:
        return None
    brokers = {one: where for one, where in settings.bypass.brokers.items() if one != broker.node_id}
    wants_login = settings.bypass.security_protocol.startswith("SASL") and not _broker_logs_in(broker)
    login = client_login(client, f"{_KEY}.security.protocol").log_in if wants_login else None
    has_tls = settings.bypass.security_protocol.endswith("SSL")
    return Bypass(brokers, RouteLimits(), lambda: tls_context(settings), clock, login, takes_registered=has_tls)


def _broker_logs_in(broker: BrokerProperties) -> bool:
    return broker.security_protocols[broker.inter_broker_listener_name].startswith("SASL")


def client_login(client: KafkaClientConfig, key: str) -> "SaslLogin":
    """Return the login of the agent's Kafka client, for connections of its own. Raises AgentSettingsError naming
    `key`, the setting that needs a login."""
    from replication.wire.sasl_login import MECHANISMS, SaslLogin

    mechanism, username, password = (
        str(client.properties.get(f"sasl.{name}", "")) for name in ("mechanism", "username", "password")
    )
    if mechanism not in MECHANISMS or not username:
        raise AgentSettingsError(
            f"{key}: for SASL the agent logs in as its Kafka client does, so "
            f"remote.wal.agent.client.config must have sasl.mechanism {', '.join(MECHANISMS)} with username and "
            f"password; it has {mechanism or 'none'}"
        )
    return SaslLogin(mechanism, username, password)


def tls_context(settings: AgentSettings) -> ssl.SSLContext | None:
    """Return a TLS context for connections to another broker's listener, from files read now.

    Its certificate must name the dialled host. None if these listeners have no TLS. Raises OSError, ssl.SSLError.
    """
    if not settings.bypass.security_protocol.endswith("SSL"):
        return None
    certificate, key, authority = _files(settings)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _files(settings: AgentSettings) -> tuple[Path | None, Path | None, Path | None]:
    """Return certificate, key and authority: those for brokers, or else those for agents."""
    own = settings.broker_tls if settings.broker_tls.certificate_file else settings.tls
    return own.certificate_file, own.key_file, settings.broker_tls.ca_file or settings.tls.ca_file
