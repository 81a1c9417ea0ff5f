"""Three brokers with replicas and agents of their own in three zones, the controller, a topic, a store, a network."""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.publishable import Publishable
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.agent_model import AgentModel
from tests.simulation.led_log import LedLog
from tests.simulation.replicas.agent_process import AgentProcess
from tests.simulation.replicas.broker_model import BrokerModel
from tests.simulation.replicas.controller_model import ControllerModel
from tests.simulation.replicas.kafka_frames import FetchRequest, FetchResponse
from tests.simulation.replicas.replica import NO_LEADER, Leadership, Replica
from tests.simulation.replicas.replica_invariants import ReplicaInvariants
from tests.simulation.replicas.replica_storage import ReplicaStorage
from tests.simulation.seeded_storage import SeededStorage
from tests.simulation.simulated_run import SimulatedRun
from tests.simulation.stores import StateDirectories
from tests.simulation.virtual_time import Delays

TOPIC = TopicId(b"simulated topic.")
BROKERS = (1, 2, 3)
PARTITIONS = 2


class ReplicatedWorld(SimulatedRun):
    """See the module's summary. Events change it, `ReplicatedSimulation` makes them happen."""

    topic_id = bytes(TOPIC)

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed)
        self.network = self.loop.network
        self.network.rng, self.network.hit = self.random("network"), self.hit
        for broker in BROKERS:
            self.network.zone_of |= {f"broker {broker}": broker, f"agent {broker}": broker}
        self.controller = ControllerModel(self.loop, BROKERS, PARTITIONS)
        self.controller.on_change, self.controller.on_unclean = self._leadership_changed, self._unclean
        self.storage: ReplicaStorage = ReplicaStorage(self.random("store"), self.random("gets"), self.hit, self.wall_ms)
        self.invariants = ReplicaInvariants(PARTITIONS, self.storage)
        self.replication_metrics = ReplicationMetrics(CollectorRegistry())
        self.is_bypassing = seed // 4 % 2 == 0
        self.shares_reads = seed // 8 % 2 == 0
        self.replicas = {
            broker: [
                Replica(LedLog(TopicIdPartition(TOPIC, number), directory / f"{broker}" / f"t-{number}", NO_LEADER))
                for number in range(PARTITIONS)
            ]
            for broker in BROKERS
        }
        self.state = StateDirectories(directory)
        self.brokers: dict[int, BrokerModel] = {}
        self.agents: dict[int, AgentProcess] = {}
        self.paused: set[str] = set()
        self._incarnations = dict.fromkeys(BROKERS, 0)
        self._is_unclean: set[int] = set()

    # Brokers.

    def start_broker(self, broker: int) -> None:
        self.controller.registered(broker)
        model = self.brokers[broker] = BrokerModel(self, broker, self.replicas[broker], f"agent-{broker}")
        model.start()

    def crash_broker(self, broker: int) -> None:
        self.resume(f"broker {broker}")
        self.brokers.pop(broker).crash()
        self.controller.silent(broker)

    def leader_of(self, partition: int) -> tuple[BrokerModel, Replica] | None:
        """The broker that leads, if it lives, is not paused, and knows it."""
        broker = self.brokers.get(self.controller.partitions[partition].leader)
        if broker is None or f"broker {broker.broker_id}" in self.paused:
            return None
        replica = broker.replicas[partition]
        return (broker, replica) if broker.leads(replica) else None

    def _leadership_changed(self, partition: int, leadership: Leadership) -> None:
        self.note("leadership", partition, leadership.leader, leadership.epoch, sorted(leadership.isr))
        if leadership.leader != NO_LEADER:
            leader = self.replicas[leadership.leader][partition]
            if partition in self._is_unclean:
                self._is_unclean.discard(partition)
                lost = self.invariants.elected_unclean(partition, leader, leadership.epoch)
                self.hits["acknowledged records lost by an unclean election"] += lost
            else:
                self.checked(lambda: self.invariants.elected(partition, leader))
        for broker in self.brokers.values():
            after_s = self.random("controller").choice((0.0, 0.005, 0.05, 0.5))
            self.loop.call_later(after_s, broker.learn, partition, leadership, context=broker.context)

    def _unclean(self, partition: int, _leader: int) -> None:
        self.hit("unclean election")
        self._is_unclean.add(partition)

    def log_changed(self, broker: int, replica: Replica) -> None:
        agent = self.agents.get(broker)
        if agent is not None:
            for events in agent.writing.directory_events:
                events.changed(replica.files.path)

    def produced(self, replica: Replica, batch: WrittenBatch, before: BatchKey | None) -> None:
        partition = replica.files.partition.partition
        self.checked(lambda: self.invariants.produced(partition, batch, before))

    def followed(self, replica: Replica, batch: WrittenBatch, before: BatchKey | None, leaders_start: int) -> None:
        partition = replica.files.partition.partition
        self.checked(lambda: self.invariants.followed(partition, batch, before, leaders_start))

    def rewritten(self, broker: int, replica: Replica) -> None:
        self.invariants.rewritten(replica)
        self.log_changed(broker, replica)

    def acknowledged(self, broker: int, replica: Replica, keys: list[BatchKey]) -> None:
        self.hits["acknowledged"] += len(keys)
        partition = replica.files.partition.partition
        leader = self.controller.partitions[partition].leader
        known = self.replicas[leader][partition] if leader != NO_LEADER else None
        self.checked(lambda: self.invariants.acknowledge(partition, keys, known))

    def answered(self, request: FetchRequest, response: FetchResponse) -> None:
        self.invariants.answered(request, response)

    def received(self, request: FetchRequest, response: FetchResponse) -> None:
        self.note("received", request.replica_id, *((*one[:3], len(one.records)) for one in response.answered))
        self.checked(lambda: self.invariants.received(request, response))

    def led_changed(self, broker: int) -> None:
        agent = self.agents.get(broker)
        if agent is not None:
            self.tell_later(agent, self.random("leadership").choice((0.0, 0.01, 0.3, 2.0)))

    # Agents.

    def start_agent(self, broker: int) -> None:
        self._incarnations[broker] += 1
        agent = self.agents[broker] = AgentProcess(AgentsView(self, broker), broker, self._incarnations[broker])
        agent.start()
        self.tell_later(agent, 0.0)

    def tell_later(self, agent: AgentProcess, after_s: float) -> None:
        self.loop.call_later(after_s, self._tell, agent, context=agent.context)

    def _tell(self, agent: AgentProcess) -> None:
        led = [known.leader == agent.broker_id for known in self.controller.partitions]
        replicas = self.replicas[agent.broker_id]
        agent.assign([replica.files for replica, is_led in zip(replicas, led, strict=True) if is_led])

    def count(self, agent: AgentProcess) -> None:
        self.hits["passed over"] += len(agent.writing.passed_over)
        self.hits["gap declared"] += agent.writing.gaps_declared

    # Processes.

    def pause(self, process: str) -> None:
        self.paused.add(process)
        self.loop.pause(process)

    def resume(self, process: str) -> None:
        if process in self.paused:
            self.paused.discard(process)
            self.loop.resume(process)

    # Always.

    def look(self) -> None:
        """Raises AssertionError where something does not hold."""
        if self.defects:
            raise self.defects[0]
        begins = [
            max(self.replicas[broker][number].files.begin or 0 for broker in BROKERS) for number in range(PARTITIONS)
        ]
        for broker, agent in self.agents.items():
            main = agent.writing.main
            if main.done() and not main.cancelled():
                raise AssertionError("the write path has ended") from main.exception()
            self.invariants.check(agent, self.replicas[broker], begins)
        for model in self.brokers.values():
            model.look()


