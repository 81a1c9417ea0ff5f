import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_log.errors import MalformedFileError
from kafka_log.open_files import LogFile, OpenFiles
from kafka_log.segment_tail import (
    Gap,
    SegmentTail,
    TornTail,
    Truncated,
)
from tests.kafka_log.log_writer import LogWriter
from tests.kafka_log.tail_reads import MANY, raw_of, tail_span


def test_a_directory_without_segments_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    tail = SegmentTail(path, None)
    assert tail.read(MANY) == (b"", [], ())
    log = LogWriter(path)
    log.append()
    assert tail.read(MANY).records == raw_of(log)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_start_offset_inside_a_batch_starts_with_that_batch(log: LogWriter, with_index: bool) -> None:
    for _ in range(20):
        log.append(3)
    if not with_index:
        log.file(log.segments[0], "index").unlink()
    result = SegmentTail(log.path, 31).read(MANY)
    assert result.records == raw_of(log, 30)
    assert result.events == ()


def test_an_index_that_points_anywhere_does_no_harm(log: LogWriter) -> None:
    for _ in range(20):
        log.append(3)
    log.file(log.segments[0], "index").write_bytes(b"\x00\x00\x00\x05\x00\x00\x00\x07" * 4)
    assert SegmentTail(log.path, 31).read(MANY).records == raw_of(log, 30)


