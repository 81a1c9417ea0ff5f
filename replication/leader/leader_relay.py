"""Relays one connection from another agent to the local broker, as the `RelayCore` decides."""

import asyncio
from collections.abc import Callable, Generator, Iterator

import structlog

from kafka_log.crc32c import Buffer
from plugin.format.archive_object_id import StoredObjectId
from replication.leader.catch_up import FollowerCatchUp
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import WaitForUploads
from replication.leader.read_ahead import ReadAhead
from replication.leader.relay_core import RelayCore
from replication.leader.response_links import ToFollower
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.fetch_frame import FETCH_API_KEY, MAX_FETCH_VERSION, replica_of
from replication.wire.framed_connection import FramedConnection, run_until_one_ends, until_idle
from replication.wire.idle_fetch import (
    IDLE_MESSAGE_BYTES,
    MAX_IDLE_BYTES,
    WHOLE_EPOCHS,
    IdleRequest,
    response_numbers,
)
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header
from replication.wire.metrics import PeerByteCount, ReplicationMetrics
from replication.wire.peer_channel import PeerChannel, PlainFrames
from replication.wire.peer_protocol import MessageKind, PeerCapabilities, ZoneReading
from rlm.write_path.uploads.segment_queue import UploadedSegment

log = structlog.get_logger(__name__)

ITEMS_IN_A_STEP = 1024
"""So many items take about two milliseconds."""
_FETCH = "Fetch"


class OwnFetches:
    """Checks that a peer whose certificate names a broker fetches only as that broker's replica.

    A peer that fetches as another broker's replica could make Kafka count records as replicated that are not: the high
    watermark would be too high, and one crash could lose acknowledged records. So under TLS each Fetch is read up to
    its replica id, however large it is. Large ones are read in steps, so that all other connections get their turn. A
    Fetch version that is newer than this agent is counted, and read as the newest that it knows, because Kafka has only
    added tagged fields since: if it names another replica, it is refused. A frame that cannot be read that way is
    passed on: the broker may be newer, too, and must keep working.
    """

    def __init__(self, broker_id: int | None, metrics: ReplicationMetrics) -> None:
        """`broker_id` is None if no certificate proves the peer's broker; then nothing is checked."""
        self._broker_id = broker_id
        self._metrics = metrics

    def check(self, frame: Buffer) -> Iterator[None]:
        """Check, step by step, whether this request names the peer's own replica. Raises RequestRefusedError,
        MalformedFrameError."""
        if self._broker_id is None:
            return
        header = parse_request_header(frame)
        if header.api_key != FETCH_API_KEY:
            return
        is_newer = header.api_version > MAX_FETCH_VERSION
        if is_newer:
            self._metrics.fault("fetch_version_unknown")
        try:
            replica_id = yield from _in_steps(replica_of(frame, header.api_version))
        except RequestRefusedError:
            if is_newer:
                return
            raise
        if replica_id >= 0 and replica_id != self._broker_id:
            raise RequestRefusedError(_FETCH, f"a Fetch of replica {replica_id} from broker {self._broker_id}'s agent")


def _in_steps(walk: Generator[None, None, int]) -> Generator[None, None, int]:
    looked = 0
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return int(end.value)
        except MalformedFrameError as error:
            raise RequestRefusedError(_FETCH, f"a Fetch that does not say of which replica: {error}") from error
        looked += 1
        if looked % ITEMS_IN_A_STEP == 0:
            yield


async def decided(
    look_again: Callable[[float], ToFollower | WaitForUploads],
    step: ToFollower | WaitForUploads,
    context: LeaderContext,
    peer: FramedConnection,
    begin_reads: Callable[[], None],
    send: Callable[[ToFollower], None] | None = None,
) -> ToFollower:
    """Wait until the decision about a response is final, and return the message to send to `peer`.

    `step` is the decision so far, and `look_again` decides again at a time. `begin_reads` is called whenever that may
    have found something to read. If `send` is given, it sends the message: a response that waited for an upload then
    goes out in the same turn of the event loop as the announcement. Raises ConnectionResetError when the peer is gone
    meanwhile.
    """
    clock = context.clock
    begin_reads()
    if isinstance(step, WaitForUploads):
        found: list[ToFollower] = []

        def look() -> float | None:
            if peer.error is not None:
                raise ConnectionResetError("the reader's agent is gone")
            step = look_again(clock())
            begin_reads()
            if isinstance(step, WaitForUploads):
                return step.until_s - clock()
            if send is not None:
                send(step)
            found.append(step)
            return None

        await context.uploads.wait_until(look, step.until_s - clock())
        return found[0]
    if send is not None:
        send(step)
    return step


_IDLE_PLACE = 2
"""Index of the idle check among the tasks of a relay."""
_LARGE_REQUEST_BYTES = 8 * 1024
"""Reading a larger request takes milliseconds, so all other connections get their turn before the next one."""


