"""Following Kafka's own metadata topic, which need not be there."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.kip405.kip405 import RemoteLogMetadata
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TierFollower
from metadata_topic.topic.topic_follower import FollowSettings
from tests.metadata_topic.fake_topic import FakeConsumer, FakeTopic
from tests.metadata_topic.kip405_writer import write
from tests.metadata_topic.test_tiered_offsets import NOTHING_TIERED, ORDERS, copied, started, up_to, update

QUICK = FollowSettings(
    batch_records=10, batch_wait_ms=10, retry_pause_ms=1, new_partitions_check_ms=10, absence_check_ms=5
)


class WatchedOffsets(TieredOffsets):
    def __init__(self) -> None:
        self.applied, self.begun = threading.Semaphore(0), threading.Semaphore(0)
        super().__init__()

    def start_over(self) -> None:
        super().start_over()
        self.begun.release()

    def apply_all(self, records: Iterable[RemoteLogMetadata]) -> None:
        records = list(records)
        super().apply_all(records)
        self.applied.release(len(records))

    def wait_for(self, records: int) -> None:
        for _ in range(records):
            assert self.applied.acquire(timeout=10)


class LookedForTopic(FakeTopic):
    """Absent at first; says when it was looked for."""

    def __init__(self) -> None:
        super().__init__(partitions=0)
        self.looked = threading.Semaphore(0)

    def consumer(self, config: object) -> FakeConsumer:
        self.consumers += 1
        return LookingConsumer(self)


class LookingConsumer(FakeConsumer):
    def __init__(self, topic: LookedForTopic) -> None:
        super().__init__(topic)
        self._looked = topic.looked

    def partition_count(self, topic: str, timeout_s: float) -> int:
        found = super().partition_count(topic, timeout_s)
        self._looked.release()
        return found


@contextmanager
def following(topic: FakeTopic) -> Iterator[tuple[TierFollower, WatchedOffsets]]:
    offsets = WatchedOffsets()
    follower = TierFollower(KafkaClientConfig("nowhere:1"), offsets, QUICK, consumer_factory=topic.consumer)
    follower.start()
    try:
        yield follower, offsets
    finally:
        follower.close()


def test_it_is_ready_when_all_that_the_topic_held_is_known_and_follows_then() -> None:
    topic = FakeTopic(partitions=3)
    for record in (*copied(1, 0, 9), *copied(2, 10, 19)):
        topic.append(None, write(record), partition=2)
    with following(topic) as (follower, offsets):
        assert follower.wait_until_ready(10.0)
        assert follower.is_there is True
        assert up_to(offsets) == 19
        offsets.wait_for(4)
        topic.append(None, write(started(3, 20, 29)), partition=2)
        topic.append(None, write(update(3)), partition=2)
        offsets.wait_for(2)
        assert up_to(offsets) == 29
    assert follower.positions == {0: 0, 1: 0, 2: 6}


def test_without_the_topic_it_is_ready_and_says_that_the_topic_is_not_there() -> None:
    topic = LookedForTopic()
    with following(topic) as (follower, offsets):
        assert follower.wait_until_ready(10.0)
        for _ in range(5):
            assert topic.looked.acquire(timeout=10)
        assert (follower.is_there, follower.ready, follower.positions) == (False, True, {})
        assert up_to(offsets) == NOTHING_TIERED
        assert topic.consumers == 1
        assert follower.counters == {}


def test_a_topic_that_appears_later_is_followed_from_its_beginning() -> None:
    topic = LookedForTopic()
    with following(topic) as (follower, offsets):
        assert follower.wait_until_ready(10.0)
        with topic.changed:
            topic.partitions.append([(None, write(record)) for record in copied(1, 0, 9)])
        offsets.wait_for(2)
        assert follower.wait_until_ready(10.0)
        assert follower.is_there is True
        assert up_to(offsets) == 9


@pytest.mark.parametrize("records_anew", [0, 1, 6], ids=["shorter", "as long", "longer"])
def test_nothing_counts_of_what_a_topic_said_that_was_made_again(records_anew: int) -> None:
    topic = FakeTopic()
    topic.append(None, write(copied(1, 0, 9)[0]))
    topic.append(None, write(copied(1, 0, 9)[1]))
    with following(topic) as (follower, offsets):
        assert follower.wait_until_ready(10.0)
        offsets.wait_for(2)
        assert up_to(offsets) == 9
        with topic.changed:
            topic.topic_id = TopicId(b"n" * 16)
            anew = [record for number in range(2, 5) for record in copied(number, 20, 29)]
            topic.partitions[0] = [(None, write(record)) for record in anew[:records_anew]]
            topic.changed.notify_all()
        for _ in ("at first", "anew"):
            assert offsets.begun.acquire(timeout=10)
        offsets.wait_for(records_anew)
        assert offsets.epoch_starts(ORDERS) == ({0: 20} if records_anew > 1 else {})


def test_nothing_is_known_of_the_topic_while_no_broker_answers() -> None:
    topic = FakeTopic(partitions=1)
    answer = threading.Event()
    asked = threading.Event()

    def consumer(config: object) -> FakeConsumer:
        asked.set()
        assert answer.wait(60)
        return topic.consumer(config)

    follower = TierFollower(KafkaClientConfig("nowhere:1"), TieredOffsets(), QUICK, consumer_factory=consumer)
    follower.start()
    try:
        assert asked.wait(60)
        assert (follower.is_there, follower.ready) == (None, False)
        answer.set()
        assert follower.wait_until_ready(10.0)
    finally:
        answer.set()
        follower.close()


def test_poison_is_passed_over_once() -> None:
    topic = FakeTopic()
    topic.append(b"key", b"hello")
    topic.append(None, None)
    for record in copied(1, 0, 9):
        topic.append(None, write(record))
    with following(topic) as (follower, offsets):
        assert follower.wait_until_ready(10.0)
        assert up_to(offsets) == 9
        assert offsets.counters == {"unknown_frame_version": 1, "unknown_no_value": 1}
        assert topic.reads == [(0, 0), (0, 1), (0, 2), (0, 3)]
