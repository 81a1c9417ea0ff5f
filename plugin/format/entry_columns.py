"""A combined segment's entries as columns, for its footer and for the records of the metadata topic.

The block is little endian throughout; docs/formats.md has the byte tables. Each column is stored with
frame of reference: its minimum as i64 in the block's head, then one unsigned delta for every entry, 1, 2, 4
or 8 bytes wide. So a column is one contiguous array that numpy.frombuffer or an Arrow buffer takes as it
is. Constant columns have width 1 too: as every entry then costs at least one byte per column, the bytes
left bound the count before anything is allocated, whatever a damaged or hostile count says.

Start positions are not stored where the entries follow one another, as a combined segment lays them out:
they follow from the first position and the lengths. A subset of a segment's entries (dead ones, in a DELETE
record) carries one more column instead.

A block of version 2 ends with the SHA-256 of each entry, 32 bytes; all else is as in version 1.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_log.batch_digests import DIGEST_BYTES
from kafka_log.topic_partition import TOPIC_ID_BYTES, TopicId, TopicIdPartition
from plugin.segment_metadata import UNKNOWN_POSITION, RemoteLogSegmentMetadataEntry

FORMAT_VERSION: Final = 1
DIGEST_VERSION: Final = 2
"""The version of blocks with digests."""

_POSITIONS_FOLLOW: Final = 0
_POSITIONS_STORED: Final = 1
_POSITIONS_UNKNOWN: Final = 2

HEAD: Final = struct.Struct("<BBHIIq")
COLUMN_HEAD: Final = struct.Struct("<qB")
_CODE_OF_WIDTH: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DTYPE_OF_WIDTH: Final = {width: np.dtype(f"<u{width}") for width in _CODE_OF_WIDTH}
_HIGHEST_OFFSET: Final = 2**62
"""Half of what Kafka's int64 can hold: no log gets there, and no sum of two columns can overflow."""
MAX_ENTRIES: Final = 2**24
_FEW_ENTRIES: Final = 64
"""So many numbers are handled in less time than numpy takes to begin."""


class _Column(NamedTuple):
    name: str
    lowest: int
    highest: int


COLUMNS: Final = (
    _Column("topic_index", 0, 2**32 - 1),
    _Column("partition", 0, 2**31 - 1),
    _Column("leader_epoch", -1, 2**31 - 1),
    _Column("first_offset", 0, _HIGHEST_OFFSET),
    _Column("last_offset_delta", 0, 2**32 - 1),
    _Column("byte_length", 0, 2**32 - 1),
    _Column("crc32c", 0, 2**32 - 1),
)
START_POSITION: Final = _Column("start_file_position", 0, _HIGHEST_OFFSET)
_COLUMN_HEADS: Final = {count: struct.Struct("<" + "qB" * count) for count in (len(COLUMNS), len(COLUMNS) + 1)}
"""All heads, by the number of columns."""


def encode(entries: Sequence[RemoteLogSegmentMetadataEntry], *, digests: bool = False) -> bytes:
    """Encode entries as one block, in their order; with their `digests` if all have one.

    Either all entries have positions or none has (both UNKNOWN_POSITION). Raises ValueError when they are mixed, or a
    value is outside of Kafka's range.
    """
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{len(entries)} entries; a block holds {MAX_ENTRIES}")
    indexes: dict[TopicId, int] = {}
    topic_index = [indexes.setdefault(entry.topic_id_partition.topic_id, len(indexes)) for entry in entries]
    positions, first_position = _position_mode(entries)
    columns = [
        topic_index,
        [entry.topic_id_partition.partition for entry in entries],
        [entry.leader_epoch for entry in entries],
        [entry.first_offset for entry in entries],
        [entry.last_offset - entry.first_offset for entry in entries],
        [entry.end_file_position - entry.start_file_position for entry in entries],
        [entry.crc32c for entry in entries],
    ]
    specs: tuple[_Column, ...] = COLUMNS
    if positions == _POSITIONS_STORED:
        columns.append([entry.start_file_position for entry in entries])
        specs = (*COLUMNS, START_POSITION)
    if any(len(topic_id) != TOPIC_ID_BYTES for topic_id in indexes):
        raise ValueError(f"a topic id has {TOPIC_ID_BYTES} bytes")
    digests = digests and all(len(entry.sha256) == DIGEST_BYTES for entry in entries)
    version = DIGEST_VERSION if digests else FORMAT_VERSION
    heads = [HEAD.pack(version, positions, 0, len(entries), len(indexes), first_position)]
    bodies = list[bytes](indexes)
    for spec, values in zip(specs, columns, strict=True):
        head, body = _encode_column(spec, values)
        heads.append(head)
        bodies.append(body)
    if digests:
        bodies += [entry.sha256 for entry in entries]
    return b"".join(heads + bodies)


