"""In how many ranges an object is read, in the order that partitions stand in, against what the readers want."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.peer_protocol import coalesce_ranges
from rlm.write_path.uploads.segment_queue import ranges_read, reading_order

READERS = st.lists(st.frozensets(st.integers(0, 5), max_size=3), max_size=30)


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TopicId(b"r" * 16), number)


@given(READERS, st.integers(0, 4))
def test_ranges_are_those_that_announcements_have(readers: list[frozenset[int]], max_gap: int) -> None:
    announced = {
        reader: coalesce_ranges([(at, at + 1) for at, wanted in enumerate(readers) if reader in wanted], max_gap)
        for reader in range(6)
    }
    ranges, along = ranges_read(readers, max_gap)
    assert ranges == sum(map(len, announced.values()))
    read = sum(end - start for found in announced.values() for start, end in found)
    assert along == read - sum(map(len, readers))


def test_partitions_that_the_same_brokers_follow_stand_together() -> None:
    numbers = [0, 1, 2, 3]
    followers = {0: {7, 2}, 1: {4, 5}, 2: {2, 7}, 3: None}
    ordered = sorted(numbers, key=lambda number: reading_order(partition(number), followers[number]))
    assert ordered == [3, 0, 2, 1]


def test_of_many_partitions_few_ranges_are_read() -> None:
    drawn = random.Random(1)
    followers = {number: {drawn.randrange(10), 10 + drawn.randrange(10)} for number in range(1000)}
    ordered = sorted(followers, key=lambda number: reading_order(partition(number), followers[number]))
    in_turn, together = (ranges_read([followers[one] for one in order])[0] for order in (range(1000), ordered))
    assert in_turn > 1700
    assert together <= 10 * 10 + 20