def test_an_index_spares_the_walk_over_the_segment(log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(300):
        log.append(1, payload=b"p" * 1000)
    read = Counter[str]()
    count_calls(monkeypatch, "pread", read)
    tail = SegmentTail(log.path, 299)
    assert tail.next_offset == 299
    tail.read(MANY)
    assert read["pread"] < 15


def test_a_start_offset_below_the_log_is_a_gap(log: LogWriter) -> None:
    log.append(5)
    log.roll()
    log.append(1)
    log.remove_oldest()
    result = SegmentTail(log.path, 2).read(MANY)
    assert result.events == (Gap(2, 5),)
    assert result.records == raw_of(log)


class RolledWhileRead(OpenFiles):
    """A broker appends, rolls and appends again right behind the next read."""

    def __init__(self, log: LogWriter) -> None:
        super().__init__()
        self.log = log
        self.is_next = False

    def unpin(self, file: LogFile) -> None:
        super().unpin(file)
        if self.is_next:
            self.is_next = False
            self.log.append(1)
            self.log.roll()
            self.log.append(1)


def test_what_was_appended_just_before_a_roll_is_not_skipped(log: LogWriter) -> None:
    log.append(1)
    files = RolledWhileRead(log)
    tail = SegmentTail(log.path, 0, files)
    tail.read(MANY)
    files.is_next = True
    assert tail.read(MANY).records == log.batches[1].raw
    assert tail.read(MANY) == (log.batches[2].raw, [(2, 2, 0, *tail_span(log, 2))], ())


def test_a_read_is_bounded_but_grows_to_hold_one_batch(log: LogWriter) -> None:
    log.append(1, payload=b"a" * 5000)
    log.append(1, payload=b"b" * 10)
    log.append(1, payload=b"c" * 10)
    tail = SegmentTail(log.path, 0)
    first, second, third = (b.raw for b in log.batches)
    assert tail.read(100).records == first
    assert tail.read(100).records == second
    assert tail.read(100).records == third


def test_a_batch_above_the_cap_is_never_read(log: LogWriter) -> None:
    log.append(1, payload=b"a" * 5000)
    tail = SegmentTail(log.path, 0, max_batch_bytes=4000)
    assert tail.read(100) == (b"", [], (TornTail(),))


@pytest.mark.parametrize("full_length", [True, False])
def test_a_torn_tail_is_reported_once_and_waited_for(log: LogWriter, full_length: bool) -> None:
    log.append(1)
    tail = SegmentTail(log.path, 0)
    log.tear(full_length=full_length, keep=70)
    assert tail.read(MANY).records == raw_of(log)
    assert tail.read(MANY) == (b"", [], (TornTail(),))
    assert tail.read(MANY) == (b"", [], ())
    log.append(2, payload=b"again")
    assert tail.read(MANY).records == raw_of(log, 1)


def test_a_broken_batch_in_a_closed_segment_becomes_a_gap(log: LogWriter) -> None:
    log.append(1)
    second = log.append(3)
    log.roll()
    log.append(1)
    path = log.file(log.segments[0])
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    tail = SegmentTail(log.path, 0)
    assert tail.read(MANY).records == log.batches[0].raw
    assert tail.read(MANY).events == (TornTail(),)
    result = tail.read(MANY)
    assert result.events == (Gap(second.base_offset, 4, is_unreadable=True),)
    assert result.records == log.batches[2].raw


def test_zeros_of_a_preallocated_file_are_no_torn_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWriter(tmp_path / "t-0", preallocate_bytes=1 << 20)
    log.append(1)
    tail = SegmentTail(log.path, 0)
    assert tail.read(MANY).records == raw_of(log)
    assert tail.read(MANY) == (b"", [], ())
    lengths: list[int] = []
    pread = os.pread

    def measured(fd: int, length: int, position: int) -> bytes:
        lengths.append(length)
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", measured)
    assert tail.read(MANY) == (b"", [], ())
    assert sum(lengths) < 100, "idle reads do not fetch a megabyte of zeros"
    log.append(1)
    assert tail.read(MANY).records == raw_of(log, 1)


def test_truncation_that_shortens_the_file_rewinds(log: LogWriter) -> None:
    for _ in range(3):
        log.append(1)
    tail = SegmentTail(log.path, 0)
    tail.read(MANY)
    log.truncate_to(1)
    assert tail.read(MANY) == (b"", [], (Truncated(1),))
    assert tail.next_offset == 1


@pytest.mark.parametrize("appended", [2, 4])
def test_a_truncated_log_that_grew_as_long_or_longer_is_noticed_by_its_epochs(log: LogWriter, appended: int) -> None:
    for _ in range(3):
        log.append(1, leader_epoch=1, payload=b"old")
    tail = SegmentTail(log.path, 0)
    tail.read(MANY)
    log.truncate_to(1)
    for _ in range(appended):
        log.append(1, leader_epoch=2, payload=b"new")
    result = tail.read(MANY)
    assert result.events == (Truncated(1),)
    assert result.records == raw_of(log, 1)


def test_the_cut_is_found_where_the_checkpoint_still_tells_of_the_old_leader(log: LogWriter) -> None:
    log.append(1, leader_epoch=1, payload=b"old")
    for _ in range(2):
        log.append(1, leader_epoch=3, payload=b"old")
    tail = SegmentTail(log.path, 0)
    tail.read(MANY)
    log.truncate_to(1, flush_checkpoint=False)
    for _ in range(4):  # the new leader had more of epoch 1 than this replica
        log.append(1, leader_epoch=1, payload=b"new")
    result = tail.read(MANY)
    assert result.events == (Truncated(1),)
    assert result.records == raw_of(log, 1)


def test_a_log_without_checkpoint_is_read(log: LogWriter) -> None:
    log.append(1, leader_epoch=1)
    log.append(1, leader_epoch=2)
    (log.path / "leader-epoch-checkpoint").unlink()
    assert SegmentTail(log.path, 0).read(MANY).records == raw_of(log)


def test_a_broken_checkpoint_is_named(log: LogWriter) -> None:
    log.append(1, leader_epoch=1)
    log.append(1, leader_epoch=2)
    (log.path / "leader-epoch-checkpoint").write_text("0\n1\nx y\n")
    with pytest.raises(MalformedFileError, match="leader-epoch-checkpoint, line 3"):
        SegmentTail(log.path, 0).read(MANY)


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str, calls: Counter[str]) -> None:
    original: Callable[..., Any] = getattr(os, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return original(*arguments, **named)

    monkeypatch.setattr(os, name, counted)


def test_a_read_costs_one_pread_and_an_idle_one_three_looks(log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(1)
    tail = SegmentTail(log.path, 0)
    for _ in range(6):
        tail.read(MANY)
    calls = Counter[str]()
    for name in ("pread", "stat", "fstat", "access", "open", "listdir"):
        count_calls(monkeypatch, name, calls)
    assert not tail.read(MANY).records
    assert calls == {"fstat": 1, "stat": 1, "access": 1}
    log_file = log.file(log.segments[0])
    monkeypatch.undo()
    for _ in range(2):
        log.append(1)
    assert log_file.exists()
    tail.read(len(log.batches[1].raw))
    calls.clear()
    for name in ("pread", "stat", "fstat", "access", "open", "listdir"):
        count_calls(monkeypatch, name, calls)
    assert tail.read(MANY).records
    assert calls == {"pread": 1}


def test_backlog_counts_what_is_behind_the_position_in_all_segments(log: LogWriter) -> None:
    log.append(1)
    log.append(1)
    log.roll()
    log.append(1)
    tail = SegmentTail(log.path, 0)
    assert tail.backlog_bytes() == len(raw_of(log))
    tail.read(len(log.batches[0].raw))
    assert tail.backlog_bytes() == len(raw_of(log)) - len(log.batches[0].raw)
    for _ in range(3):
        tail.read(MANY)
    assert tail.backlog_bytes() == 0


def test_the_unread_bytes_are_those_behind_the_position_in_the_segment_at_hand(log: LogWriter) -> None:
    log.append(1)
    tail = SegmentTail(log.path, 0)
    assert tail.unread_bytes() == 0, "nothing was looked at yet"
    tail.read(1 << 20)
    assert tail.unread_bytes() == 0
    log.append(1)
    assert tail.unread_bytes() == len(log.batches[-1].raw)
    tail.read(1 << 20)
    assert tail.unread_bytes() == 0
