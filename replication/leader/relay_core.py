"""Decides about the frames between another agent and the local broker, for one connection. Sans-IO.

It takes frames, messages and uploads with their time, and returns what to send to the broker or to the follower, or
until when to wait for links.

A link is sent only to an agent of this protocol version, only for bytes in this response, and never to a follower
in the own zone. The original of a linked response is kept until the follower's next request, so that it can be sent
inline when hydration fails. A response is linked only when it is the only one under way on its connection, as always
with Kafka's replica fetchers; so the next request means that the response arrived. An error in scanning, planning or
linking never prevents a frame from being passed on unchanged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.inline_reason import InlineReason
from replication.leader.fetch_waits import READ_AGAIN_BYTES, FetchMinBytesTuner, PendingHighWatermarks
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import SendLinked, WaitForUploads
from replication.leader.read_ahead import ReadAhead
from replication.leader.response_links import ResponseLinks, ToFollower
from replication.wire.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    RECORDS_API_KEYS,
    FetchRequestView,
    FetchResponseView,
    records_in,
    scan_fetch_request,
    scan_fetch_response,
    understands_fetch,
    with_fetch_wait,
    without_records,
)
from replication.wire.frame_inbox import SIZE_PREFIX
from replication.wire.idle_fetch import IDLE_RESPONSE_BYTES, IdleRequest
from replication.wire.kafka_frame import CostlyFrameError, MalformedFrameError, RequestHeader, parse_request_header
from replication.wire.link_defects import LinkDefects
from replication.wire.metrics import ReplicationMetrics
from replication.wire.packed_message import TopicRecords
from replication.wire.peer_protocol import (
    Announcement,
    MessageKind,
    PeerCapabilities,
    ZoneReading,
    coalesce_ranges,
)
from replication.wire.request_order import RequestOrder
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.uploads.segment_queue import UploadedSegment

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _RequestUnderWay:
    header: RequestHeader
    received_s: float
    linkable: bool = False
    gathers: bool = False
    """Whether the broker was asked to gather more than the follower asks for."""
    offsets: Sequence[tuple[TopicIdPartition, int]] = ()
    """The partitions led here that a follower's request lists, with their fetch offsets."""
    watched: Sequence[tuple[TopicIdPartition, int]] = ()
    """The partitions in the request whose replication somebody waits for, with their fetch offsets."""


@dataclass(frozen=True, slots=True)
class _SentLinks:
    """The sizes of a linked response whose original the follower's agent may still ask for."""

    linked: Sequence[tuple[TopicIdPartition, int]]
    left_out: Sequence[tuple[TopicIdPartition, int]]
    """What is only in the original."""
    crossed_bytes: int
    """The response without its links."""
    records: Sequence[TopicRecords]
    """Where in the original records are."""


