"""A leader's agent whose follower is far behind, sans-IO but for the log on disk."""

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.catch_up import CatchUp, FollowerCatchUp
from replication.leader.link_index import LinkIndex, StoredLogs
from replication.leader.link_planner import LinkPlanner, PlannerLimits, SendLinked, Verdict, WaitForUploads
from replication.leader.read_ahead import CatchUpLimits
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import CAPABILITIES, PeerCapabilities
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_views import FoundRuns, StoredLog
from tests.kafka_log.log_writer import WrittenBatch
from tests.replication.fake_led import FakeLed
from tests.replication.fetch_frames import partition, response
from tests.rlm.uploaded_log import UploadedLog

OWN = CombinedSegmentId(1, 11, 500)
PATIENCE_S = 60


def joined(written: list[WrittenBatch]) -> bytes:
    return b"".join(each.raw for each in written)


Connection = tuple[FollowerCatchUp, LinkPlanner]


class CountedLogs:
    """Counts how often, and from where on, the log is looked through."""

    def __init__(self, logs: StoredLogs) -> None:
        self._logs = logs
        self.offsets: list[int] = []

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return self._logs.stored_log(partition)

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        self.offsets.append(offset)
        return self._logs.runs(log, offset, max_bytes, archive)

    def is_living(self, object_id: StoredObjectId) -> bool:
        return self._logs.is_living(object_id)


class Rig:
    """A leader's agent that has just started: its index is empty, its uploads are all of an agent before."""

    def __init__(self, directory: Path, ahead_bytes: int = 10_000, read_bytes: int = 2000) -> None:
        self.log = UploadedLog(directory, partition(0))
        self.logs = CountedLogs(self.log.logs())
        self.now_s = 100.0
        self.metrics = ReplicationMetrics(CollectorRegistry())
        self.index = LinkIndex()
        limits = CatchUpLimits(ahead_bytes, read_bytes)
        self.shared = CatchUp(self.index, self.logs, limits, self.metrics, clock=lambda: self.now_s)
        self.announced: list[tuple[StoredObjectId, list[tuple[int, int]]]] = []
        self.told = asyncio.Event()
        self.catch_up, self.planner = self.follower()

    def follower(
        self,
        capabilities: PeerCapabilities = CAPABILITIES,
        mode: LinkMode = LinkMode.LINK,
        break_even_bytes: int = 1,
    ) -> Connection:
        def announce(object_id: StoredObjectId, ranges: list[tuple[int, int]], _custom_metadata: bytes) -> None:
            self.announced.append((object_id, ranges))

        catch_up = FollowerCatchUp(self.shared, announce, self.told.set, capabilities)
        limits = PlannerLimits(0.5, break_even_bytes)
        return catch_up, LinkPlanner(self.index, FakeLed(mode, expected=False), limits, catch_up.plan)

    def fill(self, objects: int, batches_each: int = 4, payload_bytes: int = 200) -> list[list[WrittenBatch]]:
        filled = []
        for number in range(objects):
            payload = bytes([65 + number % 26]) * payload_bytes
            filled.append([self.log.writer.append(2, payload=payload) for _ in range(batches_each)])
            self.log.upload(filled[-1])
        return filled

    def begin(self, written: list[WrittenBatch], cut_off: bytes = b"") -> Verdict:
        return self.begin_with({0: joined(written) + cut_off}, (self.catch_up, self.planner))

    def begin_with(self, records: dict[int, bytes], to: Connection) -> Verdict:
        frame = response(dict(records))
        catch_up, planner = to
        planner.begin(frame, scan_fetch_response(frame, 17), 3)
        verdict = planner.decide(self.now_s)
        catch_up.begin_reads()
        return verdict

    async def answer(self, records: dict[int, bytes], to: Connection | None = None) -> Verdict:
        """What becomes of a response with these records by partition, with what it takes to find them."""
        catch_up, planner = to = to or (self.catch_up, self.planner)
        verdict = self.begin_with(records, to)
        async with asyncio.timeout(PATIENCE_S):
            while isinstance(verdict, WaitForUploads):
                self.told.clear()
                await self.told.wait()
                verdict = planner.decide(self.now_s)
                catch_up.begin_reads()
        return verdict

    async def links(self, written: list[WrittenBatch], cut_off: bytes = b"") -> SendLinked:
        """The response that these batches become, with what it takes to find them."""
        verdict = await self.answer({0: joined(written) + cut_off})
        assert isinstance(verdict, SendLinked)
        self.sent(verdict)
        return verdict

    def sent(self, verdict: Verdict, to: FollowerCatchUp | None = None) -> bool:
        """It is sent now; whether the follower is told that it is far behind."""
        assert isinstance(verdict, SendLinked)
        catch_up = to or self.catch_up
        is_old = catch_up.plan.sent(verdict.response, verdict.linked)
        catch_up.begin_reads()
        return is_old

    async def has_read(self) -> None:
        """All reads that were begun have ended."""
        async with asyncio.timeout(PATIENCE_S):
            while tasks := [task for task in asyncio.all_tasks() if task.get_name() == "catch-up"]:
                await asyncio.wait(tasks)
        await asyncio.sleep(0)  # their callbacks

    def linked_bytes(self, sent: SendLinked) -> bytes:
        return b"".join(
            self.content(link.object_id)[link.start_position : link.end_position] for link in sent.response.links
        )

    @property
    def announced_sequences(self) -> list[int]:
        return [named.sequence for named, _ in self.announced if isinstance(named, CombinedSegmentId)]

    def content(self, object_id: StoredObjectId) -> bytes:
        if isinstance(object_id, ArchiveObjectId):
            return self.log.archive.objects[object_id]
        return self.log.storage.objects[object_id]

    @property
    def announced_bytes(self) -> int:
        return sum(end - start for _, ranges in self.announced for start, end in ranges)