def decode(block: bytes | memoryview) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """Decode a block to entries. Raises ValueError, naming the byte, when it is malformed."""
    layout = _checked_layout(block)
    topic_index, partition, leader_epoch, first_offset, delta, length, crc32c, *stored_starts = (
        _plain_column(block, layout, index) for index in range(len(layout.specs))
    )
    if layout.positions == _POSITIONS_UNKNOWN:
        starts: Sequence[int] = [UNKNOWN_POSITION] * layout.entry_count
        ends: Sequence[int] = starts
    else:
        starts = stored_starts[0] if stored_starts else list(accumulate(length, initial=layout.first_position))[:-1]
        ends = list(map(add, starts, length))
    topics = [
        TopicId(bytes(block[at : at + TOPIC_ID_BYTES]))
        for at in range(layout.topics_start, layout.topics_end, TOPIC_ID_BYTES)
    ]
    return tuple(
        map(
            RemoteLogSegmentMetadataEntry,
            map(TopicIdPartition, map(topics.__getitem__, topic_index), partition),
            leader_epoch,
            first_offset,
            map(add, first_offset, delta),
            starts,
            ends,
            crc32c,
            [_digest(block, layout, index) for index in range(layout.entry_count)],
        )
    )


def has_digests(block: bytes | memoryview) -> bool:
    """Whether an encoded block has its entries' SHA-256."""
    return len(block) > 0 and block[0] == DIGEST_VERSION


def _digest(block: bytes | memoryview, layout: "_Layout", index: int) -> bytes:
    at = layout.digests_start + index * layout.digest_bytes
    return bytes(block[at : at + layout.digest_bytes])


def decode_columns(block: bytes | memoryview) -> dict[str, NDArray[np.int64] | NDArray[np.void]]:
    """Decode the block as arrays, without a loop over entries.

    Keys: `topic_ids` (one 16-byte void per topic), and for every entry, int64: `topic_index` (into topic_ids),
    `partition`, `leader_epoch`, `first_offset`, `last_offset`, `start_file_position`, `end_file_position`, `crc32c`.
    Raises ValueError like `decode`.
    """
    layout = _checked_layout(block)
    raw = {spec.name: _numpy_column(block, layout, index) for index, spec in enumerate(layout.specs)}
    length, delta = raw.pop("byte_length"), raw.pop("last_offset_delta")
    if layout.positions == _POSITIONS_FOLLOW:
        start = layout.first_position + np.cumsum(length) - length
    elif layout.positions == _POSITIONS_STORED:
        start = raw.pop("start_file_position")
    else:
        start = np.full(layout.entry_count, UNKNOWN_POSITION, dtype=np.int64)
    topic_ids = np.frombuffer(
        block, dtype=np.dtype((np.void, TOPIC_ID_BYTES)), count=layout.topic_count, offset=layout.topics_start
    )
    return {
        "topic_ids": topic_ids,
        **raw,
        "last_offset": raw["first_offset"] + delta,
        "start_file_position": start,
        "end_file_position": start + length if layout.positions != _POSITIONS_UNKNOWN else start,
    }


def check(block: bytes | memoryview) -> None:
    """Raise ValueError exactly where `decode` would, without building entries."""
    _checked_layout(block)


