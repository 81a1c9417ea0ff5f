"""The archive's records in `__remote_wal_log_metadata`: an object is prepared, committed, deleted.

The key is the archive object's id (52 bytes; a combined segment's has 16). The value, big endian:

====  ========================  ==========================================================
size  field                     in which record type
====  ========================  ==========================================================
1     format version            all; 1, or 2 where runs have digests (19 alone)
1     record type               all; 16 = prepared, 18 = deleted, 19 = committed
52    archive object id         all, equal to the key
8     event timestamp, ms       all
8     incarnation               all
8     ttl, ms                   16
8     object's size, bytes      19
rest  run columns               19 (`plugin.format.entry_columns`)
1     state                     18; 2 = DELETE_SEGMENT_STARTED, 3 = DELETE_SEGMENT_FINISHED
====  ========================  ==========================================================

`incarnation` is that of the agent that publishes, as it is registered for the broker in the object's id. A fenced
agent's records are known by it (`metadata_topic.store.archive.archive_store`).

One Committed record adds the object to the index and also releases what the object replaces: an entry is on the
long-term tier when committed runs of its leader epoch hold all of its offsets. So there is no state in between.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

from metadata_topic.records.record_fields import (
    DIGEST_VERSION,
    FOREIGN_KEY,
    FORMAT_VERSION,
    HIGHEST_INCARNATION,
    RecordReader,
    UndecodableRecordError,
    packed,
    value_of_known_version,
)
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from plugin.format import entry_columns
from plugin.format.archive_object import check_runs
from plugin.format.archive_object_id import ARCHIVE_OBJECT_ID_BYTES, ArchiveObjectId
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry, RemoteLogSegmentState

PREPARED: Final = 16
DELETION: Final = 18
COMMITTED: Final = 19

_HEAD: Final = struct.Struct(f">BB{ARCHIVE_OBJECT_ID_BYTES}sqQ")
_PREPARED: Final = struct.Struct(">q")
_COMMITTED: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class ArchiveObjectPrepared:
    """An object is about to be written. If it is never committed, it is deleted once its TTL is over."""

    object_id: ArchiveObjectId
    incarnation: int
    ttl_ms: int
    """Counted from the event's time stamp."""
    event_timestamp_ms: int

    @property
    def state(self) -> RemoteLogSegmentState:
        return STARTED


@dataclass(frozen=True, slots=True)
class ArchiveObjectCommitted:
    """An object has been written, and replaces what combined segments hold of its range."""

    object_id: ArchiveObjectId
    incarnation: int
    runs: tuple[RemoteLogSegmentMetadataEntry, ...]
    size_bytes: int
    event_timestamp_ms: int

    @property
    def state(self) -> RemoteLogSegmentState:
        return FINISHED


@dataclass(frozen=True, slots=True)
class ArchiveObjectDeleted:
    """An object is being deleted (and no longer in the index), or is deleted."""

    object_id: ArchiveObjectId
    incarnation: int
    state: RemoteLogSegmentState
    """DELETE_SEGMENT_STARTED or DELETE_SEGMENT_FINISHED."""
    event_timestamp_ms: int


ArchiveRecord = ArchiveObjectPrepared | ArchiveObjectCommitted | ArchiveObjectDeleted


def is_archive_key(key: bytes | None) -> bool:
    """Whether a record of the metadata topic with this key is the archive's."""
    return key is not None and len(key) == ARCHIVE_OBJECT_ID_BYTES


def encode_key(object_id: ArchiveObjectId) -> bytes:
    """Return the record's key, 52 bytes."""
    return object_id.to_bytes()


def encode(record: ArchiveRecord) -> bytes:
    """Return the record's value. Raises ValueError when a field does not fit the format."""
    if isinstance(record, ArchiveObjectPrepared):
        return _head(PREPARED, record) + packed(_name(record), _PREPARED, record.ttl_ms)
    if isinstance(record, ArchiveObjectCommitted):
        return _encode_committed(record)
    if record.state not in (DELETING, DELETED):
        raise ValueError(f"{record.object_id} cannot be deleted by the state {record.state.name}")
    return _head(DELETION, record) + bytes([record.state])


