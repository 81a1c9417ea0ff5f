"""The listener that the local broker's replica fetchers dial instead of the leader.

Requests go on to the leader's agent unchanged. Kafka frames that come back go to the broker unchanged; linked responses
are put together first (`HydratedResponses`).

One `_FollowerRelay` serves one connection of the broker. When either side ends, both end.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Mapping
from functools import partial

import structlog

from kafka_log.crc32c import Buffer
from replication.follower.follower_context import FollowerContext
from replication.follower.hydrated_responses import HydratedResponses
from replication.follower.leader_bypass import AgentWay, Bypass, LeaderBypasses
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.idle_fetch import IDLE_MESSAGE_BYTES, MAX_IDLE_BYTES, WHOLE_EACH, IdleRequest, response_frame
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.metrics import PeerByteCount
from replication.wire.peer_channel import MESSAGE_KIND_BYTES
from replication.wire.peer_connection import KnownPeers, Listener, connect_framed, exchange_hellos
from replication.wire.peer_listener import (
    ConnectionShare,
    ConnectionShares,
    CountedListeners,
    NotTheBrokerError,
    check_owner,
    shake_hands,
)
from replication.wire.peer_protocol import MessageKind, PeerRefusedError

log = structlog.get_logger(__name__)

_RETRY_S = 0.05
_HINT = (
    "the local broker's log says why; what the agent shows must name what that broker advertises, and each must trust "
    "the other's authority (remote.wal.agent.broker.ssl.*, by default the broker's own stores)"
)
_USER_HINT = "see remote.wal.agent.replica.user; only the local broker connects where the agent poses as another one"


class FollowerProxy(CountedListeners):
    """Listens at the addresses where the local broker expects its peers: one listener for each other broker."""

    def __init__(self, context: FollowerContext, peers: KnownPeers, bypass: Bypass | None = None) -> None:
        """`peers` are the other agents' addresses, and `bypass` the routes past dead agents; both may grow later."""
        self._context = context
        self._peers = peers
        to_one = context.limits.max_connections_to_one
        # All connections come from this host, so each leader has a limit.
        super().__init__(self._take, lambda _leader: ConnectionShares(to_one, to_one), context.metrics.fault)
        self.bypasses = LeaderBypasses(bypass, self._way_to, context.metrics, context.requests)
        """The routes past dead agents."""

    def _way_to(self, broker_id: int) -> AgentWay:
        return AgentWay(partial(self._reach_agent, broker_id), partial(self._relay, broker_id), self._unconnected)

    async def start(self, listeners: Mapping[int, Listener]) -> None:
        """Listen at `listeners[broker id]` for that broker. Raises OSError naming the address."""
        for broker_id, listener in listeners.items():
            await self.listen(broker_id, listener)
        self.keep_bypasses()

    def keep_bypasses(self) -> None:
        """Keep one bypass for each leader that is listened for, by the routes known now."""
        self.bypasses.keep_to(self.addresses)

    async def leave(self, broker_id: int) -> None:
        """Stop listening for a broker that has left, and close its remaining connections."""
        self._context.metrics.held.versions.note_left(broker_id)
        await super().leave(broker_id)

    def _accepted(self, number: int, shares: ConnectionShares, accepted: socket.socket, address: str) -> None:
        """Let nobody but the local broker take a share."""
        try:
            if self._context.broker_uid is not None:
                check_owner(accepted, self._context.broker_uid)
        except NotTheBrokerError as error:
            self.refuse("not_the_broker")
            log.error("not_the_broker", posing_as=number, error=str(error), hint=_USER_HINT)
            accepted.close()
        else:
            super()._accepted(number, shares, accepted, address)

    async def _take(self, broker_id: int, accepted: socket.socket, _share: ConnectionShare) -> None:
        """Make the TLS handshake if there is one: the local broker checks our certificate for the broker it dials."""
        limits = self._context.limits
        broker = FramedConnection(limits.max_frame_bytes, limits.frame_timeout_s, budget=self._context.budget)
        try:
            async with asyncio.timeout(limits.first_frame_timeout_s):
                tls = self._context.broker_tls()
                await shake_hands(accepted, broker, tls)
            if tls is not None and not broker.is_writable:
                raise PeerRefusedError("closed during the TLS handshake")
        except (PeerRefusedError, TimeoutError) as error:
            self.refuse("broker_tls")
            log.error("broker_tls_failed", posing_as=broker_id, error=str(error) or type(error).__name__, hint=_HINT)
            broker.close()
            return
        if await self._has_asked(broker):
            await self._serve_broker(broker_id, broker)
        else:
            broker.close()

    async def _has_asked(self, broker: FramedConnection) -> bool:
        """Whether the broker sent a request. A broker does so at once; before that, the leader's side is not
        contacted.
        """
        try:
            async with asyncio.timeout(self._context.limits.first_frame_timeout_s):
                if await broker.frame_is_there():
                    return True
        except TimeoutError:
            self.refuse("peer_silent")
        self._context.metrics.connection_ended("broker", broker.error)
        return False

    async def _serve_broker(self, broker_id: int, broker: FramedConnection) -> None:
        bypass = self.bypasses.get(broker_id)
        try:
            if bypass is not None:
                await bypass.serve(broker)
            else:
                await self._serve_by_agent(broker_id, broker)
        except RequestRefusedError as error:
            self._context.metrics.request_refused("replica", error, leader=broker_id)
        except PeerRefusedError as error:
            self._context.metrics.fault("peer_refused")
            log.error("peer_refused", leader=broker_id, error=str(error))
        except (OSError, ssl.SSLError) as error:
            self._context.metrics.fault("peer_unreachable")
            log.warning("peer_unreachable", leader=broker_id, error=str(error) or type(error).__name__)
        except Exception as error:  # the defect ends this connection only
            self._context.defects(broker_id).record("connection", error)
        finally:
            broker.close()

    async def _serve_by_agent(self, broker_id: int, broker: FramedConnection) -> None:
        leader = await self._reach_restarting_agent(broker_id)
        try:
            await self._relay(broker_id, broker, leader)
        finally:
            leader.close()

    async def _reach_restarting_agent(self, broker_id: int) -> FramedConnection:
        """Connect to the agent; retry for as long as a restart takes.

        A broker whose connection is refused does not try again for a second.
        """
        until_s = self._context.clock() + self._context.limits.restart_s
        while True:
            try:
                return await self._reach_agent(broker_id)
            except ConnectionRefusedError:
                if self._context.clock() >= until_s:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _reach_agent(self, broker_id: int) -> FramedConnection:
        leader, address = self._unconnected(), self._peers.get(broker_id)
        if address is None:
            raise PeerRefusedError(f"broker {broker_id}'s agent is not known any more")
        try:
            await connect_framed(address, leader, self._context.tls())
            heard = self._context.metrics.held.versions.heard
            capabilities = await exchange_hellos(leader, self._context.hello, broker_id, heard)
        except BaseException:
            leader.abort()
            self._peers.failed(broker_id, address)
            raise
        self._peers.answered(broker_id, address)
        log.info("peer_connected", leader=broker_id, capabilities=capabilities.name)
        return leader

    def _relay(self, broker_id: int, broker: FramedConnection, leader: FramedConnection) -> Awaitable[None]:
        return _FollowerRelay(self._context, broker_id, broker, leader).run()

    def _unconnected(self) -> FramedConnection:
        limits = self._context.limits
        max_bytes = limits.max_response_bytes + MESSAGE_KIND_BYTES
        return FramedConnection(max_bytes, limits.frame_timeout_s, budget=self._context.budget)

    async def stop(self) -> None:
        """Close all listeners and connections. The brokers reconnect when an agent is back."""
        await super().stop()
        await self.bypasses.stop()


