"""Both proxies over real sockets: a scripted leader's broker, two agents' ends, and a bare follower's connection.

follower's connection -> FollowerProxy -> LeaderProxy -> ScriptedBroker
                              |                 ^
                         MemoryStorage  <- Agents.store
"""

import asyncio
import contextlib
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from kafka_log.batch_digests import batch_digests
from kafka_log.record_batch import scan_batches
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.follower_context import FollowerContext, FollowerLimits
from replication.follower.follower_proxy import FollowerProxy
from replication.follower.hydration import HydrationCache
from replication.follower.leader_bypass import Bypass, RouteLimits
from replication.follower.tiers import ArchiveReads
from replication.leader.catch_up import CatchUp
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.leader_proxy import LeaderProxy
from replication.leader.link_index import LinkIndex
from replication.leader.upload_signal import UploadSignal
from replication.leader.zones import Zones
from replication.wire.broker_requests import BrokerRequests
from replication.wire.circuit_breaker import BreakerLimits
from replication.wire.fetch_frame import FETCH_API_KEY, scan_fetch_request
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import parse_request_header
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.packing import Packing
from replication.wire.peer_connection import Address, KnownPeers
from replication.wire.peer_protocol import Hello
from replication.wire.request_order import is_answered
from rlm.write_path.metrics import StageTimes
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from tests.metric_values import metric_value
from tests.replication.fake_led import FakeLed
from tests.replication.fetch_frames import partition, request, response
from tests.rlm.memory_storage import MemoryStorage

