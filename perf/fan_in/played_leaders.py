"""Leaders' agents that are played, and the replica fetchers of the broker that follows them.

Each leader stores an object at the pace that it is told, announces it, and answers the next Fetch with a linked
response to what it holds for this follower: as many partitions as it has of the leader, in as many ranges. Its other
bytes nobody reads, so they stand for a gap alone. A fetcher asks on as soon as it was answered, and holds each answer
against the bytes that the leader's broker would have sent.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.frame_inbox import SIZE_PREFIX
from replication.wire.framed_connection import FramedConnection
from replication.wire.link import Cut, LinkedResponse, SegmentLink, encode_linked_response
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import CAPABILITIES, Announcement, Hello, MessageKind, PeerCapabilities
from replication.wire.shared_reads import ZoneReading
from tests.kafka_log.batches import batch
from tests.simulation.replicas.kafka_frames import Answered, Asked, FetchRequest, FetchResponse

CLUSTER: Final = "fan-in"
FOLLOWER: Final = 1
NEIGHBOUR: Final = 1_000_000
"""The agent of the follower's zone that reads for it, where reads are shared."""
TOPIC_ID: Final = TopicId(b"fan-in-topic-id!")
HELLO_CAPABILITIES: Final = CAPABILITIES | PeerCapabilities.SHARED_READS
_VERSION: Final = 17
_GAP: Final = batch(payload=bytes(1000))


class PlayedLeaderError(Exception):
    """The agent did not give its broker what the leader sent."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one object holds for the follower."""

    objects_per_s: float
    partitions: int
    ranges: int
    record_bytes: int
    """Of each partition."""
    is_read_by_neighbour: bool = False


@dataclass(slots=True)
class Tally:
    """What came."""

    objects: int = 0
    bytes: int = 0
    late_ms: list[float] = field(default_factory=list)
    """From an object's announcement until the broker has all that it holds for it."""


@dataclass(frozen=True, slots=True)
class _Stored:
    announcement: Announcement
    frame: bytes
    """As the leader's broker would answer, but for the correlation id."""
    linked: LinkedResponse
    at_s: float


