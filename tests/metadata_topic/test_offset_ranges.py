"""Ranges of offsets against sets of them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges, ranges_common, ranges_missing

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def offsets(ranges: list[OffsetRange]) -> set[int]:
    return {offset for begin, end in ranges for offset in range(begin, end)}


@given(RANGES, st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_ranges_hold_what_sets_hold(ranges: list[OffsetRange], within: OffsetRange) -> None:
    joined = joined_ranges(ranges)
    assert offsets(joined) == offsets(ranges)
    assert all(end < begin for (_, end), (begin, _) in pairwise(joined))
    assert offsets(ranges_missing(ranges, within)) == set(range(*within)) - offsets(ranges)
    assert offsets(ranges_common(within, ranges)) == set(range(*within)) & offsets(ranges)
