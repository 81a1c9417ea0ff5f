"""Accepts connections one by one, so that each is counted before its TLS handshake.

asyncio's own servers report a connection only after its handshake, so one that never finishes would not be counted.
All of the agent's listeners for brokers, other agents and clients are `CountedListeners`.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network

import structlog

from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, Listener
from replication.wire.peer_protocol import PeerRefusedError

log = structlog.get_logger(__name__)

Holder = str | int
"""A source address or network, or a broker's id."""
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLM_F_REQUEST = 20, 2, 1
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_REQUEST = struct.Struct("=BBBxI")
"""inet_diag_req_v2, before its socket id: family, protocol, extensions, states."""
_PORTS = struct.Struct(">HH")
_ANY_INTERFACE, _NO_COOKIE = bytes(4), b"\xff" * 8
_ANSWER = struct.Struct("=BB2x 4s 44x 12x II")
"""inet_diag_msg: family, state, ports, and behind the rest of the id and three counters, uid and inode."""
_ADDRESS_BYTES, _RESPONSE_BYTES, _TIMEOUT_S = 16, 4096, 1.0


class TooManyConnectionsError(Exception):
    """The `holder` already has its share of connections, or the limit for all together is reached."""

    def __init__(self, holder: Holder, held: int) -> None:
        self.holder = holder
        self.held = held
        super().__init__(f"{holder} holds {held} connections")


@dataclass(slots=True)
class ConnectionShare:
    """The share that one connection takes. `holder` changes at most once."""

    address: str
    holder: Holder
    has_left: bool = False


def holder_at(address: str) -> str:
    """Return the holder of connections from this address: for IPv6 its network of 64 bits, which one host may own."""
    return str(ip_network((address.partition("%")[0], 64), strict=False)) if ":" in address else address


class ConnectionShares:
    """Counts the connections that one listener holds, by holder.

    A connection counts for its source address (`holder_at`) from the moment it is accepted. Once it has proved to be
    another broker's agent, it counts for that broker only. So neither a broken agent, nor strangers, nor connections
    that never finish their handshake can use up another's share.
    """

    def __init__(self, max_unnamed: int, max_of_one: int) -> None:
        """`max_unnamed` bounds all connections of unknown holders together, `max_of_one` those of each address and
        each broker."""
        self._max_unnamed = max_unnamed
        self._max_of_one = max_of_one
        self._held: Counter[Holder] = Counter()
        self._unnamed = 0

    def enter(self, address: str) -> ConnectionShare:
        """Count a connection that was just accepted. Raises TooManyConnectionsError."""
        holder = holder_at(address)
        if self.is_full:
            raise TooManyConnectionsError(holder, self._held[holder])
        self._add(holder)
        self._unnamed += 1
        return ConnectionShare(address, holder)

    @property
    def is_full(self) -> bool:
        """Whether a connection from any unknown holder would be refused."""
        return self._unnamed >= self._max_unnamed

    def name(self, share: ConnectionShare, broker_id: int) -> None:
        """Count this connection for a broker's agent from now on, no longer for its address. Raises
        TooManyConnectionsError."""
        self._add(broker_id)
        self._drop(share)
        share.holder = broker_id

    def _add(self, holder: Holder) -> None:
        if self._held[holder] >= self._max_of_one:
            raise TooManyConnectionsError(holder, self._held[holder])
        self._held[holder] += 1

    def leave(self, share: ConnectionShare) -> None:
        """Stop counting a connection: it ended, or is counted elsewhere from now on. Idempotent."""
        if not share.has_left:
            share.has_left = True
            self._drop(share)

    def _drop(self, share: ConnectionShare) -> None:
        self._held[share.holder] -= 1
        if not self._held[share.holder]:
            del self._held[share.holder]
        if isinstance(share.holder, str):
            self._unnamed -= 1


_BACKLOG = 128
ACCEPT_PAUSE_S = 1.0
"""Pause after a failed accept: without free file descriptors, for instance, the next try would fail at once, too."""


class PeerListener:
    """Accepts connections from `start` until `close`, and hands each to `accepted`."""

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


Serve = Callable[[int, socket.socket, ConnectionShare], Coroutine[None, None, None]]
"""Serves a connection until it is over: the number of its listener, the accepted socket, and the connection's share."""


