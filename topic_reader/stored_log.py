"""Reads the batches of one partition's log from object storage, in order, each once.

`recovery.logs.log_plan` says which parts of which objects are the log's. If an object cannot be read, because it was
deleted meanwhile or is damaged, the log is planned again by what is known now, without it. Offsets that nothing has are
a loss: an error that names them, or left out. So are declared gaps, unless compaction made them.

What is stored was appended by the log's leader. Its newest records may not be replicated yet, and may be replaced after
an election; whoever must not see these gives the log only what is old enough (`settled`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH, LeaderEpochs
from kafka_log.plain_records import PlainRecord, decode_records
from kafka_log.record_batch import RecordBatchHeader
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.offset_ranges import OffsetRange, ranges_missing
from recovery.errors import OvertakenRunError, RecoveryError
from recovery.logs.log_plan import Extent, LogRuns, PlanRules
from recovery.logs.object_reads import LogExtent, group_reads
from recovery.logs.run_reader import FailedExtent, ReadExtent, RunReader
from recovery.logs.stored_run import StoredRun
from recovery.logs.timestamp_bound import first_that_begins_later
from topic_reader.decompression import decompressed
from topic_reader.stream_offsets import ReadTo

log = structlog.get_logger(__name__)

_THREADS = 4
_WINDOW_BYTES = 32 * 1024 * 1024
"""Read ahead by each reader."""


_NOT_THERE = "are in no readable object"
_INLINE = (GapReason.NOT_WANTED, GapReason.BEFORE_UPLOAD)
WENT_INLINE = (
    "went inline and were never stored; from now on they are, with remote-wal topics enable --wal-retention-ms -2"
)


class DataLossError(RecoveryError):
    """Offsets of a log are in no readable object, so they cannot be read."""


class StoredBatch(NamedTuple):
    """One record batch as the producer and the leader made it, with its offsets."""

    header: RecordBatchHeader
    data: memoryview
    """Header and records."""

    def records(self) -> Iterator[PlainRecord]:
        """Yield the batch's records, decompressed. Raises CorruptBatchError, MalformedMessageError."""
        return decode_records(self.header, decompressed(self.header, self.data))


class LostRange(NamedTuple):
    """Offsets [begin, end) that are in no readable object and that compaction did not remove."""

    begin: int
    end: int


class RangePlan(NamedTuple):
    """What to read for a range of offsets, in order, and which of the offsets are lost."""

    extents: Sequence[Extent]
    lost: Sequence[OffsetRange]

    @property
    def end(self) -> int:
        """The offset behind the last that is read or lost: what is lost may have held a marker."""
        return max((*(one.last_offset + 1 for one in self.extents), *(end for _, end in self.lost)), default=0)

    def lost_between(self, begin: int, end: int) -> Iterator[LostRange]:
        """Yield the lost offsets in [begin, end)."""
        return (
            LostRange(max(first, begin), min(last, end)) for first, last in self.lost if first < end and last > begin
        )


@dataclass(frozen=True)
class KnownLog:
    name: str
    """`topic-partition`, for people."""
    runs: LogRuns
    rules: PlanRules
    is_listed: bool = True
    """Whether the store was listed, which has objects that nobody published."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The start of each leader epoch that has stored records."""
        return LeaderEpochs(self.runs.lineage)

    def bounds(self) -> OffsetRange:
        """Return the first offset that is stored, and the one behind the last."""
        start = self.runs.plan(self.rules).start_offset
        plan = self.runs.plan(self._with_holes(start))
        return start, plan.end_offset if plan.gap is None else plan.gap.to_offset

    def plan(self, start: int, end: int, *, fail_on_data_loss: bool) -> RangePlan:
        """Return what to read for offsets [start, end). Raises DataLossError."""
        plan, is_inline = self.find(start, end)
        why = WENT_INLINE if is_inline else _NOT_THERE
        report_loss(self.name, plan.lost, why, fail_on_data_loss=fail_on_data_loss)
        return plan

    def find(self, start: int, end: int) -> tuple[RangePlan, bool]:
        """Return what to read for offsets [start, end), and whether all lost ones were declared as sent inline."""
        plan = self.runs.plan(self._with_holes(start))
        found = [one for one in plan.extents if one.first_offset < end and one.last_offset >= start]
        epochs = self.epochs
        compacted = (gap for gap in self.rules.declared_gaps if gap.reason is GapReason.COMPACTED)
        held = [
            *((one.first_offset, one.last_offset + 1) for one in found),
            *((gap.from_offset, gap.end_in(epochs)) for gap in compacted),
        ]
        lost = ranges_missing(held, (start, end))
        declared = (*self.rules.declared_gaps, *self.rules.before_upload)
        inline = [(gap.from_offset, gap.end_in(epochs)) for gap in declared if gap.reason in _INLINE]
        return RangePlan(found, lost), not any(ranges_missing(inline, one) for one in lost)

    def _with_holes(self, start: int) -> PlanRules:
        return replace(self.rules, may_have_holes=True, start_offset=start)


def report_loss(name: str, missing: Sequence[OffsetRange], why: str = _NOT_THERE, *, fail_on_data_loss: bool) -> None:
    """Raise DataLossError if any offset is missing; unless `fail_on_data_loss`, log it instead."""
    if missing:
        ranges = ", ".join(f"{begin} to {end - 1}" for begin, end in missing[:5])
        more = f" and {len(missing) - 5} ranges more" if len(missing) > 5 else ""
        report(name, f"offsets {ranges}{more} {why}", fail_on_data_loss=fail_on_data_loss)


