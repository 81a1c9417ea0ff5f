"""A log that changes beneath what is known of it as stored. Found by `tests.simulation`."""

from pathlib import Path

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.errors import LogDirectoryError
from kafka_log.open_files import OpenFiles
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.reading.wal_task import RLMWalTask
from tests.kafka_log.log_writer import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "t-0")


EPOCH_0 = LeaderEpochs([(0, 0)])
TOPIC, ANOTHER_TOPIC = TopicId(b"r" * 16), TopicId(b"a" * 16)


def task_of(log: LogWriter, resume: ResumePoint) -> RLMWalTask:
    return RLMWalTask(TopicIdPartition(TOPIC, 0), log.path, resume, OpenFiles())


def log_of(topic: TopicId, path: Path) -> LogWriter:
    path.mkdir()
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(topic)}\n")
    return LogWriter(path)


def run(task: RLMWalTask) -> TaskOutcome:
    return task.run(10_000, 0.0, 0.0)


def read(outcome: TaskOutcome) -> list[tuple[int, int]]:
    return [(item.leader_epoch, batch.base_offset) for item in outcome.items for batch in item.batches]


def test_a_log_that_was_cut_and_written_anew_below_what_is_known_is_read_from_there(log: LogWriter) -> None:
    log.append(4)
    task = task_of(log, ResumePoint(4, (), EPOCH_0))
    assert not read(run(task))
    log.truncate_to(0)
    log.append(3, leader_epoch=1)
    assert run(task).truncated_at == 0, "its new end is no sign of where it differs"
    assert read(run(task)) == [(1, 0)]


@pytest.mark.parametrize("read_before", [False, True])
def test_a_log_of_older_leaders_that_an_unclean_election_brings_back_is_read_from_where_it_differs(
    log: LogWriter, read_before: bool
) -> None:
    log.append(2)
    log.append(2, leader_epoch=1)
    task = task_of(log, ResumePoint(4, (), LeaderEpochs([(0, 0), (1, 2)])))
    if read_before:
        log.append(1, leader_epoch=1)
        assert read(run(task)) == [(1, 4)]
    log.truncate_to(2)
    log.append(10)  # an older leader's, and longer than all that was known
    outcomes = [run(task) for _ in range(4)]
    cuts = [outcome.truncated_at for outcome in outcomes if outcome.truncated_at is not None]
    assert min(cuts) == 2
    assert [batch for outcome in outcomes for batch in read(outcome)] == [(0, 2)]


@pytest.mark.parametrize("missing", [(), ((0, 2),)])
def test_a_gap_is_told_once_the_log_has_a_leader_epoch_again(
    log: LogWriter, missing: tuple[tuple[int, int], ...]
) -> None:
    log.append(2)
    log.roll()
    log.append(2)
    task = task_of(log, ResumePoint(2 if missing else 0, missing, EPOCH_0))
    log.remove_oldest()
    log.truncate_to(2)
    assert not log.epochs
    with pytest.raises(LogDirectoryError, match="no leader epochs"):
        run(task)
    log.append(3, leader_epoch=4)
    outcome = run(task)
    assert outcome.gaps == (Gap(0, 2),)
    found = read(outcome) or read(run(task))
    assert found == [(4, 2)]


def test_what_is_gone_behind_a_missing_range_does_not_count_before_it_is_told(log: LogWriter) -> None:
    log.append(9)
    log.roll()
    log.append(1)
    log.remove_oldest()
    task = task_of(log, ResumePoint(2, ((0, 1),), EPOCH_0))
    first = run(task)
    assert first.gaps == (Gap(0, 1),)
    assert first.next_offset <= 2
    assert first.more
    assert task.pass_over(10) is None, "what is not told yet would be forgotten"
    second = run(task)
    assert second.gaps == (Gap(2, 9),)
    assert read(second) == [(0, 9)]


def test_of_a_range_that_is_gone_all_is_missing_until_that_is_told(log: LogWriter) -> None:
    for _ in range(12):
        log.append(1)
    log.roll()
    log.append(1)
    task = task_of(log, ResumePoint(13, ((0, 2), (5, 12)), EPOCH_0, only_missing=True))
    assert read(task.run(1, 0.0, 0.0)) == [(0, 0)]
    log.remove_oldest()
    assert read(run(task)) == [(0, 1)], "its descriptor is open"
    assert task.missing == ((5, 12),), "the log begins behind it, and nobody was told"
    assert run(task).gaps == (Gap(5, 12),)
    assert not task.missing


def test_a_file_that_is_gone_is_looked_behind_at_once(log: LogWriter) -> None:
    log.append(1)
    log.roll()
    task = task_of(log, ResumePoint(1, (), EPOCH_0))
    assert not run(task).more
    log.append(1)
    log.truncate_to(1)
    log.append(1, leader_epoch=1)
    outcome = run(task)
    assert read(outcome) == [(0, 1)], "its descriptor is open"
    assert outcome.more
    assert run(task).truncated_at == 1


@pytest.mark.parametrize("resume", [ResumePoint(0), ResumePoint(4, ((0, 2),), EPOCH_0)])
def test_a_topic_that_was_made_anew_before_the_first_look_is_not_read_as_the_one_before(
    tmp_path: Path, resume: ResumePoint
) -> None:
    log = log_of(TOPIC, tmp_path / "t-0")
    task = task_of(log, resume)
    log.path.rename(tmp_path / "t-0.0123-delete")
    log_of(ANOTHER_TOPIC, tmp_path / "t-0").append(5)
    outcome = run(task)
    assert outcome.deleted
    assert not read(outcome)
    assert not outcome.gaps
