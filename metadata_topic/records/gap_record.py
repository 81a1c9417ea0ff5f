"""Declared gaps as records of the metadata topic.

Each record is a full statement of its own: the key is `rwm:gaps:`, broker id (4), incarnation (8) and sequence (8), all
of the agent that declares. Agents older than this record type count and skip it, like every record that they do not
know. The value, big endian:

====  ======================================  ======================================================
size  field                                   remark
====  ======================================  ======================================================
1, 1  format version 1, record type 6
4     broker id                               these three equal to the key's
8     incarnation
8     sequence                                counts the incarnation's records from 0
8     event timestamp, ms
4     number of gaps, and for each (41):
16    - topic id
4     - partition
4     - leader epoch
8, 8  - from and to offset, the latter behind the gap
1     - reason (`metadata_topic.records.declared_gaps.GapReason`)
====  ======================================  ======================================================

A record with a reason that is not known is refused.
"""

import struct
from dataclasses import dataclass
from typing import Final

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.record_fields import FORMAT_VERSION, RecordReader, UndecodableRecordError, packed

GAPS: Final = 6
GAPS_KEY: Final = b"rwm:gaps:"
MAX_GAPS: Final = 10_000
"""Keeps a record below the publisher's limit."""

_ID: Final = struct.Struct(">iQQ")
_HEAD: Final = struct.Struct(">BBiQQqI")
_GAP: Final = struct.Struct(">16siiqqB")
_REASONS: Final = {int(reason): reason for reason in GapReason}


@dataclass(frozen=True, slots=True)
class RemoteWalGapDeclaration:
    """An agent's declarations about logs that it leads."""

    broker_id: int
    incarnation: int
    sequence: int
    gaps: tuple[DeclaredGap, ...]
    event_timestamp_ms: int


def gaps_key(record: RemoteWalGapDeclaration) -> bytes:
    """Return the key of a gap declaration's record. Raises ValueError when a field does not fit the format."""
    return GAPS_KEY + packed(_name(record), _ID, record.broker_id, record.incarnation, record.sequence)


def encode_gaps(record: RemoteWalGapDeclaration) -> bytes:
    """Encode a gap declaration as its record's value. Raises ValueError when a field does not fit the format."""
    if len(record.gaps) > MAX_GAPS:
        raise ValueError(f"{len(record.gaps)} gaps in a record, at most {MAX_GAPS} are taken")
    name = _name(record)
    head = packed(
        name, _HEAD, FORMAT_VERSION, GAPS, record.broker_id, record.incarnation, record.sequence,
        record.event_timestamp_ms, len(record.gaps),
    )  # fmt: skip
    return head + b"".join(
        packed(name, _GAP, *gap.topic_id_partition, gap.leader_epoch, gap.from_offset, gap.to_offset, gap.reason)
        for gap in record.gaps
    )


def decode_gaps(key: bytes, reader: RecordReader) -> RemoteWalGapDeclaration:
    """Decode a gap declaration whose version and type are known. Raises UndecodableRecordError, and nothing else."""
    _, _, broker_id, incarnation, sequence, event_timestamp_ms, count = reader.fields(_HEAD)
    if key != GAPS_KEY + _ID.pack(broker_id, incarnation, sequence):
        raise UndecodableRecordError("key_mismatch", "key and value name different records")
    if reader.left != count * _GAP.size:
        raise UndecodableRecordError("truncated", f"{count} gaps in {reader.left} bytes")
    gaps = tuple(_gap(*fields) for fields in reader.rows(_GAP, count))
    return RemoteWalGapDeclaration(broker_id, incarnation, sequence, gaps, event_timestamp_ms)


def _gap(topic_id: bytes, partition: int, epoch: int, from_offset: int, to_offset: int, reason: int) -> DeclaredGap:
    if partition < 0 or not 0 <= from_offset <= to_offset:
        raise UndecodableRecordError("gap", f"offsets {from_offset} to {to_offset} of partition {partition}")
    if reason not in _REASONS:
        raise UndecodableRecordError("gap_reason", f"reason {reason} is not known")
    return DeclaredGap(TopicIdPartition(TopicId(topic_id), partition), from_offset, to_offset, epoch, _REASONS[reason])


def _name(record: RemoteWalGapDeclaration) -> str:
    return f"gaps declared by broker {record.broker_id}"
