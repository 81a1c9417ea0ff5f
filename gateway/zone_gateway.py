"""The listener of a zone's clients for brokers of other zones: a port for each broker.

A client's connection is continued to the agent beside its broker, under the agents' mutual TLS, by a `GatewayPipe`. Any
failure closes the client's connection, like a broker that is away: clients then try the next address of
the name that they know, and so another gateway of the zone.
"""

import asyncio
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.client_listeners import ClientAccess, ClientListeners
from gateway.client_protocol import MAX_MESSAGE_BYTES, decode_response, encode_zone
from gateway.gateway_pipe import AgentSide, GatewayPipe, RoutingContext, ServedClient, ServingParts
from gateway.metrics import GATEWAY_SIDE, ClientCount, PassedBytes
from gateway.serve.fetch_frames import with_zone
from kafka_log.crc32c import Buffer
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_connection import Address, Listener, connect_framed, exchange_hellos
from replication.wire.peer_listener import holder_at
from replication.wire.peer_protocol import NO_BROKER_SERVED, Hello, PeerCapabilities, PeerRefusedError

log = structlog.get_logger(__name__)

_MAX_PORT = 65535
_PROBE_S = 2.0
"""How often those that were not reached are tried. A guess."""


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """What all connections of a zone gateway share."""

    access: ClientAccess
    hello: Hello
    """With CLIENTS only."""
    peers: Mapping[int, Address]
    """The agents of the brokers that are reached here, and perhaps others, by broker id; looked up for each
    connection.
    """
    peer_tls: Callable[[], ssl.SSLContext | None]
    routing: RoutingContext
    serving: ServingParts | None = None
    """None: brokers answer all of consumers' Fetch requests. Needs `routing` with links."""
    names_rack: bool = False
    """Whether consumers without a rack get the zone's, so that brokers send them to a replica in it."""


