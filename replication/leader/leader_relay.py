"""One connection from another agent, and its twin to the local broker: where links take the records' place.

Holds true: a link is only ever sent where the peer said that it understands links, for bytes that this very response
contains. The original of a linked response is kept until the follower's next request, so that it can be sent inline
when hydration fails. A response is linked only when it is the only one under way on its connection, as is always so
with Kafka's replica fetchers; so "the next request" means that the response arrived. What goes wrong in looking into
frames, in planning and in linking never keeps a frame from going on as it came.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from plugin.archive_object_id import ArchiveObjectId, StoredObjectId
from replication.leader.fetch_patience import FetchPatience
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import SendLinked
from replication.leader.response_links import LinkedMessage, ResponseLinks
from replication.leader.watermarks import WatermarkTimes
from replication.wire.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    CostlyFrameError,
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
from replication.wire.framed_connection import SIZE_PREFIX, FramedConnection
from replication.wire.link_defects import LinkDefects
from replication.wire.metrics import PeerByteCount
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import (
    Announcement,
    MessageKind,
    PeerCapabilities,
    PeerRefusedError,
    coalesce_ranges,
    decode_inline_request,
)
from rlm.write_path.link_policy import LinkMode
from rlm.write_path.uploaded_segment import UploadedSegment

log = structlog.get_logger(__name__)

_LARGE_REQUEST_BYTES = 8 * 1024
"""Above it, reading takes milliseconds: all other connections get their turn before the next one."""


@dataclass(slots=True)
class _RequestUnderWay:
    header: RequestHeader
    received_s: float
    linkable: bool = False
    gathers: bool = False
    """Whether the broker was asked to gather more than the follower asks for."""


class LeaderRelay:
    """One connection from another agent, and its twin to the local broker."""

    def __init__(
        self,
        context: LeaderContext,
        peer: FramedConnection,
        broker: FramedConnection,
        capabilities: PeerCapabilities | None,
        watermarks: WatermarkTimes,
    ) -> None:
        """`capabilities` are those that both agents have; None for a peer that is no agent."""
        self._context = context
        self._peer = peer
        self._channel = PeerChannel(peer)
        self._broker = broker
        self._has_agent = capabilities is not None
        self._capabilities = capabilities or PeerCapabilities.NONE
        self._watermarks = watermarks
        self._under_way: deque[_RequestUnderWay] = deque()
        self._kept: tuple[int, Buffer] | None = None
        self._let_go_of: int | None = None
        self._follower_id = CONSUMER_REPLICA_ID
        self._followed: set[TopicIdPartition] = set()
        limits = context.limits
        self._defects = LinkDefects(context.metrics, context.clock)
        self._links = ResponseLinks(context, self._defects, self._capabilities, self._read_ahead)
        self._patience = FetchPatience(limits.gather_max_ms)
        self._peer_bytes = PeerByteCount(context.metrics, "leader", peer)

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
            self._links.close()
            self._keep(None)
            self._watermarks.drop_follower(self._follower_id)
            self._peer_bytes.update(self._follower_id)
            self._context.metrics.connection_ended("peer", self._peer.error)
            self._context.metrics.connection_ended("broker", self._broker.error)

    def announce(self, segment: UploadedSegment) -> None:
        """Tell the follower's agent what it will be given links to: a hint, which a peer that lags can do without."""
        if PeerCapabilities.LINKS not in self._capabilities or not self._peer.is_writable:
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
        if PeerCapabilities.CATCH_UP in self._capabilities and self._peer.is_writable:
            is_archived = isinstance(object_id, ArchiveObjectId)
            kind = MessageKind.READ_ARCHIVE_AHEAD if is_archived else MessageKind.READ_AHEAD
            self._tell_ranges(kind, object_id, ranges)

    def _tell_ranges(self, kind: MessageKind, object_id: StoredObjectId, ranges: list[tuple[int, int]]) -> None:
        """Gaps are priced by the combined segments' store; in the archive, what adjoins is joined, and no more."""
        is_archived = kind is MessageKind.READ_ARCHIVE_AHEAD
        joined = coalesce_ranges(ranges, 0 if is_archived else self._context.limits.range_gap_bytes)
        self._channel.send(kind, Announcement(object_id, joined).encode())
        self._peer_bytes.update(self._follower_id)
        self._context.metrics.announcements.inc()

    def forget(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more; nothing of it will be linked."""
        self._followed.discard(partition)
        self.truncated(partition)

    def truncated(self, partition: TopicIdPartition) -> None:
        """What was read ahead of the follower may be of a log that is none any more."""
        self._patience.dropped(partition)
        self._links.truncated(partition)

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
            if len(body) > _LARGE_REQUEST_BYTES:
                await asyncio.sleep(0)

    async def _next_message(self) -> tuple[MessageKind, Buffer] | None:
        if self._has_agent:
            return await self._channel.receive()
        frame = await self._peer.read_frame()
        return None if frame is None else (MessageKind.KAFKA, frame)

    def _control(self, kind: MessageKind, body: Buffer) -> None:
        if kind is MessageKind.INLINE_REQUEST:
            self._send_kept(decode_inline_request(body))
        elif kind in (MessageKind.LINKS_PAUSED, MessageKind.LINKS_RESUMED):
            self._links.paused(paused=kind is MessageKind.LINKS_PAUSED)
        else:
            raise MalformedFrameError(0, f"{kind.name} from a follower's agent")

    def _request(self, frame: Buffer) -> None:
        received_s = self._context.clock()
        header = parse_request_header(frame)
        request = _RequestUnderWay(header, received_s)
        offsets: list[tuple[TopicIdPartition, int]] = []
        with self._defects.survived("request"):
            if header.api_key == FETCH_API_KEY and understands_fetch(header.api_version):
                frame, offsets = self._fetch_request(frame, request)
        self._keep(None)
        self._under_way.append(request)
        self._broker.write_frame(frame)
        # Producers wait for what this request tells the broker, so what we learn from it comes after.
        self._context.metrics.relayed("request", SIZE_PREFIX.size + len(frame), self._follower_id)
        if self._follower_id == CONSUMER_REPLICA_ID:
            return
        with self._defects.survived("request"):
            for partition, offset in offsets:
                self._watermarks.fetched(partition, self._follower_id, offset, received_s)

    def _fetch_request(
        self, frame: Buffer, request: _RequestUnderWay
    ) -> tuple[Buffer, list[tuple[TopicIdPartition, int]]]:
        """The request as it goes on, and the offsets that a follower asks for in it."""
        try:
            view = scan_fetch_request(frame, request.header.api_version)
        except CostlyFrameError as error:
            self._not_read("request", error)
            self._forget_follower()
            return frame, []
        except MalformedFrameError as error:
            self._not_understood("request", error)
            return frame, []
        if view.replica_id == CONSUMER_REPLICA_ID:
            return frame, []
        is_known = view.replica_id in self._context.followers
        self._follower_id = view.replica_id if is_known else CONSUMER_REPLICA_ID
        offsets = self._led_offsets(view)
        frame, request.gathers = self._gathering(frame, view, offsets)
        request.linkable = True
        return frame, offsets

    def _led_offsets(self, view: FetchRequestView) -> list[tuple[TopicIdPartition, int]]:
        """What the follower asks for anew of the partitions led here, and from where on."""
        find = self._context.led.find
        return [
            (partition, wanted.fetch_offset)
            for wanted in view.partitions
            if (partition := find(wanted.topic_id, wanted.partition)) is not None
        ]

    def _not_understood(self, what: str, error: MalformedFrameError) -> None:
        """The frame is passed on as it is: it is for the brokers to judge."""
        self._context.metrics.fault(f"{what}_not_understood")
        log.warning("frame_not_understood", frame=what, error=str(error))

    def _not_read(self, what: str, error: CostlyFrameError) -> None:
        """The frame is passed on as it is, and what belongs to it goes inline."""
        self._context.metrics.fault(f"{what}_not_read_{error.bound}")
        log.warning("frame_not_read", frame=what, error=str(error))

    def _forget_follower(self) -> None:
        """It asked for what we do not know; in a fetch session that holds until it asks for something else.

        Links are given by what a response holds, so only what rests on the follower's offsets ends with them.
        """
        self._patience = FetchPatience(wait_max_ms=0)
        self._watermarks.drop_follower(self._follower_id)

    def _gathering(
        self, frame: Buffer, view: FetchRequestView, offsets: list[tuple[TopicIdPartition, int]]
    ) -> tuple[Buffer, bool]:
        """The request, to be answered with as much as the next upload will probably hold; and whether that is new."""
        for partition, offset in offsets:
            self._patience.fetched(partition, offset)
        if not self._links.are_given:
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
        except CostlyFrameError as error:
            self._not_read("response", error)
            return None
        except MalformedFrameError as error:
            self._not_understood("response", error)
            return None

    async def _fetch_response(self, request: _RequestUnderWay, frame: Buffer, view: FetchResponseView) -> None:
        with self._defects.survived("planning"):
            self._learn(request, frame, view)
        sent: SendLinked | None = None
        if self._has_agent and not self._under_way:
            sent = await self._links.planned(
                frame, view, request.received_s, self._follower_id, lambda: self._peer.error is not None
            )
            if self._under_way:  # a request came meanwhile, so the next one cannot mean that this response arrived
                sent = None
        if self._context.clock() - request.received_s > self._context.limits.stale_after_s:
            self._context.metrics.fault("stale_response")
            raise ConnectionResetError("the follower has given this request up")
        message = None if sent is None else self._links.message(sent)
        if message is None:
            for records in view.fields:
                self._count_inline(records.topic_id, records.partition, records.records_end - records.records_start)
            self._send_plain(frame)
        else:
            self._send_linked(request, frame, message)

    def _learn(self, request: _RequestUnderWay, frame: Buffer, view: FetchResponseView) -> None:
        for records in view.fields:
            if records.topic_id is not None and not records.error_code:
                partition = TopicIdPartition(records.topic_id, records.partition)
                self._followed.add(partition)
                self._watermarks.passed(partition, records.high_watermark, self._context.clock())
        if request.gathers:
            self._patience.answered(len(frame), self._context.clock())

    def _send_plain(self, frame: Buffer) -> None:
        self._context.metrics.relayed("response", SIZE_PREFIX.size + len(frame), self._follower_id)
        if self._has_agent:
            self._channel.send(MessageKind.KAFKA, frame)
        else:
            self._peer.write_frame(frame)

    def _send_linked(self, request: _RequestUnderWay, frame: Buffer, message: LinkedMessage) -> None:
        metrics, sent = self._context.metrics, message.sent
        self._keep((request.header.correlation_id, frame))
        self._channel.send(message.kind, *message.body)
        metrics.responses.labels("linked").inc()
        delivered = sum(map(len, sent.response.skeleton))
        for partition, _, size in sent.linked:
            metrics.linked(partition, size, self._follower_id)
            delivered += size
        for partition, size in sent.inline:
            metrics.inline(partition, size, self._follower_id)
        metrics.relayed("response", SIZE_PREFIX.size + delivered, self._follower_id)

    def _send_kept(self, correlation_id: int) -> None:
        """The follower's agent could not hydrate: send the original."""
        if self._kept is None and self._let_go_of == correlation_id:
            self._context.metrics.fault("kept_response_let_go")
            raise ConnectionResetError("the response was not kept, as memory was short; the follower fetches it again")
        if self._kept is None or self._kept[0] != correlation_id:
            raise MalformedFrameError(0, f"no response {correlation_id} is kept")
        self._context.metrics.fault("inline_requested_by_follower")
        frame = self._kept[1]
        self._keep(None)
        self._channel.send(MessageKind.KAFKA, frame)

    def _keep(self, kept: tuple[int, Buffer] | None) -> None:
        """In the place of what was kept before."""
        self._context.budget.keep_no_more(self)
        self._kept = kept
        if kept is not None:
            self._context.budget.keep(self, len(kept[1]), self._let_go)

    def _let_go(self) -> None:
        if self._kept is not None:
            self._let_go_of, self._kept = self._kept[0], None

    def _count_inline(self, topic_id: bytes | None, partition: int, size: int) -> None:
        if size <= 0:
            return
        led = self._context.led.find(topic_id, partition)
        self._context.metrics.inline(led, size, self._follower_id)
        self._context.metrics.responses.labels("inline").inc()
