"""One connection from another agent, and its twin to the local broker: where links take the records' place.

Holds true: a link is only ever sent where the peer said that it understands links, for bytes that this very response
contains. The original of a linked response is kept until the follower's next request, so that it can be sent inline
when hydration fails. A response is linked only when it is the only one under way on its connection, as is always so
with Kafka's replica fetchers; so "the next request" means that the response arrived.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from kafka_log.topic_partition import TopicIdPartition
from plugin.archive_object import ArchiveObjectId, StoredObjectId
from replication.catch_up import CatchUp, FollowerCatchUp
from replication.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    Buffer,
    FetchRequestView,
    FetchResponseView,
    MalformedFrameError,
    RequestHeader,
    parse_request_header,
    scan_fetch_request,
    scan_fetch_response,
    understands_fetch,
    with_fetch_wait,
)
from replication.fetch_patience import FetchPatience
from replication.framed_connection import DEFAULT_MAX_FRAME_BYTES, SIZE_PREFIX, FramedConnection
from replication.link import encode_linked_response
from replication.link_index import LinkIndex
from replication.link_planner import LinkPlanner, PassThrough, PlannerLimits, SendLinked, WaitForUploads
from replication.measures import PeerByteCount, ReplicationMeasures
from replication.peer_channel import PeerChannel
from replication.peer_connection import Address
from replication.peer_protocol import (
    ARCHIVE_LINK_VERSION,
    CATCH_UP_LINK_VERSION,
    Announcement,
    Hello,
    MessageKind,
    PeerRefusedError,
    coalesce_ranges,
    decode_inline_request,
)
from replication.upload_signal import UploadSignal
from replication.watermarks import WatermarkTimes
from rlm.combine_task import UploadedSegment
from rlm.led_views import LedPartitions
from rlm.link_policy import LinkMode
from rlm.measures import StageTimes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderLimits:
    """In seconds and bytes."""

    link_wait_max_s: float
    break_even_bytes: int
    gather_max_ms: int
    """For how long the broker is asked to gather what a follower gets, while much is uploaded; 0: never."""
    range_gap_bytes: int
    """Ranges of a combined segment's announcement that are closer than this are read as one."""
    stale_after_s: float = 30.0
    """A response later than this is of no use: the follower's broker has given up (replica.socket.timeout.ms)."""
    allow_plain_connections: bool = True
    max_connections: int = 1024
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What all relays of one agent share."""

    hello: Hello
    limits: LeaderLimits
    broker: Address
    """The local broker's own inter-broker listener."""
    led: LedPartitions
    stage_times: StageTimes
    measures: ReplicationMeasures
    clock: Callable[[], float] = time.monotonic
    index: LinkIndex = field(default_factory=LinkIndex)
    uploads: UploadSignal = field(default_factory=UploadSignal)
    catch_up: CatchUp | None = None
    """None: followers that are far behind get inline what the index does not hold."""


@dataclass(slots=True)
class _RequestUnderWay:
    header: RequestHeader
    received_s: float
    linkable: bool
    gathers: bool = False
    """Whether the broker was asked to gather more than the follower asks for."""