def entry_count(block: bytes | memoryview) -> int:
    """Return how many entries a checked block holds."""
    return int(HEAD.unpack_from(block)[3])


def find(
    block: bytes | memoryview, topic_id_partition: TopicIdPartition, leader_epoch: int, offsets: tuple[int, int]
) -> RemoteLogSegmentMetadataEntry | None:
    """Return the block's entry of that partition and epoch with these (first, last) offsets; None without one."""
    columns = decode_columns(block)
    topics = np.flatnonzero(columns["topic_ids"] == np.void(topic_id_partition.topic_id))
    found = np.flatnonzero(
        np.isin(columns["topic_index"], topics)
        & (columns["partition"] == topic_id_partition.partition)
        & (columns["leader_epoch"] == leader_epoch)
        & (columns["first_offset"] == offsets[0])
        & (columns["last_offset"] == offsets[1])
    )
    if not len(found):
        return None
    start, end, crc = (int(columns[name][found[0]]) for name in ("start_file_position", "end_file_position", "crc32c"))
    sha256 = _digest(block, _read_layout(block), int(found[0])) if has_digests(block) else b""
    return RemoteLogSegmentMetadataEntry(topic_id_partition, leader_epoch, *offsets, start, end, crc, sha256)


def _position_mode(entries: Sequence[RemoteLogSegmentMetadataEntry]) -> tuple[int, int]:
    """Return how the block gives the positions, and the first one."""
    if not entries:
        return _POSITIONS_FOLLOW, 0
    first = expected = entries[0].start_file_position
    if first == UNKNOWN_POSITION:
        if any(e.start_file_position != UNKNOWN_POSITION or e.end_file_position != UNKNOWN_POSITION for e in entries):
            raise ValueError("entries with and without positions cannot stand in one block")
        return _POSITIONS_UNKNOWN, 0
    for entry in entries:
        if entry.start_file_position != expected:
            return _POSITIONS_STORED, 0
        expected = entry.end_file_position
    if not 0 <= first <= START_POSITION.highest:
        raise ValueError(f"start_file_position {first} is out of range")
    return _POSITIONS_FOLLOW, first


def _encode_column(spec: _Column, values: list[int]) -> tuple[bytes, bytes]:
    lowest, highest = (min(values), max(values)) if values else (spec.lowest, spec.lowest)
    if lowest < spec.lowest or highest > spec.highest:
        raise ValueError(f"{spec.name} must lie between {spec.lowest} and {spec.highest}, not {lowest}..{highest}")
    span = highest - lowest
    width = 1 if span < 0x100 else 2 if span < 0x10000 else 4 if span < 0x100000000 else 8
    deltas = [value - lowest for value in values] if lowest else values
    return COLUMN_HEAD.pack(lowest, width), struct.pack(f"<{len(values)}{_CODE_OF_WIDTH[width]}", *deltas)


class _Layout(NamedTuple):
    positions: int
    entry_count: int
    topic_count: int
    first_position: int
    topics_start: int
    topics_end: int
    specs: tuple[_Column, ...]
    minima: tuple[int, ...]
    widths: tuple[int, ...]
    starts: tuple[int, ...]
    digests_start: int
    digest_bytes: int
    """Bytes of each entry; 0 in a block without digests."""


