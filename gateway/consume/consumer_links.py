"""Replaces records in a client's Fetch responses by links, at the agent beside its broker. Sans-IO.

It takes the frames for the broker, the broker's responses, and the time, and returns what to send to the gateway, or
until when to wait for uploads.

A response changes only in which of its records come at once. A batch comes as the broker sent it, inline or by a link
(`ResponseLinks`), or the consumer asks for it again, as for one that was cut off. So isolation, aborted transactions,
watermarks, sessions, throttling and errors are the broker's own.

A response is linked only when its Fetch is the only one under way, as always with the clients we know; then the next
Fetch means that it arrived. A client that sends several Fetch requests ahead gets everything inline, or has to
reconnect when its gateway cannot read an object.

`ReadWorth` decides whether links in an answer are worth the reads that they cost. A broker's followers read an object
for many partitions at once; a consumer may want some bytes of each. So an answer is linked only if its bytes, divided
by the objects that it names, are worth a read each.

At the end of the log, a fast consumer gets small answers: after an inline one it asks again within milliseconds, before
much has come. So there the bytes that an upload's interval brings at the recent rate must be worth a read. Answers that
wait for links then hold that many.
"""

import struct
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.client_protocol import ClientSide
from gateway.metrics import ConsumeMetrics
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import SendLinked, WaitForUploads
from replication.leader.read_ahead import ReadAhead
from replication.leader.response_links import ResponseLinks, ToFollower
from replication.wire.fetch_frame import (
    FETCH_API_KEY,
    RECORDS_API_KEYS,
    FetchResponseView,
    records_in,
    scan_fetch_response,
    understands_fetch,
)
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import InlineBytes
from replication.wire.link_defects import LinkDefects
from replication.wire.peer_protocol import MessageKind, PeerCapabilities
from rlm.write_path.commit.bandwidth import RateMeter

_TIME_CONSTANT_S = 1.0


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """What a read of an object costs and a byte across zones, by the price table."""

    read_bytes: int
    """How many inline bytes cost as much as a read."""
    interval_s: float
    """The interval of uploads."""


class ReadWorth:
    """Decides for one connection whether links pay for their reads. All times are monotonic seconds."""

    def __init__(self, costs: ReadCosts) -> None:
        self._costs = costs
        self._rate = RateMeter(_TIME_CONSTANT_S)

    def answered(self, record_bytes: int, now_s: float) -> None:
        """Record the size of the records in a response of the broker."""
        self._rate.add(record_bytes, now_s)

    def pays(self, record_bytes: int, reads: int, now_s: float) -> bool:
        """Whether links to this many bytes of a response pay for this many reads."""
        expected_bytes = self._rate.bytes_per_second(now_s) * self._costs.interval_s
        return max(record_bytes, expected_bytes) >= reads * self._costs.read_bytes


log = structlog.get_logger(__name__)

_BEGIN: Final = struct.Struct(">hh")  # api key, api version
_MAX_UNDER_WAY: Final = 16
"""The most Fetch requests under way on a connection; with more it is no consumer that we know."""


@dataclass(frozen=True, slots=True)
class AskedFetch:
    """A note on a Fetch request that was sent to the broker."""

    api_version: int
    sent_s: float


Asked = AskedFetch | bool
"""What is known of a request. A bool: its response passes as it is; whether it may have records."""


@dataclass(frozen=True, slots=True)
class _AtHand:
    """A response that may wait."""

    frame: Buffer
    view: FetchResponseView

    @property
    def record_bytes(self) -> int:
        return sum(records.records_end - records.records_start for records in self.view.fields)


