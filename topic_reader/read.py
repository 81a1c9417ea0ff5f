"""Reads one partition's records in Python: `remote_wal.read`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

from kafka_log.plain_records import PlainRecord
from recovery.logs.log_plan import Extent
from topic_reader.isolation import committed, uncommitted
from topic_reader.sources import Source, StoredTopics
from topic_reader.stored_log import StoredBatch, StoredLog

Position = int | datetime | None
"""An offset; a time: the first record with this timestamp or a younger one; None: where what is stored begins, or
ends.
"""
IsolationLevel = Literal["read_uncommitted", "read_committed"]


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
    """Yield the records from `start` up to, and without, `end`. `topic` is its name or id.

    Raises DataLossError for offsets that are in no readable object, unless `fail_on_data_loss` is False: then they are
    left out. Raises RemoteStorageError when the store fails, UnknownClusterError when the topic is not found.
    """
    with _opened(topic, partition, source) as log:
        begin, behind = _range(log, start, end)
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
    """Yield the record batches with offsets of this range, as they are stored: compressed, and markers too.

    The first and the last may reach beyond the range. Raises like `read`.
    """
    with _opened(topic, partition, source) as log:
        yield from log.batches(*_range(log, start, end), fail_on_data_loss=fail_on_data_loss)


def visible_batches(
    log: StoredLog,
    start: int,
    end: int,
    planned: tuple[Sequence[Extent], Sequence[Extent]] | None = None,
    *,
    is_committed: bool,
    fail_on_data_loss: bool,
    is_end_stable: bool = False,
) -> Iterator[StoredBatch]:
    """Yield the batches of records that consumers see at offsets [start, end); the first and last may reach beyond.

    `planned`: what holds them, and what is behind them. `is_end_stable`: with `is_committed`, a transaction below `end`
    without a marker raises UndecidedTransactionError.
    """
    within, behind = planned if planned is not None else (None, None)
    batches = log.batches(start, end, within, fail_on_data_loss=fail_on_data_loss)

    def and_behind() -> Iterator[StoredBatch]:
        yield from batches
        log_end = behind[-1].last_offset + 1 if behind else end if planned is not None else log.bounds()[1]
        rest = log.batches(end, log_end, behind, fail_on_data_loss=False)
        yield from (batch for batch in rest if batch.header.base_offset >= end)

    def again(offset: int) -> Iterator[StoredBatch]:
        return log.batches(offset, end, fail_on_data_loss=fail_on_data_loss)

    if not is_committed:
        return uncommitted(batches)
    return committed(and_behind(), again, end, log.name, is_end_stable=is_end_stable)


@contextmanager
def _opened(topic: str, partition: int, source: Source) -> Iterator[StoredLog]:
    with StoredTopics.find(source, [topic]).opened() as topics:
        yield topics.log(topic, partition)


def _range(log: StoredLog, start: Position, end: Position) -> tuple[int, int]:
    """Return the offsets. Raises ValueError for a time without a zone."""

    def offset(position: Position, default: int) -> int:
        if isinstance(position, datetime):
            if position.tzinfo is None:
                raise ValueError(f"{position} has no time zone")
            return log.offset_at(int(position.timestamp() * 1000))
        return default if position is None else position

    begin, behind = log.bounds()
    return offset(start, begin), offset(end, behind)