def decode(key: bytes | None, value: bytes | None) -> ArchiveRecord:
    """Decode a record. Raises UndecodableRecordError for anything that `encode` does not make, and nothing else."""
    object_id, record_type, event_timestamp_ms, incarnation, reader = _decode_head(key, value)
    if record_type == PREPARED:
        _expect_size(reader, _PREPARED.size)
        [ttl_ms] = reader.fields(_PREPARED)
        return ArchiveObjectPrepared(object_id, incarnation, ttl_ms, event_timestamp_ms)
    if record_type == DELETION:
        _expect_size(reader, 1)
        [state] = reader.take(1)
        if state not in (DELETING, DELETED):
            raise UndecodableRecordError("state", f"state {state} is no deletion")
        return ArchiveObjectDeleted(object_id, incarnation, RemoteLogSegmentState(state), event_timestamp_ms)
    if record_type == COMMITTED:
        return _decode_committed(object_id, incarnation, event_timestamp_ms, reader)
    raise UndecodableRecordError("record_type", f"record type {record_type} is not known")


def decode_or_keep_out(key: bytes, value: bytes | None) -> ArchiveRecord | UnknownRecord:
    """Decode a record, or return UnknownRecord for one that cannot be decoded: for readers that must continue."""
    try:
        return decode(key, value)
    except UndecodableRecordError as error:
        return UnknownRecord(error.reason, str(error))


def _name(record: ArchiveRecord) -> str:
    return f"metadata of {record.object_id}"


def _head(record_type: int, record: ArchiveRecord, version: int = FORMAT_VERSION) -> bytes:
    if not 0 <= record.incarnation <= HIGHEST_INCARNATION:
        raise ValueError(f"incarnation {record.incarnation} of {record.object_id} does not fit 48 bits")
    raw_id = record.object_id.to_bytes()
    return packed(_name(record), _HEAD, version, record_type, raw_id, record.event_timestamp_ms, record.incarnation)


def _decode_head(key: bytes | None, value: bytes | None) -> tuple[ArchiveObjectId, int, int, int, RecordReader]:
    """Read object id, record type, event timestamp, incarnation, and the rest. Raises UndecodableRecordError."""
    if not is_archive_key(key):
        raise UndecodableRecordError(FOREIGN_KEY, "the key is not an archive object's id")
    reader = RecordReader(value_of_known_version(value))
    fields: tuple[Any, ...] = reader.fields(_HEAD)
    _, record_type, raw_id, event_timestamp_ms, incarnation = fields
    if raw_id != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different objects")
    if incarnation > HIGHEST_INCARNATION:
        raise UndecodableRecordError("incarnation", f"incarnation {incarnation} has more than 48 bits")
    try:
        object_id = ArchiveObjectId.from_bytes(raw_id)
    except ValueError as error:
        raise UndecodableRecordError("object_id", str(error)) from error
    return object_id, record_type, event_timestamp_ms, incarnation, reader


def _encode_committed(record: ArchiveObjectCommitted) -> bytes:
    check_runs(record.object_id, record.runs)
    runs = entry_columns.encode(record.runs, digests=True)
    version = DIGEST_VERSION if entry_columns.has_digests(runs) else FORMAT_VERSION
    return _head(COMMITTED, record, version) + packed(_name(record), _COMMITTED, record.size_bytes) + runs


def _decode_committed(
    object_id: ArchiveObjectId, incarnation: int, event_timestamp_ms: int, reader: RecordReader
) -> ArchiveObjectCommitted:
    [size_bytes] = reader.fields(_COMMITTED)
    if size_bytes < 0:
        raise UndecodableRecordError("size", f"an object of {size_bytes} bytes")
    try:
        runs = entry_columns.decode(reader.read_rest())
        check_runs(object_id, runs)
    except ValueError as error:
        raise UndecodableRecordError("runs", str(error)) from error
    return ArchiveObjectCommitted(object_id, incarnation, runs, size_bytes, event_timestamp_ms)


def _expect_size(reader: RecordReader, size: int) -> None:
    if reader.left != size:
        raise UndecodableRecordError("truncated" if reader.left < size else "size", f"{reader.left} bytes, not {size}")
