"""One address for the clients of all zones: each is connected to the broker's listener for its zone.

That listener names all brokers as clients of the zone reach them. So no answer must be rewritten, and only the client
id in the first request's header is read. Then bytes pass unchanged, until the client continues at those brokers.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.byte_relay import ByteRelay, RelayEnd
from gateway.client_handler import ClientLimits
from gateway.client_port import ClientPort
from gateway.client_zone import FirstRequest, ZoneRules
from gateway.metrics import BOOTSTRAP_SIDE, GatewayMetrics
from plugin.clients.dialling import connect
from replication.wire.peer_connection import Address

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ZoneListener:
    """The broker's listener for a zone's clients."""

    where: Address
    tls: ssl.SSLContext | None = None
    """The listener of the own zone speaks the same protocol as clients."""


class BootstrapPort(ClientPort):
    """Listens for clients of all zones from `start` until `stop`."""

    def __init__(
        self,
        broker_id: int,
        rules: ZoneRules,
        listeners: Mapping[str, ZoneListener],
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
    ) -> None:
        """`listeners` are by zone, for all zones of `rules.zones`."""
        super().__init__(client_tls, limits, metrics)
        self._broker_id = broker_id
        self._rules = rules
        self._listeners = listeners
        self._metrics = metrics

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        client = _AskingEnd()
        try:
            await self._clients.shake_hands(accepted, client)
            client_id = await client.client_id(self._timeout_s)
            if client_id is None:
                return
            zone = self._rules.zone_of(client_id, address)
            broker = RelayEnd()
            listener = self._listeners[zone]
            where = listener.where
            await connect(lambda: broker, where.host, where.port, self._timeout_s, listener.tls)
            connections = self._metrics.connections.labels(BOOTSTRAP_SIDE, zone, str(self._broker_id))
            with connections.track_inprogress():
                await self._clients.relay(ByteRelay(client, broker))
        except TimeoutError:
            self._clients.refuse("said_nothing" if client.is_silent else "broker_unreachable")
        except OSError as error:
            self._clients.refuse("broker_unreachable")
            log.warning("bootstrap_port_does_not_reach_broker", error=str(error) or type(error).__name__)
        finally:
            client.close()


class _AskingEnd(RelayEnd):
    """The client's end, which is read until its first request gives its client id; that data is passed on once it is
    joined.
    """

    def __init__(self) -> None:
        super().__init__(self._read)
        self._request = FirstRequest()
        self._said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_silent(self) -> bool:
        """Whether its first request is not known yet."""
        return self._request.client_id is None

    def _read(self, chunk: bytes) -> None:
        if self._said.done():
            return
        self._request.feed(chunk)
        if self._request.client_id is not None:
            self._said.set_result(None)
        else:  # it is held after each chunk, as long as it has no other end
            asyncio.get_running_loop().call_soon(self.hold, False)

    async def client_id(self, timeout_s: float) -> str | None:
        """Return the client id; None if the client left before. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait((self._said, self.lost), return_when=asyncio.FIRST_COMPLETED)
        return self._request.client_id
