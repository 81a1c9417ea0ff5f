"""Older batches are found in objects by the metadata store and the log, and only where both agree on every byte."""

import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.archive.stored_runs import LedLogs
from tests.rlm.uploaded_log import UploadedLog

PARTITION = TopicIdPartition(TopicId(b"r" * 16), 4)


@pytest.fixture
def log(tmp_path: Path) -> UploadedLog:
    return UploadedLog(tmp_path / "t-4", PARTITION)


def test_an_entry_that_spans_a_roll_of_the_log_is_proved(log: UploadedLog) -> None:
    batches = [log.writer.append(2), log.writer.append(2)]
    log.writer.roll()
    batches.append(log.writer.append(2))
    log.upload(batches)
    (run,) = log.runs(0)
    assert log.stored_bytes(run) == [written.raw for written in batches]


def test_no_more_is_read_than_was_asked_for_beyond_the_entry_that_reaches_it(log: UploadedLog) -> None:
    for _ in range(6):
        log.upload([log.writer.append(1, payload=b"p" * 1000)])
    assert len(log.runs(0, max_bytes=2000)) == 2
    assert len(log.runs(0, max_bytes=1)) == 1


def test_the_runs_end_where_no_object_goes_on(log: UploadedLog) -> None:
    first, missing, third = (log.writer.append(1) for _ in range(3))
    log.upload([first])
    log.upload([third])
    assert [run.entry.last_offset for run in log.runs(0)] == [0]
    assert log.runs(missing.base_offset) == []
    assert [run.entry.last_offset for run in log.runs(2)] == [2]


def test_an_object_whose_deletion_was_started_is_not_found(log: UploadedLog) -> None:
    segment = log.upload([log.writer.append(1)])
    assert log.logs().is_living(segment)
    log.start_deletion(segment)
    assert log.runs(0) == []
    assert not log.logs().is_living(segment)


def test_where_the_runs_end_at_one_that_is_not_proved_its_end_is_told(log: UploadedLog) -> None:
    first, second, third = ([log.writer.append(1), log.writer.append(1)] for _ in range(3))
    log.upload(first)
    log.upload([replace(second[0], raw=third[0].raw), second[1]])
    log.upload(third)
    found = log.found(0)
    assert [run.entry.last_offset for run in found.runs] == [1]
    assert found.refused_to == 4
    assert log.found(3).refused_to == 4
    assert log.found(0, max_bytes=1).refused_to == 0  # not looked at
    assert log.found(4).refused_to == 0  # proved
    assert log.found(6).refused_to == 0  # in no object


def test_a_run_that_is_not_proved_is_refused_only_up_to_where_the_next_leader_epoch_begins(log: UploadedLog) -> None:
    old = [log.writer.append(1, leader_epoch=1) for _ in range(4)]
    log.upload(old)
    log.writer.truncate_to(2)
    new = [log.writer.append(1, leader_epoch=2) for _ in range(2)]
    log.upload(new)
    assert log.found(0).refused_to == 2
    assert [run.entry.first_offset for run in log.runs(2)] == [2]


def test_entries_that_are_not_worth_a_read_are_left_out_unless_links_are_wanted_always(log: UploadedLog) -> None:
    log.upload([log.writer.append(1, payload=b"p" * 500)])
    assert log.runs(0, policy=LinkPolicy.COST, min_entry_bytes=1000) == []
    assert len(log.runs(0, policy=LinkPolicy.COST, min_entry_bytes=300)) == 1
    assert len(log.runs(0, policy=LinkPolicy.ALWAYS, min_entry_bytes=1000)) == 1


def test_a_log_that_cannot_be_read_is_an_error(log: UploadedLog) -> None:
    log.upload([log.writer.append(1)])
    (log.writer.path / "leader-epoch-checkpoint").write_text("no checkpoint")
    with pytest.raises(MalformedFileError):
        log.runs(0)
    (log.writer.path / "leader-epoch-checkpoint").unlink()
    (log.writer.path / "leader-epoch-checkpoint").mkdir()
    with pytest.raises(LogDirectoryError):
        log.runs(0)


def test_until_the_archives_commit_combined_segments_are_named_and_archive_objects_when_they_are_gone(
    log: UploadedLog,
) -> None:
    batches = [log.writer.append(2, payload=b"p" * 100) for _ in range(6)]
    segments = [log.upload(batches[at : at + 3]) for at in (0, 3)]
    committed = log.write_archive(batches)
    assert [run.object_id for run in log.runs(0)] == segments  # prepared
    log.archived.apply(committed)
    assert [run.object_id for run in log.runs(0)] == segments  # committed, the sources are there
    log.start_deletion(segments[0])
    found = [run.object_id for run in log.runs(0)]
    assert found[0] == committed.object_id
    assert found[-1] == segments[1]
    log.start_deletion(segments[1])
    runs = log.runs(0)
    assert {run.object_id for run in runs} == {committed.object_id}
    assert [raw for run in runs for raw in log.stored_bytes(run)] == [written.raw for written in batches]


