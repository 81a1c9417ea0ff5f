"""One address for the clients of all zones: each is connected to the broker's listener for its zone.

That listener names all brokers as clients of the zone reach them. So no answer must be rewritten, and only the client
id in the first request's header is read. Then frames pass unchanged, until the client continues at those brokers.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.broker_pipe import BrokerPipe
from gateway.client_handler import ClientLimits
from gateway.client_port import ClientPort
from gateway.client_zone import ZoneRules
from gateway.metrics import BOOTSTRAP_SIDE, GatewayMetrics
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PlainFrames
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_listener import holder_at

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ZoneListener:
    """The broker's listener for the clients of one zone."""

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
        frames_bytes: int,
    ) -> None:
        """`listeners` are by zone, for all zones of `rules.zones`. `frames_bytes` bounds the memory of requests, and
        that of responses."""
        super().__init__(client_tls, limits, metrics)
        self._requests_budget, self._responses_budget = MemoryBudget(frames_bytes), MemoryBudget(frames_bytes)
        self._broker_id = broker_id
        self._rules = rules
        self._listeners = listeners
        self._metrics = metrics

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        budget = self._requests_budget.share_of(holder_at(address))
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=budget)
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=self._responses_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            client_id = await self._client_id(client)
            if client_id is None:
                return
            zone = self._rules.zone_of(client_id, address)
            listener = self._listeners[zone]
            await connect_framed(listener.where, broker, listener.tls, self._timeout_s)
            connections = self._metrics.connections.labels(BOOTSTRAP_SIDE, zone, str(self._broker_id))
            with connections.track_inprogress():
                await BrokerPipe(PlainFrames(client), broker).run()
        except MalformedFrameError:
            self._clients.refuse("answer_unknown")
        except OSError as error:
            self._clients.refuse("broker_unreachable")
            log.warning("bootstrap_port_does_not_reach_broker", error=str(error) or type(error).__name__)
        finally:
            client.close()
            broker.close()

    async def _client_id(self, client: FramedConnection) -> str | None:
        """Return the client id in the first request; None if none came in time, or the client left before."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if not await client.frame_is_there():
                    return None
        except TimeoutError:
            self._clients.refuse("said_nothing")
            return None
        try:
            return parse_request_header(client.next_frame).client_id
        except MalformedFrameError:
            return ""
