"""A consumer that stands still is told from one that is slow, and from one that is up to date."""

import threading
from collections.abc import Sequence

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.polling import wait_until
from metadata_topic.topic.topic_follower import FollowSettings, StallWatch, TopicFollower, TopicRecord
from tests.metadata_topic.fake_topic import FakeTopic


def test_standing_still_short_of_an_earlier_end_is_a_stall() -> None:
    watch = StallWatch(20.0, 0.0)
    assert watch.find_stalled({0: 5, 1: 7}, {0: 5, 1: 9}, 0.0) is None
    assert watch.find_stalled({0: 5, 1: 7}, {0: 6, 1: 9}, 20.0) == 1


def test_an_end_that_grew_since_the_last_look_says_nothing_yet() -> None:
    watch = StallWatch(20.0, 0.0)
    assert watch.find_stalled({0: 5}, {0: 5}, 0.0) is None
    assert watch.find_stalled({0: 5}, {0: 8}, 20.0) is None
    assert watch.find_stalled({0: 5}, {0: 8}, 40.0) == 0


def test_a_slow_reader_does_not_stall() -> None:
    watch = StallWatch(20.0, 0.0)
    assert [watch.find_stalled({0: n}, {0: 1000}, 20.0 * n) for n in range(10)] == [None] * 10


def test_without_ends_nothing_is_concluded() -> None:
    watch = StallWatch(20.0, 0.0)
    assert watch.find_stalled({0: 5}, {}, 0.0) is None
    assert watch.find_stalled({0: 5}, {0: 9}, 20.0) is None
    assert watch.find_stalled({0: 5}, {}, 40.0) == 0


def test_looks_are_due_at_the_interval() -> None:
    watch = StallWatch(20.0, 0.0)
    assert not watch.is_due(19.0)
    assert watch.is_due(20.0)
    watch.find_stalled({}, {}, 25.0)
    assert not watch.is_due(44.0)
    assert watch.is_due(45.0)


def test_a_consumer_that_stalls_is_made_anew_and_goes_on_where_it_stood() -> None:
    topic = FakeTopic(partitions=2)
    topic.append(b"k", b"0", partition=1)
    taken: list[TopicRecord] = []
    arrived = threading.Semaphore(0)

    def take(records: Sequence[TopicRecord]) -> None:
        taken.extend(records)
        for _ in records:
            arrived.release()

    settings = FollowSettings(batch_wait_ms=5, retry_pause_ms=1, stall_check_ms=10)
    follower = TopicFollower(KafkaClientConfig("nowhere:1"), "t", take, settings, consumer_factory=topic.consumer)
    follower.start()
    try:
        assert arrived.acquire(timeout=10)
        wait_until(lambda: topic.consumers == 2, "the patient consumer is there", 10.0, interval_s=0.01)
        with topic.changed:
            topic.stalled.add(1)
        topic.append(b"k", b"1", partition=1)
        assert arrived.acquire(timeout=10)
    finally:
        follower.close()
    assert [(record.partition, record.offset) for record in taken] == [(1, 0), (1, 1)]
    assert follower.counters["stalls"] == 1
    assert topic.consumers == 3
