"""One address for clients, beside those at which they reach the brokers of other zones."""

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog

from gateway.byte_relay import ByteRelay, RelayEnd
from gateway.client_handler import ClientLimits
from gateway.client_listeners import ClientListeners
from gateway.metrics import GatewayMetrics
from plugin.clients.dialling import connect
from replication.wire.peer_connection import Address, Listener

log = structlog.get_logger(__name__)

_PORT = 0


class ClientPort(ABC):
    """Listens for clients at one address from `start` until `stop`."""

    def __init__(
        self, client_tls: Callable[[], ssl.SSLContext | None], limits: ClientLimits, metrics: GatewayMetrics
    ) -> None:
        self._clients = ClientListeners(self._serve, client_tls, limits, metrics)
        self._timeout_s = limits.connect_timeout_s
        """For connecting to the broker."""

    async def start(self, listener: Listener) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        await self._clients.start({_PORT: listener})

    @property
    def address(self) -> Address:
        return self._clients.addresses[_PORT]

    @property
    def socket_count(self) -> int:
        """On how many sockets it listens, after the start."""
        return self._clients.socket_count

    @abstractmethod
    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        """Serve a connection until it is over."""

    async def stop(self) -> None:
        """Accept no more clients, and close all connections."""
        await self._clients.stop()


class PassingPort(ClientPort):
    """Connects each client to a broker, and relays all bytes unchanged."""

    def __init__(
        self,
        broker: Address,
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
    ) -> None:
        super().__init__(client_tls, limits, metrics)
        self._broker = broker

    async def _serve(self, _number: int, accepted: socket.socket, _address: str) -> None:
        client, broker = RelayEnd(), RelayEnd()
        try:
            await self._clients.shake_hands(accepted, client)
            await connect(lambda: broker, self._broker.host, self._broker.port, self._timeout_s)
            await self._clients.relay(ByteRelay(client, broker))
        except OSError as error:
            log.warning(
                "passing_port_does_not_reach_broker", broker=str(self._broker), error=str(error) or type(error).__name__
            )
        finally:
            client.close()
