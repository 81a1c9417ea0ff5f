"""Decodes the entry columns of many combined segments at once, without a loop over segments or entries.

A store that loads half a million blocks of twenty entries cannot afford numpy's fixed costs for each block.

It does what `plugin.format.entry_columns` does for one block, for all blocks of a batch of records of any length: every
field of every block is gathered by one numpy operation. A block that `entry_columns.check` would refuse is left out and
marked; the caller asks `entry_columns` for the reason.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kafka_log.batch_digests import DIGEST_BYTES
from kafka_log.topic_partition import TOPIC_ID_BYTES, TopicId, TopicIdPartition
from plugin.format.entry_columns import (
    COLUMN_HEAD,
    COLUMNS,
    DIGEST_VERSION,
    FORMAT_VERSION,
    HEAD,
    MAX_ENTRIES,
    START_POSITION,
    decode,
)
from plugin.segment_metadata import UNKNOWN_POSITION

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HEAD_FIELDS: Final = np.dtype(
    [
        ("version", "u1"),
        ("positions", "u1"),
        ("reserved", "<u2"),
        ("count", "<u4"),
        ("topic_count", "<u4"),
        ("first_position", "<i8"),
    ]
)
_COLUMN_HEAD_FIELDS: Final = np.dtype([("minimum", "<i8"), ("width", "u1")])
_ALL_COLUMNS: Final = (*COLUMNS, START_POSITION)
_HEADS_BYTES: Final = HEAD.size + len(_ALL_COLUMNS) * COLUMN_HEAD.size
_WIDTHS: Final = (1, 2, 4, 8)
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_FOLLOW, _STORED, _UNKNOWN = 0, 1, 2

_FEW_BYTES: Final = 4096
"""Blocks of so many bytes together are decoded one by one in less time than all numpy operations take to begin."""
PADDING_BYTES: Final = _HEADS_BYTES
"""So many bytes must follow the last block, because heads are gathered before their end is known."""


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """The entries of all valid blocks, as columns, in order. All arrays except `is_good` and `counts` are per entry."""

    is_good: Bools
    """Per block."""
    counts: Ints
    """Entries per block; 0 for a block that is not good."""
    block: Ints
    """The block of each entry."""
    topic_ids: NDArray[np.uint8]
    """Shape (entries, 16)."""
    partition: Ints
    leader_epoch: Ints
    first_offset: Ints
    last_offset: Ints
    start_file_position: Ints
    end_file_position: Ints
    crc32c: Ints


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """Entries decoded from many blocks (one is the encoded entries of a segment), as columns, in the blocks' order."""

    topic_ids: list[bytes]
    """The blocks' topic tables in order; an id may occur many times."""
    block: Ints
    topic: Ints
    """Index into `topic_ids`."""
    partition: Ints
    leader_epoch: Ints
    first_offset: Ints
    last_offset: Ints


def gather(data: NDArray[np.uint8], starts: Ints, size: int) -> NDArray[np.uint8]:
    """Return the bytes [start, start + size) for each start, shape (starts, size)."""
    if not len(starts):
        return np.empty((0, size), dtype=np.uint8)
    return np.ascontiguousarray(sliding_window_view(data, size)[starts])


