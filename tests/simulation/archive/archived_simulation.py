"""Runs of the write path in which topics are archived: combined segments go once the archive has what is theirs."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import RemoteWalNodeRegistration
from rlm.write_path.metrics import ArchiveMetrics
from tests.simulation.agent_model import AgentModel
from tests.simulation.archive import archive_events
from tests.simulation.archive.agent_archive import AgentArchive, ArchiveKnowledge
from tests.simulation.archive.archive_invariants import ArchiveInvariants
from tests.simulation.archive.seeded_archive_storage import SeededArchiveStorage
from tests.simulation.cut_off_check import ArchivedBatches
from tests.simulation.life_of_objects import LifeOfObjects
from tests.simulation.metadata_topic_model import TopicRecord
from tests.simulation.replicas.replica_storage import ReplicaStorage
from tests.simulation.seeded_storage import HEALTHY, SeededStorage
from tests.simulation.simulation import GONE_WITHIN_S, Simulation

LOOKS = 16
"""What agents take for archived is judged at each so many looks."""


class ArchivedSimulation(Simulation):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.archive_storage = self.archive = SeededArchiveStorage(
            self.loop, self.random("archive store"), self.hit, self.wall_ms
        )
        self.archived = ArchiveInvariants(
            self.invariants, self.objects, self.archive, self.cluster, self.wall_ms, self.hit
        )
        self.objects.archive = self.archived
        self.archive.on_write = lambda object_id, raw: self.checked(lambda: self.archived.written(object_id, raw))
        self.archive.on_delete = lambda object_id: self.checked(lambda: self.archived.deleted(object_id))
        self.topic.on_acknowledged = self._acknowledged
        self.archive_metrics = ArchiveMetrics(self.registry)
        self.archives: dict[int, AgentArchive] = {}
        self._looks = 0

    def made_storage(self) -> SeededStorage:
        self.sources = ReplicaStorage(self.random("store"), self.random("archive reads"), self._read_hit, self.wall_ms)
        return self.sources

    def _read_hit(self, fault: str) -> None:
        self.hit(f"archive {fault}" if fault.startswith("read") else fault)

    def make_topic(self, leader: int) -> None:
        super().make_topic(leader)
        for log in self.living_logs():
            log.is_archived = True

    def batches_archived(self) -> ArchivedBatches:
        return {object_id: self.archived.batches_in[object_id] for object_id in self.archive.objects}

    # What agents find.

    def published(self, agent: AgentModel, record: Publishable) -> None:
        super().published(agent, record)
        self.checked(lambda: self.archived.published(record))

    def _acknowledged(self, record: TopicRecord) -> None:
        self.objects.acknowledged(record)
        self.archived.acknowledged(record)

    # The agents.

    def start(self, broker: int) -> None:
        super().start(broker)
        self.archives[broker].start()

    def incarnation(self, broker: int, number: int) -> tuple[AgentModel, LifeOfObjects]:
        store, archive = self.stores(broker)
        knowledge = ArchiveKnowledge(self, broker, number, store, archive)
        agent = AgentModel(self, broker, number, store, archive, knowledge.tiers)
        life = LifeOfObjects(self, agent, self.incarnations, knowledge.tiers)
        life.on_view = knowledge.cluster_seen
        self.archives[broker] = AgentArchive(self, agent, knowledge, life)
        return agent, life

    async def end_care(self, broker: int) -> None:
        archive = self.archives.pop(broker)
        await super().end_care(broker)
        rng = self.random("archive crash")
        await archive.crash(lambda: rng.random() < 0.5)

    def tell(self, agent: AgentModel) -> None:
        super().tell(agent)
        archive = self.archives.get(agent.broker_id)
        if agent.is_living and archive is not None:
            archive.assign(agent.assignments)

    # The run.

    def do(self, kind: str, number: int) -> Awaitable[None] | None:
        if kind == "archive crash":
            return archive_events.crash(self, self.archives, number)
        if kind == "archive store":
            archive_events.store(self.archive, number)
        elif kind == "archive reads":
            archive_events.reads(self.sources, number)
        else:
            return super().do(kind, number)
        return None

    def look(self) -> None:
        super().look()
        for archive in self.archives.values():
            if (defect := archive.defect()) is not None:
                raise AssertionError(f"the archive has ended: {defect!r}") from defect
        self._looks += 1
        if self._looks % LOOKS == 0:
            for agent in self.agents.values():
                for log in self.living_logs():
                    self.archived.check_index(agent.archive, log)

    async def settle(self) -> None:
        self.archive.mode = self.sources.read_mode = HEALTHY
        self.archive.never_fails = True
        await super().settle()

    async def all_gone(self) -> None:
        """All is archived, a recovery finds it there, and the archive goes with its topic."""
        await self.segments_gone()
        for log in self.living_logs():
            left = [key for key in self.archived.left_out(log) if key.base_offset >= (log.begin or 0)]
            assert not left, f"{left[:5]} of partition {log.partition.partition} are never archived"
        self.check_recovery("archived", is_settled=True)
        self.delete_topic()
        for agent in self.agents.values():
            self.tell(agent)
        until_s = self.loop.time() + GONE_WITHIN_S
        while there := self._left_in_archive():
            assert self.loop.time() < until_s, f"archive objects are left that are to go: {there[:5]}"
            await asyncio.sleep(2.5)
            self.look()

    def _left_in_archive(self) -> list[str]:
        """What somebody may delete without a word: where a writer's registration was lost, all of the topic may be."""
        known = {
            (record.broker_id, record.incarnation)
            for record in self.topic.records
            if isinstance(record, RemoteWalNodeRegistration)
        }
        return [str(named) for named in self.archive.objects if named.writer_id[:2] in known]

    @contextmanager
    def unfailing(self) -> Iterator[None]:
        before, self.archive.never_fails = self.archive.never_fails, True
        with super().unfailing():
            yield
        self.archive.never_fails = before
