"""One address for clients, beside those at which they reach the brokers of other zones."""

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol

import structlog

from gateway.client_door import ClientLimits
from gateway.client_listeners import ClientListeners
from gateway.metrics import GatewayMetrics
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address, Listener, connect_framed
from replication.wire.peer_listener import News

log = structlog.get_logger(__name__)

_PORT = 0


class ClientPort(ABC):
    """Listens for clients at one address from `start` until `stop`."""

    def __init__(
        self, client_tls: Callable[[], ssl.SSLContext | None], limits: ClientLimits, metrics: GatewayMetrics
    ) -> None:
        self._clients = ClientListeners(self._serve, client_tls, limits, metrics)

    async def start(self, listener: Listener) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        await self._clients.start({_PORT: listener})

    @property
    def address(self) -> Address:
        """The address on which it listens."""
        return self._clients.addresses[_PORT]

    @property
    def socket_count(self) -> int:
        """How many sockets it listens with, after the start."""
        return self._clients.socket_count

    @abstractmethod
    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        """Serve a connection until it is over."""

    async def stop(self) -> None:
        """Accept no more clients, and end the existing ones."""
        await self._clients.stop()


class FramedPortContext(Protocol):
    """Shared state of all connections of a `FramedPort`."""

    @property
    def broker(self) -> Address: ...

    @property
    def client_tls(self) -> Callable[[], ssl.SSLContext | None]: ...

    @property
    def limits(self) -> ClientLimits: ...

    @property
    def metrics(self) -> GatewayMetrics: ...

    @property
    def requests_budget(self) -> MemoryBudget: ...

    @property
    def answers_budget(self) -> MemoryBudget: ...


class FramedPort(ClientPort):
    """Gives each client its own connection to the broker, and relays frames between them."""

    answer_unknown: ClassVar[str]
    """The log event when an answer is not understood."""
    broker_unreachable: ClassVar[str]
    """The log event when the broker is not reached."""

    def __init__(self, context: FramedPortContext) -> None:
        super().__init__(context.client_tls, context.limits, context.metrics)
        self._framed = context
        self._unreached = News()

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        context = self._framed
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=context.requests_budget)
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=context.answers_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            await connect_framed(context.broker, broker, timeout_s=context.limits.connect_timeout_s)
            self._unreached.is_over()
            await self._relay(client, broker)
        except MalformedFrameError as error:
            self._clients.refuse("answer_unknown")
            log.warning(self.answer_unknown, error=str(error), consequence="the client's connection is closed")
        except OSError as error:
            self._clients.refuse("broker_unreachable")
            told = str(error) or type(error).__name__
            if self._unreached.is_new(told):
                log.warning(self.broker_unreachable, error=told)
        finally:
            client.close()
            broker.close()

    @abstractmethod
    async def _relay(self, client: FramedConnection, broker: FramedConnection) -> None:
        """Relay until either side ends. Raises MalformedFrameError for an answer that is not understood, OSError."""
