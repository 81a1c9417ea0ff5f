"""The follower's side: the local broker's replica fetcher dials here instead of the leader.

Requests go on to the leader's agent untouched. Of what comes back, Kafka frames go to the broker untouched; linked
responses are hydrated from object storage, verified and spliced first. When that fails, or takes longer than
`hydration_timeout_s`, the leader's agent is asked for the original bytes. After a defect of links, whoever's it is,
there are none from that leader for a while (`LinkDefects`). Announcements are acted on while a response
still waits, so that the next range is on its way before it is needed.

One `_FollowerRelay` serves one connection of the broker. Either side's end ends both.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from kafka_log.crc32c import Buffer
from plugin.archive_object_id import ArchiveObjectId
from replication.follower.catch_up_reads import CatchUpReads
from replication.follower.hydration import HydrationCache, HydrationError
from replication.follower.leader_bypass import AgentWay, Bypass, LeaderBypass
from replication.follower.link_reads import fetch_links
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import LinkedResponse, decode_linked_response
from replication.wire.link_defects import LinkDefects
from replication.wire.memory_budget import MemoryBudget
from replication.wire.memory_reservation import reserve
from replication.wire.metrics import PeerByteCount, ReplicationMetrics
from replication.wire.peer_channel import MESSAGE_KIND_BYTES, PeerChannel
from replication.wire.peer_connection import Address, Listener, connect_framed, exchange_hellos, listen
from replication.wire.peer_protocol import Announcement, Hello, MessageKind, PeerRefusedError, encode_inline_request
from replication.wire.relay_tasks import run_until_one_ends
from replication.wire.splicer import SpliceError, splice
from rlm.write_path.metrics import StageTimes

log = structlog.get_logger(__name__)

_RESPONSES_AHEAD = 8
_RETRY_S = 0.05
_LINKED_KINDS = (MessageKind.LINKED, MessageKind.LINKED_OLD)
_ANNOUNCING_KINDS = (MessageKind.ANNOUNCE, MessageKind.READ_AHEAD, MessageKind.READ_ARCHIVE_AHEAD)


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """In seconds and bytes."""

    hydration_timeout_s: float
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0
    restart_s: float = 3.0
    """For so long a leader's agent that refuses connections may be about to start anew."""

    @property
    def max_response_bytes(self) -> int:
        """Linked or not."""
        return RESPONSE_FACTOR * self.max_frame_bytes


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """What all relays of one agent share."""

    hello: Hello
    limits: FollowerLimits
    hydration: HydrationCache
    stage_times: StageTimes
    metrics: ReplicationMetrics
    catch_up: CatchUpReads
    tls: Callable[[], ssl.SSLContext | None]
    clock: Callable[[], float]
    """Monotonic seconds."""
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For the leaders' agents' messages, and for the bytes that responses are put together from."""


class FollowerProxy:
    """Listens where the local broker looks for its peers: one listener for each other broker."""

    def __init__(self, context: FollowerContext, peers: dict[int, Address], bypass: Bypass | None = None) -> None:
        """`peers` are the other agents by broker id."""
        self._context = context
        self._peers = peers
        self._defects = {
            broker_id: LinkDefects(context.metrics, context.clock, leader=broker_id) for broker_id in peers
        }
        self._servers: dict[int, asyncio.Server] = {}
        self._relays: dict[asyncio.Task[None], None] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._bypasses = {one: self._bypass_of(one, bypass) for one in peers if bypass and one in bypass.brokers}

    def _bypass_of(self, broker_id: int, bypass: Bypass) -> LeaderBypass:
        way = AgentWay(partial(self._reach_agent, broker_id), partial(self._relay, broker_id), self._unconnected)
        return LeaderBypass(broker_id, bypass, way, self._context.metrics)

    @property
    def bypassed(self) -> list[int]:
        """The brokers whose agents are dead and bypassed now."""
        return sorted(one for one, bypass in self._bypasses.items() if bypass.is_bypassed)

    async def start(self, listeners: Mapping[int, Listener]) -> None:
        """Listen at `listeners[broker id]` on behalf of that broker. Raises OSError naming the address."""
        loop = asyncio.get_running_loop()
        for bypass in self._bypasses.values():
            self._watches.append(loop.create_task(bypass.watch()))
        for broker_id, listener in listeners.items():
            self._servers[broker_id] = await listen(self._factory(broker_id), listener)

    @property
    def addresses(self) -> dict[int, Address]:
        """Where it listens, by the brokers on whose behalf."""
        return {one: Address(*server.sockets[0].getsockname()[:2]) for one, server in self._servers.items()}

    def _factory(self, broker_id: int) -> Callable[[], FramedConnection]:
        limits = self._context.limits

        def connected(connection: FramedConnection) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(broker_id, connection))
            self._relays[task] = None
            task.add_done_callback(self._relays.pop)

        return lambda: FramedConnection(limits.max_frame_bytes, limits.frame_timeout_s, connected, self._context.budget)

    async def _serve(self, broker_id: int, broker: FramedConnection) -> None:
        bypass = self._bypasses.get(broker_id)
        try:
            if bypass is not None:
                await bypass.serve(broker)
            else:
                await self._serve_by_agent(broker_id, broker)
        except PeerRefusedError as error:
            self._context.metrics.fault("peer_refused")
            log.error("peer_refused", leader=broker_id, error=str(error))
        except (OSError, ssl.SSLError) as error:
            self._context.metrics.fault("peer_unreachable")
            log.warning("peer_unreachable", leader=broker_id, error=str(error) or type(error).__name__)
        except Exception as error:  # the next connection shall not meet it again
            self._defects[broker_id].met("connection", error)
        finally:
            broker.close()

    async def _serve_by_agent(self, broker_id: int, broker: FramedConnection) -> None:
        leader = await self._reach_restarting_agent(broker_id)
        try:
            await self._relay(broker_id, broker, leader)
        finally:
            leader.close()

    async def _reach_restarting_agent(self, broker_id: int) -> FramedConnection:
        """Tried for as long as a restart takes: a broker that is turned away does not ask again for a second."""
        until_s = self._context.clock() + self._context.limits.restart_s
        while True:
            try:
                return await self._reach_agent(broker_id)
            except ConnectionRefusedError:
                if self._context.clock() >= until_s:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _reach_agent(self, broker_id: int) -> FramedConnection:
        leader = self._unconnected()
        try:
            await connect_framed(self._peers[broker_id], leader, self._context.tls())
            capabilities = await exchange_hellos(leader, self._context.hello, broker_id)
        except BaseException:
            leader.abort()
            raise
        log.info("peer_connected", leader=broker_id, capabilities=capabilities.name)
        return leader

    def _relay(self, broker_id: int, broker: FramedConnection, leader: FramedConnection) -> Awaitable[None]:
        return _FollowerRelay(self._context, broker, leader, self._defects[broker_id]).run()

    def _unconnected(self) -> FramedConnection:
        limits = self._context.limits
        max_bytes = limits.max_response_bytes + MESSAGE_KIND_BYTES
        return FramedConnection(max_bytes, limits.frame_timeout_s, budget=self._context.budget)

    async def stop(self) -> None:
        """Close all listeners and connections; the brokers connect again when an agent is back."""
        for server in self._servers.values():
            server.close()
        tasks = [*self._watches, *self._relays]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _FollowerRelay:
    """One connection of the broker, and its twin to the leader's agent."""

    def __init__(
        self, context: FollowerContext, broker: FramedConnection, leader: FramedConnection, defects: LinkDefects
    ) -> None:
        self._context = context
        self._defects = defects
        self._broker = broker
        self._leader = leader
        self._channel = PeerChannel(leader)
        self._spliced_at_s: float | None = None
        self._links_are_paused = False
        self._newest: bytes | None = None
        """The custom metadata of the leader's newest object; None before one was announced."""
        self._held_bytes = 0
        """Taken from the budget for messages that are queued, and for what is put together now."""
        self._passing_bytes = 0
        """What of it is on its way to the broker."""
        self._asked_last = 0
        """The correlation id of the last request. A linked response answers it, as it is the only one under way."""
        self._responses: asyncio.Queue[tuple[MessageKind, memoryview] | None] = asyncio.Queue(_RESPONSES_AHEAD)
        self._peer_bytes = PeerByteCount(context.metrics, "follower", leader)

    async def run(self) -> None:
        """Until either side ends. Only an unexpected error is raised."""
        hydration = self._context.hydration
        hydration.tiers.on_breaker_change.append(self._breaker_changed)
        self._tell_links()
        try:
            await run_until_one_ends(self._relay_requests(), self._receive(), self._relay_responses())
        except MalformedFrameError as error:
            self._context.metrics.fault("peer_frame_malformed")
            self._defects.met("connection", error)
        finally:
            hydration.tiers.on_breaker_change.remove(self._breaker_changed)
            self._context.metrics.connection_ended("broker", self._broker.error)
            self._context.metrics.connection_ended("peer", self._leader.error)
            self._hold(-self._held_bytes)
            self._peer_bytes.update()

    def _hold(self, size: int) -> None:
        """So much more, or less, until it is given to the broker."""
        self._held_bytes += size
        if size > 0:
            self._context.budget.take(size)
        elif size < 0:
            self._context.budget.give_back(-size)

    async def _relay_requests(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            received_s = self._context.clock()
            self._asked_last = int.from_bytes(bytes(frame[4:8]), "big", signed=True)
            self._tell_links()
            self._channel.send(MessageKind.KAFKA, frame)
            if self._spliced_at_s is not None:
                self._context.stage_times.observe("appended", received_s - self._spliced_at_s)
                self._spliced_at_s = None
            self._peer_bytes.update()
            await self._leader.drain()

    async def _receive(self) -> None:
        """Act on announcements at once; queue everything else in order."""
        while (message := await self._channel.receive()) is not None:
            self._peer_bytes.update()
            kind, body = message
            if kind in _ANNOUNCING_KINDS:
                try:
                    self._announced(kind, body)
                except Exception as error:
                    self._defects.met("announcement", error)
            else:
                self._hold(len(body))
                await self._responses.put(message)
        await self._responses.put(None)

    def _announced(self, kind: MessageKind, body: memoryview) -> None:
        decode = Announcement.decode_archive if kind is MessageKind.READ_ARCHIVE_AHEAD else Announcement.decode
        announcement = decode(body)
        if kind is MessageKind.ANNOUNCE:
            self._newest = announcement.custom_metadata
            self._context.hydration.announce(announcement.object_id, announcement.ranges, self._newest)
        else:
            self._context.catch_up.read_ahead(announcement.object_id, announcement.ranges, announcement.custom_metadata)

    async def _relay_responses(self) -> None:
        while (message := await self._responses.get()) is not None:
            kind, body = message
            self._passing_bytes = len(body)
            if kind is MessageKind.KAFKA:
                self._broker.write_frame(body)
            elif kind in _LINKED_KINDS:
                await self._splice(body, is_old=kind is MessageKind.LINKED_OLD)
            else:
                raise MalformedFrameError(0, f"{kind.name} from a leader's agent")
            await self._broker.drain()
            self._hold(-self._passing_bytes)

    async def _splice(self, body: memoryview, is_old: bool) -> None:
        started_s = self._context.clock()
        try:
            response = decode_linked_response(body, self._context.limits.max_response_bytes)
            await self._make_room(sum([link.length for link in response.links]))
            spliced = await self._hydrated(response, is_old)
        except HydrationError as error:
            await self._ask_inline(error.reason, str(error))
            return
        except SpliceError as error:
            self._context.hydration.discard(error.link.object_id)
            log.error("splice_refused", segment=str(error.link.object_id), reason=error.reason)
            await self._ask_inline("corrupt", str(error))
            return
        except Exception as error:  # another version's message, or a defect of ours: the next fetch would meet it again
            self._defects.met("malformed" if isinstance(error, MalformedFrameError) else "splicing", error)
            self._tell_links()
            await self._ask_inline("defect", type(error).__name__)
            return
        self._broker.write_frame(*spliced)
        self._spliced_at_s = self._context.clock()
        self._context.stage_times.observe("spliced", self._spliced_at_s - started_s)

    async def _make_room(self, size: int) -> None:
        """Wait for the memory that a response is put together from. Raises HydrationError."""
        try:
            async with asyncio.timeout(self._context.limits.hydration_timeout_s):
                await reserve(self._context.budget, size)
        except TimeoutError as error:
            raise HydrationError("memory", "the frames of other connections take all there is for them") from error
        self._held_bytes += size
        self._passing_bytes += size

    async def _hydrated(self, response: LinkedResponse, is_old: bool) -> list[Buffer]:
        """The response spliced. A range that proves wrong is read once more, past the cache.

        `is_old`: the local broker is far behind, so the reads keep to their quota. What names an archive object is old,
        whatever the leader's agent called it.
        """
        links = response.links
        is_old = is_old or any(isinstance(link.object_id, ArchiveObjectId) for link in links)
        fetch_all = self._context.catch_up.fetch_all if is_old else partial(fetch_links, self._context.hydration)
        started_s = self._context.clock()
        try:
            async with asyncio.timeout(self._context.limits.hydration_timeout_s):
                data = await fetch_all(links)
                self._context.stage_times.observe("hydrated", self._context.clock() - started_s)
                try:
                    return splice(response, data)
                except SpliceError as error:
                    self._context.metrics.fault("splice_refetch")
                    self._context.hydration.discard(error.link.object_id)
                    return splice(response, await fetch_all(links))
        except TimeoutError as error:
            if not is_old:  # large reads that take their time are no sign of a store that fails
                self._context.hydration.timed_out(self._context.hydration.not_there(links))
            raise HydrationError("timeout", "object storage did not answer in time") from error

    async def _ask_inline(self, reason: str, detail: str) -> None:
        """Have the leader's agent send the original; it comes as the next Kafka frame."""
        self._context.metrics.fault(f"inline_requested_{reason}")
        log.warning("inline_requested", reason=reason, detail=detail, correlation_id=self._asked_last)
        self._channel.send(MessageKind.INLINE_REQUEST, encode_inline_request(self._asked_last))
        await self._leader.drain()

    def _breaker_changed(self, _is_open: bool) -> None:
        self._tell_links()

    def _tell_links(self) -> None:
        """Tell the leader's agent whether to send links, when that has changed."""
        paused = self._context.hydration.tiers.is_given_up(self._newest) or self._defects.links_rest
        if paused is not self._links_are_paused:
            self._links_are_paused = paused
            with contextlib.suppress(ConnectionError):
                self._channel.send(MessageKind.LINKS_PAUSED if paused else MessageKind.LINKS_RESUMED)