class CountedListeners:
    """Listens at numbered addresses, and serves each connection in a task of its own, within its holder's share."""

    def __init__(
        self, serve: Serve, shares_of: Callable[[int], ConnectionShares], refused: Callable[[str], object]
    ) -> None:
        """`serve` raises nothing; `shares_of` returns who counts a listener's connections.

        `refused` counts, by reason, connections that are not served.
        """
        self._serve = serve
        self._shares_of = shares_of
        self.refuse = refused
        self._listeners: dict[int, PeerListener] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Tasks with the numbers of their listeners."""

    async def listen(self, number: int, where: Listener) -> None:
        """Listen at one more address. Raises OSError naming the address."""
        shares = self._shares_of(number)
        accepted = partial(self._accepted, number, shares)
        listener = PeerListener(accepted, partial(self.refuse, "accept_failed"))
        await listener.start(where)
        self._listeners[number] = listener

    def _accepted(self, number: int, shares: ConnectionShares, accepted: socket.socket, address: str) -> None:
        try:
            share = shares.enter(address)
        except TooManyConnectionsError as error:
            self.refuse_too_many(error)
            accepted.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(number, accepted, share))
        self._tasks[task] = number
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: shares.leave(share))

    def refuse_too_many(self, error: TooManyConnectionsError) -> None:
        """Count and log that a holder has all connections of its share."""
        self.refuse("too_many_connections")
        log.warning("too_many_connections", peer=error.holder, held=error.held)

    async def leave(self, number: int) -> None:
        """Stop listening at the listener with this number, and close its remaining connections."""
        await self._listeners.pop(number).close()
        await self._end([task for task, its in self._tasks.items() if its == number])

    @property
    def addresses(self) -> dict[int, Address]:
        """The listeners' addresses, by number."""
        return {one: Address(*found.sockets[0].getsockname()[:2]) for one, found in self._listeners.items()}

    @property
    def socket_count(self) -> int:
        """How many sockets are listened on: a name may resolve to several addresses."""
        return sum(len(found.sockets) for found in self._listeners.values())

    @property
    def connections(self) -> int:
        """How many connections are served, also those that have sent nothing yet."""
        return len(self._tasks)

    async def stop(self) -> None:
        """Close all listeners and connections."""
        for listener in self._listeners.values():
            await listener.close()
        await self._end(list(self._tasks))

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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


class News:
    """Whether an error of connecting to one broker is new, and so worth a log line. Not thread-safe."""

    def __init__(self) -> None:
        self._told = ""

    def is_new(self, error: str) -> bool:
        """Whether this error differs from the one logged last, or the broker was reached in between."""
        is_new, self._told = error != self._told, error
        return is_new

    @property
    def present(self) -> str | None:
        """The error that was logged last; None once the broker was reached again."""
        return self._told or None

    def is_over(self) -> None:
        """Record that the broker was reached, so that the next error is new."""
        self._told = ""


class NotTheBrokerError(PeerRefusedError):
    """The peer's process belongs to another user than the broker, or the kernel does not say to whom."""


def check_owner(accepted: socket.socket, uid: int) -> None:
    """Raise NotTheBrokerError if the peer's process belongs to another user, or if the kernel does not say to whom.

    The kernel is asked by netlink (sock_diag(7)), for IPv4 and IPv6, for the one socket with the same two addresses in
    reverse order. Only an established socket counts: for a closed one it forgets the owner and reports root.
    """
    try:
        owner = _owner_of_peer(accepted)
    except OSError as error:
        raise NotTheBrokerError(f"the kernel does not say who connected: {error.strerror or error}") from error
    if owner != uid:
        raise NotTheBrokerError(f"a process of user {owner} connected, and only user {uid} may")


def _owner_of_peer(accepted: socket.socket) -> int:
    """Return the user id of the peer's end. Raises OSError."""
    own, peer = accepted.getsockname(), accepted.getpeername()
    ports = _PORTS.pack(peer[1], own[1])
    addresses = b"".join(
        socket.inet_pton(accepted.family, one[0].partition("%")[0]).ljust(_ADDRESS_BYTES, b"\0") for one in (peer, own)
    )
    question = (
        _REQUEST.pack(accepted.family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        + ports
        + addresses
        + _ANY_INTERFACE
        + _NO_COOKIE
    )
    kind, body = _asked(question)
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", body)[0]
        raise OSError(number, os.strerror(number))
    _, state, found, uid, inode = _ANSWER.unpack_from(body)
    if state != _ESTABLISHED or found != ports or not inode:
        raise OSError("it is closed already")
    return int(uid)


def _asked(question: bytes) -> tuple[int, bytes]:
    length = _HEADER.size + len(question)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + question)
        answer = kernel.recv(_RESPONSE_BYTES)
    return _HEADER.unpack_from(answer)[1], answer[_HEADER.size :]
