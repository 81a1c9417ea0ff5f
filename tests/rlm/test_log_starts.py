"""A log's start releases objects only where the broker itself is known to have deleted what lies below."""

from pathlib import Path

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import FILE_NAME
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.log_starts import LogStarts
from rlm.write_path.assignment import Assignment
from tests.rlm.test_failover import B1, OTHER, PARTITION, uploaded


class Led:
    """A led log with records 0 to 99 in objects, as its agent sees it; what it declares reaches the topic."""

    def __init__(self, directory: Path, *, archive: bool = False) -> None:
        self.store = RemoteWalMetadataStore()
        uploaded(self.store, B1, 0, (PARTITION, 3, 0, 99))
        self.assignment = Assignment(PARTITION, "t", directory, LinkPolicy.COST, 20, archive)
        self.agent_restarts()

    def agent_restarts(self) -> None:
        self.starts = LogStarts(self.store)

    def leads(self, epoch: int) -> None:
        (self.assignment.directory / FILE_NAME).write_text(f"0\n2\n3 0\n{epoch} 90\n" if epoch > 3 else "0\n1\n3 0\n")

    def begins_at(self, start: int) -> dict[int, int]:
        """Return what the topic tells then, by epoch; records below the highest start may go."""
        declared = tuple(self.starts.to_declare({PARTITION: start, OTHER: 5}, [self.assignment]))
        assert all(gap == DeclaredGap(PARTITION, 0, start, gap.leader_epoch, GapReason.LOG_START) for gap in declared)
        self.store.apply(RemoteWalGapDeclaration(B1, 1, 0, declared, 0))
        return self.store.log_starts().get(PARTITION, {})


@pytest.fixture
def led(tmp_path: Path) -> Led:
    made = Led(tmp_path)
    made.leads(3)
    assert made.begins_at(0) == {3: 0}
    return made


def test_what_the_broker_deletes_while_it_leads_is_told(led: Led) -> None:
    assert [led.begins_at(start) for start in (0, 7, 7, 9)] == [{3: 0}, {3: 7}, {3: 7}, {3: 9}]
    led.agent_restarts()
    assert led.begins_at(20) == {3: 20}, "told in the same leader epoch"
    assert led.starts.told({PARTITION: 30, OTHER: 5}) == {PARTITION: 20}, "nothing is known of the other"
    assert led.starts.told({PARTITION: 10}) == {PARTITION: 10}


@pytest.mark.parametrize("agent_restarts", [True, False])
def test_a_start_that_rose_while_nobody_saw_it_counts_once_it_rises_under_an_agents_eyes(
    led: Led, agent_restarts: bool
) -> None:
    assert led.begins_at(7) == {3: 7}
    led.leads(5)
    if agent_restarts:
        led.agent_restarts()
    assert led.begins_at(50) == led.begins_at(50) == {3: 7}, "segments may be lost on disk"
    assert led.starts.told({PARTITION: 50}) == {PARTITION: 7}
    assert led.begins_at(60) == {3: 7, 5: 60}


@pytest.mark.parametrize(
    ("is_stored", "archive", "told"),
    [
        pytest.param(True, False, {}, id="all of 0 to 99 may be lost"),
        pytest.param(False, True, {}, id="the archive may have it"),
        pytest.param(False, False, {3: 100}, id="nothing is at stake"),
    ],
)
def test_without_a_told_start_all_that_is_stored_is_kept(
    tmp_path: Path, is_stored: bool, archive: bool, told: dict[int, int]
) -> None:
    led = Led(tmp_path, archive=archive)
    led.leads(3)
    if not is_stored:
        led.store = RemoteWalMetadataStore()
        led.agent_restarts()
    assert led.begins_at(100) == told
    assert led.starts.told({PARTITION: 100}) == ({PARTITION: 100} if told else {})


def test_the_same_start_in_a_new_epoch_is_told(led: Led) -> None:
    assert led.begins_at(7) == {3: 7}
    led.leads(5)
    led.agent_restarts()
    assert led.begins_at(7) == {3: 7, 5: 7}
    assert led.begins_at(8) == {3: 7, 5: 8}
