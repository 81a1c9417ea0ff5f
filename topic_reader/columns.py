"""Decodes record batches to Arrow columns, with few Python objects for each record. Sans-IO.

Only the size that begins each record is read one by one, because it says where the next record begins. All other fields
are read for all records at once. Keys and values are parts of the decompressed bytes, which Arrow copies.

Whatever is not plain (headers, or a record that does not end where it says) is left to `kafka_log.plain_records`, which
decodes it or says what is wrong.

Source: org.apache.kafka.common.record.internal.DefaultRecord in Apache Kafka 4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_log.plain_records import decode_records
from kafka_log.record_batch import RecordBatchHeader
from metadata_topic.records.offset_ranges import OffsetRange

_LONGEST_VARINT = 9
"""In bytes. A longer one may not fit in 64 bits, and no producer has a use for it."""
_LEAST_RECORD_BYTES = 6
"""Behind its size: attributes, time, offset, and the lengths of key, value and headers, of a byte each."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_Longs = npt.NDArray[np.int64]


class DecompressedBatch(NamedTuple):
    """A batch's header, and its decompressed records."""

    header: RecordBatchHeader
    body: bytes


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records in the order of their log, as columns in Arrow's widest types."""

    offsets: pa.Array
    timestamps_ms: pa.Array
    timestamp_types: pa.Array
    keys: pa.Array
    values: pa.Array
    headers: pa.Array
    """Lists of key and value; null for a record without headers."""


class _NotPlainError(Exception):
    """The records are not what this module reads."""


def decode_columns(batches: Sequence[DecompressedBatch], wanted: OffsetRange) -> RecordColumns:
    """Decode batches to columns, keeping only the records at the wanted offsets. Raises MalformedMessageError."""
    try:
        return _decoded_together(batches, wanted)
    except (_NotPlainError, IndexError, ValueError, OverflowError):
        return _decoded_one_by_one(batches, wanted)


def _decoded_one_by_one(batches: Sequence[DecompressedBatch], wanted: OffsetRange) -> RecordColumns:
    records = [one for header, body in batches for one in decode_records(header, body)]
    records = [one for one in records if wanted[0] <= one.offset < wanted[1]]
    return RecordColumns(
        pa.array([one.offset for one in records], pa.int64()),
        pa.array([one.timestamp_ms for one in records], pa.int64()),
        pa.array([one.timestamp_type for one in records], pa.int64()),
        pa.array([one.key for one in records], pa.large_binary()),
        pa.array([one.value for one in records], pa.large_binary()),
        pa.array([[{"key": key, "value": value} for key, value in one.headers] or None for one in records], _HEADERS),
    )


def _records(batches: Sequence[DecompressedBatch]) -> tuple[_Longs, _Longs]:
    """Return where records begin, behind their size, and their sizes."""
    starts: list[int] = []
    sizes: list[int] = []
    begin = 0
    for header, body in batches:
        position = 0
        for _ in range(header.record_count):
            encoded = body[position]
            position += 1
            if encoded >= 0x80:
                encoded &= 0x7F
                shift = 7
                while (byte := body[position]) >= 0x80:
                    encoded |= (byte & 0x7F) << shift
                    shift += 7
                    position += 1
                encoded |= byte << shift
                position += 1
            if encoded & 1:
                raise _NotPlainError
            if (size := encoded >> 1) < _LEAST_RECORD_BYTES:
                raise _NotPlainError
            starts.append(begin + position)
            sizes.append(size)
            position += size
        if position > len(body):
            raise _NotPlainError
        begin += len(body)
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _decoded_together(batches: Sequence[DecompressedBatch], wanted: OffsetRange) -> RecordColumns:
    starts, sizes = _records(batches)
    ends = starts + sizes
    raw = b"".join(batch.body for batch in batches)
    data = np.frombuffer(raw, np.uint8)
    deltas_ms, position = _varints(data, starts + 1)  # behind the record's attributes
    deltas, position = _varints(data, position)
    key_sizes, key_starts = _varints(data, position)
    key_ends = key_starts + np.maximum(key_sizes, 0)
    value_sizes, value_starts = _varints(data, key_ends)
    value_ends = value_starts + np.maximum(value_sizes, 0)
    header_counts, position = _varints(data, value_ends)
    if header_counts.any() or (position != ends).any():
        raise _NotPlainError

    def of_each_record(numbers: Sequence[int]) -> _Longs:
        return np.repeat(np.array(numbers, np.int64), [header.record_count for header, _body in batches])

    offsets = of_each_record([header.base_offset for header, _body in batches]) + deltas
    is_appended = of_each_record([header.has_log_append_time for header, _body in batches])
    appended_ms = of_each_record([header.max_timestamp_ms for header, _body in batches])
    created_ms = of_each_record([header.base_timestamp_ms for header, _body in batches]) + deltas_ms
    times_ms = np.where(is_appended == 1, appended_ms, created_ms)
    # An array of pieces that covers all bytes: for each record its key, a gap, its value, and a gap.
    bounds = np.full(4 * len(starts) + 1, len(raw))
    for place, positions in enumerate((key_starts, key_ends, value_starts, value_ends)):
        bounds[place:-1:4] = positions
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
    chosen = np.flatnonzero((offsets >= wanted[0]) & (offsets < wanted[1]))
    return RecordColumns(
        pa.array(offsets[chosen]),
        pa.array(times_ms[chosen]),
        pa.array(is_appended[chosen]),
        pieces.take(pa.array(4 * chosen, mask=key_sizes[chosen] < 0)),
        pieces.take(pa.array(4 * chosen + 2, mask=value_sizes[chosen] < 0)),
        pa.nulls(len(chosen), _HEADERS),
    )


def _varints(data: npt.NDArray[np.uint8], positions: _Longs) -> tuple[_Longs, _Longs]:
    """Read a zigzag number at each position; return them and the positions behind them."""
    if positions.min(initial=0) < 0:
        raise _NotPlainError
    byte = data[positions].astype(np.uint64)
    encoded, positions = byte & np.uint64(0x7F), positions + 1
    more = np.flatnonzero(byte >= 0x80)
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        if not more.size:
            break
        byte = data[positions[more]].astype(np.uint64)
        encoded[more] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        positions[more] += 1
        more = more[byte >= 0x80]
    if more.size:
        raise _NotPlainError
    return (encoded >> np.uint64(1)).astype(np.int64) ^ -(encoded & np.uint64(1)).astype(np.int64), positions