class _FollowerRelay:
    """One connection of the broker, and the matching connection to the leader's agent."""

    def __init__(
        self, context: FollowerContext, leader_id: int, broker: FramedConnection, leader: FramedConnection
    ) -> None:
        self._asked = 0
        """Requests of the broker so far; each has one answer, except Produce with acks=0."""
        self._context = context
        self._defects = context.defects(leader_id)
        self._broker = broker
        self._leader = leader
        self._responses = HydratedResponses(context, context.channel(leader, leader_id), broker, leader_id, self)
        self._peer_bytes = PeerByteCount(context.metrics, "follower", leader)
        self._idle, self._idle_in_a_row = IdleRequest(), 0
        broker.on_lone_frame, leader.on_lone_frame = self._idle_request, self._idle_response

    async def run(self) -> None:
        """Relay until either side ends. Only an unexpected error is raised."""
        try:
            with self._responses.watch_breakers():
                await run_until_one_ends(self._relay_requests(), self._responses.receive(), self._responses.relay())
        except MalformedFrameError as error:
            self._context.metrics.fault("peer_frame_malformed")
            self._defects.record("connection", error)
        finally:
            self._context.metrics.connection_ended("broker", self._broker.error)
            self._context.metrics.connection_ended("peer", self._leader.error)
            self._peer_bytes.update()

    async def _relay_requests(self) -> None:
        responses = self._responses
        while (frame := await self._broker.read_frame()) is not None:
            received_s = self._context.clock()
            self._asked += 1
            self._context.requests.check(frame)
            responses.tell_links()
            if len(frame) <= MAX_IDLE_BYTES:
                self._idle.note(frame)
            responses.channel.send(MessageKind.KAFKA, frame)
            if responses.spliced_at_s is not None:
                self._context.stage_times.observe("appended", received_s - responses.spliced_at_s)
                responses.spliced_at_s = None
            self._peer_bytes.update()
            await responses.channel.drain()

    def _idle_request(self, frame: memoryview) -> bool:
        """Pass on a request without partitions, if all before it are answered."""
        responses, numbers = self._responses, self._idle.numbers(frame)
        is_alone = self._broker.frames_sent == self._asked and responses.spliced_at_s is None
        if numbers is None or not is_alone or self._idle_in_a_row == WHOLE_EACH:
            self._idle_in_a_row = 0
            return False
        responses.channel.send_short(MessageKind.IDLE_REQUEST, numbers)
        self._idle_in_a_row += 1
        self._asked += 1
        return True

    def _idle_response(self, payload: memoryview) -> bool:
        """Pass on a response without partitions, if only its request is not answered."""
        is_idle = payload[0] == MessageKind.IDLE_RESPONSE and len(payload) == IDLE_MESSAGE_BYTES
        if not is_idle or self._broker.frames_sent != self._asked - 1:
            return False
        self._broker.write_frame(response_frame(payload[1:]))
        return True

    # ResponseTaker.

    def passed(self) -> None:
        self._peer_bytes.update()

    def message_came(self, kind: MessageKind, _body: Buffer) -> None:
        raise MalformedFrameError(0, f"{kind.name} from a leader's agent")
