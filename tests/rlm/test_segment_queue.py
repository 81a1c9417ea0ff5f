"""remoteSegmentQ keeps each partition's order, its bounds, and its count of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.uploads.segment_queue import MetaQueueItem, ReadingOrder, RemoteSegmentQueue, reading_order
from tests.kafka_log.batches import batches

PARTITIONS = [TopicIdPartition(TopicId(b"q" * 16), number) for number in range(3)]


def item(partition: int, first_offset: int, count: int = 2, records: int = 3) -> MetaQueueItem:
    raw = batches(count, first_offset, records)
    return MetaQueueItem(PARTITIONS[partition], tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)


def by_partition(partition: TopicIdPartition) -> ReadingOrder:
    return reading_order(partition, None)


def by_pairs(partition: TopicIdPartition) -> ReadingOrder:
    """Partitions 0 and 2 have one reader, 1 another."""
    return reading_order(partition, {partition.partition % 2})


def test_it_drains_up_to_the_upload_size_and_one_item_at_least() -> None:
    queue = RemoteSegmentQueue(10, 1_000_000)
    items = [item(0, 0), item(1, 0), item(2, 0)]
    queue.put(items)
    assert queue.drain(1, by_partition) == items[:1]
    assert queue.drain(2 * len(items[1].records), by_partition) == items[1:]
    assert queue.drain(1, by_partition) == []
    assert queue.size_bytes == 0


def test_partitions_of_the_same_readers_stand_together_and_each_keeps_its_order() -> None:
    queue = RemoteSegmentQueue(10, 1_000_000)
    queue.put([item(1, 0), item(0, 0), item(2, 0), item(1, 6), item(0, 6)])
    drained = queue.drain(1_000_000, by_pairs)
    places = [(one.topic_id_partition.partition, one.first_offset) for one in drained]
    assert places == [(0, 0), (0, 6), (2, 0), (1, 0), (1, 6)]
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_where_two_objects_are_made_each_is_of_partitions_that_stand_together_and_the_oldest_goes_first() -> None:
    queue = RemoteSegmentQueue(10, 1_000_000)
    queue.put([item(1, 0), item(0, 0), item(1, 6), item(2, 0)])
    half = 2 * len(item(1, 0).records)
    first, second = queue.drain(half, by_pairs), queue.drain(half, by_pairs)
    assert [(one.topic_id_partition.partition, one.first_offset) for one in first] == [(1, 0), (1, 6)]
    assert [one.topic_id_partition.partition for one in second] == [0, 2]
    assert queue.size_bytes == 0


def test_none_waits_for_ever_however_much_comes_of_others() -> None:
    queue = RemoteSegmentQueue(1000, 1_000_000)
    queue.put([item(0, 0), item(1, 0), item(2, 0)])
    taken = set[int]()
    for turn in range(1, 4):
        taken |= {one.topic_id_partition.partition for one in queue.drain(1, by_pairs)}
        queue.put([item(0, 6 * turn)])
    assert taken == {0, 1, 2}


def test_a_single_batch_above_the_bound_is_taken_and_leaves_no_room() -> None:
    queue = RemoteSegmentQueue(1, 10)
    queue.put([item(0, 0)])
    assert (queue.free_items, queue.free_bytes) == (0, 0)


@given(st.data())
def test_whatever_uploads_fail_in_whatever_order_each_partitions_order_stays(data: st.DataObject) -> None:
    queue = RemoteSegmentQueue(1000, 10_000_000)
    next_offset = [0, 0, 0]
    in_flight: list[list[MetaQueueItem]] = []
    taken: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["put", "drain", "fail", "finish"]))
        if action == "put":
            number = data.draw(st.integers(0, 2))
            queue.put([item(number, next_offset[number])])
            next_offset[number] += 6
        elif action == "drain":
            in_flight.append(queue.drain(data.draw(st.sampled_from([1, 400, 10_000])), by_pairs))
        elif in_flight:
            upload = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            if action == "fail":
                queue.put_back(upload)
            else:
                for stored in upload:
                    taken[stored.topic_id_partition.partition].append(stored.first_offset)
    for upload in in_flight:
        queue.put_back(upload)
    size = queue.size_bytes
    left = queue.drain(10**9, by_partition)
    assert size == sum(len(kept.records) for kept in left)
    for number in range(3):
        offsets = [kept.first_offset for kept in left if kept.topic_id_partition.partition == number]
        assert offsets == sorted(offsets)
        assert sorted(offsets + taken[number]) == list(range(0, next_offset[number], 6))
