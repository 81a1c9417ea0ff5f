"""Brokers that follow one leader by way of its agent, played: a fetcher each, with its agent's end of the connection.

They speak what `replication.wire.peer_protocol` says, over connections of their own, and Kafka's Fetch with sessions,
as replica fetchers do. Of what is linked they read nothing but the headers of the batches, once for all of them, to
know where to go on: what a follower's agent does with a link (GET, checks, splice) is not here.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import RecordBatchHeader, scan_batches
from kafka_log.topic_partition import TopicId
from perf.fan_out.registered_brokers import RegisteredBroker
from plugin.wall_clock import wall_ms
from replication.wire.fetch_frame import MAX_FETCH_VERSION, scan_fetch_response
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, FramedConnection
from replication.wire.link import Cut, LinkedResponse, SegmentLink, decode_linked_response
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_protocol import Hello, MessageKind
from tests.simulation.replicas.kafka_frames import Asked, FetchRequest, KafkaError

_LINKED: Final = (MessageKind.LINKED, MessageKind.LINKED_OLD)
_MAX_WAIT_MS, _MAX_BYTES, _MAX_PARTITION_BYTES = 500, 10 * 1024 * 1024, 1024 * 1024
"""Kafka's defaults for replica fetchers."""
_UNKNOWN_TOPIC_ID: Final = 100
_TRANSIENT: Final = frozenset({KafkaError.NOT_LEADER_OR_FOLLOWER, _UNKNOWN_TOPIC_ID})
"""While a broker has not yet heard of a new topic."""
_ASK_AGAIN_S: Final = 0.2
_BEFORE_RECORDS = struct.Struct(">ihqqqBi")
"""Partition, error, three offsets, no aborted transactions, preferred replica: what stands before a records field."""
_SESSION = struct.Struct(">ibihi")  # correlation id, no tags, throttle time, error, session id


class PlayedFollowerError(Exception):
    """The leader, or its agent, did not do what a follower's broker could go on with."""


@dataclass(frozen=True, slots=True)
class Records:
    """What a follower learns of some bytes of a log."""

    next_offset: int
    appended_ms: float
    """The youngest record's time, by its producer's clock."""

    @classmethod
    def of(cls, raw: Buffer) -> "Records | None":
        """None: no whole batch."""
        batches = scan_batches(raw, 0, len(raw))
        if not batches:
            return None
        header = RecordBatchHeader.parse(raw, batches[-1].start)
        return cls(batches[-1].last_offset + 1, header.max_timestamp_ms)


class LinkedRecords:
    """What links stand for, read once for all followers."""

    def __init__(self, fetch: Callable[[SegmentLink], Buffer]) -> None:
        self._fetch = fetch
        self._known: dict[tuple[object, int, int], Records] = {}

    def of(self, link: SegmentLink) -> Records:
        """Raises PlayedFollowerError."""
        key = (link.object_id, link.start_position, link.length)
        if key not in self._known:
            found = Records.of(self._fetch(link))
            if found is None:
                raise PlayedFollowerError(f"{key} has no batches")
            self._known[key] = found
        return self._known[key]


@dataclass(slots=True)
class Tally:
    """What came, to all of them."""

    responses: int = 0
    """With records."""
    linked_bytes: int = 0
    inline_bytes: int = 0
    announcements: int = 0
    late_ms: list[float] = field(default_factory=list)
    """From a record's time until a follower has its link, or it: one for each partition of each response."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Whom they follow."""

    broker_id: int
    cluster_id: str
    agent: Address
    topic: str
    topic_id: TopicId


