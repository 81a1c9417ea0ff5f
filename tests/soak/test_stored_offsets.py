"""What of a log's offsets no object holds, beside a plain search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from plugin.segment_metadata import CombinedSegmentId
from recovery.logs.stored_run import StoredObject, StoredRun
from tests.soak.stored_offsets import OffsetRange, not_held

OBJECT = StoredObject(CombinedSegmentId(1, 1, 0), 100, 0)
EPOCHS = LeaderEpochs([(1, 0), (2, 10), (5, 20)])


def run(epoch: int, first: int, last: int, living_last: int | None = None) -> StoredRun:
    return StoredRun(OBJECT, epoch, first, last, last if living_last is None else living_last, 0, 1, 0)


def holes(first: int, end: int, *runs: StoredRun, epochs: LeaderEpochs = EPOCHS) -> list[tuple[int, int]]:
    return [(hole.first, hole.end) for hole in not_held(OffsetRange("t-0", first, end), epochs, runs)]


def test_what_each_epochs_own_runs_hold_is_whole() -> None:
    assert holes(0, 30, run(1, 0, 14), run(2, 10, 19), run(5, 15, 29)) == []


def test_a_run_of_another_epoch_holds_nothing() -> None:
    assert holes(0, 30, run(1, 0, 29)) == [(10, 20), (20, 30)]


def test_what_is_declared_dead_is_not_held() -> None:
    assert holes(0, 10, run(1, 0, 9, living_last=4)) == [(5, 10)]


def test_a_hole_in_the_middle_and_one_at_the_end_are_told() -> None:
    assert holes(0, 10, run(1, 0, 2), run(1, 5, 7)) == [(3, 5), (8, 10)]


@pytest.mark.parametrize(("first", "end"), [(4, 4), (12, 30)])
def test_only_what_is_wanted_is_asked_for(first: int, end: int) -> None:
    assert holes(first, end, run(2, 12, 19), run(5, 20, 29)) == []


RUNS = st.builds(
    lambda epoch, first, size, living: run(epoch, first, first + size, min(first + size, first + living - 1)),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(0, 40),
    st.integers(0, 15),
    st.integers(0, 20),
)


@given(st.lists(RUNS, max_size=12), st.integers(0, 20), st.integers(0, 40))
def test_holes_agree_with_a_plain_search(runs: list[StoredRun], first: int, size: int) -> None:
    held = {offset for one in runs for offset in range(one.first_offset, one.living_last_offset + 1)
            if EPOCHS.epoch_for(offset) == one.leader_epoch}  # fmt: skip
    found = [offset for begin, end in holes(first, first + size, *runs) for offset in range(begin, end)]
    assert found == [offset for offset in range(first, first + size) if offset not in held]
