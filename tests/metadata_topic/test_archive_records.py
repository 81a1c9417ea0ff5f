"""The archive's records as bytes: what is written is read again, and nothing else is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records import archive_records as records
from metadata_topic.records import serde
from metadata_topic.records.archive_records import (
    ArchiveObjectDeleted,
    ArchiveRecord,
)
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.states import FINISHED
from tests.metadata_topic.archive_strategies import archive_records, committed, deleting, object_id, prepared
from tests.metadata_topic.metadata_strategies import segment, with_digests

COMMITTED = committed(object_id(1, 0, 99), (0, 40), (2, 99))


@given(archive_records())
def test_a_record_is_read_as_it_was_written(record: ArchiveRecord) -> None:
    assert records.decode(records.encode_key(record.object_id), records.encode(record)) == record


def test_combined_segments_and_archive_objects_are_told_apart_by_their_keys() -> None:
    record = segment(1)
    assert not records.is_archive_key(serde.encode_key(record.combined_segment_id))
    assert not records.is_archive_key(None)
    key, value = records.encode_key(COMMITTED.object_id), records.encode(COMMITTED)
    assert records.is_archive_key(key)
    assert isinstance(serde.decode_or_keep_out(key, value), UnknownRecord)
    with pytest.raises(UndecodableRecordError, match="foreign_key"):
        records.decode(serde.encode_key(record.combined_segment_id), serde.encode(record))


@pytest.mark.parametrize("record", [prepared(object_id(1, 0, 9)), COMMITTED, deleting(object_id(1, 0, 9))])
def test_no_truncated_record_is_taken_for_a_whole_one(record: ArchiveRecord) -> None:
    key, value = records.encode_key(record.object_id), records.encode(record)
    for length in range(len(value)):
        assert isinstance(records.decode_or_keep_out(key, value[:length]), UnknownRecord)
    assert isinstance(records.decode_or_keep_out(key, value + b"!"), UnknownRecord)


def test_each_fault_has_its_own_reason() -> None:
    key, value = records.encode_key(COMMITTED.object_id), records.encode(COMMITTED)
    gone = records.encode(deleting(COMMITTED.object_id))
    faults = {
        "no_value": (key, None),
        "truncated": (key, b""),
        "version": (key, b"\x03" + value[1:]),
        "record_type": (key, value[:1] + b"\x63" + value[2:]),
        "key_mismatch": (records.encode_key(object_id(2, 0, 99)), value),
        "state": (key, gone[:-1] + b"\x01"),
        "size": (key, value[:70] + b"\xff" * 8 + value[78:]),
        "incarnation": (key, value[:62] + b"\xff" * 8 + value[70:]),
        "runs": (key, value[:-1]),
    }
    for reason, (bad_key, bad_value) in faults.items():
        kept_out = records.decode_or_keep_out(bad_key, bad_value)
        assert isinstance(kept_out, UnknownRecord)
        assert kept_out.reason == reason


@given(st.binary(min_size=52, max_size=52), st.none() | st.binary(max_size=200))
def test_arbitrary_bytes_are_kept_out_without_a_crash(key: bytes, value: bytes | None) -> None:
    assert isinstance(records.decode_or_keep_out(key, value), UnknownRecord)


@given(archive_records(), st.data())
def test_a_flipped_byte_never_crashes_the_reader(record: ArchiveRecord, data: st.DataObject) -> None:
    value = bytearray(records.encode(record))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    records.decode_or_keep_out(records.encode_key(record.object_id), bytes(value))


def test_a_deletion_has_a_state_of_deletion_and_runs_tile() -> None:
    with pytest.raises(ValueError, match="COPY_SEGMENT_FINISHED"):
        records.encode(ArchiveObjectDeleted(object_id(1, 0, 9), 1, FINISHED, 1))
    with pytest.raises(ValueError, match="ends at offset 40"):
        records.encode(committed(object_id(1, 0, 99), (0, 40)))


def test_a_committed_record_with_digests_is_of_a_version_of_its_own() -> None:
    record = replace(COMMITTED, runs=with_digests(list(COMMITTED.runs)))
    value = records.encode(record)
    assert (value[0], records.encode(COMMITTED)[0]) == (2, 1)
    assert records.decode(records.encode_key(record.object_id), value) == record
    gone = deleting(record.object_id)
    kept_out = records.decode_or_keep_out(records.encode_key(gone.object_id), b"\2" + records.encode(gone)[1:])
    assert isinstance(kept_out, UnknownRecord)
    assert kept_out.reason == "version"
