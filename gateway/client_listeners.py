"""Accepts clients' connections: checks each against the limits, and ends its TLS here."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.metrics import GATEWAY_SIDE, GatewayMetrics
from replication.wire.peer_connection import HELLO_TIMEOUT_S, Listener
from replication.wire.peer_listener import ConnectionShare, ConnectionShares, CountedListeners

log = structlog.get_logger(__name__)

FULL_S: Final = 30.0
"""A neighbour goes on to serve clients for so long after it was full. A guess: it must not come and go every second."""

ServeClient = Callable[[int, socket.socket, str], Coroutine[None, None, None]]
"""Serves a connection until it is over: the number of its listener, the accepted socket, and the source address."""


class ClientRefusedError(Exception):
    """The client's handshake failed."""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Limits, TLS and metrics of clients' connections, at the gateway and at the broker's agent."""

    max_connections: int
    max_connections_per_ip: int
    """Limit for one client's address. Only the gateway counts it: the broker's agent sees the gateways' addresses."""
    metrics: GatewayMetrics
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """Called once, at the start."""
    connect_timeout_s: float = HELLO_TIMEOUT_S
    """Limit for each step of connecting: a TLS handshake, connecting to the agent, connecting to its broker."""


class ClientListeners(CountedListeners):
    """Listens for clients at numbered addresses, from `start` until `stop`."""

    def __init__(self, serve: ServeClient, access: ClientAccess) -> None:
        self._shares = ConnectionShares(access.max_connections, access.max_connections_per_ip)
        super().__init__(
            self._serve_counted,
            lambda _number: self._shares,
            lambda reason: access.metrics.refused.labels(GATEWAY_SIDE, reason).inc(),
        )
        self._serve_client = serve
        self._make_tls = access.tls
        self._tls: ssl.SSLContext | None = None
        self._timeout_s = access.connect_timeout_s
        self._full_until_s = 0.0

    async def start(self, listeners: Mapping[int, Listener]) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        self._tls = self._make_tls()
        for number, where in listeners.items():
            await self.listen(number, where)

    @property
    def is_full(self) -> bool:
        """Whether as many clients as allowed are connected, or were in the last `FULL_S`."""
        return asyncio.get_running_loop().time() < self._full_until_s

    async def _serve_counted(self, number: int, accepted: socket.socket, share: ConnectionShare) -> None:
        if self._shares.is_full:
            self._full_until_s = asyncio.get_running_loop().time() + FULL_S
        try:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._serve_client(number, accepted, share.address)
        except ClientRefusedError as error:
            self.refuse("client_tls")
            log.warning("client_refused", listener=number, error=str(error))
        except Exception:  # one connection's defect ends no other
            self.refuse("defect")
            log.exception("gateway_defect", listener=number)

    async def shake_hands(self, accepted: socket.socket, client: asyncio.BaseProtocol) -> None:
        """Make `client` the protocol of an accepted socket, after the TLS handshake if there is TLS. Raises
        ClientRefusedError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: client, accepted, ssl=self._tls)
        except (OSError, ssl.SSLError) as error:
            accepted.close()
            raise ClientRefusedError(str(error) or type(error).__name__) from error
