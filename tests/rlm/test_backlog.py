"""What is left of logs that were passed over, and what of it is next, by plain values."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kafka_log.errors import LogDirectoryError
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.core.actions import Action, AskAnew, CountReadFailure, DeclareGaps
from rlm.write_path.core.backlog import Backlog
from rlm.write_path.core.led_partition import PassedOver
from rlm.write_path.reading.log_task import TaskOutcome
from tests.rlm.plain_log import BATCH_BYTES, PlainLog, PlainTask, batches_of, partition

LIMITS = CommitLimits(1.0, 1.0, 4 * BATCH_BYTES, 1, retry_s=1.0, retry_max_s=4.0)
NOW_S = 1000.0
AT_ONCE = pytest.approx(0.0)


class Rig:
    def __init__(self, bytes_per_s: int = 10**9) -> None:
        self.void: list[TopicIdPartition] = []
        self.backlog = Backlog(LIMITS, bytes_per_s, self._void)

    def _void(self, which: TopicIdPartition) -> Sequence[Action]:
        self.void.append(which)
        self.backlog.release(which)
        return (AskAnew(),)

    def pass_over(self, number: int, end: int) -> PassedOver:
        log = PlainLog(number)
        log.append(end)
        assignment = Assignment(partition(number), "t", Path("t"), LinkPolicy.ALWAYS, 20)
        passed_over = PassedOver(assignment, PlainTask(log, 0, end), NOW_S)
        self.backlog.add(passed_over)
        return passed_over

    def read_one(self) -> list[Action]:
        """The next read for the object that is gathered."""
        wanted = self.backlog.next_read()
        assert wanted is not None
        passed_over, budget_bytes = wanted
        return list(self.backlog.read_done(passed_over, passed_over.task.run(budget_bytes, 0.0, 0.0), NOW_S))

    def gather(self) -> list[tuple[int, int]]:
        """Partitions and offsets of the next object."""
        self.backlog.begin_object()
        while (wanted := self.backlog.next_read()) is not None:
            passed_over, budget_bytes = wanted
            self.backlog.read_done(passed_over, passed_over.task.run(budget_bytes, 0.0, 0.0), NOW_S)
        return self.object()

    def object(self) -> list[tuple[int, int]]:
        items = self.backlog.next_object(NOW_S)
        return [(item.topic_id_partition.partition, offset) for item in items for offset, _ in batches_of(item)]


def test_what_was_passed_over_first_is_stored_first_and_objects_are_filled_up() -> None:
    rig = Rig()
    first, second = rig.pass_over(0, 5), rig.pass_over(1, 2)
    assert rig.gather() == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert rig.backlog.object_stored(NOW_S) == []
    assert first.left == ((4, 5),)
    assert rig.gather() == [(0, 4), (1, 0), (1, 1)]
    assert (first.first_offset, second.first_offset) == (4, 0), "they are read, and not stored"
    assert rig.backlog.object_stored(NOW_S) == [first.task, second.task]
    assert (first.first_offset, second.first_offset, len(rig.backlog)) == (None, None, 0)
    assert rig.gather() == []


def test_an_object_that_failed_is_made_again_after_a_back_off_that_grows() -> None:
    rig = Rig()
    rig.pass_over(0, 6)
    waits_s = []
    for _ in range(4):
        assert rig.gather() == [(0, 0), (0, 1), (0, 2), (0, 3)]
        rig.backlog.object_failed()
        waits_s.append(rig.backlog.wait_s(NOW_S))
    assert waits_s == [1.0, 2.0, 4.0, 4.0]
    rig.gather()
    rig.backlog.object_stored(NOW_S)
    assert rig.backlog.wait_s(NOW_S) == AT_ONCE
    assert rig.gather() == [(0, 4), (0, 5)]


def test_a_log_that_cannot_be_read_is_counted_and_lets_the_others_go_first() -> None:
    rig = Rig()
    failing = rig.pass_over(0, 4)
    rig.pass_over(1, 4)
    rig.backlog.begin_object()
    assert rig.backlog.next_read() == (failing, LIMITS.upload_bytes)
    actions = rig.backlog.read_done(failing, LogDirectoryError(Path("t"), "planted"), NOW_S)
    assert actions == (CountReadFailure(),)
    assert rig.backlog.wait_s(NOW_S) == LIMITS.retry_s
    assert rig.gather() == [(1, 0), (1, 1), (1, 2), (1, 3)]
    rig.backlog.object_stored(NOW_S)
    assert rig.gather() == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_log_that_is_released_while_it_is_read_is_not_stored_and_closed_only_then() -> None:
    rig = Rig()
    passed_over = rig.pass_over(0, 4)
    rig.backlog.begin_object()
    assert rig.backlog.next_read() is not None
    assert rig.backlog.release(partition(0)) is None, "it is being read"
    assert rig.backlog.read_done(passed_over, passed_over.task.run(400, 0.0, 0.0), NOW_S) == ()
    assert not rig.backlog.is_wanted(passed_over)
    assert rig.object() == []


def test_a_log_that_is_released_while_another_is_read_for_the_same_object_is_left_out() -> None:
    rig = Rig()
    released = rig.pass_over(0, 2)
    rig.pass_over(1, 2)
    rig.backlog.begin_object()
    rig.read_one()
    wanted = rig.backlog.next_read()
    assert wanted is not None
    assert rig.backlog.release(partition(0)) is released.task
    rig.backlog.read_done(wanted[0], wanted[0].task.run(wanted[1], 0.0, 0.0), NOW_S)
    assert rig.object() == [(1, 0), (1, 1)]


def test_what_is_passed_over_anew_during_an_upload_is_not_taken_for_stored() -> None:
    rig = Rig()
    rig.pass_over(0, 2)
    rig.gather()
    rig.backlog.release(partition(0))
    anew = rig.pass_over(0, 3)
    assert rig.backlog.object_stored(NOW_S) == []
    assert anew.left == ((0, 3),)
    assert rig.gather() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(("truncated_at", "deleted"), [(1, False), (None, True)])
def test_a_log_that_was_cut_or_is_gone_is_handed_back_with_its_gaps_told(
    truncated_at: int | None, deleted: bool
) -> None:
    rig = Rig()
    passed_over = rig.pass_over(0, 4)
    rig.backlog.begin_object()
    rig.backlog.next_read()
    gaps = (Gap(0, 1),)
    outcome = TaskOutcome((), 0, 0, 0, truncated_at, gaps, deleted)
    assert rig.backlog.read_done(passed_over, outcome, NOW_S) == [DeclareGaps(passed_over.assignment, gaps), AskAnew()]
    assert rig.void == [partition(0)]
    assert rig.object() == []


def test_the_quota_holds_the_next_object_back() -> None:
    rig = Rig(bytes_per_s=BATCH_BYTES)
    rig.pass_over(0, 8)
    rig.gather()
    rig.backlog.object_stored(NOW_S)
    assert rig.backlog.wait_s(NOW_S) == pytest.approx(4.0, abs=0.3)
    assert rig.backlog.wait_s(NOW_S + 4) == AT_ONCE


def test_what_is_left_at_the_end_stays_in_the_logs_and_its_tasks_are_closed() -> None:
    rig = Rig()
    passed_over = rig.pass_over(0, 8)
    rig.gather()
    assert rig.backlog.end() == [passed_over.task]
    assert passed_over.first_offset == 0
