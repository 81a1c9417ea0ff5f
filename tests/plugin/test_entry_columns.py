import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format import entry_columns
from plugin.format.entry_column_batches import decode_runs
from plugin.segment_metadata import UNKNOWN_POSITION, RemoteLogSegmentMetadataEntry

TOPICS = [TopicId(bytes([n]) * 16) for n in (0, 7, 255)]


@st.composite
def entry_lists(draw: st.DrawFn, positions: str = "any") -> list[RemoteLogSegmentMetadataEntry]:
    """Entries that follow one another, have gaps, or have no positions yet."""
    mode = draw(st.sampled_from(["follow", "gaps", "unknown"])) if positions == "any" else positions
    at = draw(st.integers(0, 2**40))
    entries = []
    for _ in range(draw(st.integers(0, 12))):
        length = draw(st.integers(0, 2**32 - 1))
        if mode == "gaps":
            at += draw(st.integers(0, 2**33))
        first = draw(st.integers(0, 2**62))
        entries.append(
            RemoteLogSegmentMetadataEntry(
                TopicIdPartition(draw(st.sampled_from(TOPICS)), draw(st.integers(0, 2**31 - 1))),
                draw(st.integers(-1, 2**31 - 1)),
                first,
                first + draw(st.integers(0, 2**32 - 1)),
                UNKNOWN_POSITION if mode == "unknown" else at,
                UNKNOWN_POSITION if mode == "unknown" else at + length,
                draw(st.integers(0, 2**32 - 1)),
            )
        )
        at += length
    return entries


def run_of_entries(count: int) -> list[RemoteLogSegmentMetadataEntry]:
    return [
        RemoteLogSegmentMetadataEntry(
            TopicIdPartition(TOPICS[n % 3], n % 500), 40 + n % 9, n * 10**12, n * 10**12 + n % 60_000,
            112 + n * 70_000, 112 + (n + 1) * 70_000, n * 2654435761 % 2**32,
        )
        for n in range(count)
    ]  # fmt: skip


@given(entry_lists())
def test_entries_come_back_as_they_went_in(entries: list[RemoteLogSegmentMetadataEntry]) -> None:
    assert entry_columns.decode(entry_columns.encode(entries)) == tuple(entries)


@given(entry_lists())
def test_the_arrays_hold_what_the_entries_hold(entries: list[RemoteLogSegmentMetadataEntry]) -> None:
    columns = entry_columns.decode_columns(entry_columns.encode(entries))
    rows = zip(*(column.tolist() for name, column in columns.items() if name != "topic_ids"), strict=True)
    names = [name for name in columns if name != "topic_ids"]
    for entry, row in zip(entries, (dict(zip(names, r, strict=True)) for r in rows), strict=True):
        topic = bytes(columns["topic_ids"][row.pop("topic_index")])
        assert TopicIdPartition(TopicId(topic), row.pop("partition")) == entry.topic_id_partition
        assert row == {name: getattr(entry, name) for name in row}
    assert all(columns[name].dtype == np.int64 for name in names)


def test_digests_stand_behind_the_columns_where_each_entry_has_one() -> None:
    entries = [replace(one, sha256=bytes([index]) * 32) for index, one in enumerate(run_of_entries(5))]
    plain, block = entry_columns.encode(entries), entry_columns.encode(entries, digests=True)
    assert entry_columns.decode(block) == tuple(entries)
    assert [one.sha256 for one in entry_columns.decode(plain)] == [b""] * 5
    assert block[1:] == plain[1:] + b"".join(one.sha256 for one in entries)
    third = entries[3]
    offsets = third.first_offset, third.last_offset
    assert entry_columns.find(block, third.topic_id_partition, third.leader_epoch, offsets) == third
    some = [replace(entries[0], sha256=b""), *entries[1:]]
    assert entry_columns.encode(some, digests=True) == plain
    for wrong in (block[:-1], block + b"!", plain[:1] + block[1:], block[:1] + plain[1:]):
        with pytest.raises(ValueError, match="need"):
            entry_columns.decode(wrong)


def test_a_large_block_spends_at_most_24_bytes_on_an_entry() -> None:
    assert len(entry_columns.encode(run_of_entries(5000))) <= 24 * 5000


def test_positions_that_follow_one_another_are_not_stored() -> None:
    entries = run_of_entries(100)
    assert len(entry_columns.encode(entries[1:2] + entries[3:])) > len(entry_columns.encode(entries[1:]))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_with_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        entry_columns.decode(raw)


@given(entry_lists(), st.data())
def test_an_altered_block_is_refused_or_still_well_formed(
    entries: list[RemoteLogSegmentMetadataEntry], data: st.DataObject
) -> None:
    block = bytearray(entry_columns.encode(entries))
    block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
    outcomes = []
    for read in (entry_columns.decode, entry_columns.decode_columns):
        try:
            read(bytes(block))
            outcomes.append("read")
        except ValueError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1], "both decoders judge alike"


def test_every_truncation_is_refused() -> None:
    block = entry_columns.encode(run_of_entries(3))
    for size in range(len(block)):
        with pytest.raises(ValueError, match="byte"):
            entry_columns.decode(block[:size])


def test_a_count_beyond_the_bytes_left_is_refused_before_anything_is_allocated() -> None:
    block = bytearray(entry_columns.encode(run_of_entries(2)))
    struct.pack_into("<I", block, 4, 2**24)
    with pytest.raises(ValueError, match="need"):
        entry_columns.decode_columns(bytes(block))
    struct.pack_into("<I", block, 4, 2**32 - 1)
    with pytest.raises(ValueError, match="at byte 4"):
        entry_columns.decode_columns(bytes(block))


def test_a_topic_index_beyond_the_table_is_refused() -> None:
    block = bytearray(entry_columns.encode(run_of_entries(2)))
    minimum_of_topic_index = 20
    struct.pack_into("<q", block, minimum_of_topic_index, 5)
    with pytest.raises(ValueError, match="topic_index"):
        entry_columns.decode(bytes(block))


def test_entries_with_and_without_positions_do_not_mix() -> None:
    first, second = run_of_entries(2)
    placeless = RemoteLogSegmentMetadataEntry(first.topic_id_partition, 1, 5, 6, UNKNOWN_POSITION, UNKNOWN_POSITION, 0)
    for mixed in ([placeless, second], [first, placeless]):
        with pytest.raises(ValueError, match="position"):
            entry_columns.encode(mixed)


def test_an_entry_that_ends_before_it_starts_is_refused() -> None:
    entry = run_of_entries(1)[0]
    backwards = RemoteLogSegmentMetadataEntry(entry.topic_id_partition, 0, 9, 8, 112, 113, 0)
    with pytest.raises(ValueError, match="last_offset_delta"):
        entry_columns.encode([backwards])


@pytest.mark.parametrize("times", [1, 100])
@given(blocks=st.lists(entry_lists(), max_size=3))
def test_few_runs_and_many_are_those_of_the_entries(
    blocks: list[list[RemoteLogSegmentMetadataEntry]], times: int
) -> None:
    runs = decode_runs([entry_columns.encode(entries) for entries in blocks] * times)
    topics = [runs.topic_ids[topic] for topic in runs.topic.tolist()]
    columns = (runs.block, runs.partition, runs.leader_epoch, runs.first_offset, runs.last_offset)
    found = list(zip(topics, *(column.tolist() for column in columns), strict=True))
    assert found == [
        (one.topic_id_partition.topic_id, number, one.topic_id_partition.partition, one.leader_epoch, one.first_offset,
         one.last_offset)
        for number, entries in enumerate(blocks * times)
        for one in entries
    ]  # fmt: skip
