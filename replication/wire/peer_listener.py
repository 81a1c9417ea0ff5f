"""Accepts connections from other agents one by one, so that each is counted before its TLS handshake.

asyncio's own servers report a connection only after its handshake, so one that never finishes would not be counted.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, Listener
from replication.wire.peer_protocol import PeerRefusedError

log = structlog.get_logger(__name__)

_BACKLOG = 128
ACCEPT_PAUSE_S = 1.0
"""Pause after a failed accept: without free file descriptors, for instance, the next try would fail at once, too."""


class PeerListener:
    """Listens from `start` until `close`."""

    def __init__(
        self,
        accepted: Callable[[socket.socket, str], object],
        failed: Callable[[], object],
        pause_s: float = ACCEPT_PAUSE_S,
    ) -> None:
        """`accepted` gets each connection and its source address; `failed` is called when accepting fails."""
        self._accepted = accepted
        self._failed = failed
        self._pause_s = pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self.sockets: list[socket.socket] = []

    async def start(self, listener: Listener) -> None:
        """Start to listen. Raises OSError with the address in it."""
        self.sockets = await _bound(listener) if isinstance(listener, Address) else [listener]
        for one in self.sockets:
            one.setblocking(False)
            one.listen(_BACKLOG)
            self._tasks.append(asyncio.get_running_loop().create_task(self._accept(one)))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except ConnectionError:  # the client closed it before it was accepted
                continue
            except OSError as error:
                self._failed()
                log.warning("accept_failed", error=str(error))
                await asyncio.sleep(self._pause_s)
                continue
            self._accepted(connection, str(address[0]))

    async def close(self) -> None:
        """Stop accepting. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.sockets:
            one.close()


async def _bound(address: Address) -> list[socket.socket]:
    """Bind a socket to each address that the name resolves to, as asyncio's servers do."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.is_shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(where)
    except OSError as error:
        for one in bound:
            one.close()
        raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from error
    return bound


async def shake_hands(accepted: socket.socket, connection: FramedConnection, tls: ssl.SSLContext | None) -> None:
    """Make a connection from an accepted socket, with its TLS handshake if `tls` is given. The caller bounds the time.

    If the peer leaves meanwhile, `connection` is closed. Raises PeerRefusedError when it is none of our agents.
    """
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(lambda: connection, accepted, ssl=tls)
    except ssl.SSLError as error:
        told = getattr(error, "verify_message", "") or error.reason or error
        raise PeerRefusedError(f"the TLS handshake failed: {told}") from error
    except OSError:
        connection.close()
