"""What is known of each combined segment, in SQLite: in a file of the state directory, or in memory.

Theory. A segment is a small row in `segments`. Its entries are one block of columns as it came, a row of `blocks`. Each
block has a number that is never used again, and the index of runs (`metadata_topic.store.run_index`) names segments by
it. So a segment that moves through its states changes its small row alone. `released` has the numbers of blocks whose
segments are not wanted any more. Those blocks stay until `metadata_topic.store.released_offsets` has taken them in.
`facts` has everything else that the store knows, and how far the topic was read, so content and progress are in one
transaction: what is read after a crash is what was known at one point of the topic.

Changes wait in memory until `flush`, so a segment that passes through several states meanwhile is written once. Whoever
asks for many segments flushes first.

Rows have checksums over all of their columns, because SQLite has none. What cannot be read back raises `sqlite3.Error`
or `DamagedRowError`; then `metadata_topic.store.store` gives the file up. All segments, the blocks that are not indexed
in the file, and all facts are read when it is opened. Not noticed are a page that the disk dropped whole, with an older
one in its place, and a span whose key was damaged: whoever looks for it finds nothing.

While a snapshot is made, another connection reads (`reading`): WAL mode keeps for it what was there when it began. The
WAL is written back into the file by `checkpoint`, which the thread that applies records calls between two batches and
without a lock, because that waits for disks. A commit itself waits for no disk, but for the first one after that.

Not thread-safe, but for `reading` and `checkpoint`.
"""

import sqlite3
import struct
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_log.crc32c import crc32c
from metadata_topic.records.records import PublishedSegment
from plugin.format import entry_columns
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

FORMAT_VERSION: Final = 5
_APPLICATION_ID: Final = 0x52574D54
PAGE_BYTES: Final = 4096
"""New spans of runs are far from each other, so each writes a page: the smaller that is, the less is written."""
_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
_FLUSH_BYTES: Final = 8 * PAGE_BYTES
_FREE_SHARE: Final = 4
"""If more than a fourth of the file's pages are free, some are given back at each eighth flush."""
_VACUUM_FLUSHES: Final = 8
_VACUUM_PAGES: Final = 1024
_ASKED_TOGETHER: Final = 500
BEFORE_ALL: Final = CombinedSegmentId(-1, -1, -1)

_SCHEMA: Final = """
CREATE TABLE segments (
    broker_id INTEGER, incarnation INTEGER, sequence INTEGER,
    state INTEGER, event_timestamp_ms INTEGER, size_bytes INTEGER, block INTEGER, entries INTEGER,
    custom_metadata BLOB, checksum INTEGER,
    PRIMARY KEY (broker_id, incarnation, sequence)
) WITHOUT ROWID;
CREATE TABLE blocks (
    number INTEGER PRIMARY KEY, broker_id INTEGER, incarnation INTEGER, sequence INTEGER, checksum INTEGER, block BLOB
);
CREATE TABLE spans (
    topic_id BLOB, partition INTEGER, leader_epoch INTEGER, class INTEGER, first_offset INTEGER, number INTEGER,
    last_offset INTEGER, base INTEGER, runs BLOB, checksum INTEGER,
    PRIMARY KEY (topic_id, partition, leader_epoch, class, first_offset, number)
) WITHOUT ROWID;
CREATE TABLE released (number INTEGER PRIMARY KEY);
CREATE TABLE facts (kind TEXT, key TEXT, value TEXT, checksum INTEGER, PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""
_TABLES: Final = ("segments", "blocks", "spans", "released", "facts")
_FIELDS: Final = struct.Struct("<iqqBqqqI")
_COLUMNS: Final = (
    "broker_id, incarnation, sequence, state, event_timestamp_ms, size_bytes, block, entries, custom_metadata, checksum"
)
_STATES: Final = tuple(RemoteLogSegmentState)
_GONE: Final = 255


class DamagedRowError(Exception):
    """The database returned something other than what was written to it."""


class StoreLostError(OSError):
    """The metadata store's file failed. Another store can be built from the topic and snapshots."""


