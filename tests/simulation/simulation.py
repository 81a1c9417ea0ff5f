"""Seeded runs of the real write path: two agents, one after the other leading, on one loop in virtual time.

The product's own are the log manager with all that it is made of, resuming, gap declarations, the metadata store and
what is written to the topic. Models are the brokers' files (which are real files), the topic, the object store, the
followers, and the machine: time, threads, and the kernel's word of appends. `Invariants` looks on.

A run is the seed's events, and random streams for all that is not an event: how long a call takes, and how it fails.
"""

import asyncio
import hashlib
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import structlog

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.snapshot import read_snapshot, write_snapshot
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from rlm.write_path import group_commit
from rlm.write_path.combine_task import UploadedSegment
from tests.simulation.agent_model import WALL_MS, AgentModel
from tests.simulation.invariants import FINISHED, RELEASED, Invariants
from tests.simulation.led_log import LedLog
from tests.simulation.metadata_topic_model import TopicModel
from tests.simulation.plan import Event, plan
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW, SeededStorage
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop, run

TOPIC = TopicId(b"simulated topic.")
BROKERS = (1, 2)
SETTLED_WITHIN_S = 120.0
FAULTS = (
    "upload fails before effect", "upload fails after effect", "upload hangs before effect",
    "upload hangs after effect", "crash before an upload's effect", "crash after an upload's effect",
    "publication lost with a crash", "publication survives a crash", "publication refused",
    "events overflow", "watch refused", "passed over", "truncated", "gap declared", "resumed with a hole",
    "bulk gathered",
)  # fmt: skip
"""What a large number of runs must have met."""


