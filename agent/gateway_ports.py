"""The ports by which clients reach the broker beside this agent, put together from the settings: for admin tools."""

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.configuration import Configuration
from agent.gateway_settings import GatewaySettings
from agent.memory_shares import ADMIN_FRAMES_BYTES
from agent.service_manager import ListeningSockets
from gateway.client_door import ClientLimits
from gateway.metrics import GatewayMetrics
from metadata_topic.settings.settings_topic import TopicSettingsTopic
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address, listening_context

if TYPE_CHECKING:
    from gateway.admin.admin_port import AdminPort


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """What was made; each is None, and nothing of it is loaded, where it is off."""

    broker_id: int
    admin: "AdminPort | None" = None

    async def start(self, settings: GatewaySettings, handed: ListeningSockets) -> None:
        """Raises OSError naming the address or file, ssl.SSLError."""
        if self.admin is not None:
            own = Address(settings.listen_host, settings.port_base + self.broker_id)
            await self.admin.start(handed.take("admin", own))

    async def stop(self) -> None:
        """Close the listeners and clients' connections."""
        await asyncio.gather(*(port.stop() for port in (self.admin,) if port is not None))


def build_broker_ports(configuration: Configuration, limits: ClientLimits, metrics: GatewayMetrics) -> BrokerPorts:
    """Those that are on."""
    settings = configuration.settings.gateway
    admin = _admin_port(configuration, limits, metrics) if settings.admin_listener else None
    return BrokerPorts(configuration.broker.node_id, admin)


def _admin_port(configuration: Configuration, limits: ClientLimits, metrics: GatewayMetrics) -> "AdminPort":
    from gateway.admin.admin_port import AdminContext, AdminPort

    settings = configuration.settings.gateway
    where = configuration.broker.listeners[settings.admin_listener]
    return AdminPort(
        AdminContext(
            Address(where.host or "127.0.0.1", where.port),
            TopicSettingsTopic(configuration.client),
            ThreadPoolExecutor(1, "gateway-admin"),
            client_tls(settings),
            limits,
            metrics,
            MemoryBudget(ADMIN_FRAMES_BYTES),
            MemoryBudget(ADMIN_FRAMES_BYTES),
        )
    )


def client_tls(settings: GatewaySettings) -> Callable[[], ssl.SSLContext | None]:
    """What clients' TLS ends by."""
    certificate, key, authority = settings.ssl_certificate_file, settings.ssl_key_file, settings.ssl_ca_file
    if certificate is None or key is None:
        return lambda: None
    return partial(listening_context, certificate, key, authority)