class Segment:
    """A combined segment that is not deleted. Code that changes one must put it back (`SegmentTable.put`)."""

    __slots__ = (
        "custom_metadata",
        "entries",
        "event_timestamp_ms",
        "number",
        "segment_id",
        "size_bytes",
        "state",
        "stored_number",
        "waiting_block",
    )

    def __init__(
        self,
        segment_id: CombinedSegmentId,
        state: RemoteLogSegmentState,
        event_timestamp_ms: int,
        size_bytes: int,
        custom_metadata: bytes,
        number: int = 0,
        entries: int = 0,
    ) -> None:
        self.segment_id = segment_id
        self.state = state
        self.event_timestamp_ms = event_timestamp_ms
        self.size_bytes = size_bytes
        self.custom_metadata = custom_metadata
        self.number = self.stored_number = number
        """Number of its block of entries, now and in the file; 0 without entries."""
        self.entries = entries
        self.waiting_block = b""
        """The block, if it is not in the file yet."""


class SegmentStates:
    """The states of segments by the number of their block of entries, one byte each, to check thousands at once."""

    def __init__(self) -> None:
        self._first = 1
        self._states = np.full(1024, _GONE, dtype=np.uint8)

    def put(self, number: int, state: int) -> None:
        """Record the state of the segment whose entries have this block number."""
        if (at := number - self._first) >= len(self._states):
            is_used = self._states != _GONE
            kept = self._states[np.argmax(is_used) :] if is_used.any() else self._states[:0]
            self._first += len(self._states) - len(kept)
            self._states = np.concatenate((kept, np.full(max(1024, 2 * len(kept)), _GONE))).astype(np.uint8)
            self.put(number, state)
        elif at >= 0:
            self._states[at] = state

    def forget(self, number: int) -> None:
        """Record that the block of entries with this number no longer belongs to a segment."""
        self.put(number, _GONE)

    def load(self, numbers: Sequence[int], states: Sequence[int], behind: int) -> None:
        """Start with the states of the segments with these block numbers; `behind` is the next block's number."""
        self._first = min(numbers, default=behind)
        self._states = np.full(behind - self._first + 1024, _GONE, dtype=np.uint8)
        self._states[np.array(numbers, dtype=np.int64) - self._first] = states

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the states of the segments with these block numbers."""
        places = numbers - self._first
        if len(places) and places.min() < 0:
            return np.where(places < 0, _GONE, self._states[np.maximum(places, 0)]).astype(np.uint8)
        found: NDArray[np.uint8] = self._states[places]
        return found

    def is_living(self, number: int) -> bool:
        """Whether the block of entries with this number still belongs to a segment."""
        return self._first <= number < self._first + len(self._states) and self._states[number - self._first] != _GONE

    def count_from(self, number: int) -> int:
        """Return how many of the blocks with this number or a higher one belong to segments."""
        return int((self._states[max(number - self._first, 0) :] != _GONE).sum())

    def are_living(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the block numbers that still belong to segments."""
        living: NDArray[np.bool_] = self.of(numbers) != _GONE
        return living