def _read_layout(block: bytes | memoryview) -> _Layout:
    """Read the positions of all parts, checked against the bytes there are before anything is allocated."""
    if len(block) < HEAD.size:
        raise ValueError(f"entry columns end at byte {len(block)}, inside the head of {HEAD.size} bytes")
    version, positions, reserved, count, topic_count, first_position = HEAD.unpack_from(block)
    if version not in (FORMAT_VERSION, DIGEST_VERSION):
        known = f"{FORMAT_VERSION} and {DIGEST_VERSION}"
        raise ValueError(f"entry columns have version {version} at byte 0; this reader knows {known}")
    if positions > _POSITIONS_UNKNOWN or reserved:
        raise ValueError(f"entry columns have position mode {positions} and reserved bits {reserved:#x} at byte 1")
    if topic_count > count or count > MAX_ENTRIES:
        raise ValueError(f"entry columns name {topic_count} topics for {count} entries at byte 4")
    if not 0 <= first_position <= START_POSITION.highest:
        raise ValueError(f"entry columns start at position {first_position}, at byte 12")
    specs = (*COLUMNS, START_POSITION) if positions == _POSITIONS_STORED else COLUMNS
    topics_start = HEAD.size + len(specs) * COLUMN_HEAD.size
    if len(block) < topics_start:
        raise ValueError(f"entry columns end at byte {len(block)}, inside the column heads")
    heads = _COLUMN_HEADS[len(specs)].unpack_from(block, HEAD.size)
    minima, widths = heads[::2], heads[1::2]
    topics_end = cursor = topics_start + topic_count * TOPIC_ID_BYTES
    starts = []
    for index, (spec, width) in enumerate(zip(specs, widths, strict=True)):
        if width not in _CODE_OF_WIDTH:
            at = HEAD.size + (index + 1) * COLUMN_HEAD.size - 1
            raise ValueError(f"column {spec.name} has width {width} at byte {at}")
        starts.append(cursor)
        cursor += count * width
    digest_bytes = DIGEST_BYTES if version == DIGEST_VERSION else 0
    end = cursor + count * digest_bytes
    if end != len(block):
        raise ValueError(f"entry columns need {end} bytes for {count} entries, there are {len(block)}")
    return _Layout(
        positions,
        count,
        topic_count,
        first_position,
        topics_start,
        topics_end,
        specs,
        minima,
        widths,
        tuple(starts),
        cursor,
        digest_bytes,
    )


def _checked_layout(block: bytes | memoryview) -> _Layout:
    """Return the layout of a block whose values are all in range. Raises ValueError.

    Most columns cannot leave their range whatever their deltas are, so only the others are checked.
    """
    layout = _read_layout(block)
    for index, (spec, width, minimum) in enumerate(zip(layout.specs, layout.widths, layout.minima, strict=True)):
        highest = spec.highest if index else min(spec.highest, layout.topic_count - 1)
        highest_delta: int = 256**width - 1
        if minimum + highest_delta > highest:
            highest_delta = _highest_delta(block, layout, index)
        if layout.entry_count and (minimum < spec.lowest or minimum + highest_delta > highest):
            raise ValueError(
                f"column {spec.name} at byte {layout.starts[index]} holds {minimum}..{minimum + highest_delta}, "
                f"outside {spec.lowest}..{highest}"
            )
    return layout


def _highest_delta(block: bytes | memoryview, layout: _Layout, index: int) -> int:
    if layout.entry_count <= _FEW_ENTRIES:
        return max(_deltas(block, layout, index), default=0)
    return int(_numpy_deltas(block, layout, index).max(initial=0))


def _deltas(block: bytes | memoryview, layout: _Layout, index: int) -> tuple[int, ...]:
    code = _CODE_OF_WIDTH[layout.widths[index]]
    return struct.unpack_from(f"<{layout.entry_count}{code}", block, layout.starts[index])


def _numpy_deltas(block: bytes | memoryview, layout: _Layout, index: int) -> NDArray[np.unsignedinteger]:
    dtype = _DTYPE_OF_WIDTH[layout.widths[index]]
    return np.frombuffer(block, dtype=dtype, count=layout.entry_count, offset=layout.starts[index])


def _numpy_column(block: bytes | memoryview, layout: _Layout, index: int) -> NDArray[np.int64]:
    return _numpy_deltas(block, layout, index).astype(np.int64) + layout.minima[index]


def _plain_column(block: bytes | memoryview, layout: _Layout, index: int) -> Sequence[int]:
    """Return a column without numpy: if values are needed one by one, converting them at once costs less."""
    deltas, minimum = _deltas(block, layout, index), layout.minima[index]
    return [minimum + delta for delta in deltas] if minimum else deltas