def report(name: str, what: str, *, fail_on_data_loss: bool) -> None:
    """Raise DataLossError; unless `fail_on_data_loss`, log it instead."""
    if fail_on_data_loss:
        hint = "where this is known, read the rest with fail_on_data_loss=False, in Spark with failOnDataLoss=false"
        if what.endswith(_NOT_THERE):
            hint = f"does server.properties name the bucket or directory that agents write to? {hint}"
        raise DataLossError("read", name, what, hint)
    log.warning("topic_reader_data_loss", log=name, reason=what)


class StoredLog:
    """Reads the batches of one log from its objects. For one thread."""

    def __init__(self, name: str, known: Callable[[bool], KnownLog], reader: RunReader) -> None:
        """`known` returns what is stored of the log; called with True, it asks again."""
        self.name = name
        self._known = known
        self._reader = reader

    def batches(
        self, start: int, end: int, planned: RangePlan | None = None, *, fail_on_data_loss: bool = True
    ) -> Iterator[StoredBatch]:
        """Yield the batches with offsets of [start, end), control batches too; the first may begin before `start`.

        `planned` is what to read, if the caller has it. Raises DataLossError, and RemoteStorageError when the store
        fails.
        """
        pieces = self.pieces(start, end, planned, fail_on_data_loss=fail_on_data_loss)
        return (piece for piece in pieces if isinstance(piece, StoredBatch))

    def pieces(
        self, start: int, end: int, planned: RangePlan | None = None, *, fail_on_data_loss: bool = True
    ) -> Iterator[StoredBatch | LostRange]:
        """Yield the batches with offsets of [start, end), in order, and a `LostRange` in place of lost ones."""
        overtaken: dict[StoredRun, int] = {}
        unusable: set[StoredRun] = set()
        position, known = start, None
        if planned is None:
            planned = self.plan(start, end, fail_on_data_loss=fail_on_data_loss)
        while True:
            failed = None
            for found in self._read(planned.extents):
                if isinstance(found, FailedExtent):
                    failed = found
                    break
                for span in found.batches:
                    if position <= span.last_offset and span.base_offset < end:
                        yield from planned.lost_between(position, span.base_offset)
                        position = span.last_offset + 1
                        header = RecordBatchHeader.parse(found.records, span.start)
                        yield StoredBatch(header, found.records[span.start : span.end])
            if failed is None:
                yield from planned.lost_between(position, end)
                return
            log.warning("topic_reader_copy_unusable", log=self.name, error=str(failed.error))
            if isinstance(failed.error, OvertakenRunError):
                overtaken[failed.extent.run] = failed.error.base_offset
            else:
                unusable.add(failed.extent.run)
            known = self._known(True) if known is None else known
            rest = replace(known, runs=known.runs.cut_off(overtaken).mark_unreadable(unusable))
            planned = rest.plan(position, end, fail_on_data_loss=fail_on_data_loss)

    def _read(self, extents: Sequence[Extent]) -> Iterator[ReadExtent | FailedExtent]:
        reads = group_reads(LogExtent(0, extent) for extent in extents)
        for results in self._reader.read_ahead(reads, _THREADS, _WINDOW_BYTES):
            yield from results

    def bounds(self) -> OffsetRange:
        """Return the first offset that is stored, and the one behind the last."""
        return self._known(False).bounds()

    def plan(self, start: int, end: int, *, fail_on_data_loss: bool = True) -> RangePlan:
        """Return what is to be read for offsets [start, end). Raises DataLossError."""
        known = self._known(False)
        if not known.is_listed and known.find(start, end)[0].lost:
            known = self._known(True)  # an object that nobody published may have it
        return known.plan(start, end, fail_on_data_loss=fail_on_data_loss)

    def read_to(self, offset: int) -> ReadTo:
        """Return the offset with the leader epoch of the record before it."""
        known = self._known(False)
        epoch = known.epochs.epoch_for(offset - 1) if 0 < offset <= known.bounds()[1] else UNKNOWN_EPOCH
        return ReadTo(offset, epoch)

    def replaced_from(self, read_to: ReadTo) -> int | None:
        """Return the offset from which on a newer leader has replaced what was read; None if all is as it was."""
        end = self._known(False).epochs.end_offset_for(read_to.leader_epoch)
        return end if end is not None and read_to.leader_epoch >= 0 and end < read_to.offset else None

    def check_range(self, start: int, end: int, *, fail_on_data_loss: bool) -> None:
        """Raise ValueError if the range ends before it starts, DataLossError if it starts where nothing is stored
        yet."""
        if start > end:
            if end < self.bounds()[1]:
                raise ValueError(f"{self.name}: a range from {start} to {end} ends before it starts")
            report_loss(self.name, [(end, start)], fail_on_data_loss=fail_on_data_loss)

    def offset_at(self, timestamp_ms: int, *, is_start: bool) -> int:
        """Return the first offset whose record has this timestamp or a later one; the log's end if none has.

        It is found by bisection, so it is exact if timestamps do not decrease along the log. A range that starts at a
        time includes lost offsets just before this one, which may have that time: so their loss is reported.
        """
        known = self._known(False)
        start, end = known.bounds()
        extents, lost = known.plan(start, end, fail_on_data_loss=False)
        extents = extents[max(first_that_begins_later(extents, self._reader, timestamp_ms - 1) - 1, 0) :]
        begin = extents[0].first_offset if extents else end
        lost_from = None
        for piece in self.pieces(begin, end, RangePlan(extents, lost), fail_on_data_loss=False):
            if isinstance(piece, LostRange):
                lost_from = piece.begin if lost_from is None else lost_from
            elif piece.header.max_timestamp_ms < timestamp_ms:
                lost_from = None
            else:
                for record in () if piece.header.is_control else piece.records():
                    if record.timestamp_ms >= timestamp_ms:
                        return lost_from if is_start and lost_from is not None else record.offset
                    lost_from = None
        return lost_from if is_start and lost_from is not None else end
