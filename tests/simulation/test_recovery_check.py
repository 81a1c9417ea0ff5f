"""What is asked of a recovery: what an election cut off stays so, where anybody could tell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata_topic.records.publishable import Publishable, encoded
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate, RemoteWalNodeRegistration
from metadata_topic.records.states import FINISHED, STARTED
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from tests.simulation.recovery_check import check_recovery
from tests.simulation.simulation import Simulation
from tests.simulation.world import BROKERS

BROKER = BROKERS[0]
WRITTEN_MS, DECLARED_MS = 1_700_000_000_000, 1_700_000_001_000
KEEPS_ALL_SEED = 2


class CutOffWorld(Simulation):
    """One log, of whose five batches an election cut off two. They are stored, and who stored them told nobody."""

    def __init__(self, directory: Path) -> None:
        super().__init__(KEEPS_ALL_SEED, directory)
        self.storage.never_fails = True
        self.led = self.living_logs()[0]
        for _ in range(5):
            self.append(self.led, 2, 20)
        self._publish(RemoteWalNodeRegistration(BROKER, 1, BROKER, WRITTEN_MS))
        self._publish(self._stored(0, 0, 3))
        self._stored(1, 3, 5)
        self.led.elect(BROKER, 4, writes_its_epoch=True)

    def tell_of_another_that_reaches_so_far(self) -> None:
        """Whoever leads can name it."""
        self._publish(self._stored(2, 2, 4))

    def declare_it_dead(self) -> None:
        entry = RemoteLogSegmentMetadataEntry(self.led.partition, 0, self.led.end, self.led.end + 1, -1, -1, 0)
        segment_id = CombinedSegmentId(BROKER, 1, 2)
        self._publish(RemoteWalLogSegmentMetadataUpdate(segment_id, (entry,), BROKER, self.led.epoch, DECLARED_MS))

    def _publish(self, record: Publishable) -> None:
        self.topic.append(encoded(record))

    def _stored(self, sequence: int, first: int, end: int) -> RemoteWalCombinedLogSegmentMetadata:
        batches = list(self.led.raw.values())[first:end]
        entry = RemoteLogSegmentMetadataEntry(self.led.partition, 0, 2 * first, 2 * end - 1, -1, -1, 0)
        segment_id = CombinedSegmentId(BROKER, 1, sequence)
        started = RemoteWalCombinedLogSegmentMetadata(segment_id, (entry,), STARTED, WRITTEN_MS)
        stored = ask(self.storage.copy_log_segment_data(started, [b"".join(batches)]))
        return RemoteWalCombinedLogSegmentMetadata(
            segment_id, stored.entries, FINISHED, WRITTEN_MS, stored.size_bytes, stored.custom_metadata
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CutOffWorld]:
    world = CutOffWorld(tmp_path)
    yield world
    world.loop.close()


def test_what_no_leader_could_name_may_come_back(world: CutOffWorld) -> None:
    check_recovery(world, world.directory, is_settled=True)


def test_what_a_leader_could_name_and_did_not_must_not_come_back(world: CutOffWorld) -> None:
    world.tell_of_another_that_reaches_so_far()
    with pytest.raises(AssertionError, match="were cut off"):
        check_recovery(world, world.directory, is_settled=True)


def test_what_was_declared_dead_may_come_back_with_an_object_that_nobody_told_of(world: CutOffWorld) -> None:
    world.tell_of_another_that_reaches_so_far()
    world.declare_it_dead()
    check_recovery(world, world.directory, is_settled=True)
