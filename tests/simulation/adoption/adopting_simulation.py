"""Runs of the write path in which gateways have stored much of what the logs get: segments name it."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle import expiration
from rlm.write_path.uploads import adoptable_records
from tests.kafka_log.log_writer import WrittenBatch
from tests.simulation.adoption.adoptable_storage import AdoptableStorage
from tests.simulation.adoption.gateways import KEEP_S, NEAR_S, Gateways
from tests.simulation.led_log import LedLog
from tests.simulation.metadata_topic_model import TopicRecord
from tests.simulation.plan import Event
from tests.simulation.seeded_storage import SeededStorage
from tests.simulation.simulation import Simulation

MIN_BATCH_BYTES = 100


class AdoptingSimulation(Simulation):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.gateways = Gateways(self, self.shared)
        self._readable: set[CombinedSegmentId] = set()
        """What the topic told as finished at any time."""
        self.topic.on_acknowledged = self._acknowledged
        self.shared.router.on_delete = lambda name: self.checked(lambda: self._goes(name))

    def made_storage(self) -> SeededStorage:
        self.shared = AdoptableStorage(self.random("store"), self.hit, self.wall_ms)
        return self.shared

    def produced(self, log: LedLog, written: WrittenBatch) -> None:
        self.gateways.produced(log, written)

    def _goes(self, name: str) -> None:
        """An object of a gateway: none names it of the segments that can be read, be it for a grace time."""
        naming = [one for one in self._readable if one in self.shared.objects and name in self.shared.sources_of(one)]
        assert not naming, f"{name} goes, and {naming} name it"

    def _acknowledged(self, record: TopicRecord) -> None:
        self.objects.acknowledged(record)
        if isinstance(record, PublishedSegment) and self.objects.states[record.combined_segment_id] is FINISHED:
            self._readable.add(record.combined_segment_id)
            self._count_late(self.shared.sources_of(record.combined_segment_id))
            missing = self.shared.sources_of(record.combined_segment_id) - self.shared.router.stored.keys()
            assert not missing, f"{record.combined_segment_id} is told of, and names {missing}, which went"

    def _count_late(self, names: Iterable[str]) -> None:
        sources = [one for name in names if (one := RouterObjectId.parse(name))]
        if any(self.wall_ms() > one.begun_until_ms + KEEP_S * 1000 for one in sources):
            self.hit("told late of an adoption")

    # The run.

    def run(self, events: Sequence[Event]) -> None:
        with (
            patch.object(expiration, "AGE_MS", int(NEAR_S * 1000)),
            patch.object(adoptable_records, "NAMED_WITHIN_MS", int(NEAR_S * 1000)),
            patch.object(adoptable_records, "MIN_BATCH_BYTES", MIN_BATCH_BYTES),
        ):
            super().run(events)

    def do(self, kind: str, number: int) -> Awaitable[None] | None:
        """At times agents stand still for long when the topic has taken nothing for a while."""
        if kind == "jump" and number >> 20 & 1:
            self.topic.is_away = self.topic.takes_nothing = True
            self.loop.call_later(1.0, self.loop.jump, KEEP_S)
        return super().do(kind, number)

    async def live(self, events: Sequence[Event]) -> None:
        sweeping = asyncio.create_task(self.gateways.run())
        try:
            await super().live(events)
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)

    def look(self) -> None:
        super().look()
        if (defect := self.gateways.defect) is not None:
            raise AssertionError(f"the gateways have ended: {defect!r}") from defect

    async def segments_gone(self) -> None:
        """And what they named goes with them, or is swept."""
        await super().segments_gone()
        until_s = self.loop.time() + 2 * KEEP_S
        while left := list(self.shared.router.stored):
            assert self.loop.time() < until_s, f"objects of gateways are left that are to go: {left[:5]}"
            await asyncio.sleep(2.5)
            self.look()
