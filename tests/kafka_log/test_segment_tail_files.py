"""The tail while files are deleted, compacted, replaced, closed for others, or cannot be read."""

import errno
import os
from pathlib import Path

import pytest

from kafka_log.open_files import FileReplacedError, LogFile, OpenFiles
from kafka_log.segment_tail import (
    Gap,
    LogDeleted,
    LogDirectoryError,
    SegmentTail,
    Truncated,
)
from tests.kafka_log.log_writer import LogWriter
from tests.kafka_log.tail_reads import MANY, raw_of, tail_span


@pytest.mark.parametrize("unlink", [True, False])
def test_a_deleted_segment_is_read_to_its_end_while_it_is_open(log: LogWriter, unlink: bool) -> None:
    log.append(1)
    log.append(1)
    tail = SegmentTail(log.path, 0)
    first, second = (b.raw for b in log.batches)
    assert tail.read(len(first)).records == first
    log.roll()
    log.append(1)
    log.remove_oldest(unlink=unlink)
    assert tail.read(MANY).records == second
    result = tail.read(MANY)
    assert result.events == ()
    assert result.records == raw_of(log)


def test_a_deleted_segment_that_was_closed_is_a_gap(log: LogWriter) -> None:
    log.append(1)
    log.append(1)
    tail = SegmentTail(log.path, 0)
    tail.read(len(log.batches[0].raw))
    log.roll()
    log.append(1)
    log.remove_oldest()
    tail.close()
    result = tail.read(MANY)
    assert result.events == (Gap(1, 2),)
    assert result.records == raw_of(log)


@pytest.mark.parametrize("closed", [True, False])
def test_segments_that_were_deleted_behind_the_tail_hide_no_backlog(log: LogWriter, closed: bool) -> None:
    for _ in range(3):
        log.append(1)
        log.append(1)
        log.roll()
    log.append(1)
    tail = SegmentTail(log.path, 0)
    tail.read(len(log.batches[0].raw))
    log.remove_oldest()
    log.remove_oldest()
    if closed:
        tail.close()
    assert tail.backlog_bytes() > 0


@pytest.mark.parametrize("evicted", [True, False])
def test_compaction_below_the_tail_leaves_only_what_was_or_what_is(log: LogWriter, evicted: bool) -> None:
    for _ in range(6):
        log.append(1)
    log.roll()
    log.append(1)
    original = [b.raw for b in log.batches]
    tail = SegmentTail(log.path, 0)
    tail.read(len(original[0]))
    log.compact(0)
    if evicted:
        tail.close()
    result = tail.read(MANY)
    assert result.records == b"".join(raw_of_closed(log) if evicted else original[1:6])
    assert not any(isinstance(event, Truncated | Gap) for event in result.events)
    assert tail.read(MANY) == (original[6], [(6, 6, 0, *tail_span(log, -1))], ())


def raw_of_closed(log: LogWriter) -> list[bytes]:
    return [b.raw for b in log.segments[0].batches]


def test_a_hole_that_compaction_left_before_a_segment_is_no_gap(log: LogWriter) -> None:
    for _ in range(3):
        log.append(1)
    log.roll()
    log.append(1)
    log.compact(0)  # offset 2 is gone, the next segment begins with 3
    result = SegmentTail(log.path, 2).read(MANY)
    assert result.events == ()
    assert result.records == raw_of(log, 3)


@pytest.mark.parametrize("last_epoch", [0, 1])
@pytest.mark.parametrize("start", [0, 2])
def test_what_a_new_leader_writes_into_a_hole_is_read(log: LogWriter, start: int, last_epoch: int) -> None:
    for _ in range(3):
        log.append(1)
    log.roll()
    log.append(1, last_epoch)
    log.compact(0)  # offset 2 is gone
    tail = SegmentTail(log.path, start)
    while tail.next_offset < log.log_end_offset:
        tail.read(MANY)
    log.truncate_to(2)
    written = log.append(1, 2), log.append(1, 2)
    result = tail.read(MANY)
    assert result.events == (Truncated(2),)
    assert result.records == b"".join(one.raw for one in written)


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_deleted_directory_is_reported(log: LogWriter, made_anew: bool) -> None:
    log.append(1)
    tail = SegmentTail(log.path, 0)
    tail.read(MANY)
    log.path.rename(log.path.with_name("topic-0.0123-delete"))
    if made_anew:
        LogWriter(log.path).append(5)
    assert tail.read(MANY).events == (LogDeleted(),)
    assert tail.read(MANY) == (b"", [], (LogDeleted(),))


def test_a_directory_that_never_was_is_reported(tmp_path: Path) -> None:
    assert SegmentTail(tmp_path / "none-0", 5).read(MANY) == (b"", [], (LogDeleted(),))


class FailingDisk(OpenFiles):
    """A tail finds its position by one look into the file, and reads by the next, which fails."""

    looks = 0

    def pin(self, file: LogFile) -> int:
        self.looks += 1
        if self.looks == 2:
            raise OSError(errno.EIO, "Input/output error")
        return super().pin(file)


def test_a_disk_error_names_the_directory_and_loses_no_event(log: LogWriter) -> None:
    log.append(3)
    log.roll()
    log.append(1)
    log.remove_oldest()
    tail = SegmentTail(log.path, 0, FailingDisk())
    with pytest.raises(LogDirectoryError, match=r"topic-0.*Input/output error"):
        tail.read(MANY)
    assert tail.has_events
    assert tail.read(MANY).events == (Gap(0, 3),)


def test_many_tails_share_few_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(limit=3)
    logs = [LogWriter(tmp_path / f"t-{index}") for index in range(10)]
    tails = [SegmentTail(log.path, 0, files) for log in logs]
    for round_number in range(3):
        for index, (log, tail) in enumerate(zip(logs, tails, strict=True)):
            written = log.append(1, payload=b"%d" % (index * 10 + round_number))
            assert tail.read(MANY).records == written.raw
            assert files.open_count <= 3
    for tail in tails:
        tail.close()
    assert files.open_count == 0


def test_a_pinned_file_is_not_closed_for_another(tmp_path: Path) -> None:
    files = OpenFiles(limit=1)
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    first, second = LogFile(tmp_path / "a"), LogFile(tmp_path / "b")
    fd = files.pin(first)
    assert os.pread(files.pin(second), 1, 0) == b"b"
    assert os.pread(fd, 1, 0) == b"a"
    files.unpin(first)
    files.unpin(second)
    assert files.open_count == 1


def test_a_replaced_file_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    files = OpenFiles()
    path = tmp_path / "a"
    path.write_text("old")
    file = LogFile(path)
    files.pin(file)
    files.unpin(file)
    files.close(file)
    path.rename(tmp_path / "b")
    path.write_text("new")
    with pytest.raises(FileReplacedError):
        files.pin(file)
    with pytest.raises(FileReplacedError):
        files.status(file)
    assert files.open_count == 0
