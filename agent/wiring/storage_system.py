"""The agent without relaying: what `remote.log.wal.storage.system.enable` turns on, in parts that are restarted.

The other parts depend on the one that follows Kafka: uploads continue where the metadata store says, and objects are
deleted when it says so. When it failed, its knowledge is not trusted, and everything that depends on it is made again
with it (`StorageRun`); until then no partition is led, and all bytes go inline. When another part failed, only that is
restarted. `AgentResources` has what is kept.

Imported once relaying has begun, because its import takes far longer. Create and use it in the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from agent.defects import STARTING
from agent.metrics.agent_metrics import StateCollector
from agent.metrics.alarms import UPLOAD_LAG_ALARM_MS, Alarms, upload_lag
from agent.metrics.topic_metrics import TopicCollector
from agent.metrics.usage import UsageReport, client_usage, store_counts
from agent.settings.storage_spec import storage_spec
from agent.wiring.agent_resources import AgentResources
from agent.wiring.storage_loading import StorageLoading
from agent.wiring.storage_run import StorageRun
from metadata_topic.store.store import StoreFile
from metadata_topic.topic.followed_metadata import KnownMetadata
from rlm.lifecycle.incarnation_watch import IncarnationTakenError

log = structlog.get_logger(__name__)

KAFKA = "kafka side"
STORAGE_LOADING, PUBLICATION, ALARMS = "object storage", "metadata publication", "alarms"


class StorageSystem:
    """The parts and what outlives them. See the module's theory."""

    def __init__(self, around: AgentResources, next_incarnation: Callable[[int], int]) -> None:
        """`next_incarnation` returns one above the given one, and above all that existed here."""
        self._around = around
        self._next_incarnation = next_incarnation
        settings, relaying, gateway = around.settings, around.relaying, around.relaying.gateway
        spec = storage_spec(settings.storage, around.configuration.broker)
        self.loading = StorageLoading(spec, around.storage_context, relaying.storage)
        self.publisher = around.publisher
        self.publication = around.publication
        self._usage = UsageReport(
            around.identity,
            lambda: store_counts(settings, relaying.storage, self.current.archive_storage if self.current else None),
            relaying.metrics,
            self.publisher,
            around.clocks.wall_ms,
            lambda partition: relaying.write_path.find(partition.topic_id, partition.partition) is not None,
            partial(client_usage, traffic=gateway.traffic, prices=settings.storage.price_section) if gateway else None,
        )
        self.current: StorageRun | None = None
        """None while they are being restarted."""
        self.alarms = Alarms(
            {
                "upload_lag": self._upload_lag,
                "store_puts": lambda: relaying.storage.puts.alarm if relaying.storage.puts else None,
                "store_gets": lambda: relaying.storage.gets.alarm if relaying.storage.gets else None,
            }
        )

    def _upload_lag(self) -> str | None:
        status = self.current.write_path.status() if self.current is not None else {}
        return upload_lag(status.values(), UPLOAD_LAG_ALARM_MS)

    def start(self) -> None:
        """Begin, whether or not Kafka and the store are there."""
        supervisor = self._around.supervisor
        if self._around.settings.has_store:
            supervisor.start(STORAGE_LOADING, self.loading.run)
        supervisor.start(PUBLICATION, self._publish)
        supervisor.start(KAFKA, self._run)
        supervisor.start(ALARMS, self.alarms.run)

    async def stop(self) -> None:
        """Upload and publish what is left, as far as the shutdown time allows, and release everything.

        Relaying must continue meanwhile: the metadata topic itself is replicated through it.
        """
        supervisor, timeout_s = self._around.supervisor, self._around.settings.process.shutdown_timeout_s
        await supervisor.stop(ALARMS)
        if self.current is not None:  # before Kafka's clients, which may take long to end
            await self.current.stop()
        await supervisor.stop(KAFKA)
        await asyncio.to_thread(self.publisher.flush, timeout_s)
        await supervisor.stop(PUBLICATION)
        if lost := await asyncio.to_thread(self.publisher.close, 0.0):
            log.warning("metadata_unpublished", records=lost)
        await supervisor.stop(STORAGE_LOADING)

    @property
    def incarnation(self) -> int:
        """The incarnation that uploads."""
        return self._around.identity.incarnation

    @property
    def missing(self) -> list[str]:
        """What is missing for all of the agent's work, except parts that are down."""
        reasons = [*(self.current.missing if self.current is not None else [STARTING]), *self.alarms.reasons]
        if (stalled := self.publication.stalled_because) is not None:
            reasons = [*reasons, f"metadata is not published, so all goes inline: {stalled}"]
        storage = self.loading.missing if self._around.settings.has_store else None
        return reasons if storage is None else [*reasons, f"object storage: {storage}"]

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.publisher.start(lambda defect: loop.call_soon_threadsafe(ended.set_exception, defect))
        watch = asyncio.create_task(self.publication.run())
        try:
            await ended
        finally:
            watch.cancel()

    async def _run(self) -> None:
        while True:
            above = await self._run_until_fenced()
            identity = replace(self._around.identity, incarnation=self._next_incarnation(above))
            self._around.take_identity(identity)
            log.warning("incarnation_taken", incarnation=identity.incarnation, above=above)

    async def _run_until_fenced(self) -> int:
        """Run. Returns the incarnation above which another one must be taken."""
        settings, cluster_id = self._around.settings, self._around.identity.cluster_id
        file = StoreFile(settings.process.state_directory, cluster_id)
        known = await asyncio.to_thread(KnownMetadata, file)
        try:
            return await self._run_with(known)
        finally:
            await asyncio.to_thread(known.store.close)

    async def _run_with(self, known: KnownMetadata) -> int:
        around, above = self._around, -1
        registry = around.relaying.metrics.registry
        run = StorageRun(around, self._usage, known)
        collector = StateCollector(
            around.relaying.storage,
            run.write_path,
            self.publisher,
            (run.kafka.metadata.store, run.kafka.metadata.archive),
            lambda: run.kafka.metadata_counters,
            lambda: run.led_gaps.offsets,
            lambda: run.led_gaps.held_offsets,
        )
        traffic = around.relaying.metrics.traffic
        topics = TopicCollector(run.write_path.status, lambda: traffic.by_partition)
        for one in (collector, topics):
            registry.register(one)
        self.current = run
        try:
            run.start()
            await run.kafka.run()
        except* IncarnationTakenError as taken:
            above = max(leaf.above for leaf in _leaves(taken))
        finally:
            await run.stop()
            self.current = None
            for one in (collector, topics):
                registry.unregister(one)
        return above


def _leaves(group: ExceptionGroup[IncarnationTakenError]) -> list[IncarnationTakenError]:
    found: list[IncarnationTakenError] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, ExceptionGroup) else [one]
    return found
