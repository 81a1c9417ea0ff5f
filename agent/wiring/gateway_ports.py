"""Puts together the ports at which clients reach the broker beside this agent, from the settings.

One is for clients of all zones that ask for brokers, one for clients of the own zone whose answers are held.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.service_manager import ListeningSockets
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.setting_types import AgentSettingsError
from gateway.client_handler import ClientLimits
from gateway.client_zone import ZoneRules
from gateway.metrics import GatewayMetrics
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_topic import read_settings
from replication.wire.peer_connection import Address, listening_context

if TYPE_CHECKING:
    from gateway.bootstrap_port import BootstrapPort
    from gateway.broker_pipe import HoldingContext
    from gateway.durable.own_zone_port import OwnZonePort


_IDLE_S = 900.0
"""How long nothing may pass on a client's connection: longer than by Kafka's `connections.max.idle.ms` (600 s)."""


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The ports; each is None, and its code is not loaded, if it is off."""

    bootstrap: "BootstrapPort | None" = None
    own_zone: "OwnZonePort | None" = None

    async def start(self, settings: GatewaySettings, handed: ListeningSockets) -> None:
        """Start listening. Raises OSError naming the address or file, ssl.SSLError."""
        if self.bootstrap is not None:
            shared = Address(settings.listen_host, settings.bootstrap_port)
            await self.bootstrap.start(handed.take("bootstrap", shared))
        if self.own_zone is not None:
            await self.own_zone.start(handed.take("own-zone", _own_zone_address(settings)))

    async def stop(self) -> None:
        """Close the listeners and clients' connections."""
        ports = (self.bootstrap, self.own_zone)
        await asyncio.gather(*(port.stop() for port in ports if port is not None))


def build_broker_ports(
    configuration: Configuration, limits: ClientLimits, metrics: GatewayMetrics, holding: "HoldingContext | None"
) -> BrokerPorts:
    """Build the ports that are on; that for clients of the own zone if answers are held."""
    settings = configuration.settings.gateway
    bootstrap = _bootstrap_port(configuration, limits, metrics) if settings.bootstrap_listener else None
    own_zone = _own_zone_port(configuration, limits, metrics, holding) if holding is not None else None
    return BrokerPorts(bootstrap, own_zone)


def _own_zone_port(
    configuration: Configuration, limits: ClientLimits, metrics: GatewayMetrics, holding: "HoldingContext"
) -> "OwnZonePort":
    from gateway.durable.own_zone_port import OwnZoneContext, OwnZonePort

    broker, settings = configuration.broker, configuration.settings.gateway
    where = local_address(broker, settings.durable_listener)
    return OwnZonePort(
        OwnZoneContext(broker.node_id, broker.rack or "", where, holding, client_tls(settings), limits, metrics)
    )


def _own_zone_address(settings: GatewaySettings) -> Address:
    """Return the own-zone listener's address, at which the standby may listen as well."""
    return Address(settings.listen_host, settings.durable_port, is_shared=True)


async def stand_by_for(configuration: Configuration, file: Path) -> None:
    """Lead clients of the own zone while nobody listens for them. Raises AgentSettingsError, OSError, ssl.SSLError."""
    from gateway.standby import StandbyContext, stand_by

    settings, client = configuration.settings.gateway, configuration.client
    if not settings.durable_listener:
        raise AgentSettingsError(f"{file}: clients of this broker's zone do not come by its agent: it needs no standby")

    directory = configuration.settings.process.state_directory

    def is_any_durable() -> bool:
        return read_settings(client, memory=SettingsMemory(directory)).is_any_durable

    broker = local_address(configuration.broker, settings.durable_listener)
    metrics, tls = GatewayMetrics(CollectorRegistry()), client_tls(settings)
    await stand_by(
        StandbyContext(_own_zone_address(settings), broker, tls, client_limits(settings), metrics, is_any_durable)
    )


def _bootstrap_port(configuration: Configuration, limits: ClientLimits, metrics: GatewayMetrics) -> "BootstrapPort":
    from gateway.bootstrap_port import BootstrapContext, BootstrapPort, ZoneListener

    broker, settings = configuration.broker, configuration.settings.gateway
    others = settings.zone_listeners.items()
    listeners = {zone: ZoneListener(local_address(broker, name)) for zone, name in others}
    own, name = broker.rack or "", settings.bootstrap_listener
    speaks_tls = broker.security_protocols[name].endswith("SSL")
    listeners[own] = ZoneListener(local_address(broker, name), _same_host() if speaks_tls else None)
    rules = ZoneRules(own, frozenset(listeners), settings.bootstrap_zones)
    return BootstrapPort(BootstrapContext(broker.node_id, rules, listeners, client_tls(settings), limits, metrics))


def _same_host() -> ssl.SSLContext:
    """Return a context for the broker beside this agent, at an address of this host that its certificate may not
    name.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_limits(settings: GatewaySettings) -> ClientLimits:
    """Return the limits of clients' connections."""
    of_one = settings.max_connections_per_ip or -(-settings.max_connections // 2)
    return ClientLimits(settings.max_connections, of_one, _IDLE_S)


def local_address(broker: BrokerProperties, listener: str) -> Address:
    """Return the address at which this agent dials a listener of its broker."""
    where = broker.listeners[listener]
    return Address(where.host or "127.0.0.1", where.port)


def client_tls(settings: GatewaySettings) -> Callable[[], ssl.SSLContext | None]:
    """Return the server context for clients' TLS."""
    certificate, key, authority = settings.ssl_certificate_file, settings.ssl_key_file, settings.ssl_ca_file
    if certificate is None or key is None:
        return lambda: None
    return partial(listening_context, certificate, key, authority)
