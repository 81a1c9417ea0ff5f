"""Seeded runs of the real write path: two agents, one after the other leading, on one loop in virtual time.

The product's own are the log manager with all that it is made of, resuming, gap declarations, the metadata store, what
is written to the topic, and what cares for objects after their upload. Models are the brokers' files (which are real
files), the topic, the object store, the followers, and the machine: time, threads, and the kernel's word of appends.
`Invariants` and `ObjectInvariants` look on.

A run is the seed's events, and random streams for all that is not an event: how long a call takes, and how it fails.
"""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

from cli.log_lines import logs_from
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.states import FINISHED
from plugin.format import entry_column_batches, entry_columns
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.commit import cadence, constants
from tests.kafka_log.log_writer import BatchKey
from tests.simulation import agent_events, broker_events, outside_events
from tests.simulation.adoption.adoption_plan import is_adopting
from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.cut_off_check import ArchivedBatches, CutOffCheck
from tests.simulation.life_of_objects import RETENTIONS_MS
from tests.simulation.plan import Event, plan
from tests.simulation.recovery_check import check_recovery
from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.replicas.replicated_simulation import ReplicatedSimulation
from tests.simulation.simulated_run import SimulatedRun
from tests.simulation.virtual_time import run
from tests.simulation.world import BROKERS, World
from topic_reader.held_records import give_up

SETTLED_WITHIN_S = 120.0
GONE_WITHIN_S, GONE_PER_OBJECT_S = 120.0, 0.5
"""A round of one agent begins so many deletions as may wait for the topic, and the next round comes seconds later."""
CONFIRMED_AFTER_S = 60.0
DO: dict[str, Callable[[World, int], Awaitable[None] | None]] = {
    **broker_events.DO,
    **agent_events.DO,
    **outside_events.DO,
}
"""By the kind of event."""


