"""Builds the standby from the settings, and what it has in common with the gateway."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.setting_types import AgentSettingsError
from agent.wiring.peering import broker_listener
from gateway.client_listeners import ClientAccess
from gateway.client_port import PassingPort
from gateway.metrics import GatewayMetrics
from gateway.standby import stand_by
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_topic import read_settings
from replication.wire.peer_connection import Address, listening_context

_READ_S = 10.0
"""A guess: how long it may be unknown whether a topic is durable, before nobody is led any more."""


async def stand_by_for(configuration: Configuration, file: Path) -> None:
    """Run the standby for the own zone's clients while no agent listens for them. Raises AgentSettingsError,
    OSError, ssl.SSLError."""
    settings, client = configuration.settings.gateway, configuration.client
    if not settings.durable_listener:
        raise AgentSettingsError(f"{file}: clients of this broker's zone do not come by its agent: it needs no standby")
    directory = configuration.settings.process.state_directory

    def is_any_durable() -> bool:
        return read_settings(client, _READ_S, memory=SettingsMemory(directory)).is_any_durable

    broker = broker_listener(configuration.broker, settings.durable_listener)
    port = PassingPort(broker, client_access(settings, GatewayMetrics(CollectorRegistry())))
    await stand_by(own_zone_address(settings), port, is_any_durable)


def own_zone_address(settings: GatewaySettings) -> Address:
    """Return the own-zone listener's address, at which the standby may listen as well."""
    return Address(settings.listen_host, settings.durable_port, is_shared=True)


def client_access(settings: GatewaySettings, metrics: GatewayMetrics) -> ClientAccess:
    """Return how clients may connect. Their TLS context is made when ports open."""
    limit, certificate, key = settings.max_connections, settings.ssl_certificate_file, settings.ssl_key_file
    access = ClientAccess(limit, -(-limit // 2), metrics)
    if certificate is None or key is None:
        return access
    return replace(access, tls=partial(listening_context, certificate, key, settings.ssl_ca_file))