class SegmentTable:
    """All combined segments, their blocks of entries and other facts, in one SQLite database."""

    def __init__(self, path: Path | None = None, cache_bytes: int = 2 << 20, *, is_read_only: bool = False) -> None:
        """Open the file, or make it; without a path in memory. Raises sqlite3.Error and DamagedRowError.

        `is_read_only`: read the file as it is now, while the agent that owns it continues to write.
        """
        self.path, self._is_read_only = path, is_read_only
        if path is not None and is_read_only:
            self.connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self.connection.execute("BEGIN")
        else:
            self.connection = sqlite3.connect(path or ":memory:", check_same_thread=False)
        weakref.finalize(self, self.connection.close)
        self.states = SegmentStates()
        self.segments_in: Counter[RemoteLogSegmentState] = Counter()
        self.bytes_in: Counter[RemoteLogSegmentState] = Counter()
        self.next_number = 1
        self._pending: dict[CombinedSegmentId, Segment | None] = {}
        self._by_number: dict[int, Segment] = {}
        """Pending ones with entries."""
        self._highest: dict[tuple[int, int], int] = {}
        """Highest sequence of each writer: what is above it need not be looked for."""
        self._released: set[int] = set()
        """Blocks of released segments until `take_released`."""
        self._newly_released: list[tuple[int]] = []
        self._blocks_gone: list[tuple[int]] = []
        """Both for the next flush."""
        self._are_released_taken = False
        self.changes = 0
        """How often a segment was changed or removed."""
        self._flushes = 0
        self.unchecked_bytes = 0
        """Roughly so many bytes were written since the last `checkpoint`."""
        self._facts: dict[tuple[str, str], str] = {}
        """Small facts as they were written last."""
        run = self.connection.execute
        run("PRAGMA secure_delete = OFF")
        run(f"PRAGMA cache_size = {-max(cache_bytes, 1 << 20) >> 10}")
        [[version]], [[application]] = run("PRAGMA user_version"), run("PRAGMA application_id")
        if (version, application) == (0, 0):
            run(f"PRAGMA page_size = {PAGE_BYTES}")
            run("PRAGMA auto_vacuum = INCREMENTAL")
            self.connection.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION};"
                "COMMIT;"
            )
        elif (version, application) != (FORMAT_VERSION, _APPLICATION_ID):
            raise DamagedRowError(f"it has format version {version}, this reader knows {FORMAT_VERSION}")
        if path is not None and not is_read_only:
            [[mode]] = run("PRAGMA journal_mode = WAL")
            if mode != "wal":  # otherwise a snapshot would block the writer until it fails
                raise sqlite3.OperationalError(f"its file system does not allow a WAL, but mode {mode}")
            run("PRAGMA synchronous = NORMAL")
            run("PRAGMA wal_autocheckpoint = 0")
            run(f"PRAGMA journal_size_limit = {4 * _CHECKPOINT_BYTES}")
        [[self._data_version]] = run("PRAGMA data_version")

    def check_unshared(self) -> None:
        """Raise DamagedRowError if another process wrote into the file."""
        [[version]] = self.connection.execute("PRAGMA data_version")
        if version != self._data_version:
            raise DamagedRowError("another process has written into it")

    def load(self, next_number: int) -> Iterator[Segment]:
        """Yield the segments in the file, and count them. Raises sqlite3.Error and DamagedRowError."""
        self.next_number = next_number
        numbers, states = [], []
        for row in self.connection.execute(f"SELECT {_COLUMNS} FROM segments"):  # noqa: S608
            segment = _segment(row)
            self.segments_in[segment.state] += 1
            self.bytes_in[segment.state] += max(segment.size_bytes, 0)
            if segment.number:
                numbers.append(segment.number)
                states.append(segment.state)
            yield segment
        if max(numbers, default=0) >= next_number:
            raise DamagedRowError("it has blocks that were never numbered")
        self.states.load(numbers, states, next_number)
        self._released = {number for (number,) in self.connection.execute("SELECT number FROM released")}

    # Segments

    def find(self, segment_id: CombinedSegmentId) -> Segment | None:
        """Return the segment; None when nothing is known of it, or it is deleted."""
        if segment_id in self._pending:
            return self._pending[segment_id]
        writer = segment_id[:2]
        highest = self._highest.get(writer)
        if highest is None:
            of_writer = "SELECT max(sequence) FROM segments WHERE broker_id = ? AND incarnation = ?"
            [[found]] = self.connection.execute(of_writer, writer)
            highest = self._highest[writer] = -1 if found is None else found
        if segment_id.sequence > highest:
            return None
        row = self.connection.execute(
            f"SELECT {_COLUMNS} FROM segments WHERE broker_id = ? AND incarnation = ? AND sequence = ?",  # noqa: S608
            segment_id,
        ).fetchone()
        return None if row is None else _segment(row)

    def find_by_number(self, number: int) -> Segment:
        """Return the segment whose block of entries has that number."""
        if number in self._by_number:
            return self._by_number[number]
        row = self.connection.execute(
            f"SELECT {_COLUMNS} FROM segments WHERE (broker_id, incarnation, sequence) ="  # noqa: S608
            " (SELECT broker_id, incarnation, sequence FROM blocks WHERE number = ?)",
            (number,),
        ).fetchone()
        if row is None or (segment := _segment(row)).number != number:
            raise DamagedRowError(f"no segment has block {number}")
        return segment

    def add(self, segment: Segment) -> None:
        """Add a new segment; if it has entries, call `give_block` afterwards."""
        self.enter(segment)
        writer, sequence = segment.segment_id[:2], segment.segment_id.sequence
        self._highest[writer] = max(self._highest.get(writer, -1), sequence)

    def leave(self, segment: Segment) -> None:
        """Take a segment out of the totals, before it is changed or removed."""
        self.segments_in[segment.state] -= 1
        self.bytes_in[segment.state] -= max(segment.size_bytes, 0)

    def enter(self, segment: Segment) -> None:
        """Add a changed segment to the totals again, and put it back."""
        self.segments_in[segment.state] += 1
        self.bytes_in[segment.state] += max(segment.size_bytes, 0)
        if segment.number:
            self.states.put(segment.number, segment.state)
        self.put(segment)

    def put(self, segment: Segment) -> None:
        """Queue a changed segment for the next flush."""
        self.changes += 1
        self._pending[segment.segment_id] = segment

    def give_block(self, segment: Segment, entry_block: bytes) -> None:
        """Store this block as the segment's entries, under a new number."""
        if segment.number:
            self.states.forget(segment.number)
            self._by_number.pop(segment.number, None)
        segment.number = self.next_number
        self.next_number += 1
        segment.entries = entry_columns.entry_count(entry_block)
        segment.waiting_block = entry_block
        self.states.put(segment.number, segment.state)
        self._by_number[segment.number] = segment
        self.put(segment)

    def remove(self, segment: Segment) -> None:
        """Remove a segment; call `leave` before."""
        self.changes += 1
        if segment.number:
            self.states.forget(segment.number)
            self._by_number.pop(segment.number, None)
        self._drop_block(segment.stored_number)
        self._pending[segment.segment_id] = None

    def _drop_block(self, number: int) -> None:
        if number and number not in self._released:
            self._blocks_gone.append((number,))

    def release(self, segment: Segment) -> None:
        """Keep the segment's entries for `take_released`, even if the segment is removed before."""
        self._released.add(segment.number)
        self._newly_released.append((segment.number,))

    def take_released(self) -> list[bytes]:
        """Return, and forget, the entries of segments that were released since the last call."""
        if not self._released:
            return []
        numbers = np.array(sorted(self._released), dtype=np.int64)
        gone = numbers[~self.states.are_living(numbers)]
        blocks = self._blocks(numbers.tolist())
        self._blocks_gone += [(number,) for number in gone.tolist()]
        self._released, self._newly_released, self._are_released_taken = set(), [], True
        return blocks

    def _blocks(self, numbers: Sequence[int]) -> list[bytes]:
        """Return these blocks, in no particular order. Raises DamagedRowError."""
        found: list[bytes] = []
        for begin in range(0, len(numbers), _ASKED_TOGETHER):
            some = numbers[begin : begin + _ASKED_TOGETHER]
            places = ", ".join("?" * len(some))
            rows = self.connection.execute(
                f"SELECT number, block, checksum FROM blocks WHERE number IN ({places})",  # noqa: S608
                some,
            )
            found += [checked_block(*row) for row in rows]
        if len(found) != len(numbers):
            raise DamagedRowError(f"{len(numbers) - len(found)} blocks are missing")
        return found

    def list_unindexed(self, begin: int) -> Iterator[tuple[int, bytes]]:
        """Yield the segments' blocks from that number on, with their numbers. Raises DamagedRowError."""
        found = 0
        for number, *row in self.connection.execute(
            "SELECT number, block, checksum FROM blocks WHERE number >= ?", (begin,)
        ):
            if self.states.is_living(number):
                found += 1
                yield number, checked_block(number, *row)
        if found != self.states.count_from(begin):
            raise DamagedRowError("blocks are missing")

    def entry_block(self, segment: Segment) -> bytes:
        """Return a segment's encoded entries; empty without any."""
        if segment.waiting_block or not segment.number:
            return segment.waiting_block
        [block] = self._blocks([segment.number])
        return block

    def published(self, segment: Segment) -> PublishedSegment:
        """Return a segment as a record, with the entries left as bytes."""
        return PublishedSegment(
            segment.segment_id,
            segment.state,
            segment.event_timestamp_ms,
            segment.size_bytes,
            segment.custom_metadata,
            self.entry_block(segment),
        )

    # Many segments; everything must be flushed

    def sequences(self, broker_id: int, incarnation: int) -> list[int]:
        """Return the sequences of all of a writer's segments."""
        found = self.connection.execute(
            "SELECT sequence FROM segments WHERE broker_id = ? AND incarnation = ?", (broker_id, incarnation)
        )
        return [sequence for [sequence] in found]

    def newest_time_ms(self, broker_id: int, state: RemoteLogSegmentState) -> int | None:
        """Return the event time of the broker's newest segment in that state; None without one."""
        row = self.connection.execute(
            f"SELECT {_COLUMNS} FROM segments WHERE broker_id = ? AND state = ?"  # noqa: S608
            " ORDER BY incarnation DESC, sequence DESC LIMIT 1",
            (broker_id, int(state)),
        ).fetchone()
        return None if row is None else _segment(row).event_timestamp_ms

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection with a view of the present content; with a file, others may write meanwhile."""
        if self.path is None or self._is_read_only:
            yield self.connection
            return
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM facts").fetchone()
            yield connection

    # The file

    def flush(self, facts: Iterable[tuple[str, str, str | None]] = ()) -> None:
        """Write all changed segments and these facts (kind, key, value; None removes one) in one transaction."""
        run, many = self.connection.execute, self.connection.executemany
        if self._pending:
            gone = [segment_id for segment_id, segment in self._pending.items() if segment is None]
            there = [segment for segment in self._pending.values() if segment is not None]
            many("DELETE FROM segments WHERE broker_id = ? AND incarnation = ? AND sequence = ?", gone)
            many("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, there))
            new = [segment for segment in there if segment.number != segment.stored_number]
            many(
                "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (one.number, *one.segment_id, _block_sum(one.number, one.waiting_block), one.waiting_block)
                    for one in new
                ],
            )
            self.unchecked_bytes += sum(len(segment.waiting_block) for segment in new)
            for segment in new:
                self._drop_block(segment.stored_number)
                segment.stored_number, segment.waiting_block = segment.number, b""
            self._pending.clear()
            self._by_number.clear()
        if self._are_released_taken:
            run("DELETE FROM released")
        many("INSERT INTO released VALUES (?)", self._newly_released)
        many("DELETE FROM blocks WHERE number = ?", self._blocks_gone)
        self._newly_released, self._blocks_gone, self._are_released_taken = [], [], False
        forgotten, written = [], []
        for kind, key, value in facts:
            if value is None:
                forgotten.append((kind, key))
            elif self._facts.get((kind, key)) != value:
                written.append((kind, key, value, _sum(kind, key, value)))
                if not key:
                    self._facts[kind, key] = value
        many("DELETE FROM facts WHERE kind = ? AND key = ?", forgotten)
        many("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)", written)
        self.connection.commit()
        self.unchecked_bytes += _FLUSH_BYTES
        self._flushes += 1
        if self.path is not None and self._flushes % _VACUUM_FLUSHES == 0:
            [[free]], [[pages]] = run("PRAGMA freelist_count"), run("PRAGMA page_count")
            if _FREE_SHARE * free > pages:
                run(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()

    @property
    def pending(self) -> int:
        """How many changed segments wait for `flush`."""
        return len(self._pending)

    def facts(self) -> Iterator[tuple[str, str, str]]:
        """Yield all facts of other kinds than segments (kind, key, value). Raises DamagedRowError."""
        for kind, key, value, checksum in self.connection.execute("SELECT kind, key, value, checksum FROM facts"):
            if _sum(kind, key, value) != checksum:
                raise DamagedRowError(f"what is known of {kind} cannot be read back")
            yield kind, key, value

    def clear(self) -> None:
        """Remove all content, also from the file."""
        for table in _TABLES:
            self.connection.execute(f"DELETE FROM {table}")  # noqa: S608
        self.connection.commit()
        for known in (self._pending, self._by_number, self._highest, self._facts, self.segments_in, self.bytes_in):
            known.clear()
        for waiting in (self._released, self._newly_released, self._blocks_gone):
            waiting.clear()
        self.states, self.next_number = SegmentStates(), 1

    def checkpoint(self) -> None:
        """Write the WAL back into the file if it is large. For one thread at a time."""
        if self.path is None or self.unchecked_bytes < _CHECKPOINT_BYTES:
            return
        self.unchecked_bytes = 0
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @property
    def file_bytes(self) -> int:
        """The size of the file and its WAL; in memory, that of the pages."""
        if self.path is not None:
            return _size(self.path) + _size(self.path.with_name(f"{self.path.name}-wal"))
        [[pages]] = self.connection.execute("PRAGMA page_count")
        return int(pages) * PAGE_BYTES


def published_rows(
    connection: sqlite3.Connection,
    behind: CombinedSegmentId = BEFORE_ALL,
    state: RemoteLogSegmentState | None = None,
    limit: int = -1,
) -> Iterator[PublishedSegment]:
    """Yield the segments that follow `behind` in the order of writer and sequence, as the connection sees them."""
    of_state = "" if state is None else f"AND s.state = {int(state)}"
    for *row, block, of_block in connection.execute(
        f"SELECT {', '.join('s.' + name for name in _COLUMNS.split(', '))}, b.block, b.checksum"  # noqa: S608
        " FROM segments s LEFT JOIN blocks b ON b.number = s.block"
        f" WHERE (s.broker_id, s.incarnation, s.sequence) > (?, ?, ?) {of_state}"
        f" ORDER BY s.broker_id, s.incarnation, s.sequence LIMIT {limit}",
        behind,
    ):
        known = _segment(row)
        yield PublishedSegment(
            known.segment_id,
            known.state,
            known.event_timestamp_ms,
            known.size_bytes,
            known.custom_metadata,
            checked_block(known.number, block, of_block) if known.number else b"",
        )


def checked_block(number: int, block: bytes | None, checksum: int) -> bytes:
    """Return a stored block after checking it. Raises DamagedRowError when the checksum differs."""
    if not isinstance(block, bytes) or _block_sum(number, block) != checksum:
        raise DamagedRowError(f"block {number} cannot be read back")
    return block


def _block_sum(number: int, block: bytes) -> int:
    return crc32c(block, number & 0xFFFFFFFF)


def _row(segment: Segment) -> tuple[int | bytes, ...]:
    fields = (
        *segment.segment_id,
        int(segment.state),
        segment.event_timestamp_ms,
        segment.size_bytes,
        segment.number,
        segment.entries,
    )
    return (*fields, segment.custom_metadata, crc32c(segment.custom_metadata, crc32c(_FIELDS.pack(*fields))))


def _segment(row: Sequence[Any]) -> Segment:
    broker_id, incarnation, sequence, state, event_timestamp_ms, size_bytes, number, entries, custom, checksum = row
    try:
        fields = _FIELDS.pack(broker_id, incarnation, sequence, state, event_timestamp_ms, size_bytes, number, entries)
        if crc32c(custom, crc32c(fields)) == checksum:
            segment_id = CombinedSegmentId(broker_id, incarnation, sequence)
            return Segment(segment_id, _STATES[state], event_timestamp_ms, size_bytes, custom, number, entries)
    except (struct.error, TypeError):
        pass
    raise DamagedRowError(f"the row of {(broker_id, incarnation, sequence)} cannot be read back")


def _sum(kind: str, key: str, value: str) -> int:
    return crc32c(f"{kind}\0{key}\0{value}".encode())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