class LeaderRelay:
    """One connection from another agent, and its twin to the local broker."""

    def __init__(
        self,
        context: LeaderContext,
        peer: FramedConnection,
        broker: FramedConnection,
        link_version: int | None,
        watermarks: WatermarkTimes,
    ) -> None:
        """`link_version` is None for a peer that is no agent, 0 for one that understands none of our links."""
        self._context = context
        self._peer = peer
        self._channel = PeerChannel(peer)
        self._broker = broker
        self._has_agent = link_version is not None
        self._linking = self._may_link = bool(link_version)
        self._watermarks = watermarks
        self._under_way: deque[_RequestUnderWay] = deque()
        self._kept: tuple[int, Buffer] | None = None
        self._follower_id = CONSUMER_REPLICA_ID
        self._followed: set[TopicIdPartition] = set()
        limits = context.limits
        self._catch_up: FollowerCatchUp | None = None
        if context.catch_up is not None and self._may_link:
            links_archive = (link_version or 0) >= ARCHIVE_LINK_VERSION
            self._catch_up = FollowerCatchUp(context.catch_up, self._read_ahead, context.uploads.notify, links_archive)
        self._tells_catch_up = (link_version or 0) >= CATCH_UP_LINK_VERSION
        self._planner = LinkPlanner(
            context.index,
            context.led,
            PlannerLimits(limits.link_wait_max_s, limits.break_even_bytes),
            self._catch_up,
        )
        self._patience = FetchPatience(limits.gather_max_ms)
        self._peer_bytes = PeerByteCount(context.measures, "leader", peer)

    async def run(self, first_request: Buffer | None) -> None:
        """Until either side ends. `first_request` was read already, from a peer without a hello."""
        if first_request is not None:
            if not self._context.limits.allow_plain_connections:
                raise PeerRefusedError("a connection without a hello, where only agents may connect")
            self._request(first_request)
        tasks = [asyncio.create_task(self._relay_requests()), asyncio.create_task(self._relay_responses())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, ConnectionError):
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._catch_up is not None:
                self._catch_up.close()
            self._watermarks.drop_follower(self._follower_id)
            self._peer_bytes.update(self._follower_id)
            self._context.measures.connection_ended("peer", self._peer.error)
            self._context.measures.connection_ended("broker", self._broker.error)

    def announce(self, segment: UploadedSegment) -> None:
        """Tell the follower's agent what it will be given links to."""
        if not self._may_link or not self._peer.is_writable:  # a hint; a peer that lags or left can do without
            return
        entries = [
            entry
            for entry in segment.entries
            if entry.topic_id_partition in self._followed
            and self._context.led.mode_of(entry.topic_id_partition, 0) is LinkMode.LINK
        ]
        if entries:
            ranges = [(entry.start_file_position, entry.end_file_position) for entry in entries]
            next_offsets = {entry.topic_id_partition: entry.last_offset + 1 for entry in entries}
            self._patience.uploaded(next_offsets, sum(end - start for start, end in ranges), segment.stored_s)
            self._tell_ranges(MessageKind.ANNOUNCE, segment.combined_segment_id, ranges)

    def _read_ahead(self, object_id: StoredObjectId, ranges: list[tuple[int, int]]) -> None:
        """Tell the agent of a follower that is far behind what it will be given links to."""
        if self._tells_catch_up and self._peer.is_writable:
            is_archived = isinstance(object_id, ArchiveObjectId)
            kind = MessageKind.READ_ARCHIVE_AHEAD if is_archived else MessageKind.READ_AHEAD
            self._tell_ranges(kind, object_id, ranges)

    def _tell_ranges(self, kind: MessageKind, object_id: StoredObjectId, ranges: list[tuple[int, int]]) -> None:
        """Gaps are priced by the combined segments' store; in the archive, what adjoins is joined, and no more."""
        is_archived = kind is MessageKind.READ_ARCHIVE_AHEAD
        joined = coalesce_ranges(ranges, 0 if is_archived else self._context.limits.range_gap_bytes)
        self._channel.send(kind, Announcement(object_id, joined).encode())
        self._peer_bytes.update(self._follower_id)
        self._context.measures.announcements.inc()

    def forget(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more; nothing of it will be linked."""
        self._followed.discard(partition)
        self.truncated(partition)

    def truncated(self, partition: TopicIdPartition) -> None:
        """What was read ahead of the follower may be of a log that is none any more."""
        self._patience.dropped(partition)
        if self._catch_up is not None:
            self._catch_up.forget(partition)

    # Requests, from the follower to the broker.

    async def _relay_requests(self) -> None:
        while (message := await self._next_message()) is not None:
            self._peer_bytes.update(self._follower_id)
            kind, body = message
            if kind is MessageKind.KAFKA:
                self._request(body)
            else:
                self._control(kind, body)
            await self._broker.drain()

    async def _next_message(self) -> tuple[MessageKind, Buffer] | None:
        if self._has_agent:
            return await self._channel.receive()
        frame = await self._peer.read_frame()
        return None if frame is None else (MessageKind.KAFKA, frame)

    def _control(self, kind: MessageKind, body: Buffer) -> None:
        if kind is MessageKind.INLINE_REQUEST:
            self._send_kept(decode_inline_request(body))
        elif kind in (MessageKind.LINKS_PAUSED, MessageKind.LINKS_RESUMED):
            resumed = kind is MessageKind.LINKS_RESUMED
            self._linking = self._may_link and resumed
            self._context.measures.fault("links_resumed" if resumed else "links_paused")
            self._context.uploads.notify()
        else:
            raise MalformedFrameError(0, f"{kind.name} from a follower's agent")

    def _request(self, frame: Buffer) -> None:
        received_s = self._context.clock()
        header = parse_request_header(frame)
        linkable = False
        gathers = False
        offsets: list[tuple[TopicIdPartition, int]] = []
        if header.api_key == FETCH_API_KEY and understands_fetch(header.api_version):
            try:
                view = scan_fetch_request(frame, header.api_version)
            except MalformedFrameError as error:
                self._not_understood("request", error)
            else:
                linkable = view.replica_id != CONSUMER_REPLICA_ID
                if linkable:
                    self._follower_id = view.replica_id
                    offsets = _fetch_offsets(view)
                    frame, gathers = self._gathering(frame, view, offsets)
        self._kept = None
        self._under_way.append(_RequestUnderWay(header, received_s, linkable, gathers))
        self._broker.write_frame(frame)
        # Producers wait for what this request tells the broker, so what we learn from it comes after.
        self._context.measures.relayed("request", SIZE_PREFIX.size + len(frame), self._follower_id)
        for partition, offset in offsets:
            self._watermarks.fetched(partition, self._follower_id, offset, received_s)

    def _not_understood(self, what: str, error: MalformedFrameError) -> None:
        """The frame is passed on as it is: it is for the brokers to judge."""
        self._context.measures.fault(f"{what}_not_understood")
        log.warning("frame_not_understood", frame=what, error=str(error))

    def _gathering(
        self, frame: Buffer, view: FetchRequestView, offsets: list[tuple[TopicIdPartition, int]]
    ) -> tuple[Buffer, bool]:
        """The request, to be answered with as much as the next upload will probably hold; and whether that is new."""
        for partition, offset in offsets:
            self._patience.fetched(partition, offset)
        if not self._linking:
            return frame, False
        wait = self._patience.wait(view.max_wait_ms, view.min_bytes, self._context.clock())
        return (frame, False) if wait is None else (with_fetch_wait(frame, view, *wait), True)

    # Responses, from the broker to the follower.

    async def _relay_responses(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            request = self._request_of(frame)
            view = self._scanned(request, frame) if request.linkable else None
            if view is not None:
                await self._fetch_response(request, frame, view)
            else:
                self._send_plain(frame)
            self._peer_bytes.update(self._follower_id)
            await self._peer.drain()

    def _request_of(self, frame: Buffer) -> _RequestUnderWay:
        """The request that a response answers. Those before it were of the kind that gets none (acks=0)."""
        correlation_id = int.from_bytes(bytes(frame[:4]), "big", signed=True)
        while self._under_way:
            request = self._under_way.popleft()
            if request.header.correlation_id == correlation_id:
                return request
        raise MalformedFrameError(0, "a response without a request")

    def _scanned(self, request: _RequestUnderWay, frame: Buffer) -> FetchResponseView | None:
        try:
            return scan_fetch_response(frame, request.header.api_version)
        except MalformedFrameError as error:
            self._not_understood("response", error)
            return None

    async def _fetch_response(self, request: _RequestUnderWay, frame: Buffer, view: FetchResponseView) -> None:
        for records in view.fields:
            if records.topic_id is not None and not records.error_code:
                partition = TopicIdPartition(records.topic_id, records.partition)
                self._followed.add(partition)
                self._watermarks.passed(partition, records.high_watermark, self._context.clock())
        if request.gathers:
            self._patience.answered(len(frame), self._context.clock())
        sent: SendLinked | None = None
        if self._has_agent and not self._under_way:
            self._planner.begin(frame, view, self._follower_id)
            if self._planner.has_records:
                self._context.stage_times.observe("answered", self._context.clock() - request.received_s)
            sent = await self._links()
            if self._under_way:  # a request came meanwhile, so the next one cannot mean that this response arrived
                sent = None
        if self._context.clock() - request.received_s > self._context.limits.stale_after_s:
            self._context.measures.fault("stale_response")
            raise ConnectionResetError("the follower has given this request up")
        if sent is None:
            for records in view.fields:
                self._count_inline(records.topic_id, records.partition, records.records_end - records.records_start)
            self._send_plain(frame)
        else:
            self._send_linked(request, frame, sent)

    async def _links(self) -> SendLinked | None:
        """The response with links, waiting for them while that is worth it; None to send it as it is."""
        context = self._context
        started_s = context.clock()
        waited = False
        while self._linking and not self._peer_is_gone():
            verdict = self._planner.decide(context.clock())
            if isinstance(verdict, WaitForUploads):
                if not waited:
                    context.led.links_wanted(verdict.partitions)
                waited = True
                await context.uploads.wait(verdict.until_s - context.clock())
                continue
            if waited:
                context.stage_times.observe("link_wait", context.clock() - started_s)
                if isinstance(verdict, PassThrough):
                    context.measures.fault("link_wait_timeout")
            return verdict if isinstance(verdict, SendLinked) else None
        return None

    def _peer_is_gone(self) -> bool:
        return self._peer.error is not None

    def _send_plain(self, frame: Buffer) -> None:
        self._context.measures.relayed("response", SIZE_PREFIX.size + len(frame), self._follower_id)
        if self._has_agent:
            self._channel.send(MessageKind.KAFKA, frame)
        else:
            self._peer.write_frame(frame)

    def _send_linked(self, request: _RequestUnderWay, frame: Buffer, sent: SendLinked) -> None:
        measures = self._context.measures
        self._kept = (request.header.correlation_id, frame)
        is_old = self._catch_up is not None and self._catch_up.sent(sent) and self._tells_catch_up
        kind = MessageKind.LINKED_OLD if is_old else MessageKind.LINKED
        self._channel.send(kind, *encode_linked_response(sent.response))
        measures.responses.labels("linked").inc()
        delivered = sum(map(len, sent.response.skeleton))
        for partition, _, size in sent.linked:
            measures.linked(partition, size, self._follower_id)
            delivered += size
        for partition, size in sent.inline:
            measures.inline(partition, size, self._follower_id)
        measures.relayed("response", SIZE_PREFIX.size + delivered, self._follower_id)

    def _send_kept(self, correlation_id: int) -> None:
        """The follower's agent could not hydrate: send the original."""
        if self._kept is None or self._kept[0] != correlation_id:
            raise MalformedFrameError(0, f"no response {correlation_id} is kept")
        self._context.measures.fault("inline_requested_by_follower")
        frame, self._kept = self._kept[1], None
        self._channel.send(MessageKind.KAFKA, frame)

    def _count_inline(self, topic_id: bytes | None, partition: int, size: int) -> None:
        if size <= 0:
            return
        led = self._context.led.find(topic_id, partition)
        self._context.measures.inline(led, size, self._follower_id)
        self._context.measures.responses.labels("inline").inc()


def _fetch_offsets(view: FetchRequestView) -> list[tuple[TopicIdPartition, int]]:
    """Which partitions the follower asks for anew, and from where on."""
    return [
        (TopicIdPartition(wanted.topic_id, wanted.partition), wanted.fetch_offset)
        for wanted in view.partitions
        if wanted.topic_id is not None
    ]
