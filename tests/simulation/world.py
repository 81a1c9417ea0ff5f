"""What stands still between two events of a run: brokers' logs, agents, topic, store, and who looks on."""

from collections import Counter
from pathlib import Path

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.publishable import Publishable
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import keep_archive, restore_archive
from metadata_topic.store.snapshots.snapshot import read_image
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ArchiveStorage
from rlm.write_path.metrics import LifecycleMetrics
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.kafka_log.log_writer import WrittenBatch
from tests.simulation.agent_model import NO_TIER, AgentModel
from tests.simulation.invariants import Invariants
from tests.simulation.led_log import LedLog
from tests.simulation.life_of_objects import RETENTIONS_MS, Cluster, LifeOfObjects
from tests.simulation.object_invariants import ObjectInvariants
from tests.simulation.seeded_storage import SeededStorage
from tests.simulation.simulated_run import SimulatedRun
from tests.simulation.stores import StateDirectories

BROKERS = (1, 2)


class World(SimulatedRun):
    """What a run consists of: events change it, `Simulation` makes them happen."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed)
        self.directory = directory
        self.cluster = Cluster(set(BROKERS))
        self.logs: dict[TopicIdPartition, LedLog] = {}
        """Those of deleted topics, too."""
        self.storage = self.made_storage()
        self.storage.later = self.loop.call_later
        self.archive_storage: ArchiveStorage | None = None
        self.invariants = Invariants(self.logs, self.storage)
        self.objects = ObjectInvariants(self.invariants, self.storage, self.cluster, self.wall_ms)
        self.topic.on_acknowledged = self.objects.acknowledged
        self.lifecycle_metrics = LifecycleMetrics(self.registry)
        put, deleted = self.storage.on_put, self.storage.on_delete
        self.storage.on_put = lambda metadata, records: self.checked(lambda: put(metadata, records))
        self.storage.on_delete = lambda segment_id: self.checked(lambda: deleted(segment_id))
        self.agents: dict[int, AgentModel] = {}
        self.lives: dict[int, LifeOfObjects] = {}
        """What the agents do for the life of objects."""
        self.incarnations = Counter[int]()
        self.withdrawn: set[TopicIdPartition] = set()
        """Partitions that nobody is to take care of, for now."""
        self.snapshot: bytes | None = None
        self.state = StateDirectories(directory)
        self.make_topic(BROKERS[0])

    def made_storage(self) -> SeededStorage:
        return SeededStorage(self.random("store"), self.hit, self.wall_ms)

    # What agents find.

    def assigned_anew(self, agent: AgentModel) -> None:
        self.tell_later(agent, self.random("leadership").uniform(0, 0.5))

    def heard(self, agent: AgentModel, segment: UploadedSegment) -> None:
        self.note("heard", *segment.combined_segment_id, len(segment.items))
        self.checked(lambda: self.invariants.heard(agent, segment))

    def published(self, agent: AgentModel, record: Publishable) -> None:
        self.note("published", type(record).__name__, getattr(record, "combined_segment_id", ""))
        self.checked(lambda: self.invariants.published(agent, record))
        if agent.broker_id in self.lives:
            self.checked(lambda: self.objects.published(self.lives[agent.broker_id], record))

    # The brokers.

    def make_topic(self, leader: int) -> None:
        """The one topic there is; one that was there before is deleted."""
        topic = TopicId(b"%15d." % len(self.cluster.gone))
        self.cluster.retention_ms[topic] = RETENTIONS_MS[self.seed % len(RETENTIONS_MS)]
        for number in range(2 + self.seed % 2):
            log = LedLog(TopicIdPartition(topic, number), self.directory / f"t-{number}", leader)
            self.logs[log.partition] = log
            self.invariants.made(log)

    def delete_topic(self) -> None:
        for log in self.living_logs():
            log.is_deleted = True
            log.path.rename(log.path.with_name(f"{log.path.name}.{len(self.cluster.gone)}-delete"))
            self.changed(log)
        for topic in list(self.cluster.retention_ms):
            del self.cluster.retention_ms[topic]
            self.cluster.gone[topic] = self.loop.time()

    def living_logs(self) -> list[LedLog]:
        return [log for log in self.logs.values() if not log.is_deleted]

    def log(self, number: int) -> LedLog:
        logs = self.living_logs()
        return logs[number % len(logs)]

    def changed(self, log: LedLog) -> None:
        for agent in self.agents.values():
            for events in agent.directory_events:
                events.changed(log.path)

    def append(self, log: LedLog, records: int, payload_bytes: int) -> None:
        written = log.append(records, b"%d" % (log.end % 10) * payload_bytes)
        self.produced(log, written)
        self.invariants.appended(log, written)
        self.changed(log)

    def produced(self, log: LedLog, written: WrittenBatch) -> None:
        """A client has, and no agent has seen it yet."""

    # The agents.

    def start(self, broker: int) -> None:
        self.incarnations[broker] += 1
        agent, life = self.incarnation(broker, self.incarnations[broker])
        self.agents[broker] = agent
        self.invariants.began(agent)
        agent.start()
        self.lives[broker] = life
        life.start()
        self.tell(agent)

    def incarnation(self, broker: int, number: int) -> tuple[AgentModel, LifeOfObjects]:
        """A new one, that has not begun yet."""
        agent = AgentModel(self, broker, number, *self.stores(broker))
        return agent, LifeOfObjects(self, agent, self.incarnations, NO_TIER)

    def stores(self, broker: int) -> tuple[RemoteWalMetadataStore, ArchiveStore]:
        """What a new agent knows: what its predecessor left, or else what the snapshot tells."""
        store, archive = RemoteWalMetadataStore(self.state.file(broker)), ArchiveStore()
        keep_archive(store, archive)
        if store.progress:
            self.hit("knowledge kept in a file")
        elif self.snapshot is not None:
            image = read_image(self.snapshot, "c")
            restore_archive(archive, image)
            store.restore(image)
        return store, archive

    async def end_care(self, broker: int) -> None:
        rng = self.random("crash")
        await self.lives.pop(broker).crash(lambda: rng.random() < 0.5)

    def tell(self, agent: AgentModel) -> None:
        if agent.is_living:
            led = [
                log
                for log in self.living_logs()
                if log.leader == agent.broker_id and log.partition not in self.withdrawn
            ]
            agent.assign(led)
            for log in led:
                resumed = agent.manager.led().get(log.partition)
                if resumed is not None and resumed.task.missing:
                    self.hit("resumed with a hole")

    def tell_later(self, agent: AgentModel, after_s: float) -> None:
        self.loop.call_later(after_s, self.tell, agent)

    def start_later(self, broker: int, number: int) -> None:
        def start() -> None:
            if broker not in self.agents and broker in self.cluster.living:
                self.start(broker)

        self.loop.call_later((0.0, 0.05, 0.5, 3.0)[number % 4], start)

    def count(self, agent: AgentModel) -> None:
        self.hits["passed over"] += len(agent.passed_over)
        self.hits["gap declared"] += agent.gaps_declared