class Simulation:
    """One run."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.loop = VirtualTimeLoop()
        self.loop.default_executor = SeededExecutor(self.loop, 8, lambda: (0.0, 0.0))
        self._streams: dict[str, random.Random] = {}
        self.hits: Counter[str] = Counter()
        self.trace: list[str] = []
        partitions = [TopicIdPartition(TOPIC, number) for number in range(2 + seed % 2)]
        self.logs = {one: LedLog(one, directory / f"t-{one.partition}", BROKERS[0]) for one in partitions}
        self.topic = TopicModel(self.loop, self.random("topic"))
        self.storage = SeededStorage(self.random("store"), self._hit)
        self.invariants = Invariants(self.logs, self.storage)
        self.topic.on_acknowledged = self.invariants.acknowledged
        self.topic.on_refused = lambda: self._hit("publication refused")
        self.agents: dict[int, AgentModel] = {}
        self._incarnations = Counter[int]()
        self._released: set[CombinedSegmentId] = set()
        self._withdrawn: set[TopicIdPartition] = set()
        """Partitions that nobody is to take care of, for now."""
        self._snapshot: bytes | None = None
        self._ends = False
        self._defects: list[BaseException] = []

    # What agents find.

    def random(self, name: str) -> random.Random:
        """A stream of its own for each name, so that what one draws does not change the others."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed} {name}")
        return self._streams[name]

    def note(self, *what: object) -> None:
        self.trace.append(f"{self.loop.time():.6f} {' '.join(map(str, what))}")

    def _hit(self, fault: str) -> None:
        self.hits[fault] += 1

    def read_delays(self) -> Delays:
        rng = self.random("reads")
        longest_s = 0.8 if rng.random() < 0.05 else 0.004
        return rng.uniform(0, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    def may_watch(self) -> bool:
        may = self._ends or self.random("watches").random() > 0.1
        if not may:
            self._hit("watch refused")
        return may

    def assigned_anew(self, agent: AgentModel) -> None:
        self._tell_later(agent, self.random("leadership").uniform(0, 0.5))

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
            self._defects.append(broken)

    # The run.

    def run(self, events: Sequence[Event] | None = None) -> None:
        """Raises AssertionError where an invariant is broken."""
        events = plan(self.seed) if events is None else events
        is_bulk_small = self.seed % 2
        with patch.object(group_commit, "BULK_BYTES", 200 if is_bulk_small else group_commit.BULK_BYTES), _silence():
            run(self.loop, self._run(events))

    @property
    def fingerprint(self) -> str:
        """A hash of all that happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    async def _run(self, events: Sequence[Event]) -> None:
        for log in self.logs.values():
            self._append(log, 1, 20)
        for broker in BROKERS:
            self._start(broker)
        for after_s, kind, number in events:
            await asyncio.sleep(after_s)
            self._look()
            self.note(kind, number)
            doing = DO[kind](self, number)
            if doing is not None:
                await doing
            self._look()
        await self._settle()

    def _look(self) -> None:
        if self._defects:
            raise self._defects[0]
        for agent in self.agents.values():
            if agent.main.done() and not agent.main.cancelled():
                raise AssertionError("the write path has ended") from agent.main.exception()
        self.invariants.check_all()

    # The brokers.

    def _log(self, number: int) -> LedLog:
        return list(self.logs.values())[number % len(self.logs)]

    def _changed(self, log: LedLog) -> None:
        for agent in self.agents.values():
            for events in agent.directory_events:
                events.changed(log.path)

    def _append(self, log: LedLog, records: int, payload_bytes: int) -> None:
        self.invariants.appended(log, log.append(records, b"%d" % (log.end % 10) * payload_bytes))
        self._changed(log)

    def append(self, number: int) -> None:
        self._append(self._log(number), 1 + (number >> 4) % 3, (number >> 8) % 300)

    def burst(self, number: int) -> None:
        for _ in range(5 + (number >> 4) % 40):
            self._append(self._log(number), 1, 50 + (number >> 8) % 400)

    def roll(self, number: int) -> None:
        log = self._log(number)
        log.log.roll()
        self._changed(log)

    def expire(self, number: int) -> None:
        log = self._log(number)
        for _ in range(1 + (number >> 4) % 3):
            log.expire(unlink=bool(number >> 8 & 1))
        self._changed(log)

    def compact(self, number: int) -> None:
        log = self._log(number)
        closed = [at for at, segment in enumerate(log.log.segments[:-1]) if len(segment.batches) > 1]
        if closed:
            log.log.compact(closed[(number >> 4) % len(closed)])
            self.invariants.rewritten(log)
            self._changed(log)

    def elect(self, number: int) -> None:
        """Clean, or unclean; of the same broker, or the other one. Agents learn of it later."""
        log = self._log(number)
        cut_off = (number >> 4) % 8 if number >> 8 & 1 else 0
        leader = BROKERS[(number >> 9) % 2]
        if cut_off:
            self._hit("truncated")
        log.elect(leader, cut_off, writes_its_epoch=bool(number >> 10 & 1))
        self.invariants.rewritten(log)
        self._changed(log)
        for agent in list(self.agents.values()):
            self._tell_later(agent, self.random("leadership").choice((0.0, 0.01, 0.3, 2.0)))
        if number >> 11 & 1:
            self._append(log, 1 + (number >> 12) % 3, 40)

    # The agents.

    def _start(self, broker: int) -> None:
        self._incarnations[broker] += 1
        store = RemoteWalMetadataStore() if self._snapshot is None else read_snapshot(self._snapshot, "c")
        agent = self.agents[broker] = AgentModel(self, broker, self._incarnations[broker], store)
        self.invariants.began(agent)
        agent.start()
        self._tell(agent)

    def _tell(self, agent: AgentModel) -> None:
        if agent.is_living:
            led = [
                log
                for log in self.logs.values()
                if log.leader == agent.broker_id and log.partition not in self._withdrawn
            ]
            agent.assign(led)
            for log in led:
                resumed = agent.manager._partitions.get(log.partition)
                if resumed is not None and resumed.task.missing:
                    self._hit("resumed with a hole")

    def _tell_later(self, agent: AgentModel, after_s: float) -> None:
        self.loop.call_later(after_s, self._tell, agent)

    def _start_later(self, broker: int, number: int) -> None:
        def start() -> None:
            if broker not in self.agents:
                self._start(broker)

        self.loop.call_later((0.0, 0.05, 0.5, 3.0)[number % 4], start)

    def assign(self, number: int) -> None:
        """Taken from those that are cared for, or given back."""
        self._withdrawn ^= {self._log(number).partition}
        for agent in list(self.agents.values()):
            self._tell_later(agent, (number >> 4) % 3 * 0.02)

    async def crash(self, number: int) -> None:
        agent = self.agents.pop(BROKERS[number % 2], None)
        if agent is None:
            return
        waiting = len(agent.publication)
        lost = agent.publication.die((number >> 4) % (waiting + 1))
        self.hits["publication lost with a crash"] += lost
        self.hits["publication survives a crash"] += waiting - lost
        self.invariants.agents.remove(agent)
        made, not_made = await agent.crash(self.random("crash"))
        self.hits["crash after an upload's effect"] += made
        self.hits["crash before an upload's effect"] += not_made
        self._count(agent)
        if number >> 10 & 1:
            self._snapshot = write_snapshot(agent.store, "c") if number >> 11 & 1 else None
        self._start_later(agent.broker_id, number >> 12)

    async def stop(self, number: int) -> None:
        """In order."""
        agent = self.agents.pop(BROKERS[number % 2], None)
        if agent is None:
            return
        await agent.stop((0.1, 2.0, 20.0)[(number >> 4) % 3])
        self.invariants.check(agent)
        self.invariants.agents.remove(agent)
        agent.publication.die((number >> 8) % (len(agent.publication) + 1))
        self._count(agent)
        self._start_later(agent.broker_id, number >> 12)

    def _count(self, agent: AgentModel) -> None:
        self.hits["passed over"] += agent.passed_over
        self.hits["gap declared"] += agent.gaps_declared
        self.hits["bulk gathered"] += agent.gathered

    # What they stand on.

    def store(self, number: int) -> None:
        self.storage.mode = (HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY, AWAY)[number % 7]

    def set_topic(self, number: int) -> None:
        self.topic.is_away = number % 3 == 0
        self.topic.delay_max_s = (0.02, 0.5)[(number >> 4) % 2]

    def follow(self, number: int) -> None:
        """A follower fetches inline, anywhere, most often at the log's end."""
        log = self._log(number)
        batches = log.log.batches
        if not batches:
            return
        at = -1 if number >> 4 & 3 else (number >> 8) % len(batches)
        for agent in self.agents.values():
            agent.manager.mode_of(log.partition, len(batches[at].raw))
            agent.manager.fetched(3, log.partition, batches[at].base_offset, len(batches[at].raw))
            agent.manager.upload_expected(log.partition, batches[at].base_offset)
            if number >> 6 & 1:
                agent.manager.links_wanted([log.partition])

    def jump(self, number: int) -> None:
        """All agents stand still, and the brokers go on."""
        self.loop.jump((0.01, 0.3, 4.0, 30.0)[number % 4])
        self.append(number >> 4)

    def hurry(self, number: int) -> None:
        for agent in self.agents.values():
            agent.manager.hurry(self._log(number).partition, hurried=bool(number >> 4 & 1))

    def release(self, number: int) -> None:
        """The oldest object that is known goes, as the retention is over."""
        living = [
            record
            for record in self.topic.records
            if isinstance(record, PublishedSegment)
            and record.state is FINISHED
            and record.combined_segment_id not in self._released
        ]
        if not living or not self.agents:
            return
        record = living[0]
        self._released.add(record.combined_segment_id)
        for entry in record.metadata.entries:
            released = self.logs[entry.topic_id_partition].released
            released[entry.leader_epoch] = max(released.get(entry.leader_epoch, 0), entry.last_offset + 1)
        deletion = RemoteWalCombinedLogSegmentMetadata(
            record.combined_segment_id, (), RELEASED, WALL_MS, record.size_bytes
        )
        self.topic.append(_encoded(deletion))
        self.storage.objects.pop(record.combined_segment_id)

    def declare_dead(self, number: int) -> None:
        for agent in self.agents.values():
            for partition in agent.led:
                agent.declare_dead(partition)

    def lose_events(self, number: int) -> None:
        for agent in self.agents.values():
            for events in agent.directory_events:
                events.overflow()
                self._hit("events overflow")

    async def let_be(self, number: int) -> None:
        await asyncio.sleep(1 + number % 4)

    # The end.

    async def _settle(self) -> None:
        """Nothing fails any more: all is stored, and the next incarnations find nothing to do."""
        self.note("settle")
        self._ends = self.storage.never_fails = True
        self.storage.mode = HEALTHY
        self.topic.is_away, self.topic.delay_max_s = False, 0.02
        self._withdrawn.clear()
        for log in self.logs.values():
            log.write_epoch()
            self._changed(log)
        await self._all_stored()
        for broker in BROKERS:
            self._count(self.agents[broker])
            self.agents.pop(broker)
        for agent in list(self.invariants.agents):
            self.invariants.agents.remove(agent)
            await agent.crash(self.random("crash"))
            agent.publication.die(0)
        known = dict(self._incarnations)
        await self._all_stored()
        await asyncio.sleep(10)
        self._look()
        again = [put for put in self.storage.puts if put.incarnation > known[put.broker_id]]
        assert not again, f"{len(again)} objects are uploaded once more"
        for broker in BROKERS:
            await self.agents[broker].stop(1.0)

    async def _all_stored(self) -> None:
        until_s = self.loop.time() + SETTLED_WITHIN_S
        while True:
            for broker in BROKERS:
                if broker not in self.agents:
                    self._start(broker)
                self._tell(self.agents[broker])
            await asyncio.sleep(2.5)
            self._look()
            if not (left := self._unsettled()):
                return
            assert self.loop.time() < until_s, f"uploading does not come to an end: {left}"

    def _unsettled(self) -> list[str]:
        left = []
        for log in self.logs.values():
            agent = self.agents[log.leader]
            uploaded = agent.manager.uploaded_offset(log.partition)
            if uploaded != log.end or self.invariants.left_out(agent, log, log.end):
                left.append(f"{log.partition.partition}: {uploaded} of {log.end}")
        return left + [f"{len(agent.publication)} unpublished" for agent in self.agents.values() if agent.publication]


Doing = Callable[[Simulation, int], Awaitable[None] | None]
DO: dict[str, Doing] = {
    "append": Simulation.append,
    "burst": Simulation.burst,
    "roll": Simulation.roll,
    "expire": Simulation.expire,
    "compact": Simulation.compact,
    "elect": Simulation.elect,
    "assign": Simulation.assign,
    "store": Simulation.store,
    "topic": Simulation.set_topic,
    "crash": Simulation.crash,
    "stop": Simulation.stop,
    "follow": Simulation.follow,
    "jump": Simulation.jump,
    "hurry": Simulation.hurry,
    "release": Simulation.release,
    "declare dead": Simulation.declare_dead,
    "lose events": Simulation.lose_events,
    "let be": Simulation.let_be,
}


def _encoded(record: Publishable) -> tuple[bytes, bytes]:
    from metadata_topic.records.publishable import encoded

    return encoded(record)


@contextmanager
def _silence() -> Iterator[None]:
    """What is logged is not what is tested, and costs more than all else."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)


class FailedRunError(AssertionError):
    """A run in which something did not hold."""

    def __init__(self, seed: int, what: BaseException, trace: list[str]) -> None:
        self.trace = trace
        super().__init__(f"{what if isinstance(what, AssertionError) else repr(what)} (seed {seed})")


def simulate(seed: int, events: Sequence[Event] | None = None) -> Simulation:
    """One run in a directory of its own. Raises FailedRunError."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as directory:
        simulation = Simulation(seed, Path(directory))
        try:
            simulation.run(events)
        except Exception as what:
            raise FailedRunError(seed, what, simulation.trace) from what
        return simulation
