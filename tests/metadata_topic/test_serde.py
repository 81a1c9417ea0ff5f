"""The records' bytes: what is written is read again, and nothing else is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records import serde
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.records import (
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    UnknownRecord,
    decode_entries,
)
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from tests.metadata_topic.metadata_strategies import (
    DELETED,
    ORDERS,
    PAYMENTS,
    STARTED,
    dead,
    dead_entries,
    entry,
    segment,
    segments,
    with_digests,
)


@given(segments)
def test_a_segments_record_is_read_as_it_was_written(record: RemoteWalCombinedLogSegmentMetadata) -> None:
    read = serde.decode(serde.encode_key(record.combined_segment_id), serde.encode(record))
    assert isinstance(read, PublishedSegment)
    assert read.metadata == record
    assert decode_entries(read.entry_block) == record.entries
    assert PublishedSegment.of(record) == read


@given(dead_entries())
def test_dead_entries_are_read_as_they_were_written(record: RemoteWalLogSegmentMetadataUpdate) -> None:
    assert serde.decode(serde.encode_key(record.combined_segment_id), serde.encode(record)) == record


def test_a_started_record_has_37_bytes() -> None:
    started = RemoteWalCombinedLogSegmentMetadata(segment(1).combined_segment_id, (), STARTED, 1)
    assert len(serde.encode(started)) == 37


def test_each_fault_has_its_own_reason() -> None:
    record = segment(1, entry(0, 9))
    key, value = serde.encode_key(record.combined_segment_id), serde.encode(record)
    other_key = serde.encode_key(segment(2).combined_segment_id)
    faults = {
        "foreign_key": (b"orders", value),
        "no_value": (key, None),
        "truncated": (key, b""),
        "version": (key, b"\x03" + value[1:]),
        "record_type": (key, value[:1] + b"\x63" + value[2:]),
        "key_mismatch": (other_key, value),
        "state": (key, value[:26] + b"\x09" + value[27:]),
        "entries": (key, value + b"!"),
    }
    for reason, (bad_key, bad_value) in faults.items():
        kept_out = serde.decode_or_keep_out(bad_key, bad_value)
        assert isinstance(kept_out, UnknownRecord)
        assert kept_out.reason == reason


@given(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=120))
def test_arbitrary_bytes_are_kept_out_without_a_crash(key: bytes | None, value: bytes | None) -> None:
    assert isinstance(serde.decode_or_keep_out(key, value), UnknownRecord)


def test_too_much_custom_metadata_is_refused() -> None:
    record = segment(1)
    too_long = RemoteWalCombinedLogSegmentMetadata(record.combined_segment_id, (), DELETED, 1, 1, b"x" * 1025)
    with pytest.raises(ValueError, match="1024"):
        serde.encode(too_long)


def test_dead_entries_of_two_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="one partition"):
        serde.encode(dead(1, entry(0, 9, partition=ORDERS), entry(0, 9, partition=PAYMENTS)))


@pytest.mark.parametrize("digests", [False, True])
def test_records_with_digests_are_of_a_version_of_their_own(digests: bool) -> None:
    record = replace(segment(1), entries=with_digests([entry(0, 9), entry(10, 12)], digests=digests))
    value = serde.encode(record)
    assert value[0] == (2 if digests else 1)
    found = serde.decode(serde.encode_key(record.combined_segment_id), value)
    assert isinstance(found, PublishedSegment)
    assert found.metadata == record
    registration = RemoteWalNodeRegistration(1, 2, 1, 3)
    with pytest.raises(UndecodableRecordError, match="version"):  # what has no second version yet
        serde.decode(serde.key_of(registration), b"\2" + serde.encode(registration)[1:])
