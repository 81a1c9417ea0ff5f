"""Where uploaded runs of offsets are: by partition, leader epoch and offset.

Theory. A block of entries that is new waits until somebody searches, or until many entries wait. Then all that wait are
decoded together and become one sorted chunk in memory. As soon as enough entries are in chunks, they become spans in
the file: one row for each partition and epoch, with its runs one behind the other, twelve bytes each. No span is
rewritten for later runs. After a restart the blocks that are in no span yet are decoded again.

Runs may overlap, and come in any order, so spans do as well. A span is in a class by its width in offsets. Within a
class, only spans that begin at most the class's width below an offset can hold it. So a search is as exact as a look at
all spans, and reads few.

A run names its segment by its block's number; what state that is in decides whether the run counts. So no removal
touches a span. Once half of all runs belong to no segment any more, spans are swept, some at each flush: those
without a living run go, and those with many dead ones are written anew.

Not thread-safe; searches change it too.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.segment_table import PAGE_BYTES, DamagedRowError, SegmentStates
from plugin.format import entry_columns
from plugin.format.entry_column_batches import decode_runs
from plugin.segment_metadata import RemoteLogSegmentState

Int64s = NDArray[np.int64]

WAITING_ROWS: Final = 1 << 19
"""How many entries are in memory at most, 40 bytes each. Half as many would make the disk write twice as much for
spans."""
_SPAN_RUNS_MAX: Final = 1024
_FIRSTS_BITS: Final = 31
"""The first offsets of a span agree in all bits above these, so their distances fit into 32 bits."""
_SWEEP_FROM_RUNS: Final = 4096
_SWEPT_SPANS: Final = 1024
"""At each flush."""
_CLASS_BITS: Final = 6
_CLASSES: Final = 64 // _CLASS_BITS + 1
_RUN: Final = np.dtype([("first", "<u4"), ("length", "<u4"), ("number", "<u4")])
_PARTITION_BITS: Final = 31
_KEY: Final = "topic_id = ? AND partition = ? AND leader_epoch = ?"
_PLACE: Final = "topic_id, partition, leader_epoch, class, first_offset, number"
_SPAN: Final = f"{_PLACE}, last_offset, base, runs, checksum"
_FIELDS: Final = struct.Struct("<qqqqqqq")
_WIDTHS: Final = ", ".join(f"({n}, {min(1 << _CLASS_BITS * (n + 1), 1 << 62)})" for n in range(_CLASSES))
_CLASS_TABLE: Final = f"WITH classes(n, width) AS (VALUES {_WIDTHS})"
_BETWEEN: Final = (
    f"{_CLASS_TABLE} SELECT {_SPAN} FROM classes CROSS JOIN spans"  # noqa: S608
    f" ON {_KEY} AND class = n AND first_offset > ? - width AND first_offset < ? AND last_offset >= ?"
)
_EPOCHS: Final = (
    "WITH RECURSIVE known(epoch) AS ("
    " SELECT min(leader_epoch) FROM spans WHERE topic_id = ?1 AND partition = ?2"
    " UNION ALL SELECT (SELECT min(leader_epoch) FROM spans"
    " WHERE topic_id = ?1 AND partition = ?2 AND leader_epoch > epoch) FROM known WHERE epoch IS NOT NULL)"
    " SELECT epoch FROM known WHERE epoch IS NOT NULL"
)


class Runs(NamedTuple):
    """Runs of offsets and the numbers of the blocks that hold them, as columns."""

    firsts: Int64s
    lasts: Int64s
    numbers: Int64s
    """The numbers of the segments' blocks."""

    def select(self, wanted: NDArray[np.bool_]) -> "Runs":
        """Return the runs where the mask is true."""
        return Runs(self.firsts[wanted], self.lasts[wanted], self.numbers[wanted])


class _Chunk(NamedTuple):
    """Runs, sorted by log, epoch and first offset."""

    logs: Int64s
    epochs: Int64s
    runs: Runs


