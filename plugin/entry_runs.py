"""Which runs of offsets stand in many entry blocks, read at once.

A store that loads half a million blocks of twenty entries cannot afford numpy's fixed costs for each block.
So blocks are laid end to end, and each column is gathered from all of them by the address of every entry's
delta. Blocks must have passed `entry_columns.check`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafka_log.topic_partition import TOPIC_ID_BYTES

_HEAD_BYTES = 20
_COLUMN_HEAD_BYTES = 9
_READ_COLUMNS = 5  # topic index, partition, leader epoch, first offset, last offset delta
_STORED_POSITIONS = 1


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """One row per entry, int64, in the order of the blocks and of the entries in them."""

    topic_ids: list[bytes]
    """The blocks' topic tables one after the other; an id may stand in it many times."""
    block: NDArray[np.int64]
    topic: NDArray[np.int64]
    """Index into `topic_ids`."""
    partition: NDArray[np.int64]
    leader_epoch: NDArray[np.int64]
    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]


def decode_runs(blocks: Sequence[bytes]) -> EntryRuns:
    """The runs of all the blocks. None of them may be empty bytes."""
    joined = b"".join(blocks)
    raw = np.frombuffer(joined, dtype=np.uint8)
    lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    starts = np.cumsum(lengths) - lengths
    heads = raw[starts[:, None] + np.arange(_HEAD_BYTES + _READ_COLUMNS * _COLUMN_HEAD_BYTES)]
    counts = _field(heads, 4, "<u4")
    topic_counts = _field(heads, 8, "<u4")
    columns = np.where(heads[:, 1] == _STORED_POSITIONS, 8, 7)
    topics_at = starts + _HEAD_BYTES + _COLUMN_HEAD_BYTES * columns

    block = np.repeat(np.arange(len(blocks)), counts)
    number = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    column_at = topics_at + TOPIC_ID_BYTES * topic_counts
    values = []
    for column in range(_READ_COLUMNS):
        head = _HEAD_BYTES + column * _COLUMN_HEAD_BYTES
        minima, widths = _field(heads, head, "<i8"), heads[:, head + 8].astype(np.int64)
        values.append(minima[block] + _deltas(raw, column_at[block], number, widths[block], np.unique(widths)))
        column_at = column_at + counts * widths
    topic, partition, leader_epoch, first_offset, delta = values
    return EntryRuns(
        topic_ids=_topic_ids(joined, topics_at, topic_counts),
        block=block,
        topic=topic + (np.cumsum(topic_counts) - topic_counts)[block],
        partition=partition,
        leader_epoch=leader_epoch,
        first_offset=first_offset,
        last_offset=first_offset + delta,
    )


def _field(heads: NDArray[np.uint8], at: int, dtype: str) -> NDArray[np.int64]:
    width = np.dtype(dtype).itemsize
    return np.ascontiguousarray(heads[:, at : at + width]).view(dtype)[:, 0].astype(np.int64)


def _deltas(
    raw: NDArray[np.uint8],
    column_at: NDArray[np.int64],
    number: NDArray[np.int64],
    widths: NDArray[np.int64],
    present: NDArray[np.int64],
) -> NDArray[np.int64]:
    addresses = column_at + number * widths
    if len(present) == 1:
        return _gather(raw, addresses, int(present[0]))
    deltas = np.empty(len(addresses), dtype=np.int64)
    for width in present:
        rows = np.flatnonzero(widths == width)
        deltas[rows] = _gather(raw, addresses[rows], int(width))
    return deltas


def _gather(raw: NDArray[np.uint8], addresses: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    total = raw[addresses].astype(np.int64)
    for byte in range(1, width):
        total |= raw[addresses + byte].astype(np.int64) << (8 * byte)
    return total


def _topic_ids(joined: bytes, topics_at: NDArray[np.int64], topic_counts: NDArray[np.int64]) -> list[bytes]:
    return [
        joined[at : at + TOPIC_ID_BYTES]
        for start, count in zip(topics_at.tolist(), topic_counts.tolist(), strict=True)
        for at in range(start, start + count * TOPIC_ID_BYTES, TOPIC_ID_BYTES)
    ]