class Simulation(World):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.cut_off = CutOffCheck(self)

    def batches_archived(self) -> ArchivedBatches:
        """What each archive object holds that is there."""
        return {}

    # The run.

    def run(self, events: Sequence[Event]) -> None:
        """Raises AssertionError where an invariant is broken."""
        is_bulk_small = self.seed % 2
        with patch.object(cadence, "OBJECT_BYTES", 800 if is_bulk_small else constants.OBJECT_BYTES):
            run(self.loop, self.live(events))

    def begin(self) -> None:
        for log in self.living_logs():
            self.append(log, 1, 20)
        for broker in BROKERS:
            self.start(broker)

    def in_the_midst(self) -> None:
        if self.seed % 4 == 0:
            self.check_recovery("midst", is_settled=False)

    def do(self, kind: str, number: int) -> Awaitable[None] | None:
        return DO[kind](self, number)

    def look(self) -> None:
        if self.defects:
            raise self.defects[0]
        for agent in self.agents.values():
            if agent.main.done() and not agent.main.cancelled():
                raise AssertionError("the write path has ended") from agent.main.exception()
        for life in self.lives.values():
            if (defect := life.defect()) is not None:
                raise AssertionError(f"the care of objects has ended: {defect!r}") from defect
        self.invariants.check_all()
        self.cut_off.look()

    # The end.

    async def settle(self) -> None:
        """All is stored, and the next incarnations find nothing to do."""
        self.withdrawn.clear()
        self.cluster.is_mute = self.cluster.has_lagging_replica = False
        for log in self.living_logs():
            log.write_epoch()
            self.changed(log)
        await self._all_stored()
        for broker in sorted(self.cluster.living):
            self.count(self.agents[broker])
            self.agents.pop(broker)
        for agent in list(self.invariants.agents):
            self.invariants.agents.remove(agent)
            await self.end_care(agent.broker_id)
            await agent.crash(self.random("crash"))
            agent.publication.die(0)
        known = dict(self.incarnations)
        finished = [segment_id for segment_id, state in self.objects.states.items() if state is FINISHED]
        stored = {held for segment_id in finished for held in self._held(segment_id)}
        await self._all_stored()
        await asyncio.sleep(10)
        self.look()
        later = (put for put in self.storage.puts if put.incarnation > known[put.broker_id])
        again = [put for put in later if any(self._is_wanted(held, stored) for held in self._held(put))]
        assert not again, f"{len(again)} objects are uploaded once more"
        self.check_recovery("end", is_settled=True)
        await self.all_gone()
        for broker in sorted(self.cluster.living):
            await self.end_care(broker)
            await self.agents[broker].stop(1.0)

    def _held(self, segment_id: CombinedSegmentId) -> list[tuple[TopicIdPartition, BatchKey]]:
        return self.invariants.batches_in[segment_id]

    def _is_wanted(
        self, held: tuple[TopicIdPartition, BatchKey], stored: set[tuple[TopicIdPartition, BatchKey]]
    ) -> bool:
        """Whether the batch was to be found stored: it did not go with its object, nor does it lie below where the
        upload began.

        Who led while the topic was away may have begun there without knowing of an earlier beginning; the next
        incarnations know of both, and store what lies between, for the first time.
        """
        partition, key = held
        log = self.logs[partition]
        return key not in log.not_wanted and (key.base_offset >= (log.begin or 0) or held in stored)

    def check_recovery(self, name: str, *, is_settled: bool) -> None:
        """Of all logs, as the topic and the store tell now."""
        with self.unfailing():
            check_recovery(self, self.directory / name, is_settled=is_settled)

    @contextmanager
    def unfailing(self) -> Iterator[None]:
        """No store fails meanwhile."""
        before, self.storage.never_fails = self.storage.never_fails, True
        yield
        self.storage.never_fails = before

    async def all_gone(self) -> None:
        """What is to go is gone in bounded time: objects of nobody's, of brokers and topics that are not there any
        more, dead ones, and in the end those whose time is over."""
        for topic in self.cluster.retention_ms:
            self.cluster.retention_ms[topic] = min(RETENTIONS_MS[:-1])
        await self.segments_gone()

    async def segments_gone(self) -> None:
        """Raises AssertionError unless all combined segments are deleted in bounded time."""
        until_s = self.loop.time() + GONE_WITHIN_S + GONE_PER_OBJECT_S * len(self.storage.objects)
        confirmed_s = self.loop.time() + CONFIRMED_AFTER_S
        while self.storage.objects:
            if self.loop.time() > confirmed_s and all([await one.confirm_orphans() for one in self.lives.values()]):
                confirmed_s = until_s
            assert self.loop.time() < until_s, f"objects are left that are to go: {self._told_of_objects()}"
            self._give_up_what_is_held()
            await asyncio.sleep(2.5)
            self.look()

    def _give_up_what_is_held(self) -> None:
        """As `remote-wal held give-up`."""
        for agent in self.agents.values():
            for partition in agent.store.local_losses():
                with suppress(PublicationBacklogFullError):
                    publish = agent.publication.publish
                    give_up(agent.store, agent.archive, partition, agent.broker_id, agent.wall_ms(), publish)

    def _told_of_objects(self) -> list[str]:
        left = [(segment_id, self.objects.states.get(segment_id)) for segment_id in self.storage.objects]
        return [f"{segment_id} {state.name if state is not None else '-'}" for segment_id, state in left[:5]]

    async def _all_stored(self) -> None:
        until_s = self.loop.time() + SETTLED_WITHIN_S
        while True:
            for broker in sorted(self.cluster.living):
                if broker not in self.agents:
                    self.start(broker)
                self.tell(self.agents[broker])
            await asyncio.sleep(2.5)
            self.look()
            if not (left := self._unsettled()):
                return
            assert self.loop.time() < until_s, f"uploading does not come to an end: {left}"

    def _unsettled(self) -> list[str]:
        left = []
        for log in self.living_logs():
            agent = self.agents[log.leader]
            uploaded = agent.manager.uploaded_offset(log.partition)
            if uploaded != log.end or self.invariants.left_out(agent, log, log.end):
                left.append(f"{log.partition.partition}: {uploaded} of {log.end}")
        waiting = (len(agent.publication) + agent.combine.unpublished for agent in self.agents.values())
        return left + [f"{count} unpublished" for count in waiting if count]


@contextmanager
def _decoded_once() -> Iterator[None]:
    """What is told of an object is read by all agents again and again, and always means the same."""
    kept = cache(entry_columns.decode)
    with patch.object(entry_columns, "decode", kept), patch.object(entry_column_batches, "decode", kept):
        yield


class FailedRunError(AssertionError):
    """A run in which something did not hold."""

    def __init__(self, seed: int, what: BaseException, trace: list[str]) -> None:
        self.trace = trace
        super().__init__(f"{what if isinstance(what, AssertionError) else repr(what)} (seed {seed})")


def _simulation_of(seed: int) -> type[ReplicatedSimulation | Simulation]:
    from tests.simulation.adoption.adopting_simulation import AdoptingSimulation  # it is one of these, and more
    from tests.simulation.archive.archived_simulation import ArchivedSimulation  # likewise

    if is_adopting(seed):
        return AdoptingSimulation
    if is_replicated(seed):
        return ReplicatedSimulation
    return ArchivedSimulation if is_archived(seed) else Simulation


def simulate(seed: int, events: Sequence[Event] | None = None) -> SimulatedRun:
    """One run in a directory of its own, of the write path or of replication whole. Raises FailedRunError."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as directory:
        simulation = _simulation_of(seed)(seed, Path(directory))
        try:
            # What is logged is not what is tested, and costs more than all else.
            with logs_from(logging.CRITICAL), _decoded_once():
                simulation.run(plan(seed) if events is None else events)
        except Exception as what:
            raise FailedRunError(seed, what, simulation.trace) from what
        return simulation