class RunIndex:
    """Finds the runs of a partition: in memory for recent blocks, in spans of the SQLite file for all others."""

    def __init__(self, connection: sqlite3.Connection, states: SegmentStates) -> None:
        self._connection = connection
        self._states = states
        self._waiting: dict[int, bytes] = {}
        self._waiting_rows = 0
        self._chunks: list[_Chunk] = []
        self._chunk_rows = 0
        self._topics: dict[bytes, int] = {}
        self._packed_to, self._spans, self._packed_runs, self._dead_runs = 1, 0, 0, 0
        self._swept_to: Sequence[object] | None = None

    @property
    def facts(self) -> list[int]:
        """Counters to be stored beside the spans, for a later process's `load`."""
        return [self._packed_to, self._spans, self._packed_runs, self._dead_runs]

    def load(self, facts: Sequence[int], unpacked: Callable[[int], Iterable[tuple[int, bytes]]]) -> None:
        """Continue with an earlier process's spans. `unpacked(n)` yields the blocks from number n on that are in no
        span yet."""
        self._packed_to, self._spans, self._packed_runs, self._dead_runs = facts
        for number, block in unpacked(self._packed_to):
            self.add(number, block)

    def add(self, number: int, entry_block: bytes) -> None:
        """Index a segment's encoded entries under the number of their block."""
        self._waiting[number] = entry_block
        self._waiting_rows += entry_columns.entry_count(entry_block)

    def forget(self, number: int, entries: int) -> None:
        """Record that this block, with so many `entries`, no longer belongs to a segment."""
        if self._waiting.pop(number, None) is not None:
            self._waiting_rows -= entries
        elif number < self._packed_to:
            self._dead_runs += entries

    def advance(self, next_number: int) -> int:
        """Write or sweep spans when due, within the table's transaction; all blocks below `next_number` are indexed.

        Returns about how many bytes that writes.
        """
        written = 0
        if self._waiting_rows + self._chunk_rows >= WAITING_ROWS:
            self._sort_waiting()
            written = self._pack(next_number)
        if self._swept_to is not None or self._dead_runs > max(_SWEEP_FROM_RUNS, self._packed_runs // 2):
            self._sweep()
        return written

    # Searches

    def partitions(self) -> list[TopicIdPartition]:
        """Return the partitions with runs of finished segments."""
        self._sort_waiting()
        topic_ids = {topic: TopicId(topic_id) for topic_id, topic in self._topics.items()}
        found = set()
        for chunk in self._chunks:
            is_finished = self._states.of(chunk.runs.numbers) == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            for log in np.unique(chunk.logs[is_finished]).tolist():
                found.add(TopicIdPartition(topic_ids[log >> _PARTITION_BITS], log & (1 << _PARTITION_BITS) - 1))
        return [*found, *self._packed_partitions(found)]

    def epochs(self, topic_id_partition: TopicIdPartition) -> list[int]:
        """Return the epochs in which the partition may have runs, ascending."""
        self._sort_waiting()
        found = {epoch for [epoch] in self._connection.execute(_EPOCHS, topic_id_partition)}
        log = self._log(topic_id_partition)
        for chunk in self._chunks:
            within = slice(*chunk.logs.searchsorted([log, log + 1]))
            found.update(np.unique(chunk.epochs[within]).tolist())
        return sorted(found)

    def find_runs(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, bounds: tuple[int, int], state: int
    ) -> Runs:
        """Return runs that hold any offset in [begin, end), of segments in that state, in no particular order."""
        begin, end = bounds
        key = (*topic_id_partition, leader_epoch)
        packed = self._connection.execute(_BETWEEN, (*key, begin, end, begin)).fetchall()
        found = [*self._in_chunks(topic_id_partition, leader_epoch), _unpacked(packed)]
        return self._chosen(found, begin, end, state)

    def ranges(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int,
        bounds: tuple[int, int],
        dead_from: Mapping[int, int],
    ) -> list[tuple[int, int]]:
        """Return offsets within `bounds` that finished segments hold, as ascending ranges that do not touch.

        `dead_from` maps a block's number to the offset from which on its records of this epoch are dead.
        """
        runs = self.find_runs(topic_id_partition, leader_epoch, bounds, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        return _joined(_living(runs, dead_from, bounds[0]), bounds)

    def _chosen(self, found: Sequence[Runs], begin: int, end: int, state: int) -> Runs:
        runs = Runs(*(np.concatenate(columns) for columns in zip(*found, strict=True))) if found else _NONE
        runs = runs.select((runs.firsts < end) & (runs.lasts >= begin))
        return runs.select(self._states.of(runs.numbers) == state)

    def _in_chunks(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> list[Runs]:
        self._sort_waiting()
        log = self._log(topic_id_partition)
        found = []
        for chunk in self._chunks:
            start, stop = chunk.logs.searchsorted([log, log + 1]).tolist()
            if start < stop:
                within = chunk.epochs[start:stop]
                begin, end = (start + within.searchsorted([leader_epoch, leader_epoch + 1])).tolist()
                if begin < end:
                    found.append(Runs(*(column[begin:end] for column in chunk.runs)))
        return found

    def _packed_partitions(self, known: Set[TopicIdPartition]) -> Iterator[TopicIdPartition]:
        following = (
            "SELECT topic_id, partition FROM spans WHERE (topic_id, partition) > (?, ?)"
            " ORDER BY topic_id, partition LIMIT 1"
        )
        spans = (
            f"SELECT {_SPAN} FROM spans WHERE topic_id = ? AND partition = ?"  # noqa: S608
            " ORDER BY leader_epoch DESC, class DESC, first_offset DESC"
        )
        found = self._connection.execute(following, (b"", -1)).fetchone()
        while found is not None:
            partition = TopicIdPartition(TopicId(found[0]), found[1])
            for span in self._connection.execute(spans, found) if partition not in known else ():
                states = self._states.of(_unpacked([span]).numbers)
                if (states == RemoteLogSegmentState.COPY_SEGMENT_FINISHED).any():
                    yield partition
                    break
            found = self._connection.execute(following, found).fetchone()

    def _log(self, topic_id_partition: TopicIdPartition) -> int:
        """Return topic and partition as one number; if no chunk has the topic, one that no chunk has."""
        topic = self._topics.get(topic_id_partition.topic_id)
        return -2 if topic is None else topic << _PARTITION_BITS | topic_id_partition.partition

    # Chunks and spans

    def _sort_waiting(self) -> None:
        if not self._waiting:
            return
        runs = decode_runs(list(self._waiting.values()))
        numbers = np.array(list(self._waiting), dtype=np.int64)
        self._waiting, self._waiting_rows = {}, 0
        known = self._topics
        topics = np.array([known.setdefault(topic_id, len(known)) for topic_id in runs.topic_ids], dtype=np.int64)
        logs = topics[runs.topic] << _PARTITION_BITS | runs.partition
        found = Runs(runs.first_offset, runs.last_offset, numbers[runs.block])
        self._chunks.append(_sorted(logs, runs.leader_epoch, found))
        self._chunk_rows += len(logs)
        begin, rows = len(self._chunks) - 1, len(logs)
        while begin and len(self._chunks[begin - 1].logs) <= rows:  # so each is larger than all that follow
            begin -= 1
            rows += len(self._chunks[begin].logs)
        if rows > len(logs):
            self._merge(begin)

    def _merge(self, begin: int = 0) -> None:
        """Merge the chunks from `begin` on into one, with only the runs that belong to segments."""
        merged = self._chunks[begin:]
        logs = np.concatenate([chunk.logs for chunk in merged])
        epochs = np.concatenate([chunk.epochs for chunk in merged])
        runs = Runs(*(np.concatenate(columns) for columns in zip(*(chunk.runs for chunk in merged), strict=True)))
        living = self._states.are_living(runs.numbers)
        self._chunks[begin:] = [_sorted(logs[living], epochs[living], runs.select(living))]
        self._chunk_rows -= len(logs) - int(living.sum())

    def _pack(self, next_number: int) -> int:
        """Write all chunks as spans; return about how many bytes that writes: a page for each, as they lie apart."""
        self._merge()
        [(logs, epochs, runs)] = self._chunks
        self._chunks, self._chunk_rows, base = [], 0, self._packed_to
        self._packed_to = next_number
        self._packed_runs += len(logs)
        if not len(logs):
            return 0
        is_other = (logs[1:] != logs[:-1]) | (epochs[1:] != epochs[:-1])
        is_other |= runs.firsts[1:] >> _FIRSTS_BITS != runs.firsts[:-1] >> _FIRSTS_BITS
        begins = np.flatnonzero(np.concatenate(([True], is_other)))
        lengths = np.diff(np.append(begins, len(logs)))
        if lengths.max() > _SPAN_RUNS_MAX:
            pieces = -(-lengths // _SPAN_RUNS_MAX)
            within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            begins = np.repeat(begins, pieces) + within * _SPAN_RUNS_MAX
        ends = np.append(begins[1:], len(logs))
        firsts, lasts = runs.firsts[begins], np.maximum.reduceat(runs.lasts, begins)
        packed = np.empty(len(logs), dtype=_RUN)
        packed["first"] = runs.firsts - np.repeat(firsts, ends - begins)
        packed["length"] = runs.lasts - runs.firsts
        packed["number"] = runs.numbers - base
        content, topic_ids = packed.tobytes(), list(self._topics)
        rows = []
        for log, epoch, first, last, begin, end in zip(
            *(column.tolist() for column in (logs[begins], epochs[begins], firsts, lasts, begins, ends)), strict=True
        ):
            held = content[begin * _RUN.itemsize : end * _RUN.itemsize]
            self._spans += 1
            topic_id, partition = topic_ids[log >> _PARTITION_BITS], log & (1 << _PARTITION_BITS) - 1
            row = (topic_id, partition, epoch, _class(last - first), first, self._spans, last, base, held)
            rows.append((*row, _sum(row)))
        self._connection.executemany("INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return len(rows) * PAGE_BYTES

    def _sweep(self) -> None:
        """Sweep some spans: remove those without living runs, rewrite those with many dead ones."""
        if self._swept_to is None:
            self._swept_to = (b"", -1, -2, -1, -1, -1)
            self._dead_runs = 0
        spans = self._connection.execute(
            f"SELECT {_SPAN} FROM spans WHERE ({_PLACE}) > (?, ?, ?, ?, ?, ?)"  # noqa: S608
            f" ORDER BY {_PLACE} LIMIT {_SWEPT_SPANS}",
            self._swept_to,
        ).fetchall()
        changed, gone = [], []
        living = self._states.are_living(_unpacked(spans).numbers)
        begin = 0
        for *row, held, _ in spans:
            at = row[:6]
            runs = len(held) // _RUN.itemsize
            is_living = living[begin : begin + runs]
            begin, left = begin + runs, int(is_living.sum())
            if not left:
                gone.append(at)
            elif 5 * left < 4 * runs:
                kept = np.frombuffer(held, dtype=_RUN)[is_living].tobytes()
                changed.append((kept, _sum((*row, kept)), *at))
            else:
                self._dead_runs += runs - left
                left = runs
            self._packed_runs -= runs - left
        matching = " AND ".join(f"{name} = ?" for name in _PLACE.split(", "))
        self._connection.executemany(f"DELETE FROM spans WHERE {matching}", gone)  # noqa: S608
        self._connection.executemany(f"UPDATE spans SET runs = ?, checksum = ? WHERE {matching}", changed)  # noqa: S608
        self._swept_to = spans[-1][:6] if len(spans) == _SWEPT_SPANS else None


_NONE: Final = Runs(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def _unpacked(spans: Sequence[Sequence[Any]]) -> Runs:
    """Return the runs of whole rows of spans. Raises DamagedRowError."""
    if not spans:
        return _NONE
    for *row, checksum in spans:
        if _sum(row) != checksum:
            raise DamagedRowError("a span of runs cannot be read back")
    packed = np.frombuffer(b"".join([span[8] for span in spans]), dtype=_RUN)
    counts = [len(span[8]) // _RUN.itemsize for span in spans]
    firsts = packed["first"] + np.repeat([span[4] for span in spans], counts)
    return Runs(firsts, firsts + packed["length"], packed["number"] + np.repeat([span[7] for span in spans], counts))


def _sum(row: Sequence[Any]) -> int:
    """Return the checksum of a span's other columns. Raises DamagedRowError."""
    topic_id, *fields, held = row
    try:
        return crc32c(held, crc32c(_FIELDS.pack(*fields), crc32c(topic_id)))
    except (struct.error, TypeError) as error:
        raise DamagedRowError("a span of runs cannot be read back") from error


def _sorted(logs: Int64s, epochs: Int64s, runs: Runs) -> _Chunk:
    order = np.lexsort((epochs, logs))
    ordered, firsts = logs[order], runs.firsts[order]
    if ((firsts[1:] < firsts[:-1]) & (ordered[1:] == ordered[:-1])).any():  # they mostly come in their order
        order = np.lexsort((runs.firsts, epochs, logs))
    return _Chunk(logs[order], epochs[order], Runs(*(column[order] for column in runs)))


def _class(width: int) -> int:
    """Return the class of a span with this width; the class's own width exceeds it."""
    return width.bit_length() // _CLASS_BITS


def _living(runs: Runs, dead_from: Mapping[int, int], begin: int) -> Runs:
    """Return the runs without their dead ends; those that are wholly dead, or then end below `begin`, are left out."""
    if not dead_from:
        return runs
    lasts = runs.lasts.copy()
    for at in np.flatnonzero(np.isin(runs.numbers, list(dead_from))).tolist():
        lasts[at] = min(int(lasts[at]), dead_from[int(runs.numbers[at])] - 1)
    runs = Runs(runs.firsts, lasts, runs.numbers)
    return runs.select((lasts >= runs.firsts) & (lasts >= begin))


def _joined(runs: Runs, bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the offsets within the bounds that the runs hold, as ascending ranges that do not touch."""
    if not len(runs.firsts):
        return []
    order = np.argsort(runs.firsts, kind="stable")
    firsts, reach = runs.firsts[order], np.maximum.accumulate(runs.lasts[order])
    begins = np.flatnonzero(np.concatenate(([True], firsts[1:] > reach[:-1] + 1)))
    ends = np.append(begins[1:], len(firsts)) - 1
    froms = np.maximum(firsts[begins], bounds[0])
    tos = np.minimum(reach[ends] + 1, bounds[1])
    return list(zip(froms.tolist(), tos.tolist(), strict=True))