class AgentsView:
    """The world as the agent beside one broker finds it: its logs are that broker's."""

    def __init__(self, world: ReplicatedWorld, broker: int) -> None:
        self._world, self._broker = world, broker
        self.loop, self.topic = world.loop, world.topic
        self.storage: SeededStorage = world.storage
        self.metrics, self.stage_times = world.metrics, world.stage_times
        self.replication_metrics = world.replication_metrics
        self.broker_ids: tuple[int, ...] = BROKERS
        self.is_bypassing = world.is_bypassing
        self.shares_reads = world.shares_reads
        self.state = world.state
        self.logs = {replica.files.partition: replica.files for replica in world.replicas[broker]}
        self.note, self.random = world.note, world.random
        self.read_delays: Callable[[], Delays] = world.read_delays
        self.may_watch: Callable[[], bool] = world.may_watch
        self.get_delays: Callable[[], Delays] = world.storage.get_delays

    def assigned_anew(self, agent: AgentModel) -> None:
        process = self._world.agents.get(self._broker)
        if process is not None and process.writing is agent:
            self._world.tell_later(process, self._world.random("leadership").uniform(0, 0.5))

    def heard(self, agent: AgentModel, segment: UploadedSegment) -> None:
        self._world.note("heard", *segment.combined_segment_id, len(segment.items))
        self._world.checked(lambda: self._world.invariants.heard(segment))

    def published(self, agent: AgentModel, record: Publishable) -> None:
        self._world.note("published", type(record).__name__, getattr(record, "combined_segment_id", ""))
        self._world.checked(lambda: self._world.invariants.published(record))