def decode_blocks(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> EntryBatch:
    """Decode many segments' entries from the blocks [start, end) of `data`, behind which `PADDING_BYTES` must follow.

    Raises nothing: a malformed block is marked as such.
    """
    layout = _layout(data, starts, ends)
    good = layout.is_good
    columns: dict[str, Ints] = {}
    for index, spec in enumerate(_ALL_COLUMNS):
        wanted = good if index < len(COLUMNS) else good & (layout.positions == _STORED)
        values, bad = _column(data, layout, index, spec.lowest, wanted)
        if len(bad):
            good[bad] = False
            layout.counts[bad] = 0
            return decode_blocks_of(data, starts, ends, good)
        columns[spec.name] = values
    return _entries(data, layout, columns)


def decode_blocks_of(data: NDArray[np.uint8], starts: Ints, ends: Ints, wanted: Bools) -> EntryBatch:
    """Decode only the `wanted` blocks, as `decode_blocks` does; the others are marked as malformed."""
    chosen = np.flatnonzero(wanted)
    found = decode_blocks(data, starts[chosen], ends[chosen])
    is_good, counts = np.zeros(len(starts), dtype=np.bool_), np.zeros(len(starts), dtype=np.int64)
    is_good[chosen], counts[chosen] = found.is_good, found.counts
    return replace(found, is_good=is_good, counts=counts, block=chosen[found.block])


def are_laid_out(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> Bools:
    """Return a mask of the blocks [start, end) that have a known head and the size that it states."""
    return _layout(data, starts, ends).is_good


class LogFilter:
    """Finds entries of some logs in many blocks; a topic stands for all of its partitions."""

    def __init__(self, logs: Collection[TopicIdPartition | TopicId]) -> None:
        self._logs = frozenset(logs)
        whole = [log for log in self._logs if isinstance(log, bytes)]
        single = [log for log in self._logs if isinstance(log, TopicIdPartition)]
        self._keys = _keys([log.topic_id for log in single], [log.partition for log in single])
        self._topic_keys = _keys(whole, [0] * len(whole))

    def __contains__(self, log: TopicIdPartition) -> bool:
        return log in self._logs or log.topic_id in self._logs

    def matches(self, topic_ids: NDArray[np.uint8], partitions: Ints) -> Bools:
        """Return a mask of entries that may be of these logs; it may have others, because two logs may have the same
        hash."""
        found: Bools = np.isin(_key_of(topic_ids, partitions), self._keys)
        if len(self._topic_keys):
            found |= np.isin(_key_of(topic_ids, np.zeros_like(partitions)), self._topic_keys)
        return found

    def find_blocks(self, data: NDArray[np.uint8], starts: Ints, ends: Ints) -> Ints:
        """Return the numbers of blocks with entries that may be of these logs; `PADDING_BYTES` must follow the last
        block."""
        layout = _layout(data, starts, ends)
        topic, partition = (_column(data, layout, at, COLUMNS[at].lowest, layout.is_good)[0] for at in (0, 1))
        block = np.repeat(np.arange(len(starts)), layout.counts)
        topic_ids = gather(data, layout.topics_start[block] + topic * TOPIC_ID_BYTES, TOPIC_ID_BYTES)
        return np.unique(block[self.matches(topic_ids, partition)])


def _keys(topic_ids: Sequence[bytes], partitions: Sequence[int]) -> NDArray[np.uint64]:
    raw = np.frombuffer(b"".join(topic_ids), dtype=np.uint8).reshape(-1, TOPIC_ID_BYTES)
    return _key_of(raw, np.array(partitions, dtype=np.int64))


def _key_of(topic_ids: NDArray[np.uint8], partitions: Ints) -> NDArray[np.uint64]:
    halves = np.ascontiguousarray(topic_ids).view("<u8").reshape(-1, 2)
    found: NDArray[np.uint64] = (halves[:, 0] * _SPREAD + halves[:, 1]) * _SPREAD + partitions.astype(np.uint64)
    return found


def decode_runs(blocks: Sequence[bytes]) -> EntryRuns:
    """Return the runs in blocks that passed `entry_columns.check`."""
    if sum(map(len, blocks)) <= _FEW_BYTES:
        return _runs_one_by_one(blocks)
    data = np.frombuffer(b"".join((*blocks, bytes(PADDING_BYTES))), dtype=np.uint8)
    lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    ends = np.cumsum(lengths)
    layout = _layout(data, ends - lengths, ends)
    topic, partition, leader_epoch, first_offset, delta = (
        _column(data, layout, index, COLUMNS[index].lowest, layout.is_good)[0] for index in range(5)
    )
    block = np.repeat(np.arange(len(blocks)), layout.counts)
    topics = layout.topic_counts
    before = np.cumsum(topics) - topics
    within = np.arange(int(topics.sum())) - np.repeat(before, topics)
    places = np.repeat(layout.topics_start, topics) + within * TOPIC_ID_BYTES
    return EntryRuns(
        [topic_id.tobytes() for topic_id in gather(data, places, TOPIC_ID_BYTES)],
        block,
        topic + before[block],
        partition,
        leader_epoch,
        first_offset,
        first_offset + delta,
    )


def _runs_one_by_one(blocks: Sequence[bytes]) -> EntryRuns:
    topics: dict[bytes, int] = {}
    rows = [
        (
            number,
            topics.setdefault(entry.topic_id_partition.topic_id, len(topics)),
            entry.topic_id_partition.partition,
            entry.leader_epoch,
            entry.first_offset,
            entry.last_offset,
        )
        for number, block in enumerate(blocks)
        for entry in decode(block)
    ]
    return EntryRuns(list(topics), *np.array(rows, dtype=np.int64).reshape(-1, 6).T)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Per block."""

    is_good: Bools
    positions: Ints
    counts: Ints
    topic_counts: Ints
    first_position: Ints
    topics_start: Ints
    minima: Ints
    """Shape (blocks, columns), like `widths` and `column_starts`."""
    widths: Ints
    column_starts: Ints


def _layout(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> _Layout:
    lengths = ends - starts
    raw = gather(data, starts, _HEADS_BYTES)
    head = np.ascontiguousarray(raw[:, : HEAD.size]).view(_HEAD_FIELDS).reshape(len(starts))
    heads = np.ascontiguousarray(raw[:, HEAD.size :]).view(_COLUMN_HEAD_FIELDS).reshape(len(starts), len(_ALL_COLUMNS))
    positions = head["positions"].astype(np.int64)
    counts, topic_counts = head["count"].astype(np.int64), head["topic_count"].astype(np.int64)
    first_position = head["first_position"].astype(np.int64)
    widths = heads["width"].astype(np.int64)
    has_starts, has_digests = positions == _STORED, head["version"] == DIGEST_VERSION
    widths[~has_starts, -1] = 0
    topics_start = starts + HEAD.size + COLUMN_HEAD.size * (len(COLUMNS) + has_starts)
    good = (
        (lengths >= HEAD.size)
        & ((head["version"] == FORMAT_VERSION) | has_digests)
        & (positions <= _UNKNOWN)
        & (head["reserved"] == 0)
        & (topic_counts <= counts)
        & (counts <= MAX_ENTRIES)
        & (first_position >= 0)
        & (first_position <= START_POSITION.highest)
        & (topics_start <= ends)
        & np.isin(widths[:, :-1], _WIDTHS).all(axis=1)
        & (~has_starts | np.isin(widths[:, -1], _WIDTHS))
    )
    sizes = counts[:, None] * widths
    first_column = topics_start + topic_counts * TOPIC_ID_BYTES
    good &= first_column + sizes.sum(axis=1) + np.where(has_digests, counts * DIGEST_BYTES, 0) == ends
    counts[~good] = 0
    column_starts = first_column[:, None] + np.cumsum(sizes, axis=1) - sizes
    minima = heads["minimum"].astype(np.int64)
    return _Layout(good, positions, counts, topic_counts, first_position, topics_start, minima, widths, column_starts)


def _column(
    data: NDArray[np.uint8], layout: _Layout, index: int, lowest: int, wanted: Bools
) -> tuple[Ints, NDArray[np.int64]]:
    """Return the column's values for all entries (0 for unwanted blocks), and blocks where one is out of range."""
    counts = layout.counts
    values = np.zeros(int(counts.sum()), dtype=np.int64)
    minima = layout.minima[:, index]
    highest = np.full(len(counts), _ALL_COLUMNS[index].highest, dtype=np.int64)
    if index == 0:
        np.minimum(highest, layout.topic_counts - 1, out=highest)
    filled = wanted & (counts > 0)
    bad = [np.flatnonzero(filled & ((minima < lowest) | (minima > highest)))]
    if len(bad[0]):
        return values, bad[0]
    entry_start = np.cumsum(counts) - counts
    for width in _WIDTHS:
        blocks = np.flatnonzero(filled & (layout.widths[:, index] == width))
        if not len(blocks):
            continue
        n = counts[blocks]
        block_of = np.repeat(np.arange(len(blocks)), n)
        within = np.arange(len(block_of)) - (np.cumsum(n) - n)[block_of]
        at = layout.column_starts[blocks, index][block_of] + within * width
        deltas = gather(data, at, width).view(f"<u{width}").reshape(-1)
        room = (highest[blocks] - minima[blocks]).astype(np.uint64)
        if width == 8 or bool((room < np.uint64(256**width - 1)).any()):
            over = deltas.astype(np.uint64) > room[block_of]
            bad.append(blocks[np.unique(block_of[over])])
            deltas = np.where(over, 0, deltas)
        values[entry_start[blocks][block_of] + within] = deltas.astype(np.int64) + minima[blocks][block_of]
    return values, np.concatenate(bad)


def _entries(data: NDArray[np.uint8], layout: _Layout, columns: dict[str, Ints]) -> EntryBatch:
    counts = layout.counts
    block = np.repeat(np.arange(len(counts)), counts)
    length = columns["byte_length"]
    before = np.cumsum(length) - length
    entry_start = np.minimum(np.cumsum(counts) - counts, max(0, len(length) - 1))
    base = before[entry_start] if len(length) else np.zeros(len(counts), dtype=np.int64)
    positions = layout.positions[block]
    following = layout.first_position[block] + before - base[block]
    start = np.where(positions == _FOLLOW, following, columns["start_file_position"])
    start = np.where(positions == _UNKNOWN, UNKNOWN_POSITION, start)
    end = np.where(positions == _UNKNOWN, UNKNOWN_POSITION, start + length)
    return EntryBatch(
        layout.is_good,
        counts,
        block,
        gather(data, layout.topics_start[block] + columns["topic_index"] * TOPIC_ID_BYTES, TOPIC_ID_BYTES),
        columns["partition"],
        columns["leader_epoch"],
        columns["first_offset"],
        columns["first_offset"] + columns["last_offset_delta"],
        start,
        end,
        columns["crc32c"],
    )
