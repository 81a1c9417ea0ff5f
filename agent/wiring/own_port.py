"""Forwards to the local broker what it sends to the address that it advertises to other brokers.

A broker dials itself by that address too, for instance to end transactions that it coordinates. Usually its own
listener is there. If an operator such as Strimzi keeps the listener at another port, the agent listens there for it.
"""

import asyncio
import socket

import structlog

from gateway.byte_relay import ByteRelay, RelayEnd
from plugin.clients.dialling import connect
from replication.wire.peer_connection import Address
from replication.wire.peer_listener import ConnectionShares, PeerListener, TooManyConnectionsError

log = structlog.get_logger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_CONNECTIONS_MAX = 128
"""Far more than a broker has to itself."""


class OwnPort:
    """Passes bytes as they are, from `start` until `stop`. Use it in the event loop."""

    def __init__(self, at: Address, broker: Address) -> None:
        """Listen at `at`, and forward to the listener `broker`."""
        self._at = at
        self._broker = broker
        self._listener = PeerListener(self._accepted, lambda: None)
        self._shares = ConnectionShares(_CONNECTIONS_MAX, _CONNECTIONS_MAX)
        self._relays: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to listen. Raises OSError naming the address."""
        await self._listener.start(self._at)

    async def stop(self) -> None:
        """Stop to listen, and close all connections."""
        await self._listener.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where it listens."""
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    def _accepted(self, accepted: socket.socket, address: str) -> None:
        try:
            share = self._shares.enter(address)
        except TooManyConnectionsError as error:
            log.warning("too_many_connections", peer=error.holder, held=error.held)
            accepted.close()
            return
        relay = asyncio.get_running_loop().create_task(self._relay(accepted))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)
        relay.add_done_callback(lambda _relay: self._shares.leave(share))

    async def _relay(self, accepted: socket.socket) -> None:
        near, broker = RelayEnd(), RelayEnd()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: near, accepted)
            await connect(lambda: broker, self._broker.host, self._broker.port, _CONNECT_TIMEOUT_S)
            await ByteRelay(near, broker).run(0)
        except OSError as error:
            log.warning("own_broker_unreachable", broker=str(self._broker), error=str(error) or type(error).__name__)
        finally:
            near.close()