class ConsumerLinks:
    """Decides on links in the Fetch responses of one consumer's connection. All times are monotonic seconds."""

    def __init__(
        self,
        context: LeaderContext,
        side: ClientSide,
        metrics: ConsumeMetrics,
        costs: ReadCosts,
        read_ahead: ReadAhead | None,
    ) -> None:
        """`context` is the one for followers; `read_ahead` finds batches that the link index does not hold."""
        self._worth = ReadWorth(costs)
        self._context = context
        self._side = side
        self._metrics = metrics
        self._fetches = 0
        """Fetch requests under way."""
        self._at_hand: _AtHand | None = None
        self._is_understood = True
        """Whether the client's Fetch requests are understood."""
        self._defects = LinkDefects(context.metrics, context.clock)
        self._is_linked = bool(side.capabilities & (PeerCapabilities.LINKED_FETCH | PeerCapabilities.VISIBLE))
        links = side.capabilities | PeerCapabilities.LINKS
        self._links = ResponseLinks(context, self._defects, links, read_ahead)

    def close(self) -> None:
        """Release all memory, because the connection ended."""
        self._links.arrived()

    def control(self, kind: MessageKind, body: Buffer) -> ToFollower | None:
        """Handle a message of the gateway about links; returns what to send back. Raises MalformedFrameError,
        ConnectionResetError."""
        frame = self._links.control(kind, body)
        if frame is None:
            return None
        self._count("original", len(frame))
        return ToFollower(MessageKind.ORIGINAL, (frame,), None)

    def asked(self, frame: Buffer, now_s: float) -> Asked:
        """Return a note on a request that is about to be sent to the broker; the frame's beginning is enough."""
        api_key, api_version = _BEGIN.unpack_from(frame) if len(frame) >= _BEGIN.size else (None, 0)
        if api_key != FETCH_API_KEY:
            return api_key in RECORDS_API_KEYS
        self._is_understood = understands_fetch(api_version)
        if not self._is_understood:
            return True
        self._links.arrived()
        if self._fetches >= _MAX_UNDER_WAY:
            return True
        self._fetches += 1
        return AskedFetch(api_version, now_s)

    def response(self, frame: Buffer, what: Asked, now_s: float) -> ToFollower | WaitForUploads:
        """Decide about the broker's response: return the message to send, or until when to wait for `look_again`.

        `what` is the note that `asked` returned for its request. No other response may come before the message is sent.
        """
        if isinstance(what, bool):
            if not self._is_understood:
                self._metrics.traffic.fetched(self._side.zone, len(frame), None)
            return ToFollower(MessageKind.KAFKA, (frame,), None if what else ())
        self._fetches -= 1
        try:
            view = scan_fetch_response(frame, what.api_version)
        except MalformedFrameError as error:
            self._context.metrics.fault("response_not_understood")
            log.warning("frame_not_understood", frame="response", error=str(error))
            return ToFollower(MessageKind.KAFKA, (frame,), None)
        self._at_hand = at_hand = _AtHand(frame, view)
        self._tell_traffic(view)
        self._worth.answered(at_hand.record_bytes, now_s)
        if not self._is_linked or not self._is_worth(at_hand, at_hand.record_bytes, 1, now_s):
            return self._answer(None)
        self._tell_readers(view)
        gateway_id = self._side.gateway.broker_id
        if not self._fetches and self._links.begin(frame, view, gateway_id, what.sent_s, now_s):
            return self.look_again(now_s)
        return self._answer(None)

    def _is_worth(self, at_hand: _AtHand, record_bytes: int, reads: int, now_s: float) -> bool:
        """Whether linking so many bytes of a response pays for so many reads, or links are wanted at any price."""
        led = self._context.led
        return self._worth.pays(record_bytes, reads, now_s) or any(
            led.is_always_linked(partition)
            for records in at_hand.view.fields
            if (partition := led.find(records.topic_id, records.partition)) is not None
        )

    def look_again(self, now_s: float) -> ToFollower | WaitForUploads:
        """Decide again about the waiting response, after an upload, a changed mode, or at its time."""
        step = self._links.step(self._side.gateway.broker_id, now_s)
        if isinstance(step, WaitForUploads):
            return step
        if step is not None and self._at_hand is not None:
            linked_bytes = sum(size for _, _, size in step.linked)
            reads = len({link.object_id for link in step.response.links})
            if self._fetches or not self._is_worth(self._at_hand, linked_bytes, reads, now_s):
                step = None
        return self._answer(step)

    def _tell_traffic(self, view: FetchResponseView) -> None:
        """Count which of a response's records have a replica in the consumer's zone."""
        zone = self._side.zone
        for records in view.fields:
            size, has_replica = records.records_end - records.records_start, None
            if records.topic_id is not None:
                partition = TopicIdPartition(TopicId(records.topic_id), records.partition)
                has_replica = self._context.zones.has_replica(zone, partition)
            self._metrics.traffic.fetched(zone, size, has_replica)

    def _tell_readers(self, view: FetchResponseView) -> None:
        readers = self._context.zones.readers
        if readers is None:
            return
        for records in view.fields:
            partition = self._context.led.find(records.topic_id, records.partition)
            if partition is not None and records.records_end > records.records_start:
                readers.read(partition, self._side.gateway.broker_id)

    def _answer(self, sent: SendLinked | None) -> ToFollower:
        if self._at_hand is None:
            raise RuntimeError("no response waits")
        at_hand, self._at_hand = self._at_hand, None
        record_bytes = at_hand.record_bytes
        message = None if sent is None else self._links.message(sent, at_hand.view, at_hand.frame)
        if sent is None or message is None:
            self._count("inline", record_bytes)
            return ToFollower(MessageKind.KAFKA, (at_hand.frame,), records_in(at_hand.view))
        cut_bytes = len(at_hand.frame) - sum(map(len, sent.response.skeleton))
        parts = [part for cut in sent.response.cuts for part in cut.parts]
        inline_bytes = sum(part.length for part in parts if isinstance(part, InlineBytes))
        self._count("linked", sum(size for _, _, size in sent.linked))
        self._metrics.record_bytes.labels(self._side.zone, "inline").inc(
            max(record_bytes - cut_bytes, 0) + inline_bytes
        )
        # A consumer is never told to read with restraint.
        return ToFollower(MessageKind.LINKED, message.body, message.records)

    def _count(self, way: str, record_bytes: int) -> None:
        if record_bytes:
            self._metrics.record_bytes.labels(self._side.zone, way).inc(record_bytes)
            self._metrics.responses.labels(self._side.zone, way).inc()
