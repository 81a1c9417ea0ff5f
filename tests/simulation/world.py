"""What stands still between two events of a run: brokers' logs, agents, topic, store, and who looks on."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.publishable import Publishable
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.uploaded_segment import UploadedSegment
from tests.metadata_topic.store_oracles import read_snapshot
from tests.simulation.agent_model import AgentModel
from tests.simulation.invariants import Invariants
from tests.simulation.led_log import LedLog
from tests.simulation.metadata_topic_model import TopicModel
from tests.simulation.seeded_storage import SeededStorage
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop

TOPIC = TopicId(b"simulated topic.")
BROKERS = (1, 2)


class World:
    """What a run consists of: events change it, `Simulation` makes them happen."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.loop = VirtualTimeLoop()
        self.loop.default_executor = SeededExecutor(self.loop, 8, lambda: (0.0, 0.0))
        self._streams: dict[str, random.Random] = {}
        self.hits: Counter[str] = Counter()
        self._trace: list[tuple[float, tuple[object, ...]]] = []
        partitions = [TopicIdPartition(TOPIC, number) for number in range(2 + seed % 2)]
        self.logs = {one: LedLog(one, directory / f"t-{one.partition}", BROKERS[0]) for one in partitions}
        self.topic = TopicModel(self.loop, self.random("topic"))
        self.storage = SeededStorage(self.random("store"), self.hit)
        self.invariants = Invariants(self.logs, self.storage)
        self.topic.on_acknowledged = self.invariants.acknowledged
        self.topic.on_refused = lambda: self.hit("publication refused")
        registry = CollectorRegistry()
        self.metrics, self.stage_times = WriteMetrics(registry), StageTimes(registry)
        """Of all agents: nothing here depends on them, and it takes long to make them."""
        self.agents: dict[int, AgentModel] = {}
        self.incarnations = Counter[int]()
        self.released: set[CombinedSegmentId] = set()
        self.withdrawn: set[TopicIdPartition] = set()
        """Partitions that nobody is to take care of, for now."""
        self.snapshot: bytes | None = None
        self.ends = False
        self.defects: list[BaseException] = []

    # What agents find.

    def random(self, name: str) -> random.Random:
        """A stream of its own for each name, so that what one draws does not change the others."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed} {name}")
        return self._streams[name]

    def note(self, *what: object) -> None:
        self._trace.append((self.loop.time(), what))

    @property
    def trace(self) -> list[str]:
        """All that was noted, a line each."""
        return [f"{at_s:.6f} {' '.join(map(str, what))}" for at_s, what in self._trace]

    def hit(self, fault: str) -> None:
        self.hits[fault] += 1

    def read_delays(self) -> Delays:
        rng = self.random("reads")
        longest_s = 0.8 if rng.random() < 0.05 else 0.004
        return rng.uniform(0, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    def may_watch(self) -> bool:
        may = self.ends or self.random("watches").random() > 0.1
        if not may:
            self.hit("watch refused")
        return may

    def assigned_anew(self, agent: AgentModel) -> None:
        self.tell_later(agent, self.random("leadership").uniform(0, 0.5))

    def heard(self, agent: AgentModel, segment: UploadedSegment) -> None:
        self.note("heard", *segment.combined_segment_id, len(segment.items))
        self._checked(lambda: self.invariants.heard(agent, segment))

    def published(self, agent: AgentModel, record: Publishable) -> None:
        self.note("published", type(record).__name__, getattr(record, "combined_segment_id", ""))
        self._checked(lambda: self.invariants.published(agent, record))

    def _checked(self, check: Callable[[], None]) -> None:
        """The product must not take our judgement for a listener's defect."""
        try:
            check()
        except AssertionError as broken:
            self.defects.append(broken)

    # The brokers.

    def log(self, number: int) -> LedLog:
        return list(self.logs.values())[number % len(self.logs)]

    def changed(self, log: LedLog) -> None:
        for agent in self.agents.values():
            for events in agent.directory_events:
                events.changed(log.path)

    def append(self, log: LedLog, records: int, payload_bytes: int) -> None:
        self.invariants.appended(log, log.append(records, b"%d" % (log.end % 10) * payload_bytes))
        self.changed(log)

    # The agents.

    def start(self, broker: int) -> None:
        self.incarnations[broker] += 1
        store = RemoteWalMetadataStore() if self.snapshot is None else read_snapshot(self.snapshot, "c")
        agent = self.agents[broker] = AgentModel(self, broker, self.incarnations[broker], store)
        self.invariants.began(agent)
        agent.start()
        self.tell(agent)

    def tell(self, agent: AgentModel) -> None:
        if agent.is_living:
            led = [
                log
                for log in self.logs.values()
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
            if broker not in self.agents:
                self.start(broker)

        self.loop.call_later((0.0, 0.05, 0.5, 3.0)[number % 4], start)

    def count(self, agent: AgentModel) -> None:
        self.hits["passed over"] += len(agent.passed_over)
        self.hits["gap declared"] += agent.gaps_declared
        self.hits["bulk gathered"] += agent.gathered