class LeaderRelay:
    """Relays one connection between another agent and the local broker."""

    def __init__(
        self,
        context: LeaderContext,
        peer: FramedConnection,
        broker: FramedConnection,
        capabilities: PeerCapabilities | None,
        watermarks: WatermarkTimes,
        broker_id: int | None = None,
        *,
        is_proven: bool = False,
    ) -> None:
        """`capabilities` are those that both agents have, and `broker_id` is the other's broker; None for a peer that
        is no agent.

        `is_proven`: the peer's certificate names that broker.
        """
        self._context = context
        self._broker = broker
        self._channel: PeerChannel = PlainFrames(peer)
        self._peer_bytes = PeerByteCount(context.metrics, "leader", peer)
        self._catch_up: FollowerCatchUp | None = None
        self.read_ahead: ReadAhead | None = None
        if context.catch_up is not None and capabilities and PeerCapabilities.LINKS in capabilities:
            notify = context.uploads.notify
            self._catch_up = FollowerCatchUp(context.catch_up, self.announce_ahead, notify, capabilities)
            self.read_ahead = self._catch_up.plan
        self.peer = peer
        self._own = OwnFetches(broker_id if is_proven else None, context.metrics)
        self.core = RelayCore(context, capabilities, watermarks, self.read_ahead)
        self._idle = IdleRequest()
        if broker_id is not None:
            self._channel = context.channel(peer, broker_id, is_follower=True)
            peer.on_lone_frame, broker.on_lone_frame = self._idle_request, self._idle_response

    async def run(self, first_request: Buffer | None) -> None:
        """Relay until either side ends. `first_request` was read already, from a peer without a hello."""
        if first_request is not None:
            await self._ask(first_request)
        try:
            idle = until_idle((self.peer, self._broker), self._context.limits.idle_timeout_s)
            ended = await run_until_one_ends(self._relay_requests(), self._relay_responses(), idle)
            if ended == {_IDLE_PLACE}:
                self._context.metrics.fault("peer_idle")
                log.info("peer_idle", follower=self.core.follower_id)
        finally:
            if self._catch_up is not None:
                self._catch_up.close()
            self.core.close()
            self._peer_bytes.update(self.core.follower_id)
            self._context.metrics.connection_ended("peer", self.peer.error)
            self._context.metrics.connection_ended("broker", self._broker.error)

    def announce(
        self, segment: UploadedSegment, ranges: list[tuple[int, int]], zone: ZoneReading | None = None
    ) -> None:
        """Announce the ranges of a segment that the follower will get links to, and which agents of its zone share
        the read."""
        self._tell(self.core.announced(segment, ranges, zone))

    def announce_ahead(
        self, object_id: StoredObjectId, ranges: list[tuple[int, int]], custom_metadata: bytes = b""
    ) -> None:
        """Announce to the agent of a follower that is far behind the ranges that it will get links to."""
        if self.peer.is_writable:
            self._tell(self.core.read_ahead(object_id, ranges, custom_metadata))

    def _tell(self, announcement: ToFollower) -> None:
        self.send(announcement)
        self._peer_bytes.update(self.core.follower_id)

    async def _relay_requests(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._peer_bytes.update(self.core.follower_id)
            kind, body = message
            if kind is MessageKind.IDLE_REQUEST:
                kind, body = MessageKind.KAFKA, memoryview(self._idle.frame(body))
            elif kind is MessageKind.KAFKA and len(body) <= MAX_IDLE_BYTES:
                self._idle.note(body)
            if kind is MessageKind.KAFKA:
                await self._ask(body)
            else:
                answer = self.core.control(kind, body)
                if answer is not None:
                    self.send(answer)
                self._context.uploads.notify()  # whether links are given may have changed
            await self._broker.drain()
            if len(body) > _LARGE_REQUEST_BYTES:
                await asyncio.sleep(0)

    def _idle_request(self, payload: memoryview) -> bool:
        """Pass on a request without partitions, if nothing is under way."""
        is_idle = payload[0] == MessageKind.IDLE_REQUEST and len(payload) == IDLE_MESSAGE_BYTES
        if not is_idle or payload[5:] in WHOLE_EPOCHS:
            return False
        number = int.from_bytes(payload[1:5], "big", signed=True)
        if not self.core.passes_idle_request(self._idle, number, self._context.clock()):
            return False
        self._broker.write_frame(self._idle.frame(payload[1:]))
        return True

    def _idle_response(self, frame: memoryview) -> bool:
        """Pass on a response without partitions to a request without."""
        numbers = response_numbers(frame)
        if numbers is None:
            return False
        number = int.from_bytes(numbers[:4], "big", signed=True)
        if not self.core.passes_idle_response(number, self._context.clock()):
            return False
        self._channel.send_short(MessageKind.IDLE_RESPONSE, numbers)
        return True

    async def _ask(self, frame: Buffer) -> None:
        for _ in self._own.check(frame):
            await asyncio.sleep(0)
        frame = self.core.request(frame, self._context.clock())
        self._broker.write_frame(frame)
        self.core.request_sent(len(frame))

    async def _relay_responses(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            step = self.core.response(frame, self._context.clock())
            await decided(self.core.look_again, step, self._context, self.peer, self._begin_reads, self.send)
            await self._channel.drain()
            self._peer_bytes.update(self.core.follower_id)

    def _begin_reads(self) -> None:
        if self._catch_up is not None:
            self._catch_up.begin_reads()

    def send(self, message: ToFollower) -> None:
        """Send a message. Raises ConnectionError."""
        self._channel.send(message.kind, *message.body, records=message.records)
