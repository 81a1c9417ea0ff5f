"""Accepts clients' connections: checks each against the limits, and ends its TLS here."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

import structlog

from gateway.client_handler import ClientLimits
from gateway.metrics import GATEWAY_SIDE, GatewayMetrics
from replication.wire.peer_connection import Address, Listener
from replication.wire.peer_listener import ConnectionShare, ConnectionShares, PeerListener, TooManyConnectionsError

log = structlog.get_logger(__name__)

FULL_S: Final = 30.0
"""A neighbour goes on to serve clients for so long after it was full. A guess: it must not come and go every second."""

Serve = Callable[[int, socket.socket, str], Coroutine[None, None, None]]
"""Serves a connection until it is over: the number of its listener, the accepted socket, and the source address."""


class ClientRefusedError(Exception):
    """The client's handshake failed."""


class ClientListeners:
    """Listens for clients at numbered addresses, from `start` until `stop`."""

    def __init__(
        self, serve: Serve, tls: Callable[[], ssl.SSLContext | None], limits: ClientLimits, metrics: GatewayMetrics
    ) -> None:
        """`tls` returns the TLS context; it is called once, at the start."""
        self._serve = serve
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._limits = limits
        self._metrics = metrics
        self._shares = ConnectionShares(limits.max_connections, limits.max_connections_per_ip)
        self._full_until_s = 0.0
        self._listeners: dict[int, PeerListener] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Tasks with the numbers of their listeners."""

    async def start(self, listeners: Mapping[int, Listener]) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        self._tls = self._make_tls()
        for number, where in listeners.items():
            await self.listen(number, where)

    async def listen(self, number: int, where: Listener) -> None:
        """Listen at one more address, after the start. Raises OSError naming the address."""
        listener = PeerListener(partial(self._accepted, number), partial(self.refuse, "accept_failed"))
        await listener.start(where)
        self._listeners[number] = listener

    async def leave(self, number: int) -> None:
        """Stop listening at the listener with this number, and close its remaining connections."""
        await self._listeners.pop(number).close()
        tasks = [task for task, its in self._tasks.items() if its == number]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def addresses(self) -> dict[int, Address]:
        """The listeners' addresses, by number."""
        return {one: Address(*found.sockets[0].getsockname()[:2]) for one, found in self._listeners.items()}

    @property
    def socket_count(self) -> int:
        """On how many sockets it listens, after the start: a name may resolve to several addresses."""
        return sum(len(found.sockets) for found in self._listeners.values())

    def refuse(self, reason: str) -> None:
        """Count, by this reason, a connection that is closed."""
        self._metrics.refused.labels(GATEWAY_SIDE, reason).inc()

    @property
    def is_full(self) -> bool:
        """Whether as many clients as allowed are connected, or were in the last `FULL_S`."""
        return asyncio.get_running_loop().time() < self._full_until_s

    def _accepted(self, number: int, accepted: socket.socket, address: str) -> None:
        try:
            share = self._shares.enter(address)
            if self._shares.is_full:
                self._full_until_s = asyncio.get_running_loop().time() + FULL_S
        except TooManyConnectionsError as error:
            self.refuse("too_many_connections")
            log.warning("too_many_clients", client=error.holder, held=error.held)
            accepted.close()
            return
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        task = asyncio.get_running_loop().create_task(self._served(number, accepted, address, share))
        self._tasks[task] = number
        task.add_done_callback(self._tasks.pop)

    async def _served(self, number: int, accepted: socket.socket, address: str, share: ConnectionShare) -> None:
        try:
            await self._serve(number, accepted, address)
        except ClientRefusedError as error:
            self.refuse("client_tls")
            log.warning("client_refused", listener=number, error=str(error))
        except Exception:  # one connection's defect ends no other
            self.refuse("defect")
            log.exception("gateway_defect", listener=number)
        finally:
            self._shares.leave(share)

    async def shake_hands(self, accepted: socket.socket, client: asyncio.BaseProtocol) -> None:
        """Make `client` the protocol of an accepted socket, after the TLS handshake if there is TLS. Raises
        ClientRefusedError."""
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: client, accepted, ssl=self._tls)
        except (OSError, ssl.SSLError) as error:
            accepted.close()
            raise ClientRefusedError(str(error) or type(error).__name__) from error

    async def stop(self) -> None:
        """Accept no more clients and close all connections."""
        for listener in self._listeners.values():
            await listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
