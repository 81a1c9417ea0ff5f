"""Reads the ranges of a log that are missing in object storage, one by one, and then follows the log's end.

Each range is read by its own `SegmentTail`, and ends with the first batch that begins behind it. Offsets without a
batch are no gap: a compacted log has holes. What the log does not have any more of a range is reported as `Gap`; what
lies between ranges is stored, so nothing is reported of it. A gap is reported once the log has leader epochs, because
it is declared for a log with certain ones: a log that was cut to its start has none until its leader has begun to
write.

A tail that is far behind may pass over what it has not read, and leave it to another one that reads `only_missing`.

The ranges are valid for a log with certain leader epochs. Two events make them void. If the log ends before a range
does, everything from there on is uploaded, whatever is stored. If another leader has written before the end of what
seemed known, everything from that point on is uploaded. The latter happens when leadership is noticed before the broker
has begun to write its new epoch, and when an unclean election brings back a log without these epochs before the agent
hears that its broker does not lead any more.

Like `SegmentTail`, it belongs to one caller at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH, LeaderEpochs, read_leader_epochs
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.open_files import OpenFiles
from kafka_log.segment_tail import Gap, LogDeleted, SegmentTail, TailEvent, TailRead, Truncated
from kafka_log.topic_partition import TopicId
from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges, ranges_common
from rlm.write_path.reading.resume_point import ResumePoint

_EMPTY_READS = 3
"""A read that only reports a roll is followed by one that has records."""
_RANGES_PER_READ = 100
"""So many ranges without a record are passed at a time."""


@dataclass(slots=True)
class _KnownLog:
    """The log that was known and read."""

    end: int | None
    """The end of the known part; None: nothing was known."""
    epochs: LeaderEpochs
    """The epochs of the log that is known up to `end`."""
    read_epoch: int | None = None
    """The epoch of the last batch that was read."""

    def is_same(self, epochs: LeaderEpochs, end: int) -> bool:
        """Whether a log with these leader epochs has the records that were known and read, up to `end`."""
        last = self.read_epoch
        if last is None or (self.end is not None and end <= self.end):
            return self.epochs.agrees_to(epochs, end) == end
        return epochs.epoch_for(end - 1) in (last, UNKNOWN_EPOCH)


class ResumedTail:
    """A `SegmentTail` that first reads the ranges missing in object storage, and then follows the log."""

    def __init__(self, directory: Path, topic_id: TopicId, resume: ResumePoint, open_files: OpenFiles) -> None:
        """Opens no file yet. If the directory becomes another topic's, the log counts as deleted."""
        self._directory, self._topic_id = directory, topic_id
        self._open_files = open_files
        self._missing = list(resume.missing)
        self._behind = resume.next_offset
        self._known = _KnownLog(resume.next_offset, resume.leader_epochs)
        self._only_missing = resume.only_missing
        self._is_settled = resume.only_missing
        """Whether the leader epochs at the log's end were checked."""
        self._empty_reads = 0
        self._tail = self._begin()

    @property
    def next_offset(self) -> int:
        """The first offset that is neither known as stored nor read yet; negative until a log is found."""
        return self._tail.next_offset

    @property
    def has_missing(self) -> bool:
        """Whether missing ranges are left to be read."""
        return bool(self._missing)

    @property
    def missing(self) -> tuple[OffsetRange, ...]:
        """The missing ranges that are not read yet, ascending. Lost parts stay until they are reported."""
        if not self._missing:
            return ()
        (begin, end), *others = self._missing
        return ((max(begin, min(self._read_to, self.next_offset)), end), *others)

    def also_read(self, ranges: Iterable[OffsetRange]) -> None:
        """Read these ranges as well; not during a read."""
        self._missing = joined_ranges([*ranges, *self.missing])
        self._begin_anew()

    def pass_over(self, offset: int) -> ResumePoint | None:
        """Continue at `offset`, or at the end of what is stored if that is later.

        Returns a resume point for the offsets in between, for another tail. Call it only once the log was found.
        Returns None, and changes nothing, if what was read may no longer be the log's.
        """
        if self._tail.has_events:
            return None
        unread = self.missing
        behind = self._behind if unread and self._behind is not None else self.next_offset
        try:
            epochs = read_leader_epochs(self._directory)
        except (OSError, MalformedFileError):
            return None
        if not self._known.is_same(epochs, behind):
            return None
        offset = max(offset, behind)
        passed_over = joined_ranges([*unread, (behind, offset)])
        self._missing, self._behind, self._known.end, self._is_settled = [], offset, offset, False
        self._known.epochs, self._known.read_epoch = epochs, None
        self._begin_anew()
        return ResumePoint(offset, tuple(passed_over), epochs, only_missing=True)

    def read(self, max_bytes: int) -> TailRead:
        """Return the next batches, missing ranges first; if none while `has_missing`, the next read may find some."""
        events: list[TailEvent] = []
        for _ in range(_RANGES_PER_READ):
            if not self._missing:
                break
            read = self._read_missing(max_bytes)
            self._read_to = self._tail.next_offset
            events += read.events
            if read.spans:
                return read._replace(events=tuple(events))
        if events or self._missing or self._only_missing:
            return TailRead(b"", [], tuple(events))
        return self._settled(self._read_tail(max_bytes))

    def read_cached(self, max_bytes: int) -> tuple[TailRead, int] | None:
        """Read without waiting for a disk; also return how many bytes are left. None: a `read` is needed."""
        if self._missing or not self._is_settled:
            return None
        found = self._tail.read_cached(max_bytes)
        if found is not None and found[0].spans:
            self._known.read_epoch = found[0].spans[-1].leader_epoch
        return found

    def backlog_bytes(self) -> int:
        """Return the bytes of the log behind the position; while ranges are missing, stored bytes behind them count,
        too."""
        return max(self._tail.backlog_bytes(), int(self.has_missing))

    def unread_bytes(self) -> int:
        """Return how many bytes of the log are known and not read yet."""
        return self._tail.unread_bytes()

    def close(self) -> None:
        """Close the file. A later read opens it again."""
        self._tail.close()

    def _read_missing(self, max_bytes: int) -> TailRead:
        """Return what the next read finds of the first missing range."""
        wanted = self._missing[0]
        read = self._settled(self._read_tail(max_bytes))
        if not self._missing:
            return read
        is_cut = any(isinstance(event, Truncated | LogDeleted) for event in read.events)
        spans = [span for span in read.spans if span.base_offset < wanted[1]]
        events = tuple(_of_range(read.events, wanted))
        if is_cut:
            self._follow_on()
            return read._replace(events=events)
        if self._tail.next_offset >= wanted[1]:
            events += self._range_is_read(spans[-1].last_offset + 1 if spans else 0)
        elif not read.spans:
            self._empty_reads += 1
            if self._empty_reads == _EMPTY_READS:
                self._follow_on()
        else:
            self._empty_reads = 0
        return TailRead(read.records[: spans[-1].end] if spans else b"", spans, events)

    def _read_tail(self, max_bytes: int) -> TailRead:
        """Read what comes next; raise a gap only once the log has a leader epoch, by which it can be identified."""
        begin = self._tail.next_offset
        read = self._tail.read(max_bytes)
        if not any(isinstance(event, Gap) for event in read.events):
            return read
        try:
            if read_leader_epochs(self._directory).entries:
                return read
            reason = "the log lacks records, and has no leader epochs yet"
        except (OSError, MalformedFileError) as error:
            reason = str(error)
        self._read_again_from(begin)
        raise LogDirectoryError(self._directory, reason)

    def _follow_on(self) -> None:
        """Take everything that the log has from this position on, whatever is stored."""
        self._missing = []
        self._is_settled = True

    def _range_is_read(self, next_offset: int) -> tuple[TailEvent, ...]:
        """Continue with the next range, or behind the last one. Reports if a leader has written up to just there."""
        self._missing = [(max(begin, next_offset), end) for begin, end in self._missing[1:] if end > next_offset]
        if self._behind is not None:
            self._behind = self._known.end = max(self._behind, next_offset)
        self._begin_anew()
        if self._missing or self._only_missing:
            return ()
        return self._settled(TailRead(b"", [], ())).events

    def _settled(self, read: TailRead) -> TailRead:
        """Return the read, or instead of it that the log was rewritten from an offset on that seemed known.

        While no batch comes, a new leader may have rewritten the log up to just here.
        """
        newest = read.spans[-1].leader_epoch if read.spans else None
        if self._is_settled and not self._is_cut_into_known(read):
            self._known.read_epoch = self._known.read_epoch if newest is None else newest
            return read
        if newest is not None:
            self._is_settled = not self._missing
        if self._known.end is None or (newest is not None and newest == self._known.epochs.newest_epoch):
            return read  # a leader that continues has written everything before
        try:
            epochs = read_leader_epochs(self._directory)
        except (OSError, MalformedFileError) as error:
            if newest is None:
                return read  # checked again with the next read
            self._read_again_from(read.spans[0].base_offset)
            raise LogDirectoryError(self._directory, str(error)) from error
        same_to = self._known.epochs.agrees_to(epochs, self._known.end)
        if same_to >= self._known.end:
            self._known.read_epoch = self._known.read_epoch if newest is None else newest
            return read
        self._known.epochs, self._known.read_epoch = epochs, None
        self._missing = ranges_common((0, same_to), self._missing)
        self._behind = self._known.end = same_to
        self._begin_anew()
        return TailRead(b"", [], (Truncated(same_to),))

    def _is_cut_into_known(self, read: TailRead) -> bool:
        """Whether the log was cut below what this tail has read, so that nothing known of it is certain."""
        cuts = [event.at_offset for event in read.events if isinstance(event, Truncated)]
        if self._only_missing or self._known.end is None or not cuts or min(cuts) > self._known.end:
            return False
        self._known.end = self._behind = min(cuts)
        self._is_settled = False
        return True

    def _read_again_from(self, offset: int) -> None:
        """Go back to this offset, so that what was read is not lost with an error."""
        self._is_settled = False
        if self._missing:
            self._missing[0] = (offset, self._missing[0][1])
        else:
            self._behind = offset
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tail.close()
        self._tail = self._begin()

    def _begin(self) -> SegmentTail:
        self._empty_reads = 0
        start = self._missing[0][0] if self._missing else self._behind
        tail = SegmentTail(self._directory, start, self._open_files, topic_id=self._topic_id)
        self._read_to = tail.next_offset
        return tail


def _of_range(events: Iterable[TailEvent], wanted: OffsetRange) -> Iterable[TailEvent]:
    for event in events:
        if isinstance(event, Gap):
            for begin, end in ranges_common((event.from_offset, event.to_offset), [wanted]):
                yield Gap(begin, end, event.is_unreadable)
        else:
            yield event
