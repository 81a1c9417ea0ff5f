"""The link index forgets in order, and never what it must not."""

from hypothesis import given
from hypothesis import strategies as st

from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_index import LinkIndex, StoredBatch
from tests.replication.fetch_frames import partition


def stored(sequence: int, offset: int) -> StoredBatch:
    return StoredBatch(b"%021d" % offset, CombinedSegmentId(1, 1, sequence), offset, offset + 1)


def test_the_oldest_objects_go_first_when_it_is_full() -> None:
    index = LinkIndex(max_batches=10)
    for sequence in range(5):
        index.add(
            partition(0), [(offset, stored(sequence, offset)) for offset in range(3 * sequence, 3 * sequence + 3)]
        )
    assert len(index) == 9
    assert [offset for offset in range(15) if index.find(partition(0), offset)] == list(range(6, 15))


def test_truncation_forgets_from_its_offset_on() -> None:
    index = LinkIndex()
    index.add(partition(0), [(offset, stored(0, offset)) for offset in range(6)])
    index.drop_from(partition(0), 4)
    index.drop_from(partition(7), 0)
    assert [offset for offset in range(6) if index.find(partition(0), offset)] == [0, 1, 2, 3]
    index.add(partition(0), [(4, stored(1, 4))])
    assert index.find(partition(0), 4) == stored(1, 4)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "add", "drop", "cut"]), st.integers(0, 2), st.integers(0, 20)),
        max_size=40,
    )
)
def test_it_is_bounded_and_never_finds_what_was_dropped_or_replaced(script: list[tuple[str, int, int]]) -> None:
    index, model = LinkIndex(max_batches=12), {}
    for sequence, (action, number, offset) in enumerate(script):
        if action == "add":
            added = {base: stored(sequence, base) for base in range(offset, offset + 3)}
            index.add(partition(number), added.items())
            model.update({(number, base): batch for base, batch in added.items()})
        elif action == "drop":
            index.drop(partition(number))
            model = {key: batch for key, batch in model.items() if key[0] != number}
        else:
            index.drop_from(partition(number), offset)
            model = {key: batch for key, batch in model.items() if key[0] != number or key[1] < offset}
        assert len(index) <= 12
        for number in range(3):
            for base in range(24):
                assert index.find(partition(number), base) in (None, model.get((number, base)))
    if script and script[-1][0] == "add":
        _, number, offset = script[-1]
        assert all(index.find(partition(number), base) for base in range(offset, offset + 3))


def test_an_object_whose_deletion_was_started_is_forgotten_in_all_of_its_partitions_and_no_other() -> None:
    index = LinkIndex()
    index.add(partition(0), [(0, stored(0, 0)), (5, stored(0, 5))])
    index.add(partition(1), [(0, stored(0, 0))])
    index.add(partition(1), [(7, stored(1, 7))])
    index.drop_object(stored(0, 0).object_id)
    assert [index.find(partition(0), 0), index.find(partition(0), 5), index.find(partition(1), 0)] == [None] * 3
    assert index.find(partition(1), 7) == stored(1, 7)


def test_a_batch_that_was_stored_again_outlives_the_first_object() -> None:
    index = LinkIndex()
    index.add(partition(0), [(0, stored(0, 0))])
    index.add(partition(0), [(0, stored(1, 0))])
    for _ in range(2):
        index.drop_object(stored(0, 0).object_id)
    assert index.find(partition(0), 0) == stored(1, 0)


def test_the_bound_holds_with_dropped_objects_among_the_others() -> None:
    index = LinkIndex(max_batches=3)
    for number in range(10):
        index.add(partition(0), [(number, stored(number, number))])
        if number % 2:
            index.drop_object(stored(number, number).object_id)
    assert len(index) == 3
    assert [number for number in range(10) if index.find(partition(0), number)] == [8]
