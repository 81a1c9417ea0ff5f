"""Merging entries to ranges loses nothing, in batches of any size."""

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from retention_job.tables.coverage import merge_batches

Entry = tuple[int, int, int, int, int]
ENTRIES = st.lists(
    st.builds(
        lambda topic, partition, epoch, first, length: (topic, partition, epoch, first, first + length),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(-1, 1),
        st.integers(0, 30),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=30,
)


def batch(entries: list[Entry]) -> pa.RecordBatch:
    topic, partition, epoch, first, last = zip(*entries, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([bytes([number]) * 16 for number in topic], pa.binary()),
            pa.array(partition, pa.int32()),
            pa.array(epoch, pa.int32()),
            pa.array(first, pa.int64()),
            pa.array(last, pa.int64()),
            pa.array([1000 + number for number in first], pa.int64()),
        ],
        names=["topic_id", "partition", "leader_epoch", "first_offset", "last_offset", "event_timestamp_ms"],
    )


@given(ENTRIES)
def test_ranges_hold_the_offsets_of_their_entries(entries: list[Entry]) -> None:
    copies = Counter(
        (bytes([topic]) * 16, partition, epoch, offset)
        for topic, partition, epoch, first, last in entries
        for offset in range(first, last + 1)
    )
    once: set[tuple[bytes, int, int, int]] = set()
    twice: set[tuple[bytes, int, int, int]] = set()
    for found in merge_batches([batch(entries)]):
        for row in found.to_pylist():
            chain = (row["topic_id"], row["partition"], row["leader_epoch"])
            offsets = {(*chain, offset) for offset in range(row["first_offset"], row["last_offset"] + 1)}
            if row["is_twice"]:
                twice |= offsets
            else:
                assert not once & offsets
                assert (*chain, row["first_offset"] - 1) not in copies, "ranges are as long as they can be"
                once |= offsets
    assert once == set(copies)
    assert twice == {where for where, count in copies.items() if count > 1}