class PlayedLeader:
    """One leader's agent, and its one follower's fetcher. In the event loop alone."""

    def __init__(self, broker_id: int, share: Share, storage: LocalWalStorageManager) -> None:
        self.broker_id = broker_id
        self.tally = Tally()
        self.flows = asyncio.Event()
        """Its follower was given something."""
        self._share, self._storage = share, storage
        self._sequence = 0
        self._stored: list[_Stored] = []
        self._came = asyncio.Event()
        self._sent: _Stored | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel: PeerChannel | None = None

    async def start(self) -> Address:
        """Where the agent finds it."""
        loop = asyncio.get_running_loop()

        def accepted(connection: FramedConnection) -> None:
            self._tasks.add(loop.create_task(self._serve(connection)))

        self._server = await loop.create_server(lambda: FramedConnection(on_connected=accepted), "127.0.0.1", 0)
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def _serve(self, connection: FramedConnection) -> None:
        await connection.read_frame()
        connection.write_frame(Hello(CLUSTER, self.broker_id, 1, HELLO_CAPABILITIES).encode())
        self._channel = PeerChannel(connection)
        while (message := await self._channel.receive()) is not None:
            kind, body = message
            if kind is not MessageKind.KAFKA:
                raise PlayedLeaderError(f"{kind.name}: the agent could not read an object")
            request = FetchRequest.decode(bytes(body))
            while not self._stored:
                self._came.clear()
                await self._came.wait()
            self._sent = self._stored.pop(0)
            skeleton = request.correlation_id.to_bytes(4, "big") + b"".join(self._sent.linked.skeleton)[4:]
            linked = LinkedResponse(self._sent.linked.original_frame_bytes, self._sent.linked.cuts, (skeleton,))
            self._channel.send(MessageKind.LINKED, *encode_linked_response(linked))

    async def store_on(self) -> None:
        """An object each interval, for ever."""
        interval_s = 1 / self._share.objects_per_s
        due_s = time.monotonic() + interval_s * (self.broker_id % 16) / 16
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + interval_s, time.monotonic())
            if self._channel is None or len(self._stored) > 1:
                continue  # what could not come in time does not come
            stored = self._store()
            announcement = stored.announcement
            if self._share.is_read_by_neighbour:
                zone = ZoneReading((NEIGHBOUR, FOLLOWER), announcement.ranges)
                self._channel.send(MessageKind.ANNOUNCE_SHARED, zone.encode(), announcement.encode())
            else:
                self._channel.send(MessageKind.ANNOUNCE, announcement.encode())
            self._stored.append(stored)
            self._came.set()

    def _store(self) -> _Stored:
        """Partitions in so many ranges, with another one's records between these."""
        share, segment_id = self._share, CombinedSegmentId(self.broker_id, 1, self._sequence)
        raw = batch(self._sequence, payload=bytes(share.record_bytes))
        starts_range = {number * share.partitions // share.ranges for number in range(share.ranges)}
        records: list[bytes] = []
        partitions: list[int] = []
        for number in range(share.partitions):
            if number in starts_range:
                partitions.append(share.partitions + number)
                records.append(_GAP)
            partitions.append(number)
            records.append(raw)
        entries = tuple(
            RemoteLogSegmentMetadataEntry(TopicIdPartition(TOPIC_ID, one), 0, self._sequence, self._sequence, -1, -1, 0)
            for one in partitions
        )
        started = RemoteWalCombinedLogSegmentMetadata(
            segment_id, entries, RemoteLogSegmentState.COPY_SEGMENT_STARTED, 0
        )
        update = self._storage.copy_log_segment_data(started, records)
        self._sequence += 1
        own = [one for one in update.entries if one.topic_id_partition.partition < share.partitions]
        links = [SegmentLink(segment_id, one.start_file_position, len(raw), crc32c(raw)) for one in own]
        frame = FetchResponse(0, 0, 3, [Answered(number, 0, 0, 0, raw) for number in range(share.partitions)])
        encoded = frame.encode(_VERSION, "fan-in", TOPIC_ID)
        ranges = [(one.start_file_position, one.end_file_position) for one in own]
        return _Stored(Announcement(segment_id, _joined(ranges)), encoded, _linked(encoded, links), time.monotonic())

    async def fetch_on(self, agent: Address) -> None:
        """The follower's fetcher, for ever. Raises PlayedLeaderError, asyncio.IncompleteReadError."""
        reader, writer = await asyncio.open_connection(agent.host, agent.port)
        asked = [Asked(number, -1, 0, -1, 0, 1 << 20) for number in range(self._share.partitions)]
        correlation_id = 0
        while True:
            correlation_id += 1
            request = FetchRequest(_VERSION, correlation_id, FOLLOWER, 500, 1, 10 << 20, 0, -1, asked)
            frame = request.encode("fan-in", TOPIC_ID)
            writer.write(SIZE_PREFIX.pack(len(frame)) + frame)
            (size,) = SIZE_PREFIX.unpack(await reader.readexactly(SIZE_PREFIX.size))
            answer = await reader.readexactly(size)
            sent = self._sent
            if sent is None or answer[4:] != sent.frame[4:]:
                raise PlayedLeaderError(f"broker {self.broker_id}'s follower was given other bytes than were sent")
            self.flows.set()
            self.tally.objects += 1
            self.tally.bytes += self._share.partitions * self._share.record_bytes
            self.tally.late_ms.append(1000 * (time.monotonic() - sent.at_s))


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _linked(frame: bytes, links: Sequence[SegmentLink]) -> LinkedResponse:
    """The frame with its records fields cut out, a link in the place of each."""
    skeleton, cuts, position = bytearray(), list[Cut](), 0
    for one, link in zip(scan_fetch_response(frame, _VERSION).fields, links, strict=True):
        skeleton += frame[position : one.length_start]
        cuts.append(Cut(len(skeleton), (link,)))
        position = one.records_end
    skeleton += frame[position:]
    return LinkedResponse(len(frame), tuple(cuts), (bytes(skeleton),))


def opened(directory: Path, broker_id: int) -> LocalWalStorageManager:
    """The store, as a broker's agent has it."""
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(directory), "startup.self.test": "false"}, StorageContext(CLUSTER, broker_id))
    return storage
