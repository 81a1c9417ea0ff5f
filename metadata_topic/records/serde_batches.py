"""Decodes many records about combined segments at once: what `metadata_topic.records.serde` does for one, as arrays.

Nearly every record of the topic is a complete, good record about a combined segment. Those are decoded here, a whole
batch by a few numpy operations. Every other record (another type, foreign, damaged) is left to `serde.decode`, one by
one. So the meaning of a record, and the reason for refusing one, is defined in one place.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metadata_topic.records.record_fields import DIGEST_VERSION, FORMAT_VERSION
from metadata_topic.records.serde import COMBINED_SEGMENT, REBUILT_SEGMENT
from plugin.format.entry_column_batches import PADDING_BYTES, Bools, EntryBatch, Ints, decode_blocks, gather
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES, UNKNOWN_POSITION, RemoteLogSegmentState

_KEY_FIELDS: Final = [
    ("broker_id", ">u4"),
    ("incarnation_high", ">u2"),
    ("incarnation_low", ">u4"),
    ("sequence_high", ">u2"),
    ("sequence_low", ">u4"),
]
_FIELDS: Final = np.dtype(
    [
        ("version", "u1"),
        ("record_type", "u1"),
        ("id", _KEY_FIELDS),
        ("event_timestamp_ms", ">i8"),
        ("state", "u1"),
        ("size_bytes", ">i8"),
        ("custom_length", ">u2"),
    ]
)
_KEY_BYTES: Final = 16
_ID_AT: Final = 2
PADDING: Final = max(PADDING_BYTES, _FIELDS.itemsize, _KEY_BYTES)
"""So many bytes must follow the last key and the last value."""


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Byte strings in one buffer, as in Arrow: `data[starts[i]:ends[i]]`, with PADDING bytes behind them."""

    data: NDArray[np.uint8]
    starts: Ints
    ends: Ints

    @property
    def lengths(self) -> Ints:
        """The length of each string in bytes."""
        return self.ends - self.starts


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """The decodable records about combined segments, as columns. `row` and the following fields are per such record,
    in order."""

    is_decoded: Bools
    """Per given record: whether it is decoded here. The others are for `serde.decode`."""
    row: Ints
    """The index of the given record."""
    broker_id: Ints
    incarnation: Ints
    sequence: Ints
    event_timestamp_ms: Ints
    state: Ints
    size_bytes: Ints
    """UNKNOWN_POSITION if unknown."""
    is_rebuilt: Bools
    """Whether it comes from a rebuild of the topic: then no earlier registration refuses it."""
    entries: EntryBatch
    """`entries.block` counts the decoded records, like `row`."""


def decode_segments(keys: BinaryColumn, values: BinaryColumn) -> SegmentBatch:
    """Decode the well-formed records about combined segments as arrays, and skip all others. A null counts as empty.
    Raises nothing."""
    fields = gather(values.data, values.starts, _FIELDS.itemsize).view(_FIELDS).reshape(len(values.starts))
    entries_start = values.starts + _FIELDS.itemsize + fields["custom_length"].astype(np.int64)
    is_candidate = (
        (keys.lengths == _KEY_BYTES)
        & (values.lengths >= _FIELDS.itemsize)
        & ((fields["version"] == FORMAT_VERSION) | (fields["version"] == DIGEST_VERSION))
        & ((fields["record_type"] == COMBINED_SEGMENT) | (fields["record_type"] == REBUILT_SEGMENT))
        & (fields["state"] <= max(RemoteLogSegmentState))
        & (fields["size_bytes"] >= UNKNOWN_POSITION)
        & (fields["custom_length"] <= CUSTOM_METADATA_MAX_BYTES)
        & (entries_start <= values.ends)
        & (gather(keys.data, keys.starts, _KEY_BYTES) == gather(values.data, values.starts + _ID_AT, _KEY_BYTES)).all(1)
    )
    candidates = np.flatnonzero(is_candidate)
    has_block = entries_start[candidates] < values.ends[candidates]
    with_block = candidates[has_block]
    blocks = decode_blocks(values.data, entries_start[with_block], values.ends[with_block])
    is_candidate[with_block[~blocks.is_good]] = False
    rows = np.flatnonzero(is_candidate)
    place = np.cumsum(is_candidate) - 1
    return SegmentBatch(
        is_candidate,
        rows,
        *_ids(fields, rows),
        *_facts(fields, rows),
        fields["record_type"][rows] == REBUILT_SEGMENT,
        _placed(blocks, with_block, place, len(rows)),
    )


def _ids(fields: NDArray[np.void], rows: Ints) -> tuple[Ints, Ints, Ints]:
    ids = fields["id"][rows]
    high_bits = np.int64(32)
    incarnation = (ids["incarnation_high"].astype(np.int64) << high_bits) | ids["incarnation_low"].astype(np.int64)
    sequence = (ids["sequence_high"].astype(np.int64) << high_bits) | ids["sequence_low"].astype(np.int64)
    return ids["broker_id"].astype(np.int64), incarnation, sequence


def _facts(fields: NDArray[np.void], rows: Ints) -> tuple[Ints, Ints, Ints]:
    chosen = fields[rows]
    return (
        chosen["event_timestamp_ms"].astype(np.int64),
        chosen["state"].astype(np.int64),
        chosen["size_bytes"].astype(np.int64),
    )


def _placed(blocks: EntryBatch, with_block: Ints, place: Ints, records: int) -> EntryBatch:
    """Return the entries with `counts` and `block` per decoded record instead of per block."""
    good = with_block[blocks.is_good]
    counts = np.zeros(records, dtype=np.int64)
    counts[place[good]] = blocks.counts[blocks.is_good]
    return replace(
        blocks, is_good=np.ones(records, dtype=np.bool_), counts=counts, block=place[with_block[blocks.block]]
    )
