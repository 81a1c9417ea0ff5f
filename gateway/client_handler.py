"""Connects clients of other zones, which come through their zone's gateways, to the broker beside this agent.

Only the client listeners in the settings are ever dialled, each for the zone that it is for.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from gateway.broker_pipe import BrokerPipe, ConsumerContext, HoldingContext, SplicingContext
from gateway.client_listeners import ClientAccess
from gateway.client_protocol import ClientSide, decode_zone, encode_response
from gateway.metrics import BROKER_SIDE, PassedBytes
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.peer_channel import PeerChannel, PlainFrames
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import MESSAGES, Hello, PeerCapabilities, PeerRefusedError

log = structlog.get_logger(__name__)

_LINKING: Final = PeerCapabilities.LINKED_FETCH | PeerCapabilities.PACKED


class ClientHandler:
    """Serves the connections of gateways that the peer listener (`LeaderProxy`) accepted."""

    def __init__(
        self,
        broker_id: int,
        listeners: Mapping[str, Address],
        access: ClientAccess,
        splicing: SplicingContext,
        consumers: ConsumerContext | None = None,
        holding: HoldingContext | None = None,
    ) -> None:
        """`listeners` are the local broker's, by the zones of their clients.

        Without `consumers`, Fetch responses pass unchanged; without `holding`, no response is held.
        """
        self._holding = holding
        self._splicing = splicing
        self._consumers = consumers
        self._broker_id = broker_id
        self._listeners = listeners
        self._access = access
        self._held = 0

    async def serve(self, peer: FramedConnection, gateway: Hello, capabilities: PeerCapabilities) -> None:
        """Serve one client's connection, which its gateway relays. Raises PeerRefusedError, OSError."""
        async with asyncio.timeout(self._access.connect_timeout_s):
            payload = await peer.read_frame()
        if payload is None:
            return
        zone = decode_zone(payload)
        if zone not in self._listeners:
            self._refuse(peer, "zone_unknown", f"broker {self._broker_id} has no listener for clients of zone {zone}")
            raise PeerRefusedError(
                f"broker {gateway.broker_id}'s agent asks for clients of zone {zone}, not one of ours"
            )
        if self._held >= self._access.max_connections:
            self._refuse(peer, "too_many_connections", f"the agent of broker {self._broker_id} serves enough clients")
            log.warning("too_many_clients", zone=zone, gateway=gateway.broker_id, held=self._held)
            return
        self._held += 1
        try:
            await self._relay(peer, ClientSide(zone, gateway, capabilities))
        finally:
            self._held -= 1

    async def _relay(self, peer: FramedConnection, side: ClientSide) -> None:
        where, splicing = self._listeners[side.zone], self._splicing
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=splicing.responses_budget)
        try:
            await connect_framed(where, broker, timeout_s=self._access.connect_timeout_s)
        except OSError as error:
            told = str(error) or type(error).__name__
            self._refuse(peer, "broker_unreachable", f"broker {self._broker_id} does not answer at {where}: {told}")
            raise
        labels = (BROKER_SIDE, side.zone, str(self._broker_id))
        metrics = self._access.metrics
        count = metrics.bytes
        try:
            peer.write_frame(encode_response())
            passed = PassedBytes(peer, count.labels(*labels, "to_broker").inc, count.labels(*labels, "to_client").inc)
            near: PeerChannel = PlainFrames(peer)
            routed = links = None
            if side.capabilities & MESSAGES:
                near = splicing.channel(peer, side.gateway.broker_id)
                if PeerCapabilities.ROUTED_PRODUCE in side.capabilities:
                    routed = splicing, side
                if self._consumers is not None and side.capabilities & _LINKING:
                    links = self._consumers, side
            pipe = BrokerPipe(near, broker, passed.update, splicing=routed, links=links, holding=self._holding)
            with metrics.connections.labels(*labels).track_inprogress():
                await pipe.run()
        finally:
            broker.close()

    def _refuse(self, peer: FramedConnection, reason: str, told: str) -> None:
        self._access.metrics.refused.labels(BROKER_SIDE, reason).inc()
        peer.write_frame(encode_response(told))
