"""Reading on without waiting for a disk: only what is plainly the log's next batches, and in memory."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kafka_log.open_files import OpenFiles
from kafka_log.segment_tail import LogDirectoryError, SegmentTail
from tests.kafka_log.log_writer import LogWriter
from tests.kafka_log.tail_reads import MANY, raw_of, tail_span


@pytest.fixture
def tail(log: LogWriter) -> SegmentTail:
    """Has read the log's first batch."""
    log.append(2)
    tail = SegmentTail(log.path, 0)
    assert tail.read(MANY).records == raw_of(log)
    return tail


def test_what_was_appended_is_read_on(log: LogWriter, tail: SegmentTail) -> None:
    log.append(3)
    read = tail.read_cached(MANY)
    assert read is not None
    assert read == ((raw_of(log, 2), [(2, 4, 0, *tail_span(log, 1))], ()), 0)
    assert (tail.next_offset, tail.unread_bytes()) == (5, 0)
    assert tail.read_cached(MANY) is None
    assert tail.read(MANY) == (b"", [], ())


def test_a_tail_that_has_no_open_file_opens_none(log: LogWriter, tail: SegmentTail) -> None:
    assert SegmentTail(log.path, 0).read_cached(MANY) is None
    log.append(1)
    tail.close()
    assert tail.read_cached(MANY) is None
    assert tail.read(MANY).records == raw_of(log, 2)


def test_a_roll_is_left_to_a_read(log: LogWriter, tail: SegmentTail) -> None:
    log.append(1)
    log.roll()
    log.append(1)
    read = tail.read_cached(MANY)
    assert read is not None
    assert read[0].records == log.batches[1].raw
    assert tail.read_cached(MANY) is None
    assert tail.read(MANY) == (log.batches[2].raw, [(3, 3, 0, *tail_span(log, 2))], ())


def test_a_file_that_is_read_is_not_the_one_to_be_closed(log: LogWriter, tmp_path: Path) -> None:
    files = OpenFiles(limit=2)
    others = [LogWriter(tmp_path / f"other-{number}") for number in range(2)]
    tails = [SegmentTail(one.path, 0, files) for one in (log, *others)]
    for one in (log, *others):
        one.append(1)
    tails[0].read(MANY)
    tails[1].read(MANY)
    log.append(1)
    assert tails[0].read_cached(MANY) is not None
    tails[2].read(MANY)
    log.append(1)
    assert tails[0].read_cached(MANY) is not None
    assert files.open_count == 2


def test_half_a_batch_is_left_behind(log: LogWriter, tail: SegmentTail) -> None:
    written = log.append(1)
    log.tear(keep=40)
    read = tail.read_cached(MANY)
    assert read is not None
    assert (read[0].records, read[1]) == (written.raw, 40)
    assert tail.read_cached(MANY) is None


def test_more_than_is_asked_for_is_not_read_in_part(log: LogWriter, tail: SegmentTail) -> None:
    size = len(log.append(1).raw)
    assert tail.read_cached(size - 1) is None
    read = tail.read_cached(size)
    assert read is not None
    assert len(read[0].records) == size


@pytest.mark.parametrize("answer", [BlockingIOError(errno.EAGAIN, "not in memory"), 10])
def test_what_is_not_in_memory_is_left_to_a_read(
    log: LogWriter, tail: SegmentTail, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def preadv(_fd: int, _buffers: list[bytearray], _position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    log.append(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        assert tail.read_cached(MANY) is None
    assert tail.read_cached(MANY) is not None, "it may be in memory the next time"


def test_a_file_system_that_cannot_say_is_asked_once(log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(1)
    tail = SegmentTail(log.path, 0, OpenFiles())
    tail.read(MANY)
    asked = 0

    def preadv(*_arguments: Any) -> int:
        nonlocal asked
        asked += 1
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", preadv)
    for _ in range(3):
        log.append(1)
        assert tail.read_cached(MANY) is None
        assert tail.read(MANY).records == log.batches[-1].raw
    assert asked == 1


def test_a_disk_that_fails_is_named(
    log: LogWriter, tail: SegmentTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_arguments: Any) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    log.append(1)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(LogDirectoryError, match=str(tmp_path)):
        tail.read_cached(MANY)
