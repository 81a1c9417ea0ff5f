"""The set of deleted sequences stays small and exact."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.store.sequence_set import SequenceSet


@given(st.lists(st.integers(0, 40)))
def test_it_holds_what_was_added(numbers: list[int]) -> None:
    kept, plain = SequenceSet(), set[int]()
    for number in numbers:
        assert kept.add(number) == (number not in plain)
        plain.add(number)
        assert len(kept) == len(plain)
    assert {number for number in range(-1, 43) if number in kept} == plain
    ends = kept.intervals
    assert all(before[1] < after[0] for before, after in pairwise(ends))


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_two_are_joined_to_what_either_holds(one: list[int], other: list[int]) -> None:
    joined, with_it, plain = SequenceSet(), SequenceSet(), SequenceSet()
    for number in one:
        joined.add(number)
        plain.add(number)
    for number in other:
        with_it.add(number)
        plain.add(number)
    joined.join(with_it.intervals)
    assert (joined.intervals, len(joined)) == (plain.intervals, len(plain))


def test_dense_numbers_are_one_interval() -> None:
    kept = SequenceSet()
    for number in [*range(0, 1000, 2), *range(1, 1000, 2)]:
        kept.add(number)
    assert kept.intervals == [(0, 1000)]
