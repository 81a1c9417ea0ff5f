"""Connects clients of other zones, which come through their zone's gateways, to the broker beside this agent.

Only the client listeners in the settings are ever dialled, each for the zone that it is for.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.broker_pipe import BrokerPipe, HoldingContext, SplicingContext
from gateway.byte_relay import ByteRelay, RelayEnd
from gateway.client_protocol import ClientSide, decode_zone, encode_answer
from gateway.consume.consumer_answers import ConsumerAnswers, ConsumerContext
from gateway.metrics import BROKER_SIDE, GatewayMetrics, PassedBytes
from plugin.clients.dialling import connect
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel, PlainFrames
from replication.wire.peer_connection import HELLO_TIMEOUT_S, Address, connect_framed
from replication.wire.peer_protocol import MESSAGES, Hello, PeerCapabilities, PeerRefusedError

log = structlog.get_logger(__name__)

_LINKING: Final = PeerCapabilities.LINKED_FETCH | PeerCapabilities.PACKED


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of clients' connections, at either side."""

    max_connections: int
    max_connections_per_ip: int
    """Limit for one client's address. Only the gateway counts it: the broker's agent sees the gateways' addresses."""
    idle_s: float
    """A connection on which nothing has passed for so long is closed; 0: never."""
    connect_timeout_s: float = HELLO_TIMEOUT_S
    """Limit for each step of connecting: a TLS handshake, connecting to the agent, connecting to its broker."""


class ClientHandler:
    """Serves the connections that `LeaderProxy` got for clients."""

    def __init__(
        self,
        broker_id: int,
        listeners: Mapping[str, Address],
        limits: ClientLimits,
        metrics: GatewayMetrics,
        splicing: SplicingContext | None = None,
        consumers: ConsumerContext | None = None,
        holding: HoldingContext | None = None,
    ) -> None:
        """`listeners` are the broker's own, by the zones of their clients.

        Without `splicing` and `holding`, bytes pass unchanged; without `consumers`, answers do; without `holding`,
        answers pass at once.
        """
        self._holding = holding
        self._splicing = splicing
        self._consumers = consumers
        self._broker_id = broker_id
        self._listeners = listeners
        self._limits = limits
        self._metrics = metrics
        self._held = 0

    async def serve(self, peer: FramedConnection, gateway: Hello, capabilities: PeerCapabilities) -> None:
        """Serve one client's connection. Raises PeerRefusedError, OSError."""
        async with asyncio.timeout(self._limits.connect_timeout_s):
            payload = await peer.read_frame()
        if payload is None:
            return
        zone = decode_zone(payload)
        if zone not in self._listeners:
            self._refuse(peer, "zone_unknown", f"broker {self._broker_id} has no listener for clients of zone {zone}")
            raise PeerRefusedError(
                f"broker {gateway.broker_id}'s agent asks for clients of zone {zone}, not one of ours"
            )
        if self._held >= self._limits.max_connections:
            self._refuse(peer, "too_many_connections", f"the agent of broker {self._broker_id} serves enough clients")
            log.warning("too_many_clients", zone=zone, gateway=gateway.broker_id, held=self._held)
            return
        self._held += 1
        try:
            splicing = self._splicing if capabilities & MESSAGES else None
            if (context := splicing or self._holding) is not None:
                side = ClientSide(zone, gateway, capabilities)
                await self._relay_frames(peer, side, splicing, context.answers_budget)
            else:
                await self._relay(peer, zone)
        finally:
            self._held -= 1

    async def _relay_frames(
        self, peer: FramedConnection, side: ClientSide, splicing: SplicingContext | None, answers: MemoryBudget
    ) -> None:
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=answers)
        try:
            await connect_framed(self._listeners[side.zone], broker, timeout_s=self._limits.connect_timeout_s)
        except OSError as error:
            self._refuse_unreachable(peer, side.zone, error)
            raise
        labels = (BROKER_SIDE, side.zone, str(self._broker_id))
        count = self._metrics.bytes
        try:
            peer.write_frame(encode_answer())
            passed = PassedBytes(peer, count.labels(*labels, "to_broker").inc, count.labels(*labels, "to_client").inc)
            near: PeerChannel = PlainFrames(peer)
            routed = links = None
            if splicing is not None:
                near, routed = splicing.channel(peer, side.gateway.broker_id), (splicing, side)
                if self._consumers is not None and side.capabilities & _LINKING:
                    links = ConsumerAnswers(self._consumers, side, near)
            pipe = BrokerPipe(near, broker, passed.update, splicing=routed, links=links, holding=self._holding)
            with self._metrics.connections.labels(*labels).track_inprogress():
                await pipe.run()
        finally:
            broker.close()

    def _refuse_unreachable(self, peer: FramedConnection, zone: str, error: OSError) -> None:
        reason = str(error) or type(error).__name__
        where = self._listeners[zone]
        self._refuse(peer, "broker_unreachable", f"broker {self._broker_id} does not answer at {where}: {reason}")

    async def _relay(self, peer: FramedConnection, zone: str) -> None:
        labels = (BROKER_SIDE, zone, str(self._broker_id))
        where, count = self._listeners[zone], self._metrics.bytes
        broker = RelayEnd(count.labels(*labels, "to_client").inc)
        try:
            await connect(lambda: broker, where.host, where.port, self._limits.connect_timeout_s)
        except OSError as error:
            self._refuse_unreachable(peer, zone, error)
            raise
        gateway = RelayEnd(count.labels(*labels, "to_broker").inc)
        try:
            peer.write_frame(encode_answer())
            gateway.adopt(peer.detach())
        except ConnectionError:
            broker.close()
            raise
        with self._metrics.connections.labels(*labels).track_inprogress():
            if not await ByteRelay(gateway, broker).run(self._limits.idle_s):
                self._metrics.refused.labels(BROKER_SIDE, "idle").inc()

    def _refuse(self, peer: FramedConnection, reason: str, told: str) -> None:
        self._metrics.refused.labels(BROKER_SIDE, reason).inc()
        peer.write_frame(encode_answer(told))