class ZoneGateway(ClientListeners):
    """Listens for clients of its zone, at one port for each broker of another zone, from `start` until `stop`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__(self._connect, context.access)
        self._context, self._zone = context, context.access.metrics.traffic.zone
        self._reads: defaultdict[int, CircuitBreaker] = defaultdict(CircuitBreaker)
        """The state of reads of RouterChannel objects, by the broker whose agent reads."""
        self.unreached: dict[int, str] = {}
        """Brokers that the last client did not reach, and why."""
        self._unable: set[int] = set()
        """Brokers whose agents were not reached last time."""
        self._unbound: set[int] = set()
        """Brokers whose ports could not be bound."""

    async def keep_to(self, wanted: Mapping[int, Listener]) -> bool:
        """Listen for clients of these brokers, and close all others' listeners and connections. Returns whether all
        ports are bound."""
        for broker_id in self.addresses.keys() - wanted.keys():
            await self.leave(broker_id)
            self.unreached.pop(broker_id, None)
            self._unable.discard(broker_id)
            log.info("gateway_left", broker=broker_id)
        self._unbound.intersection_update(wanted)
        bound = [await self._listen(one, wanted[one]) for one in sorted(wanted.keys() - self.addresses.keys())]
        return all(bound)

    async def _listen(self, broker_id: int, listener: Listener) -> bool:
        try:
            if isinstance(listener, Address) and listener.port > _MAX_PORT:
                raise OSError(f"cannot listen at {listener}: remote.wal.gateway.port.base is too high")
            await self.listen(broker_id, listener)
        except OSError as error:
            self._unbound.add(broker_id)
            log.error("gateway_does_not_listen", broker=broker_id, error=str(error), path="clients here miss it")
            return False
        self._unbound.discard(broker_id)
        log.info("gateway_joined", broker=broker_id)
        return True

    def unserved(self) -> tuple[int, ...]:
        """Return the brokers whose clients cannot be served here now (`Hello.unserved`)."""
        return NO_BROKER_SERVED if self.is_full else (*sorted(self._unable | self._unbound),)

    async def probe(self) -> None:
        """Try from time to time to reach brokers that could not be reached, because clients may no longer come here.
        Until cancelled."""
        while True:
            await asyncio.sleep(_PROBE_S)
            await asyncio.gather(*(self._probe(broker_id) for broker_id in self._unable))

    async def _probe(self, broker_id: int) -> None:
        peer = FramedConnection(MAX_MESSAGE_BYTES)
        try:
            await self._reach(broker_id, peer)
        except (PeerRefusedError, MalformedFrameError, OSError, ssl.SSLError):
            return
        finally:
            peer.abort()
        self._reached(broker_id)

    async def _connect(self, broker_id: int, accepted: socket.socket, address: str) -> None:
        try:
            await self._relay(broker_id, accepted, address)
        except (PeerRefusedError, MalformedFrameError) as error:
            self._not_reached(broker_id, "peer_refused", str(error))
        except (OSError, ssl.SSLError) as error:
            self._not_reached(broker_id, "peer_unreachable", str(error) or type(error).__name__)

    async def _relay(self, broker_id: int, accepted: socket.socket, address: str) -> None:
        zone, metrics, routing = self._zone, self._context.access.metrics, self._context.routing
        count = ClientCount(metrics, zone, broker_id)
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=routing.requests_budget.share_of(holder_at(address)))
        whole = PassedBytes(client, count.sent, count.count_given)
        agent = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES + 1, budget=routing.responses_budget)
        try:
            await self.shake_hands(accepted, client)
            capabilities = await self._reach(broker_id, agent)
            self._reached(broker_id)
            count.counts_near = bool(capabilities & (PeerCapabilities.LINKED_FETCH | PeerCapabilities.PACKED))
            crossed = PassedBytes(agent, count.given_crossed, count.sent_crossed)

            def passed() -> None:
                whole.update()
                crossed.update()

            with metrics.connections.labels(GATEWAY_SIDE, zone, str(broker_id)).track_inprogress():
                side = AgentSide(broker_id, agent, capabilities, self._reads[broker_id])
                parts = self._context.serving if PeerCapabilities.LINKED_FETCH in capabilities else None
                served = ServedClient(parts, broker_id, client) if parts is not None else None
                await GatewayPipe(routing, client, side, passed, self._edited, served).run()
        finally:
            client.close()
            agent.close()

    def _edited(self, frame: Buffer) -> Buffer:
        return with_zone(frame, self._zone) if self._context.names_rack else frame

    async def _reach(self, broker_id: int, peer: FramedConnection) -> PeerCapabilities:
        """Connect `peer` to the broker's agent, which has reached the broker. Returns what both agents have in common.

        Raises PeerRefusedError, MalformedFrameError, OSError, ssl.SSLError.
        """
        context = self._context
        timeout_s = context.access.connect_timeout_s
        try:
            address = context.peers.get(broker_id)
            if address is None:
                raise PeerRefusedError("its agent is not known any more")
            await connect_framed(address, peer, context.peer_tls(), timeout_s)
            capabilities = await exchange_hellos(peer, context.hello, broker_id)
            if PeerCapabilities.CLIENTS not in capabilities:
                raise PeerRefusedError("its agent serves no clients: its remote.wal.gateway.enable is off")
            peer.write_frame(encode_zone(self._zone))
            async with asyncio.timeout(2 * timeout_s):  # finding that its broker is away takes up to half of this
                answer = await peer.read_frame()
            if answer is None:
                raise ConnectionResetError("its agent closed the connection instead of an answer")
            if refused_because := decode_response(answer):
                raise PeerRefusedError(refused_because)
        except BaseException as error:
            peer.abort()
            if isinstance(error, Exception):
                self._unable.add(broker_id)
            raise
        return capabilities

    def _reached(self, broker_id: int) -> None:
        self._unable.discard(broker_id)
        if self.unreached.pop(broker_id, None) is not None:
            log.info("gateway_reaches_broker", broker=broker_id)

    def _not_reached(self, broker_id: int, reason: str, told: str) -> None:
        """Count a failed client, and log it only when it is new: clients retry many times a second."""
        self.refuse(reason)
        if self.unreached.get(broker_id) != told:
            self.unreached[broker_id] = told
            log.warning("gateway_does_not_reach_broker", broker=broker_id, reason=reason, error=told)
