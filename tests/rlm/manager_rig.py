"""A RemoteWalLogManager on real files and a storage in memory, and a listener that writes down what it hears."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, CommitLimits
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.core.pacing import LogManagerLimits
from rlm.write_path.core.partition_schedule import ScheduleIntervals
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.remote_wal_log_manager import RemoteWalLogManager
from rlm.write_path.runtime import Runtime
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import UploadedSegment
from rlm.write_path.uploads.upload_listener import UploadListener
from tests.kafka_log.log_writer import LogWriter
from tests.rlm.driven_core import price
from tests.rlm.memory_storage import MemoryPublisher, MemoryStorage

TOPIC = TopicId(b"m" * 16)


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, number)


LIMITS = LogManagerLimits(
    CommitLimits(
        interval_s=0.001, archive_interval_s=0.002, upload_bytes=4096, max_in_flight=2, retry_s=0.002, retry_max_s=0.01
    ),
    schedule=ScheduleIntervals(process_s=60.0, retry_s=0.002, retry_max_s=0.01),
    queue_items=100,
    queue_bytes=64 * 1024,
    read_bytes=64 * 1024,
    link_wait_max_s=0.5,
    open_files=16,
    backlog_bytes_per_s=2**30,
)


@dataclass
class Listener(UploadListener):
    uploaded: list[UploadedSegment] = field(default_factory=list)
    truncated: list[tuple[TopicIdPartition, int]] = field(default_factory=list)
    released: list[TopicIdPartition] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        self.uploaded.append(segment)
        self.heard.set()

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        self.truncated.append((partition, offset))
        self.heard.set()

    def partition_released(self, partition: TopicIdPartition) -> None:
        self.released.append(partition)
        self.heard.set()

    def stored(self, wanted: TopicIdPartition) -> list[bytes]:
        """Every batch of a partition that was told as stored, in the order of the objects.

        Uploads run side by side, so the second may be told before the first.
        """
        return [
            bytes(item.records[batch.start : batch.end])
            for segment in sorted(self.uploaded, key=lambda one: one.combined_segment_id)
            for item in segment.items
            if item.topic_id_partition == wanted
            for batch in item.batches
        ]


@dataclass
class Owner(UploadListener):
    """The agent around the log manager, with answers that a test can replace."""

    resume: Callable[[Assignment], ResumePoint] = lambda _assignment: ResumePoint(0)
    gaps: GapDeclarations | None = None
    look_again: Callable[[], object] = lambda: None
    settled: list[TopicIdPartition] = field(default_factory=list)
    found: list[Gap] = field(default_factory=list)

    def resume_point(self, assignment: Assignment) -> ResumePoint:
        resume = self.resume(assignment)
        if self.gaps is not None:
            self.gaps.declare_begin(assignment, resume)
        return resume

    def ask(self) -> None:
        self.look_again()

    def gaps_found(self, assignment: Assignment, gaps: Sequence[Gap]) -> None:
        self.found += gaps
        if self.gaps is not None:
            self.gaps.gaps_found(assignment, gaps)

    def hurried_log_settled(self, partition: TopicIdPartition) -> None:
        self.settled.append(partition)


class Rig:
    def __init__(self, directory: Path, limits: LogManagerLimits) -> None:
        self.directory = directory
        self.storage, self.publisher, self.listener = MemoryStorage(), MemoryPublisher(), Listener()
        registry = CollectorRegistry()
        self.metrics = WriteMetrics(registry)
        clocks = Clocks(asyncio.get_running_loop().time, lambda: 1_700_000_000_000)
        combine = RLMWalCombineTask(self.storage, self.publisher, CombinedSegmentId(1, 5, 0), self.metrics, clocks)
        decider = LinkDecider(price(30_000, 0.1), Cadence(limits.commit))
        self.owner = Owner()
        self.manager = RemoteWalLogManager(
            limits,
            combine,
            decider,
            StageTimes(registry),
            self.metrics,
            Runtime(clocks),
            self.owner.resume_point,
            self.owner.ask,
        )
        self.manager.add_listener(self.listener)
        self.manager.add_listener(self.owner)
        self.logs: dict[TopicIdPartition, LogWriter] = {}

    def log(self, number: int = 0) -> LogWriter:
        """The partition's log, made when first asked for."""
        if partition(number) not in self.logs:
            self.logs[partition(number)] = LogWriter(self.directory / f"t-{number}")
        return self.logs[partition(number)]

    def assignment(self, number: int) -> Assignment:
        return Assignment(partition(number), "t", self.log(number).path, LinkPolicy.ALWAYS, 20)

    def assign(self, *numbers: int) -> None:
        self.manager.assign(self.assignment(number) for number in numbers)

    async def until(
        self, condition: Callable[[], bool], what: str = "", *, timeout_s: float = 60, look_s: float = 0.003
    ) -> None:
        """Wait for the condition, looking whenever the listener hears something and every few milliseconds."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.listener.heard.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.listener.heard.wait(), look_s)
        except TimeoutError:
            raise AssertionError(f"never: {what or condition}") from None

    async def all_stored(self, number: int = 0) -> None:
        written = [batch.raw for batch in self.log(number).batches]
        await self.until(lambda: set(written) <= set(self.listener.stored(partition(number))), "all stored")


@asynccontextmanager
async def running(directory: Path, **changes: Any) -> AsyncIterator[Rig]:
    """A started manager; `changes` are limits."""
    rig = Rig(directory, replace(LIMITS, **changes))
    main = rig.manager.start()
    try:
        yield rig
    finally:
        await rig.manager.stop(flush_timeout_s=5)
    assert main.cancelled() or main.exception() is None