class RelayCore:
    """Decides about every frame of one connection from another agent. All times are monotonic seconds."""

    def __init__(
        self,
        context: LeaderContext,
        capabilities: PeerCapabilities | None,
        watermarks: WatermarkTimes,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        """`capabilities` are those that both agents have; None for a peer that is no agent."""
        self._context = context
        self._has_agent = capabilities is not None
        self._capabilities = capabilities or PeerCapabilities.NONE
        self._watermarks = watermarks
        self._under_way: RequestOrder[_RequestUnderWay] = RequestOrder()
        self._asked_last: _RequestUnderWay | None = None
        self._at_hand: tuple[_RequestUnderWay, Buffer, FetchResponseView] | None = None
        self._sent_links: _SentLinks | None = None
        """The links that were sent last. They count when the next request shows that they were read."""
        self._followed: set[TopicIdPartition] = set()
        self._defects = LinkDefects(context.metrics, context.clock)
        self._links = ResponseLinks(context, self._defects, self._capabilities, read_ahead)
        self.patience = FetchMinBytesTuner(context.limits.gather_max_ms)
        self._owed = PendingHighWatermarks(context.limits.watermark_wait_ms)
        self._idle: IdleRequest | None = None
        """The request without partitions that is under way."""
        self._idle_number, self._idle_since_s = 0, 0.0
        self._idle_request_bytes = self._idle_response_bytes = 0
        self.follower_id = CONSUMER_REPLICA_ID
        """The replica id that it gives; CONSUMER_REPLICA_ID if it is not a known follower."""

    def close(self) -> None:
        """Release all memory and waits, because the connection ended."""
        self._count_idle()
        self._links.arrived()
        self._watermarks.drop_follower(self.follower_id)
        self._context.follower_offsets.drop_follower(self.follower_id)

    # Uploads and read-ahead: what to tell the follower's agent before it asks.

    def uploaded(self, segment: UploadedSegment) -> list[tuple[int, int]]:
        """Record a stored object. Returns its ranges that the follower will get links to."""
        if PeerCapabilities.LINKS not in self._capabilities or self._context.zones.is_own(self.follower_id):
            return []
        entries = [
            entry
            for entry in segment.entries
            if entry.topic_id_partition in self._followed
            and self._context.led.mode_of(entry.topic_id_partition) is LinkMode.LINK
        ]
        if not entries:
            return []
        ranges = [(entry.start_file_position, entry.end_file_position) for entry in entries]
        next_offsets = {entry.topic_id_partition: entry.last_offset + 1 for entry in entries}
        self.patience.uploaded(next_offsets, sum(end - start for start, end in ranges), segment.stored_s)
        return ranges

    @property
    def shares_reads(self) -> bool:
        """Whether the follower's agent may share reads with others of its zone: not while it has paused links."""
        return PeerCapabilities.SHARED_READS in self._capabilities and self._links.may_be_sent(self.follower_id)

    def announced(
        self, segment: UploadedSegment, ranges: list[tuple[int, int]], zone: ZoneReading | None
    ) -> ToFollower:
        """Return the announcement of these ranges, which other agents of the follower's `zone` read as well."""
        joined = coalesce_ranges(ranges, self._context.limits.range_gap_bytes)
        announcement = Announcement(segment.combined_segment_id, joined, segment.custom_metadata)
        if zone is not None:
            return ToFollower(MessageKind.ANNOUNCE_SHARED, (zone.encode(), announcement.encode()))
        return ToFollower(MessageKind.ANNOUNCE, (announcement.encode(),))

    def read_ahead(
        self, object_id: StoredObjectId, ranges: list[tuple[int, int]], custom_metadata: bytes = b""
    ) -> ToFollower:
        """Return the announcement of ranges that a follower far behind will get links to.

        The allowed gap depends on the price of the combined segments' store. In the archive, only adjacent ranges are
        joined.
        """
        if isinstance(object_id, ArchiveObjectId):
            announcement = Announcement(object_id, coalesce_ranges(ranges, 0))
            return ToFollower(MessageKind.READ_ARCHIVE_AHEAD, (announcement.encode(),))
        joined = coalesce_ranges(ranges, self._context.limits.range_gap_bytes)
        return ToFollower(MessageKind.READ_AHEAD, (Announcement(object_id, joined, custom_metadata).encode(),))

    def forget(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here, or no longer fetched by the follower."""
        self._followed.discard(partition)
        self.truncated(partition)

    def truncated(self, partition: TopicIdPartition) -> None:
        """Drop what was read ahead of the follower: it may be from the truncated part of the log."""
        self.patience.dropped(partition)
        self._owed.dropped(partition)
        self._links.truncated(partition)

    # Requests, from the follower to the broker.

    def control(self, kind: MessageKind, body: Buffer) -> ToFollower | None:
        """Handle a message that is no Kafka frame; returns what to send back. Raises MalformedFrameError,
        ConnectionResetError."""
        frame = self._links.control(kind, body)
        if frame is None:
            return None
        sent, self._sent_links = self._sent_links, None
        if sent is not None:
            self._count_original(sent, len(frame))
        return ToFollower(MessageKind.ORIGINAL, (frame,), None if sent is None else sent.records)

    def request(self, frame: Buffer, now_s: float) -> Buffer:
        """Return the frame to send to the broker; `request_sent` must follow.

        Raises MalformedFrameError, RequestRefusedError.
        """
        self._context.requests.check(frame)
        header = parse_request_header(frame)
        self._idle_goes_on()
        if self._idle_request_bytes:
            self._count_idle()
        self._links.arrived()
        self._count_links(now_s)
        request = _RequestUnderWay(header, now_s)
        if header.api_key == FETCH_API_KEY and understands_fetch(header.api_version):
            try:
                frame = self._fetch_request(frame, request)
            except Exception as error:
                self._defects.record("request", error)
        self._under_way.asked(frame, request)
        self._asked_last = request
        return frame

    def passes_idle_request(self, idle: IdleRequest, correlation_id: int, now_s: float) -> bool:
        """Record a request without partitions, if it may be passed on unchanged and nothing is under way."""
        header, view = idle.header, idle.view
        if header is None or view is None or self.follower_id != view.replica_id:
            return False
        if self._under_way or self._idle is not None or self._at_hand is not None:
            return False
        if self._sent_links is not None or self._owed.owed:
            return False
        if self.patience.wait(view.max_wait_ms, view.min_bytes, now_s) is not None:
            return False
        self._idle, self._idle_number, self._idle_since_s = idle, correlation_id, now_s
        self._idle_request_bytes += SIZE_PREFIX.size + idle.size_bytes
        return True

    def passes_idle_response(self, correlation_id: int, now_s: float) -> bool:
        """Record a response without partitions, if it belongs to the only request that is under way."""
        is_its = self._idle is not None and self._idle_number == correlation_id
        if not is_its or now_s - self._idle_since_s > self._context.limits.stale_after_s:
            return False
        self._idle = None
        self._idle_response_bytes += SIZE_PREFIX.size + IDLE_RESPONSE_BYTES
        return True

    def _idle_goes_on(self) -> None:
        """Treat a request that was passed on as one without partitions like any that is under way."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.header is not None:
            self._under_way.add(self._idle_number, _RequestUnderWay(idle.header, self._idle_since_s, linkable=True))

    def _count_idle(self) -> None:
        """Count what was passed on without partitions since the last request with any."""
        for direction, size in (("request", self._idle_request_bytes), ("response", self._idle_response_bytes)):
            if size:
                self._context.metrics.relayed(direction, size, self.follower_id)
        self._idle_request_bytes = self._idle_response_bytes = 0

    def request_sent(self, size: int) -> None:
        """Read a request after it was sent. Producers wait for it to reach the broker, so it is sent before it is
        read."""
        self._context.metrics.relayed("request", SIZE_PREFIX.size + size, self.follower_id)
        request = self._asked_last
        if self.follower_id == CONSUMER_REPLICA_ID or request is None:
            return
        try:
            for partition, offset in request.offsets:
                self._watermarks.fetched(partition, self.follower_id, offset, request.received_s)
            for partition, offset in request.watched:
                self._context.follower_offsets.fetched(partition, self.follower_id, offset)
        except Exception as error:
            self._defects.record("request", error)

    def _fetch_request(self, frame: Buffer, request: _RequestUnderWay) -> Buffer:
        """Return the request as it is passed on."""
        try:
            view = scan_fetch_request(frame, request.header.api_version)
        except MalformedFrameError as error:
            _not_scanned(self._context.metrics, "request", error)
            if isinstance(error, CostlyFrameError):
                self._forget_follower()
            return frame
        if view.replica_id == CONSUMER_REPLICA_ID:
            return frame
        is_known = view.replica_id in self._context.followers
        self.follower_id = view.replica_id if is_known else CONSUMER_REPLICA_ID
        for forgotten in self._not_followed_any_more(view):
            self.forget(forgotten)
        find = self._context.led.find
        offsets = [
            (partition, wanted.fetch_offset)
            for wanted in view.partitions
            if (partition := find(wanted.topic_id, wanted.partition)) is not None
        ]
        frame = self._gathering(frame, view, request, offsets)
        request.linkable, request.offsets = True, offsets
        request.watched = self._context.follower_offsets.watched(
            (TopicIdPartition(wanted.topic_id, wanted.partition), wanted.fetch_offset)
            for wanted in view.partitions
            if wanted.topic_id is not None
        )
        return frame

    def _not_followed_any_more(self, view: FetchRequestView) -> Iterable[TopicIdPartition]:
        """Return the partitions that a request takes out of what the follower fetches (KIP-227)."""
        if not view.is_whole:
            return view.forgotten
        fetched = {TopicIdPartition(one.topic_id, one.partition) for one in view.partitions if one.topic_id is not None}
        return (self._followed | self.patience.fetch_offsets.keys()) - fetched

    def _gathering(
        self,
        frame: Buffer,
        view: FetchRequestView,
        request: _RequestUnderWay,
        offsets: list[tuple[TopicIdPartition, int]],
    ) -> Buffer:
        """Return the request with a changed wait:

        for the bytes of the next upload, or for a high watermark that is owed.
        """
        for partition, offset in offsets:
            self.patience.fetched(partition, offset)
            self._owed.fetched(partition, offset)
        if self._links.may_be_sent(self.follower_id):
            wait = self.patience.wait(view.max_wait_ms, view.min_bytes, request.received_s)
            if wait is not None:
                request.gathers = True
                return with_fetch_wait(frame, view, *wait)
        wait_ms = self._owed.wait_ms(view.max_wait_ms)
        return frame if wait_ms is None else with_fetch_wait(frame, view, wait_ms, view.min_bytes)

    def _forget_follower(self) -> None:
        """Forget a follower's offsets after a request that we could not read.

        In a fetch session such a request counts until the next change. Links depend only on the response, so only what
        uses the follower's offsets ends.
        """
        self.patience = FetchMinBytesTuner(wait_max_ms=0)
        self._owed = PendingHighWatermarks(wait_ms=0)
        self._watermarks.drop_follower(self.follower_id)

    # Responses, from the broker to the follower.

    def response(self, frame: Buffer, now_s: float) -> ToFollower | WaitForUploads:
        """Decide about the broker's response: return the message to send, or until when to wait for `look_again`.

        No other response may come in between. Raises MalformedFrameError, ConnectionResetError.
        """
        self._idle_goes_on()
        request = self._under_way.answered(frame)
        if not request.linkable:
            return self._plain(frame, None if request.header.api_key in RECORDS_API_KEYS else ())
        try:
            view = scan_fetch_response(frame, request.header.api_version)
        except MalformedFrameError as error:
            _not_scanned(self._context.metrics, "response", error)
            return self._plain(frame, None)
        tells_owed = False
        try:
            tells_owed = self._learn(request, frame, view, now_s)
        except Exception as error:
            self._defects.record("planning", error)
        if (
            self._has_agent
            and not self._under_way
            and self._links.begin(frame, view, self.follower_id, request.received_s, now_s)
        ):
            self._at_hand = request, frame, view
            step = self.look_again(now_s)
            if tells_owed and isinstance(step, WaitForUploads):
                self._at_hand = None  # the follower asks for the records again, and they wait then
                return self._plain(b"".join(without_records(frame, view)), ())
            return step
        return self._answer(request, frame, view, None, now_s)

    def look_again(self, now_s: float) -> ToFollower | WaitForUploads:
        """Decide again about the waiting response, after an upload, a changed mode, or at its time."""
        if self._at_hand is None:
            raise RuntimeError("no response waits")
        step = self._links.step(self.follower_id, now_s)
        if isinstance(step, WaitForUploads):
            return step
        request, frame, view = self._at_hand
        self._at_hand = None
        if self._under_way:  # a request came meanwhile, so the next one cannot mean that this response arrived
            step = None
        return self._answer(request, frame, view, step, now_s)

    def _learn(self, request: _RequestUnderWay, frame: Buffer, view: FetchResponseView, now_s: float) -> bool:
        """Evaluate a response. Returns whether it is small and brings a high watermark that was owed."""
        tells_owed = False
        for records in view.fields:
            if records.topic_id is not None and not records.error_code:
                partition = TopicIdPartition(records.topic_id, records.partition)
                self._followed.add(partition)
                self._watermarks.passed(partition, records.high_watermark, now_s)
                tells_owed |= self._owed.note_watermark(partition, records.high_watermark)
        if request.gathers:
            self.patience.answered(len(frame), now_s)
        return tells_owed and len(frame) <= READ_AGAIN_BYTES

    def _answer(
        self,
        request: _RequestUnderWay,
        frame: Buffer,
        view: FetchResponseView,
        sent: SendLinked | None,
        now_s: float,
    ) -> ToFollower:
        metrics = self._context.metrics
        if now_s - request.received_s > self._context.limits.stale_after_s:
            metrics.fault("stale_response")
            raise ConnectionResetError("the follower has given this request up")
        message = None if sent is None else self._links.message(sent, view, frame)
        if message is None or sent is None:
            for records in view.fields:
                if records.records_end > records.records_start:
                    led = self._context.led.find(records.topic_id, records.partition)
                    self._count_inline(led, records.records_end - records.records_start, now_s)
                    metrics.responses.labels("inline").inc()
            return self._plain(frame, records_in(view))
        metrics.responses.labels("linked").inc()
        linked = [(partition, size) for partition, _, size in sent.linked]
        crossed_bytes = sum(map(len, sent.response.skeleton)) + sum(cut.length for cut in sent.response.cuts)
        crossed_bytes -= sum(size for _, size in linked)
        self._sent_links = _SentLinks(linked, sent.left_out, crossed_bytes, records_in(view))
        for partition, size in sent.inline:
            self._count_inline(partition, size, now_s)
        planned = {partition for partition, _ in (*linked, *sent.inline, *sent.left_out)}
        for records in view.fields:
            size = records.records_end - records.records_start
            if size and (records.topic_id, records.partition) not in planned:
                self._count_inline(self._context.led.find(records.topic_id, records.partition), size, now_s)
        metrics.relayed("response", SIZE_PREFIX.size + crossed_bytes, self.follower_id)
        return message

    def _count_links(self, now_s: float) -> None:
        """Count the links that were sent last, if any: the follower goes on, so it has read them."""
        sent, self._sent_links = self._sent_links, None
        if sent is not None:
            for partition, size in sent.linked:
                self._context.metrics.linked(partition, size, self.follower_id, now_s)
            self._context.metrics.relayed("response", sum(size for _, size in sent.linked), self.follower_id)

    def _count_original(self, sent: _SentLinks, frame_bytes: int) -> None:
        """Count what an original brings that the linked response did not."""
        metrics, now_s = self._context.metrics, self._context.clock()
        for partition, size in (*sent.linked, *sent.left_out):
            metrics.inline(partition, size, self.follower_id, InlineReason.HYDRATION_FAILED, now_s)
        metrics.relayed("response", frame_bytes - sent.crossed_bytes, self.follower_id)

    def _count_inline(self, partition: TopicIdPartition | None, size: int, now_s: float) -> None:
        if partition is None:
            reason = InlineReason.NOT_ENABLED
        elif self._has_agent:
            reason = self._links.why_inline(partition, self.follower_id)
        else:
            reason = InlineReason.NO_AGENT
        self._context.metrics.inline(partition, size, self.follower_id, reason, now_s)

    def _plain(self, frame: Buffer, records: Sequence[TopicRecords] | None) -> ToFollower:
        self._context.metrics.relayed("response", SIZE_PREFIX.size + len(frame), self.follower_id)
        return ToFollower(MessageKind.KAFKA, (frame,), records)


def _not_scanned(metrics: ReplicationMetrics, what: str, error: MalformedFrameError) -> None:
    """Count and log a frame that was not read. It is passed on unchanged, and its records go inline."""
    if isinstance(error, CostlyFrameError):
        metrics.fault(f"{what}_not_read_{error.bound}")
        log.warning("frame_not_read", frame=what, error=str(error))
    else:
        metrics.fault(f"{what}_not_understood")
        log.warning("frame_not_understood", frame=what, error=str(error))