PATIENCE_S = 60
LOOPBACK = Address("127.0.0.1", 0)


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None at the end, also in the middle of one."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class ScriptedBroker:
    """Answers Fetch requests from its logs; anything else by an echo of the correlation id."""

    def __init__(self) -> None:
        self.logs: dict[int, bytes] = {}
        self.requests: list[bytes] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.answer: Callable[[bytes], bytes | None] = self.answer_from_logs
        self.half_answers = False
        """Send the first half of each answer, then close."""
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> Address:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    def answer_from_logs(self, frame: bytes) -> bytes | None:
        header = parse_request_header(frame)
        if not is_answered(frame):
            return None
        if header.api_key != FETCH_API_KEY:
            return struct.pack(">i", header.correlation_id) + b"some other answer"
        records: dict[int, bytes | None] = {}
        for wanted in scan_fetch_request(frame, header.api_version).partitions:
            log = self.logs.get(wanted.partition, b"")
            spans = [s for s in scan_batches(log, 0, len(log)) if s.last_offset >= wanted.fetch_offset]
            records[wanted.partition] = log[spans[0].start :] if spans else b""
        return response(records, version=header.api_version, correlation_id=header.correlation_id)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while (frame := await read_frame(reader)) is not None:
                self.requests.append(frame)
                await self.go_on.wait()
                answer = self.answer(frame)
                if answer is None:
                    continue
                raw = framed(answer)
                writer.write(raw[: len(raw) // 2] if self.half_answers else raw)
                if self.half_answers:
                    break


@dataclass
class Follower:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    correlation_id: int = field(default=100)

    def send(self, offsets: dict[int, int], **changes: Any) -> int:
        self.correlation_id += 1
        self.writer.write(framed(request(offsets, correlation_id=self.correlation_id, **changes)))
        return self.correlation_id

    async def receive(self) -> bytes | None:
        return await read_frame(self.reader)

    async def fetch(self, offsets: dict[int, int], **changes: Any) -> bytes | None:
        self.send(offsets, **changes)
        return await self.receive()

    def expected(self, records: dict[int, bytes | None], version: int = 17) -> bytes:
        """The answer that the leader's broker gives to the last request."""
        return response(records, version=version, correlation_id=self.correlation_id)


class Agents:
    def __init__(self) -> None:
        self.broker, self.storage, self.led = ScriptedBroker(), MemoryStorage(), FakeLed()
        self.now_s = 1000.0
        """The leader's and the hydration cache's clock."""
        self.leader_metrics = ReplicationMetrics(CollectorRegistry())
        registry = CollectorRegistry()
        self.follower_metrics = ReplicationMetrics(registry)
        self.stage_times = StageTimes(registry)
        self.leader_stage_times = StageTimes(self.leader_metrics.registry)
        self.archive: ArchiveReads | None = None
        """The follower's."""
        self.read_from: RemoteWalStorageManager | None = None
        """What the follower's agent reads combined segments by, where it is not `storage` itself."""
        self.catch_up_read_limits = CatchUpReadLimits(
            reads=2, bytes_per_s=10_000_000, under_way_bytes=1_000_000, wait_max_s=0.5
        )
        self.catch_up: CatchUp | None = None
        """What the leader's agent knows beside its index; made by the test."""
        self.index, self.uploads = LinkIndex(), UploadSignal()
        self.limits = LeaderLimits(link_wait_max_s=0.5, break_even_bytes=1, gather_max_ms=25, range_gap_bytes=1000)
        self.follower_limits = FollowerLimits(hydration_timeout_s=5.0, restart_s=0.0)
        self.leader_budget, self.follower_budget, self.request_budget = (MemoryBudget() for _ in range(3))
        self.requests = BrokerRequests()
        self.zones = Zones()
        self.packing: Packing | None = None
        """Of both agents."""
        self.leader_hello = Hello("cluster", 1, 11)
        self.follower_hello = Hello("cluster", 2, 22)
        self.leader_address = self.follower_address = LOOPBACK
        self.bypass_limits: RouteLimits | None = None
        """Where the follower's agent may bypass the leader's."""
        self.bypass_ahead_s = 0.0
        """How much further the clock of the bypass is than the machine's."""
        self.bypass_login: Callable[[FramedConnection], Awaitable[None]] | None = None
        self.bypass_is_registered = False
        """Whether a way past the leader's agent is none that was listed at the start."""
        self.leader_tls: Callable[[], ssl.SSLContext] | None = None
        self.follower_tls: Callable[[], ssl.SSLContext] | None = None
        self.broker_listens_by: ssl.SSLContext | None = None
        """The scripted broker's own TLS, and below how the agents speak to their brokers."""
        self.dials_broker_by: Callable[[], ssl.SSLContext | None] = lambda: None
        self.broker_name: str | None = None
        self.poses_by: Callable[[], ssl.SSLContext | None] = lambda: None
        self.broker_uid: int | None = None
        self.is_paused = False
        """Whether an operator paused links to the follower."""
        self.takes_digests = False
        """Whether what the leader's agent stores has a SHA-256."""
        self._sequence = 0
        self._followers: list[Follower] = []

    async def start(self) -> None:
        self.broker_address = await self.broker.start(self.broker_listens_by)
        self.hydration = HydrationCache(
            self.read_from or self.storage,
            10_000_000,
            self.stage_times,
            self.follower_metrics,
            clock=lambda: self.now_s,
            archive=lambda: self.archive,
            breaker=BreakerLimits(failures_to_open=3, open_s=1.0),
        )
        self.catch_up_reads = CatchUpReads(
            self.hydration, self.catch_up_read_limits, self.follower_metrics, clock=lambda: self.now_s
        )
        self.leader = LeaderProxy(
            LeaderContext(
                self.leader_hello,
                self.limits,
                self.broker_address,
                self.led,
                self.leader_stage_times,
                self.leader_metrics,
                clock=lambda: self.now_s,
                index=self.index,
                uploads=self.uploads,
                followers=frozenset(range(10)),
                budget=self.leader_budget,
                request_budget=self.request_budget,
                requests=self.requests,
                catch_up=self.catch_up,
                zones=self.zones,
                packing=self.packing,
                broker_tls=self.dials_broker_by,
                broker_name=self.broker_name,
            )
        )
        await self.leader.start(LOOPBACK, self.leader_tls() if self.leader_tls else None)
        (self.leader_address,) = self.leader.addresses
        await self.start_follower(self.leader_address)

    async def start_follower(self, leader: Address | None) -> None:
        """None: it knows of no leader yet."""
        self.peers = KnownPeers({1: leader} if leader is not None else {})
        limits, bypass = self.bypass_limits, None
        if limits is not None:
            brokers = {} if self.bypass_is_registered else {1: self.broker_address}
            login, registered = self.bypass_login, self.bypass_is_registered
            bypass = Bypass(brokers, limits, lambda: None, self.bypass_clock, login, takes_registered=registered)
        self.follower_context = FollowerContext(
            self.follower_hello,
            self.follower_limits,
            self.follower_metrics,
            self.follower_tls or (lambda: None),
            lambda: self.now_s,
            self.follower_budget,
            self.hydration,
            self.stage_times,
            self.catch_up_reads,
            requests=self.requests,
            broker_tls=self.poses_by,
            broker_uid=self.broker_uid,
            is_paused=lambda: self.is_paused,
            packing=self.packing,
        )
        self.follower = FollowerProxy(self.follower_context, self.peers, bypass)
        await self.follower.start(dict.fromkeys(self.peers, LOOPBACK))
        if leader is not None:
            self.follower_address = self.follower.addresses[1]

    def bypass_clock(self) -> float:
        return time.monotonic() + self.bypass_ahead_s

    async def connect(self, address: Address | None = None, tls: ssl.SSLContext | None = None) -> Follower:
        where = address or self.follower_address
        follower = Follower(*await asyncio.open_connection(where.host, where.port, ssl=tls))
        self._followers.append(follower)
        return follower

    def store(self, records: dict[int, bytes]) -> CombinedSegmentId:
        """Upload these batches as one object, and tell the leader's proxy."""
        segment_id = CombinedSegmentId(1, 11, self._sequence)
        self._sequence += 1
        items = tuple(
            MetaQueueItem(partition(number), tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)
            for number, raw in records.items()
        )
        metadata = RemoteWalCombinedLogSegmentMetadata(
            segment_id,
            tuple(item.metadata_entry() for item in items),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            0,
        )
        update = ask(self.storage.copy_log_segment_data(metadata, [item.records for item in items]))
        self.leader.segment_uploaded(
            UploadedSegment(
                segment_id,
                items,
                update.entries,
                update.size_bytes,
                self.now_s,
                update.custom_metadata,
                tuple(batch_digests(item.records, item.batches) for item in items) if self.takes_digests else (),
            )
        )
        return segment_id

    def append(self, records: dict[int, bytes], stored: bool = True) -> None:
        """Append to the leader's log, and store it."""
        for number, raw in records.items():
            self.broker.logs[number] = self.broker.logs.get(number, b"") + raw
        if stored:
            self.store(records)

    def leader_faults(self, reason: str) -> float:
        return metric_value(self.leader_metrics.faults.labels(reason))

    def follower_faults(self, reason: str) -> float:
        return metric_value(self.follower_metrics.faults.labels(reason))

    @property
    def linked_responses(self) -> float:
        return metric_value(self.leader_metrics.responses.labels("linked"))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at is behind two sockets
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        self.storage.fetch_gate.set()
        self.broker.go_on.set()
        for follower in self._followers:
            follower.writer.close()
        await self.follower.stop()
        await self.leader.stop()
        await self.broker.stop()
        self.hydration.close()
        self.catch_up_reads.close()


@asynccontextmanager
async def two_agents(**changes: Any) -> AsyncIterator[Agents]:
    """Started agents. Changes: `leader_hello`, `follower_hello`, and fields of LeaderLimits or FollowerLimits."""
    agents = Agents()
    for name, value in changes.items():
        if hasattr(agents, name):
            setattr(agents, name, value)
        elif hasattr(agents.follower_limits, name):
            agents.follower_limits = replace(agents.follower_limits, **{name: value})
        else:
            agents.limits = replace(agents.limits, **{name: value})
    await agents.start()
    try:
        yield agents
    finally:
        await agents.stop()
