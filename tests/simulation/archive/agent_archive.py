"""The archive of one incarnation of an agent, put together as `agent.wiring.storage_system` does it.

The product's own are `Archiving` with its task, care and search for orphans, and what the life of combined segments
asks the archive. Models are the archive's store, and the settings topic.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Protocol, cast

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.archive.archive_care import CareLimits
from rlm.archive.archive_plan import ArchiveLimits
from rlm.archive.archive_task import ArchiveSources, ArchiveTaskLimits
from rlm.archive.archived_topics import ArchivedTopics, ArchiveTier
from rlm.archive.archiving import Archiving, ArchivingLimits
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.orphans import HealingLimits
from rlm.lifecycle.release import ClusterView, Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.runtime import Runtime
from tests.simulation.agent_model import AgentModel
from tests.simulation.archive.seeded_archive_storage import SeededArchiveStorage
from tests.simulation.life_of_objects import GRACE_MS, LifeOfObjects
from tests.simulation.seeded_storage import SeededStorage
from tests.simulation.virtual_time import SeededExecutor, VirtualTimeLoop

TOPIC = "t"
SETTINGS = cast(SettingsReader, SimpleNamespace(table=SettingsTable({TOPIC: TopicSettings(enable=True, archive=True)})))
MAX_AGE_MS = 4_000
LIMITS = ArchivingLimits(
    ArchiveTaskLimits(
        ArchiveLimits(min_bytes=1_500, max_bytes=4_000, max_age_ms=MAX_AGE_MS, settled_ms=0),
        bytes_per_s=20_000,
        look_s=3.0,
        retry_s=0.1,
        retry_max_s=2.0,
        threads=2,
        prepared_ttl_ms=6_000,
        run_bytes=700,
    ),
    CareLimits(GRACE_MS, publish_again_ms=15_000, orphan_age_ms=6_000, healing=HealingLimits(5.0, 10)),
    care_interval_s=4.0,
    orphans_interval_s=8.0,
)


class WorldParts(Protocol):
    loop: VirtualTimeLoop
    storage: SeededStorage
    archive: SeededArchiveStorage
    archive_metrics: ArchiveMetrics

    def hit(self, fault: str) -> None: ...


class ArchiveKnowledge:
    """What an incarnation knows of the archive, whether or not its own runs."""

    def __init__(
        self,
        world: WorldParts,
        broker_id: int,
        incarnation: int,
        store: RemoteWalMetadataStore,
        archive: ArchiveStore,
    ) -> None:
        self.archive = archive
        own = CombinedSegmentId(broker_id, incarnation, 0)
        self.topics = ArchivedTopics(own, store, archive, SETTINGS, True, world.loop.time)
        self.tiers = Tiers([ArchiveTier(archive, self.topics.is_archived, self.topics.chain_of)])

    def cluster_seen(self, view: ClusterView, living: frozenset[int]) -> None:
        names: Mapping[TopicId, str] = dict.fromkeys(view.living, TOPIC)
        self.topics.cluster_seen(Observation(view, living, names))


class AgentArchive:
    def __init__(self, world: WorldParts, agent: AgentModel, knowledge: ArchiveKnowledge, life: LifeOfObjects) -> None:
        self._world = world
        self.pools: list[SeededExecutor] = []
        self._knowledge = knowledge
        sources = ArchiveSources(
            "c",
            world.storage,
            agent.store,
            knowledge.archive,
            agent.publication,
            agent.consumption.read_to_end,
        )
        self.archiving = Archiving(
            lambda: world.archive,
            CombinedSegmentId(agent.broker_id, agent.incarnation, 0),
            sources,
            LIMITS,
            lambda: knowledge.topics.duties(life.brokers_to_care_for()),
            world.archive_metrics,
            Runtime(Clocks(world.loop.time, agent.wall_ms), self._pool),
        )

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self.archiving.run())

    def assign(self, assignments: Iterable[Assignment]) -> None:
        wanted = list(assignments)
        self._knowledge.topics.set_led(wanted)
        self.archiving.assign(wanted)

    @property
    def is_writing(self) -> bool:
        return any(_is_write(what) for pool in self.pools for what in pool.running)

    def defect(self) -> BaseException | None:
        done = self._running.done() and not self._running.cancelled()
        return self._running.exception() if done else None

    async def crash(self, takes_effect: Callable[[], bool]) -> None:
        """Nothing more happens; what is under way at the store takes effect, or not."""
        self._running.cancel()
        for pool in self.pools:
            calls = [(what, takes_effect()) for what in pool.running]
            for what, made in calls:
                if _is_write(what):
                    self._world.hit(f"crash {'after' if made else 'before'} an archive write's effect")
            pool.crash(iter([made for _, made in calls]).__next__)
        await asyncio.gather(self._running, return_exceptions=True)

    def _pool(self, threads: int, _name: str) -> SeededExecutor:
        pool = SeededExecutor(self._world.loop, threads, self._world.archive.delays)
        self.pools.append(pool)
        return pool


def _is_write(what: Callable[..., object]) -> bool:
    return getattr(what, "__name__", "") == "_write"
