"""The follower's side: the local broker's replica fetcher dials here instead of the leader.

Requests go on to the leader's agent untouched. Of what comes back, Kafka frames go to the broker untouched; linked
responses are hydrated from object storage, verified and spliced first. When that fails, or takes longer than
`hydration_timeout_s`, the leader's agent is asked for the original bytes. Announcements are acted on while a response
still waits, so that the next range is on its way before it is needed.

One `_FollowerRelay` serves one connection of the broker. Either side's end ends both.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from plugin.archive_object import ArchiveObjectId, StoredObjectId
from replication.catch_up_reads import CatchUpReads
from replication.fetch_frame import Buffer, MalformedFrameError
from replication.framed_connection import DEFAULT_MAX_FRAME_BYTES, FramedConnection
from replication.hydration import HydrationCache, HydrationError
from replication.link import LinkedResponse, SegmentLink, decode_linked_response
from replication.measures import PeerByteCount, ReplicationMeasures
from replication.peer_channel import PeerChannel
from replication.peer_connection import Address, connect_framed, exchange_hellos
from replication.peer_protocol import (
    Announcement,
    Hello,
    MessageKind,
    PeerRefusedError,
    encode_inline_request,
)
from replication.splicer import SpliceError, splice
from rlm.measures import StageTimes

log = structlog.get_logger(__name__)

_RESPONSES_AHEAD = 8
_LINKED_KINDS = (MessageKind.LINKED, MessageKind.LINKED_OLD)
_READ_AHEAD_KINDS = (MessageKind.READ_AHEAD, MessageKind.READ_ARCHIVE_AHEAD)


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """In seconds and bytes."""

    hydration_timeout_s: float
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """What all relays of one agent share."""

    hello: Hello
    limits: FollowerLimits
    hydration: HydrationCache
    stage_times: StageTimes
    measures: ReplicationMeasures
    catch_up: CatchUpReads
    tls: Callable[[], ssl.SSLContext | None]
    clock: Callable[[], float] = time.monotonic


class FollowerProxy:
    """Listens where the local broker looks for its peers: one listener for each other broker."""

    def __init__(self, context: FollowerContext, peers: dict[int, Address]) -> None:
        """`peers` are the other agents by broker id."""
        self._context = context
        self._peers = peers
        self._servers: list[asyncio.Server] = []
        self._relays: set[asyncio.Task[None]] = set()

    async def start(self, listeners: dict[int, Address]) -> None:
        """Listen at `listeners[broker id]` on behalf of that broker. Raises OSError naming the address."""
        loop = asyncio.get_running_loop()
        for broker_id, address in listeners.items():
            self._servers.append(await loop.create_server(self._factory(broker_id), address.host, address.port))

    def _factory(self, broker_id: int) -> Callable[[], FramedConnection]:
        limits = self._context.limits

        def connected(connection: FramedConnection) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(broker_id, connection))
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)

        return lambda: FramedConnection(limits.max_frame_bytes, limits.frame_timeout_s, connected)

    async def _serve(self, broker_id: int, broker: FramedConnection) -> None:
        limits = self._context.limits
        leader = FramedConnection(limits.max_frame_bytes * 2, limits.frame_timeout_s)
        try:
            await connect_framed(self._peers[broker_id], leader, self._context.tls())
            _, link_version = await exchange_hellos(leader, self._context.hello, broker_id)
            log.info("peer_connected", leader=broker_id, link_version=link_version)
            await _FollowerRelay(self._context, broker, leader).run()
        except PeerRefusedError as error:
            self._context.measures.fault("peer_refused")
            log.error("peer_refused", leader=broker_id, error=str(error))
        except (OSError, ssl.SSLError) as error:
            self._context.measures.fault("peer_unreachable")
            log.warning("peer_unreachable", leader=broker_id, error=str(error) or type(error).__name__)
        finally:
            broker.close()
            leader.close()

    async def stop(self) -> None:
        """Close all listeners and connections; the brokers connect again when an agent is back."""
        for server in self._servers:
            server.close()
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)


class _FollowerRelay:
    """One connection of the broker, and its twin to the leader's agent."""

    def __init__(self, context: FollowerContext, broker: FramedConnection, leader: FramedConnection) -> None:
        self._context = context
        self._broker = broker
        self._leader = leader
        self._channel = PeerChannel(leader)
        self._spliced_at_s: float | None = None
        self._responses: asyncio.Queue[tuple[MessageKind, memoryview] | None] = asyncio.Queue(_RESPONSES_AHEAD)
        self._peer_bytes = PeerByteCount(context.measures, "follower", leader)

    async def run(self) -> None:
        """Until either side ends. Only an unexpected error is raised."""
        hydration = self._context.hydration
        hydration.on_breaker_change.append(self._breaker_changed)
        if hydration.breaker.is_open:
            self._breaker_changed(is_open=True)
        tasks = [
            asyncio.create_task(self._relay_requests()),
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._relay_responses()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._ended(task)
        finally:
            hydration.on_breaker_change.remove(self._breaker_changed)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._peer_bytes.update()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._context.measures.connection_ended("broker", self._broker.error)
        self._context.measures.connection_ended("peer", self._leader.error)
        error = task.exception()
        if isinstance(error, MalformedFrameError):
            self._context.measures.fault("peer_frame_malformed")
            log.warning("peer_frame_malformed", error=str(error))
        elif error is not None and not isinstance(error, ConnectionError):
            raise error

    async def _relay_requests(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            received_s = self._context.clock()
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
            if kind is MessageKind.ANNOUNCE:
                announcement = Announcement.decode(body)
                self._context.hydration.announce(announcement.object_id, announcement.ranges)
            elif kind in _READ_AHEAD_KINDS:
                decode = Announcement.decode if kind is MessageKind.READ_AHEAD else Announcement.decode_archive
                announcement = decode(body)
                self._context.catch_up.read_ahead(announcement.object_id, announcement.ranges)
            else:
                await self._responses.put(message)
        await self._responses.put(None)

    async def _relay_responses(self) -> None:
        while (message := await self._responses.get()) is not None:
            kind, body = message
            if kind is MessageKind.KAFKA:
                self._broker.write_frame(body)
            elif kind in _LINKED_KINDS:
                await self._splice(body, is_old=kind is MessageKind.LINKED_OLD)
            else:
                raise MalformedFrameError(0, f"{kind.name} from a leader's agent")
            await self._broker.drain()

    async def _splice(self, body: memoryview, is_old: bool) -> None:
        started_s = self._context.clock()
        response = decode_linked_response(body, self._context.limits.max_frame_bytes)
        try:
            spliced = await self._hydrated(response, is_old)
        except HydrationError as error:
            await self._ask_inline(response, error.reason, str(error))
            return
        except SpliceError as error:
            self._context.hydration.discard(error.link.object_id)
            log.error("splice_refused", segment=str(error.link.object_id), reason=error.reason)
            await self._ask_inline(response, "corrupt", str(error))
            return
        self._broker.write_frame(*spliced)
        self._spliced_at_s = self._context.clock()
        self._context.stage_times.observe("spliced", self._spliced_at_s - started_s)

    async def _hydrated(self, response: LinkedResponse, is_old: bool) -> list[Buffer]:
        """The response spliced. A range that proves wrong is read once more, past the cache.

        `is_old`: the local broker is far behind, so the reads keep to their quota. What names an archive object is old,
        whatever the leader's agent called it.
        """
        links = response.links
        is_old = is_old or any(isinstance(link.object_id, ArchiveObjectId) for link in links)
        fetch_all = self._context.catch_up.fetch_all if is_old else self._fetch_all
        started_s = self._context.clock()
        try:
            async with asyncio.timeout(self._context.limits.hydration_timeout_s):
                data = await fetch_all(links)
                self._context.stage_times.observe("hydrated", self._context.clock() - started_s)
                try:
                    return splice(response, data)
                except SpliceError as error:
                    self._context.measures.fault("splice_refetch")
                    self._context.hydration.discard(error.link.object_id)
                    return splice(response, await fetch_all(links))
        except TimeoutError as error:
            if not is_old:  # large reads that take their time are no sign of a store that fails
                self._context.hydration.timed_out()
            raise HydrationError("timeout", "object storage did not answer in time") from error

    async def _fetch_all(self, links: list[SegmentLink]) -> list[memoryview]:
        """The links' bytes; of each object, one range that covers all of its links here is read."""
        hydration = self._context.hydration
        covering: dict[StoredObjectId, tuple[int, int]] = {}
        for link in links:
            start, end = covering.get(link.object_id, (link.start_position, link.end_position))
            covering[link.object_id] = (
                min(start, link.start_position),
                max(end, link.end_position),
            )
        ranges = await asyncio.gather(*(hydration.fetch(object_id, *span) for object_id, span in covering.items()))
        fetched = dict(zip(covering, ranges, strict=True))
        return [
            fetched[link.object_id][
                link.start_position - covering[link.object_id][0] : link.end_position - covering[link.object_id][0]
            ]
            for link in links
        ]

    async def _ask_inline(self, response: LinkedResponse, reason: str, detail: str) -> None:
        """Have the leader's agent send the original; it comes as the next Kafka frame."""
        self._context.measures.fault(f"inline_requested_{reason}")
        correlation_id = int.from_bytes(bytes(response.skeleton[0][:4]), "big", signed=True)
        log.warning("inline_requested", reason=reason, detail=detail, correlation_id=correlation_id)
        self._channel.send(MessageKind.INLINE_REQUEST, encode_inline_request(correlation_id))
        await self._leader.drain()

    def _breaker_changed(self, is_open: bool) -> None:
        log.warning("hydration_paused" if is_open else "hydration_resumed")
        with contextlib.suppress(ConnectionError):
            self._channel.send(MessageKind.LINKS_PAUSED if is_open else MessageKind.LINKS_RESUMED)
