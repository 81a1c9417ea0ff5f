"""Decoding many records at once says what decoding one by one says."""

from collections.abc import Sequence

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from metadata_topic.records import serde
from metadata_topic.records.records import PublishedSegment, RemoteWalRebuiltSegment, decode_entries
from metadata_topic.records.serde_batches import PADDING, BinaryColumn, SegmentBatch, decode_segments
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.metadata_topic.metadata_strategies import (
    ORDERS,
    PAYMENTS,
    STARTED,
    dead_entries,
    entry,
    segment,
    segments,
)

Record = tuple[bytes, bytes]


def column(parts: Sequence[bytes]) -> BinaryColumn:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    data = np.frombuffer(b"".join(parts) + bytes(PADDING), dtype=np.uint8)
    return BinaryColumn(data, ends - np.array([len(part) for part in parts], dtype=np.int64), ends)


def decode_all(records: Sequence[Record]) -> SegmentBatch:
    return decode_segments(column([key for key, _ in records]), column([value for _, value in records]))


def as_published(batch: SegmentBatch, index: int) -> tuple[object, ...]:
    entries = batch.entries
    of_it = np.flatnonzero(entries.block == index)
    return (
        CombinedSegmentId(int(batch.broker_id[index]), int(batch.incarnation[index]), int(batch.sequence[index])),
        int(batch.state[index]),
        int(batch.event_timestamp_ms[index]),
        int(batch.size_bytes[index]),
        bool(batch.is_rebuilt[index]),
        [
            (
                entries.topic_ids[at].tobytes(),
                *(
                    int(values[at])
                    for values in (
                        entries.partition,
                        entries.leader_epoch,
                        entries.first_offset,
                        entries.last_offset,
                        entries.start_file_position,
                        entries.end_file_position,
                    )
                ),
            )
            for at in of_it
        ],
    )


def expected(record: PublishedSegment) -> tuple[object, ...]:
    return (
        record.combined_segment_id,
        int(record.state),
        record.event_timestamp_ms,
        record.size_bytes,
        record.is_rebuilt,
        [
            (
                e.topic_id_partition.topic_id,
                e.topic_id_partition.partition,
                e.leader_epoch,
                e.first_offset,
                e.last_offset,
                e.start_file_position,
                e.end_file_position,
            )
            for e in decode_entries(record.entry_block)
        ],
    )


def check(records: Sequence[Record]) -> None:
    batch = decode_all(records)
    decoded = {int(row): index for index, row in enumerate(batch.row)}
    assert [bool(is_decoded) for is_decoded in batch.is_decoded] == [row in decoded for row in range(len(records))]
    for row, (key, value) in enumerate(records):
        one = serde.decode_or_keep_out(key, value)
        assert isinstance(one, PublishedSegment) == (row in decoded), (row, one)
        if isinstance(one, PublishedSegment):
            assert as_published(batch, decoded[row]) == expected(one)
            assert int(batch.entries.counts[decoded[row]]) == one.entry_count


def encoded(record: RemoteWalCombinedLogSegmentMetadata) -> Record:
    return serde.encode_key(record.combined_segment_id), serde.encode(record)


@st.composite
def damaged(draw: st.DrawFn, records: st.SearchStrategy[Record]) -> Record:
    key, value = draw(records)
    how = draw(st.sampled_from(("cut", "flip", "longer", "other key", "none")))
    at = draw(st.integers(0, max(0, len(value) - 1)))
    if how == "cut":
        return key, value[:at]
    if how == "flip" and value:
        return key, value[:at] + bytes([draw(st.integers(0, 255))]) + value[at + 1 :]
    if how == "longer":
        return key, value + b"\0"
    return (draw(st.binary(max_size=20)) if how == "other key" else key), value


def rebuilt(record: RemoteWalCombinedLogSegmentMetadata) -> Record:
    again = RemoteWalRebuiltSegment(PublishedSegment.of(record))
    return serde.key_of(again), serde.encode(again)


GOOD = (
    segments.map(encoded)
    | segments.map(rebuilt)
    | dead_entries().map(lambda record: (serde.encode_key(record.combined_segment_id), serde.encode(record)))
)


@given(st.lists(GOOD | damaged(GOOD), max_size=6))
@example([])
def test_a_batch_says_what_its_records_say_one_by_one(records: list[Record]) -> None:
    check(records)


def test_every_single_damaged_byte_is_judged_as_by_one_record_alone() -> None:
    wide = (entry(2**40, 2**40 + 70_000), entry(3, 5, partition=PAYMENTS, epoch=300, start=5_000_000))
    whole = [encoded(segment(7, *wide)), encoded(segment(8, entry(0, 9), state=STARTED))]
    for key, value in whole:
        check([(key, value[:length]) for length in range(len(value))])
        for replaced in (0, 1, 2, 9, 255):
            check([(key, value[:at] + bytes([replaced]) + value[at + 1 :]) for at in range(len(value))])


def test_positions_are_known_however_they_are_stored() -> None:
    following = (entry(0, 9, start=112), entry(0, 4, partition=PAYMENTS, start=812))
    apart = (entry(0, 9, start=112), entry(0, 4, partition=PAYMENTS, start=9_000))
    unknown = tuple(
        RemoteLogSegmentMetadataEntry(ORDERS, 0, first, first, UNKNOWN_POSITION, UNKNOWN_POSITION, 0)
        for first in (1, 5)
    )
    check([encoded(segment(n, *entries)) for n, entries in enumerate((following, apart, unknown, ()))])