def test_what_is_prepared_and_not_committed_is_not_named(log: UploadedLog) -> None:
    batches = [log.writer.append(2)]
    segment = log.upload(batches)
    committed = log.write_archive(batches)
    log.start_deletion(segment)
    assert log.runs(0) == []
    assert not log.logs().is_living(committed.object_id)


def test_a_run_is_found_from_any_of_its_offsets(log: UploadedLog) -> None:
    batches = [log.writer.append(3, payload=b"p" * 100) for _ in range(9)]
    log.upload(batches)
    log.archive_all(batches, run_bytes=1000)
    for offset in range(27):
        runs = log.runs(offset)
        assert runs[0].entry.first_offset <= offset <= runs[0].entry.last_offset
        assert runs[-1].entry.last_offset == 26


def test_an_archive_object_whose_deletion_was_started_is_not_named(log: UploadedLog) -> None:
    batches = [log.writer.append(2)]
    log.upload(batches)
    archived = log.archive_all(batches)
    assert log.logs().is_living(archived)
    log.start_archive_deletion(archived)
    assert log.runs(0) == []
    assert not log.logs().is_living(archived)


def test_archive_objects_are_left_out_for_who_does_not_understand_them_and_where_a_read_does_not_pay(
    log: UploadedLog,
) -> None:
    batches = [log.writer.append(1, payload=b"p" * 500)]
    log.upload(batches)
    log.archive_all(batches)
    known = log.stored_log(PARTITION, LinkPolicy.COST)
    assert known is not None
    assert log.logs().runs(known, 0, 1000, archive=False).runs == []
    assert log.logs(min_run_bytes=1000).runs(known, 0, 1000).runs == []
    assert len(log.logs(min_entry_bytes=1000).runs(known, 0, 1000).runs) == 1
    assert len(log.logs(min_run_bytes=1000).runs(replace(known, link_policy=LinkPolicy.ALWAYS), 0, 1000).runs) == 1
    assert LedLogs(log.store, log.stored_log, 0).runs(known, 0, 1000).runs == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "upload", "upload", "archive", "roll", "elect", "compact", "delete", "cut"]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happened_to_the_log_what_is_found_is_byte_for_byte_what_it_holds(
    steps: list[tuple[str, int]],
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="stored-runs-"))
    try:
        log = UploadedLog(directory / "t-4", PARTITION)
        happen(log, steps)
        in_the_log = {written.base_offset: written.raw for written in log.writer.batches}
        for offset in range(log.writer.log_end_offset + 1):
            expected = offset
            for run in log.runs(offset, max_bytes=200):
                assert run.entry.first_offset <= expected <= run.entry.last_offset
                expected = run.entry.last_offset + 1
                for batch, raw in zip(run.batches, log.stored_bytes(run), strict=True):
                    assert in_the_log[batch.base_offset] == raw
    finally:
        shutil.rmtree(directory)


def happen(log: UploadedLog, steps: list[tuple[str, int]]) -> None:
    epoch, segments, writer = 0, [], log.writer
    for what, number in steps:
        if what == "append":
            writer.append(1 + number % 3, epoch, bytes([65 + number + epoch]) * (1 + number))
        elif what == "upload" and writer.batches:
            last = max(len(writer.batches) - number, 1)
            segments.append(log.upload(writer.batches[max(last - 3, 0) : last]))
        elif what == "archive" and writer.batches:
            last = max(len(writer.batches) - number, 1)
            log.archived.apply(log.write_archive(writer.batches[max(last - 3, 0) : last], run_bytes=100))
        elif what == "roll":
            writer.roll()
        elif what == "elect":
            epoch += 1
            writer.truncate_to(max(writer.log_end_offset - number, writer.log_start_offset))
        elif what == "compact" and len(writer.segments) > 1:
            writer.compact(0)
        elif what == "delete" and segments:
            log.start_deletion(segments[number % len(segments)])
        elif what == "cut":
            writer.remove_oldest()


def test_what_is_found_has_digests_where_they_are_taken(log: UploadedLog) -> None:
    batches = [log.writer.append(3), log.writer.append(2)]
    log.upload(batches)
    known = log.stored_log(PARTITION)
    assert known is not None
    assert [run.digests for run in LedLogs(log.store, log.stored_log, 0).runs(known, 0, 10**9).runs] == [()]
    (run,) = LedLogs(log.store, log.stored_log, 0, takes_digests=True).runs(known, 0, 10**9).runs
    assert list(run.digests) == [sha256(written.raw).digest() for written in batches]


def test_led_logs_tell_how_far_a_log_is_stored(log: UploadedLog) -> None:
    log.upload([log.writer.append(5)])
    logs = LedLogs(log.store, log.stored_log, 0)
    known = logs.stored_log(PARTITION)
    assert known is not None
    assert known.uploaded_offset == 5