class PlayedFollower:
    """One broker with one fetcher."""

    def __init__(
        self,
        broker: RegisteredBroker,
        leader: Leader,
        partitions: Sequence[int],
        linked: LinkedRecords,
        clock_ms: Callable[[], float] = wall_ms,
    ) -> None:
        self._broker, self._leader = broker, leader
        self._offsets = dict.fromkeys(partitions, 0)
        self._linked = linked
        self._clock_ms = clock_ms
        self._unheard = set[int]()
        """Partitions that the broker did not know yet."""
        self.tally = Tally()

    async def follow(self) -> None:
        """For ever. Raises PlayedFollowerError, OSError."""
        connection = FramedConnection(2 * DEFAULT_MAX_FRAME_BYTES)
        await connect_framed(self._leader.agent, connection)
        try:
            own = Hello(self._leader.cluster_id, self._broker.broker_id, 1)
            await exchange_hellos(connection, own, self._leader.broker_id)
            await self._fetch_on(PeerChannel(connection))
        finally:
            connection.close()

    async def _fetch_on(self, channel: PeerChannel) -> None:
        session_id = session_epoch = correlation_id = 0
        wanted = list(self._offsets)
        while True:
            correlation_id += 1
            channel.send(MessageKind.KAFKA, self._request(correlation_id, session_id, session_epoch, wanted))
            kind, body = await self._response(channel)
            session_id, changed = self._linked_came(body) if kind in _LINKED else self._frame_came(body)
            session_epoch += 1
            wanted = [*changed, *self._unheard]
            if self._unheard:
                self._unheard.clear()
                await asyncio.sleep(_ASK_AGAIN_S)
            self._offsets |= {number: found.next_offset for number, found in changed.items()}
            if changed:
                self.tally.responses += 1
                now_ms = self._clock_ms()
                self.tally.late_ms += [now_ms - found.appended_ms for found in changed.values()]

    def _request(self, correlation_id: int, session_id: int, session_epoch: int, wanted: Sequence[int]) -> bytes:
        asked = [Asked(one, -1, self._offsets[one], -1, 0, _MAX_PARTITION_BYTES) for one in wanted]
        request = FetchRequest(
            MAX_FETCH_VERSION - 1, correlation_id, self._broker.broker_id, _MAX_WAIT_MS, 1, _MAX_BYTES, session_id,
            session_epoch, asked, replica_epoch=self._broker.epoch,
        )  # fmt: skip
        return request.encode(self._leader.topic, self._leader.topic_id)

    async def _response(self, channel: PeerChannel) -> tuple[MessageKind, memoryview]:
        while True:
            message = await channel.receive()
            if message is None:
                raise PlayedFollowerError(f"the leader's agent left broker {self._broker.broker_id}")
            if message[0] in (MessageKind.KAFKA, *_LINKED):
                return message
            self.tally.announcements += 1

    def _linked_came(self, body: memoryview) -> tuple[int, dict[int, Records]]:
        response = decode_linked_response(body, 2 * DEFAULT_MAX_FRAME_BYTES)
        skeleton = b"".join(response.skeleton)
        _, _, _, error, session_id = _SESSION.unpack_from(skeleton)
        _expect_no_error(error)
        changed = {}
        for number, cut in cut_partitions(response, skeleton):
            if (found := self._records_of(cut)) is not None:
                changed[number] = found
        return session_id, changed

    def _records_of(self, cut: Cut) -> Records | None:
        found = None
        for part in cut.parts:
            if isinstance(part, SegmentLink):
                self.tally.linked_bytes += part.length
                found = self._linked.of(part)
            else:
                self.tally.inline_bytes += part.length
                found = Records.of(part.data) or found
        return found

    def _frame_came(self, frame: memoryview) -> tuple[int, dict[int, Records]]:
        view = scan_fetch_response(frame, MAX_FETCH_VERSION - 1)
        _expect_no_error(view.error_code)
        changed = {}
        for one in view.fields:
            if one.error_code in _TRANSIENT:
                self._unheard.add(one.partition)
                continue
            _expect_no_error(one.error_code)
            found = Records.of(frame[one.records_start : one.records_end])
            if found is not None:
                self.tally.inline_bytes += one.records_end - one.records_start
                changed[one.partition] = found
        return view.session_id, changed


def cut_partitions(response: LinkedResponse, skeleton: bytes) -> list[tuple[int, Cut]]:
    """Whose records were cut out where, by what stands before each cut. Raises PlayedFollowerError."""
    found = []
    for cut in response.cuts:
        fields = _BEFORE_RECORDS.unpack_from(skeleton, cut.skeleton_position - _BEFORE_RECORDS.size)
        _expect_no_error(fields[1])
        found.append((fields[0], cut))
    return found


def _expect_no_error(error: int) -> None:
    if error:
        raise PlayedFollowerError(f"the leader's broker answers with error {error}")
