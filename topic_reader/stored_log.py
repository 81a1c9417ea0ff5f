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

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
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

log = structlog.get_logger(__name__)

_THREADS = 4
_WINDOW_BYTES = 32 * 1024 * 1024
"""Read ahead by each reader."""


class DataLossError(RecoveryError):
    """Offsets of a log are in no readable object."""


class StoredBatch(NamedTuple):
    """One batch as the producer and the leader made it."""

    header: RecordBatchHeader
    data: memoryview
    """Header and records."""

    def records(self) -> Iterator[PlainRecord]:
        """Yield its records, decompressed. Raises CorruptBatchError, MalformedMessageError."""
        return decode_records(self.header, decompressed(self.header, self.data))


@dataclass(frozen=True)
class KnownLog:
    """What is known of one partition's log."""

    name: str
    """`topic-partition`, for people."""
    runs: LogRuns
    rules: PlanRules

    def bounds(self) -> OffsetRange:
        """Return where what is stored begins, and the offset behind it."""
        start = self.runs.plan(self.rules).start_offset
        plan = self.runs.plan(self._with_holes(start))
        return start, plan.end_offset if plan.gap is None else plan.gap.to_offset

    def extents(self, start: int, end: int, *, fail_on_data_loss: bool) -> list[Extent]:
        """Return what to read for offsets [start, end), in order. Raises DataLossError."""
        plan = self.runs.plan(self._with_holes(start))
        found = [one for one in plan.extents if one.first_offset < end and one.last_offset >= start]
        epochs = LeaderEpochs(self.runs.lineage)
        compacted = (gap for gap in self.rules.declared_gaps if gap.reason is GapReason.COMPACTED)
        held = [
            *((one.first_offset, one.last_offset + 1) for one in found),
            *((gap.from_offset, gap.end_in(epochs)) for gap in compacted),
        ]
        report_loss(self.name, ranges_missing(held, (start, end)), fail_on_data_loss=fail_on_data_loss)
        return found

    def _with_holes(self, start: int) -> PlanRules:
        return replace(self.rules, may_have_holes=True, start_offset=start)


def report_loss(name: str, missing: Sequence[OffsetRange], *, fail_on_data_loss: bool) -> None:
    """Raise DataLossError if anything is missing, or log it."""
    if not missing:
        return
    told = ", ".join(f"{begin} to {end - 1}" for begin, end in missing[:5])
    if fail_on_data_loss:
        hint = "where this is known, read the rest with fail_on_data_loss=False"
        raise DataLossError("read", name, f"offsets {told} are in no readable object", hint)
    log.warning("topic_reader_data_loss", log=name, offsets=told, ranges=len(missing))


class StoredLog:
    """Reads one log. For one thread."""

    def __init__(self, name: str, known: Callable[[bool], KnownLog], reader: RunReader) -> None:
        """`known` says what is known of the log; it looks again if it is called with True."""
        self.name = name
        self._known = known
        self._reader = reader

    def batches(
        self, start: int, end: int, planned: Sequence[Extent] | None = None, *, fail_on_data_loss: bool = True
    ) -> Iterator[StoredBatch]:
        """Yield the batches with offsets of [start, end), control batches too; the first may begin before `start`.

        `planned` are the extents, if they are known. Raises DataLossError, and RemoteStorageError when the store fails.
        """
        overtaken: dict[StoredRun, int] = {}
        unusable: set[StoredRun] = set()
        position, known = start, None
        if planned is None:
            planned = self._known(False).extents(start, end, fail_on_data_loss=fail_on_data_loss)
        while True:
            failed = None
            for found in self._read(planned):
                if isinstance(found, FailedExtent):
                    failed = found
                    break
                for span in found.batches:
                    if position <= span.last_offset and span.base_offset < end:
                        position = span.last_offset + 1
                        header = RecordBatchHeader.parse(found.records, span.start)
                        yield StoredBatch(header, found.records[span.start : span.end])
            if failed is None:
                return
            log.warning("topic_reader_copy_unusable", log=self.name, error=str(failed.error))
            if isinstance(failed.error, OvertakenRunError):
                overtaken[failed.extent.run] = failed.error.base_offset
            else:
                unusable.add(failed.extent.run)
            known = self._known(True) if known is None else known
            rest = replace(known, runs=known.runs.cut_off(overtaken).mark_unreadable(unusable))
            planned = rest.extents(position, end, fail_on_data_loss=fail_on_data_loss)

    def _read(self, extents: Sequence[Extent]) -> Iterator[ReadExtent | FailedExtent]:
        reads = group_reads(LogExtent(0, extent) for extent in extents)
        for results in self._reader.read_ahead(reads, _THREADS, _WINDOW_BYTES):
            yield from results

    def bounds(self) -> OffsetRange:
        """Return where what is stored begins, and the offset behind it."""
        return self._known(False).bounds()

    def extents(self, start: int, end: int, *, fail_on_data_loss: bool = True) -> list[Extent]:
        """Return what is to be read for offsets [start, end). Raises DataLossError."""
        return self._known(False).extents(start, end, fail_on_data_loss=fail_on_data_loss)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset whose record has this timestamp or a younger one; the log's end if none has.

        It is found by bisection, so it is exact if timestamps do not decrease along the log.
        """
        known = self._known(False)
        start, end = known.bounds()
        extents = known.extents(start, end, fail_on_data_loss=False)
        extents = extents[max(first_that_begins_later(extents, self._reader, timestamp_ms - 1) - 1, 0) :]
        begin = extents[0].first_offset if extents else end
        for batch in self.batches(begin, end, extents, fail_on_data_loss=False):
            if batch.header.max_timestamp_ms >= timestamp_ms:
                for record in () if batch.header.is_control else batch.records():
                    if record.timestamp_ms >= timestamp_ms:
                        return record.offset
        return end
