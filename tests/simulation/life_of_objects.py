"""What one agent does for objects after their upload, put together as `agent.wiring.lifecycle` does it.

The product's own are node care, failover, expiration and the search for orphans. Models are the cluster's answers, and
the pools that make the store's calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.errors import PublicationBacklogFullError
from plugin.errors import RemoteStorageError
from plugin.wall_clock import Clocks
from rlm.lifecycle.expiration import (
    ExpirationLimits,
    ExpirationPlanner,
    Responsibility,
    RLMWalExpirationTask,
)
from rlm.lifecycle.object_ownership import ObjectOwnership
from rlm.lifecycle.orphans import Kind, MetadataBehindError, OrphanTask
from rlm.lifecycle.release import NEVER, ClusterView, LongTermTier, TopicWatch
from rlm.write_path.metrics import LifecycleMetrics
from tests.simulation.agent_model import AgentModel
from tests.simulation.led_log import LedLog
from tests.simulation.seeded_storage import LONGEST_CALL_S, SeededStorage
from tests.simulation.virtual_time import SeededExecutor, VirtualTimeLoop

GRACE_MS, TTL_MS, TAKEOVER_MS, TOPIC_GONE_MS = 3_000, 9_000, 6_000, 5_000
_UNPUBLISHED_MAX_S = 2.0
"""As `agent.wiring.lifecycle` has it: below a quarter of the time-to-live, and below the grace time."""
_EXPIRE_S, _OBSERVE_S, _FAILOVER_S, _ORPHANS_S = 5.0, 3.0, 5.0, 10.0
RETENTIONS_MS = (6_000, 20_000, NEVER)
LAGGING_MS = 12_000
"""How long entries are kept at least, while a replica is not in sync."""
VIEWS_COUNT_S = LONGEST_CALL_S + _OBSERVE_S
"""What was judged so long ago may take effect now."""


@dataclass(slots=True)
class Cluster:
    """What Kafka tells whom it asks."""

    living: set[int]
    """Brokers."""
    retention_ms: dict[TopicId, int] = field(default_factory=dict)
    """Of the topics that are there."""
    gone: dict[TopicId, float] = field(default_factory=dict)
    """Topics that were deleted, and when."""
    is_mute: bool = False
    """Nobody gets an answer."""
    has_lagging_replica: bool = False
    """The first partition of each topic."""


class WorldParts(Protocol):
    loop: VirtualTimeLoop
    logs: dict[TopicIdPartition, LedLog]
    storage: SeededStorage
    cluster: Cluster
    lifecycle_metrics: LifecycleMetrics

    def note(self, *what: object) -> None: ...

    def hit(self, fault: str) -> None: ...

    def random(self, name: str) -> Any: ...


class LifeOfObjects:
    def __init__(self, world: WorldParts, agent: AgentModel, brokers: Iterable[int], tier: LongTermTier) -> None:
        self._world, self._agent, self._loop = world, agent, world.loop
        clocks = Clocks(self._loop.time, agent.wall_ms)
        self._wall_ms = agent.wall_ms
        self.care = ObjectOwnership(
            agent.broker_id, agent.incarnation, agent.store, lambda: frozenset(brokers), TAKEOVER_MS
        )
        limits = ExpirationLimits(GRACE_MS, TTL_MS, retry_ms=200, retry_max_ms=2_000)
        self.planner = ExpirationPlanner(agent.store, tier, limits, world.random("deletion retries"))
        self.pools: list[SeededExecutor] = []
        self.expiration = RLMWalExpirationTask(
            world.storage,
            agent.publication,
            self.planner,
            Responsibility(
                self.brokers_to_care_for,
                agent.combine.is_under_way,
                lambda segment_id: world.note("deletion begins", *segment_id),
                agent.consumption.read_to_end,
            ),
            clocks,
            world.lifecycle_metrics,
            self._pool,
        )
        self.orphans = OrphanTask(
            world.storage,
            agent.store,
            agent.consumption.read_to_end,
            TTL_MS,
            clocks.wall_ms,
            self.planner.is_being_deleted,
            agent.combine.is_under_way,
        )
        self._threads = self._pool(3, "lifecycle")
        self._watch = TopicWatch(TOPIC_GONE_MS)
        self.views: list[tuple[float, ClusterView]] = []
        """What was known of the cluster, and from when on."""
        self.on_view: Callable[[ClusterView, frozenset[int]], None] = lambda _view, _living: None
        """Told of each before anything is concluded from it."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for step, interval_s in (
            (self._observe, _OBSERVE_S),
            (self._declare_dead, _FAILOVER_S),
            (self.expiration.run_once, _EXPIRE_S),
            (self._look_for_orphans, _ORPHANS_S),
        ):
            self._tasks.append(loop.create_task(self._repeat(step, interval_s)))

    def defect(self) -> BaseException | None:
        ended = (task for task in self._tasks if task.done() and not task.cancelled())
        return next((task.exception() for task in ended), None)

    async def crash(self, takes_effect: Callable[[], bool]) -> None:
        """Nothing more happens; what is under way at the store takes effect, or not."""
        for task in self._tasks:
            task.cancel()
        for pool in self.pools:
            calls = [(what, takes_effect()) for what in pool.running]
            for what, made in calls:
                if getattr(what, "__name__", "") == "_delete_object":
                    self._world.hit(f"crash {'after' if made else 'before'} a deletion's effect")
            pool.crash(iter([made for _, made in calls]).__next__)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, step: Callable[[], Awaitable[object]], interval_s: float) -> None:
        while True:
            await step()
            await asyncio.sleep(interval_s)

    async def _observe(self) -> None:
        if self._world.cluster.is_mute:
            return
        view, living = await self._in_thread(self._asked)
        now_ms = self._wall_ms()
        self.on_view(view, living)
        self.planner.cluster_seen(view)
        now_s = self._loop.time()
        self.views = [known for at, known in enumerate(self.views) if self._counts(at, now_s)] + [(now_s, view)]
        for registration in self.care.registrations_due(living, now_ms):
            try:
                self._agent.publication.publish(registration)
            except PublicationBacklogFullError:
                continue
            if registration.broker_id != self._agent.broker_id:
                self._world.hit("taken over")

    def _counts(self, at: int, now_s: float) -> bool:
        """Whether that view was the last one within the time that counts."""
        return at + 1 == len(self.views) or self.views[at + 1][0] > now_s - VIEWS_COUNT_S

    def _asked(self) -> tuple[ClusterView, frozenset[int]]:
        cluster = self._world.cluster
        view = self._watch.seen_by_id(frozenset(cluster.retention_ms), frozenset(cluster.gone), self._wall_ms())
        starts = {one: log.log.log_start_offset for one, log in self._world.logs.items() if not log.is_deleted}
        retention_ms = dict(cluster.retention_ms)
        lagging = dict.fromkeys(retention_ms, frozenset({0})) if cluster.has_lagging_replica else {}
        longer = {topic: ms if ms == NEVER else max(ms, LAGGING_MS) for topic, ms in retention_ms.items()}
        view = replace(view, retention_ms=retention_ms, lagging=lagging, lagging_retention_ms=longer, log_start=starts)
        return view, frozenset(cluster.living)

    async def _declare_dead(self) -> None:
        for partition in self._agent.led:
            self._agent.declare_dead(partition)

    def brokers_to_care_for(self) -> frozenset[int]:
        """As `agent.wiring.lifecycle` has it."""
        late = self._agent.publication.oldest_pending_age_s() > _UNPUBLISHED_MAX_S
        return frozenset() if not self.views or self.care.is_fenced() or late else self.care.brokers_in_care()

    async def _look_for_orphans(self) -> None:
        brokers = self.brokers_to_care_for()
        try:
            comparisons = await self._in_thread(self.orphans.compare, brokers)
            still = self.brokers_to_care_for()
            for comparison in (comparisons[broker_id] for broker_id in comparisons if broker_id in still):
                for kind in Kind:
                    for _ in range(comparison.count(kind)):
                        self._world.hit(f"{kind} orphan")
                if comparison.disagreements:
                    await self._in_thread(self.orphans.heal, comparison, self._agent.publication)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError):
            return

    async def confirm_orphans(self) -> bool:
        """Somebody says that what waits for it may go: objects of incarnations that nobody ever heard of.

        False: not all of it could be told, and it is to be said once more.
        """
        comparisons = await self._in_thread(self.orphans.compare, self.brokers_to_care_for())
        for comparison in comparisons.values():
            for found in comparison.waiting:
                assert not found.writer_is_known, f"{found} is not healed, {comparison.doubt}"
                self._world.hit("orphan confirmed")
            try:
                await self._in_thread(self.orphans.heal, comparison, self._agent.publication, comparison.amount)
            except PublicationBacklogFullError:
                return False
        return True

    # The machine.

    def _pool(self, threads: int, name: str) -> SeededExecutor:
        is_planning = name == "rlm-wal-expiration"
        delays = (lambda: (0.0, 0.0)) if is_planning else lambda: self._world.storage.delays("deletion")
        pool = SeededExecutor(self._loop, threads, delays)
        pool.around = self._as_this
        self.pools.append(pool)
        return pool

    def _as_this(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """So that the store knows who calls."""
        storage = self._world.storage
        storage.caller = self
        try:
            return function(*arguments)
        finally:
            storage.caller = None

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
