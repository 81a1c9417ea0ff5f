"""Reads one partition's records in Python: `remote_wal.read`."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal, get_args

from kafka_log.plain_records import PlainRecord
from recovery.errors import RecoveryError
from topic_reader.isolation import committed
from topic_reader.sources import Source, StoredTopics
from topic_reader.stored_log import LostRange, RangePlan, StoredBatch, StoredLog, report_loss

Position = int | datetime | None
"""An offset; a time: the first record with this timestamp or a younger one; None: where what is stored begins, or
ends.
"""
IsolationLevel = Literal["read_uncommitted", "read_committed"]


class UndecidedTransactionError(RecoveryError):
    """A transaction has no marker, although no transaction was open where the range ends."""


def read(
    topic: str,
    partition: int,
    source: Source,
    *,
    start: Position = None,
    end: Position = None,
    isolation_level: IsolationLevel = "read_uncommitted",
    fail_on_data_loss: bool = True,
) -> Iterator[PlainRecord]:
    """Yield a partition's records from `start` up to, and without, `end`. `topic` is its name or id.

    Raises DataLossError for offsets that are in no readable object; unless `fail_on_data_loss`, they are left out.
    Raises RemoteStorageError when the store fails, UnknownClusterError when the topic is not found.
    """
    if isolation_level not in get_args(IsolationLevel):
        raise ValueError(f"isolation_level: {isolation_level!r} is none of {', '.join(get_args(IsolationLevel))}")
    with _opened(topic, partition, source, fail_on_data_loss=fail_on_data_loss) as log:
        begin, behind = _range(log, start, end)
        log.check_range(begin, behind, fail_on_data_loss=fail_on_data_loss)
        for batch in visible_batches(
            log, begin, behind, is_committed=isolation_level == "read_committed", fail_on_data_loss=fail_on_data_loss
        ):
            yield from (record for record in batch.records() if begin <= record.offset < behind)


def read_batches(
    topic: str,
    partition: int,
    source: Source,
    *,
    start: Position = None,
    end: Position = None,
    fail_on_data_loss: bool = True,
) -> Iterator[StoredBatch]:
    """Yield the record batches with offsets of this range as they are stored: compressed, with control batches.

    The first and the last may reach beyond the range. Raises like `read`.
    """
    with _opened(topic, partition, source, fail_on_data_loss=fail_on_data_loss) as log:
        begin, behind = _range(log, start, end)
        log.check_range(begin, behind, fail_on_data_loss=fail_on_data_loss)
        yield from log.batches(begin, behind, fail_on_data_loss=fail_on_data_loss)


def visible_batches(
    log: StoredLog,
    start: int,
    end: int,
    planned: tuple[RangePlan, RangePlan] | None = None,
    *,
    is_committed: bool,
    fail_on_data_loss: bool,
    is_end_stable: bool = False,
) -> Iterator[StoredBatch]:
    """Yield the batches of records that consumers see at offsets [start, end); the first and last may reach beyond.

    `planned` has what to read, also behind `end`. `is_end_stable`: no transaction was open below `end` when it was
    chosen, and the next range begins there. So with `is_committed` one without a marker raises
    UndecidedTransactionError.
    """
    within, behind = planned if planned is not None else (None, None)
    pieces = log.pieces(start, end, within, fail_on_data_loss=fail_on_data_loss)

    def and_behind() -> Iterator[StoredBatch | LostRange]:
        yield from pieces
        log_end = log.bounds()[1] if behind is None else max(end, behind.end)
        for piece in log.pieces(end, log_end, behind, fail_on_data_loss=False):
            if isinstance(piece, LostRange) or piece.header.base_offset >= end:
                yield piece

    def again(offset: int) -> Iterator[StoredBatch]:
        return log.batches(offset, end, fail_on_data_loss=fail_on_data_loss)

    def undecided(first: int, _records: int, lost: LostRange | None) -> None:
        if lost is not None:
            why = f"are in no readable object, and there the transaction at offset {first} may have ended"
            report_loss(log.name, [lost], why, fail_on_data_loss=fail_on_data_loss)
        elif is_end_stable:
            hint = "retry when it has ended; to continue without its marker, read with read_uncommitted"
            raise UndecidedTransactionError(
                "read", log.name, f"the transaction at offset {first} has no marker yet", hint
            )

    if is_committed:
        return committed(and_behind(), again, end, undecided)
    return (piece for piece in pieces if isinstance(piece, StoredBatch) and not piece.header.is_control)


@contextmanager
def _opened(topic: str, partition: int, source: Source, *, fail_on_data_loss: bool) -> Iterator[StoredLog]:
    with StoredTopics.find(source, [topic]).opened() as topics:
        topics.check_complete(fail_on_data_loss=fail_on_data_loss)
        topics.checked_partitions(topic, [partition])
        yield topics.log(topic, partition)


def _range(log: StoredLog, start: Position, end: Position) -> tuple[int, int]:
    """Return the offsets. Raises ValueError for a time without a zone."""

    def offset(position: Position, default: int, *, is_start: bool) -> int:
        if isinstance(position, datetime):
            if position.tzinfo is None:
                raise ValueError(f"{position} has no time zone")
            return log.offset_at(int(position.timestamp() * 1000), is_start=is_start)
        if position is not None and position < 0:
            raise ValueError(f"{position} is no offset; None is where what is stored begins, or ends")
        return default if position is None else position

    begin, behind = log.bounds()
    return offset(start, begin, is_start=True), offset(end, behind, is_start=False)
