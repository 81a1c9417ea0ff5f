"""A broker's agent, its metadata topic and its object store in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from prometheus_client import CollectorRegistry

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import PublishableRecord, RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
)
from plugin.wall_clock import Clocks
from rlm.lifecycle.expiration import (
    ExpirationLimits,
    ExpirationPlanner,
    Responsibility,
    RLMWalExpirationTask,
)
from rlm.lifecycle.orphans import OrphanTask
from rlm.lifecycle.release import ClusterView, Tiers
from rlm.write_path.metrics import LifecycleMetrics, WriteMetrics
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from tests.kafka_log.batches import batches
from tests.rlm.memory_storage import MemoryStorage

TOPIC = TopicId(b"w" * 16)
PARTITION = TopicIdPartition(TOPIC, 0)
BROKER = 1
GRACE_MS, TTL_MS, RETENTION_MS = 60_000, 600_000, 100_000
START_MS = 1_700_000_000_000


@dataclass
class World:
    topic: list[PublishableRecord] = field(default_factory=list)
    now_ms: int = START_MS
    incarnation: int = 0
    storage: MemoryStorage = field(default_factory=MemoryStorage)


class _Publisher:
    """Durable at once; while `holds`, only in memory, and lost; while `waits`, once it is acknowledged."""

    def __init__(self, world: World, store: RemoteWalMetadataStore) -> None:
        self._world, self._store = world, store
        self.holds = False
        self.waits = False
        self.waiting: list[PublishableRecord] = []
        self.is_read_late = False

    def publish(self, record: PublishableRecord) -> None:
        if self.waits:
            self.waiting.append(record)
        elif not self.holds:
            self._append(record)

    def is_pending(self, segment_id: CombinedSegmentId) -> bool:
        return any(getattr(record, "combined_segment_id", None) == segment_id for record in self.waiting)

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        raise AssertionError(f"nobody waits for {segment_id} here")

    def acknowledge(self) -> None:
        self.waits, waiting, self.waiting = False, self.waiting, []
        for record in waiting:
            self._append(record)

    def _append(self, record: PublishableRecord) -> None:
        self._world.topic.append(record)
        if not self.is_read_late:
            self._store.apply(record)


class AgentOfWorld:
    def __init__(self, world: World, *, registers: bool = True) -> None:
        world.incarnation += 1
        self._world = world
        self.store = RemoteWalMetadataStore()
        for record in world.topic:
            self.store.apply(record)
        self.publisher = _Publisher(world, self.store)
        if registers:
            registration = RemoteWalNodeRegistration(BROKER, world.incarnation, BROKER, world.now_ms)
            world.topic.append(registration)
            self.store.apply(registration)
        clocks = Clocks(lambda: world.now_ms / 1000, lambda: world.now_ms)
        registry = CollectorRegistry()
        self.combine = RLMWalCombineTask(
            world.storage,
            self.publisher,
            CombinedSegmentId(BROKER, world.incarnation, 0),
            WriteMetrics(registry),
            clocks,
        )
        self.planner = ExpirationPlanner(self.store, Tiers(), ExpirationLimits(GRACE_MS, TTL_MS), Random(1))
        self.planner.cluster_seen(ClusterView(frozenset({TOPIC}), retention_ms={TOPIC: RETENTION_MS}))
        self.read_to_end: Callable[[], bool] = lambda: True
        self.topic_doubt = ""
        self.in_care = {BROKER}
        self.unlinked: list[CombinedSegmentId] = []
        self.metrics = LifecycleMetrics(registry)
        self.expiration = RLMWalExpirationTask(
            world.storage,
            self.publisher,
            self.planner,
            Responsibility(lambda: self.in_care, self.combine.is_under_way, self.unlinked.append, self._read_to_end),
            clocks,
            self.metrics,
        )
        self.orphans = OrphanTask(
            world.storage,
            self.store,
            self._read_to_end,
            TTL_MS,
            clocks.wall_ms,
            self.planner.is_being_deleted,
            self.combine.is_under_way,
            topic_doubt=lambda: self.topic_doubt,
        )

    def _read_to_end(self) -> bool:
        return self.read_to_end()

    async def upload(self, first_offset: int) -> None:
        raw = batches(2, first_offset, 5, 0)
        items = [MetaQueueItem(PARTITION, tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)]
        await self.combine.combine(items)

    async def live_for(self, ms: int, step_ms: int = 20_000) -> None:
        for _ in range(0, ms, step_ms):
            self._world.now_ms += step_ms
            await self.expiration.run_once()

    def heal(self, confirmed: str | None = None) -> None:
        for comparison in self.orphans.compare([BROKER]).values():
            self.orphans.heal(comparison, self.publisher, confirmed)

    def close(self) -> None:
        self.publisher.holds = True
        self.combine.close()
        self.expiration.close()
