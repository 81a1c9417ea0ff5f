"""Reading to where a topic ends now: what was there when it was asked for is taken in, or the answer is no."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.polling import wait_until
from metadata_topic.topic.topic_follower import FollowSettings, ReadBarriers, TopicFollower, TopicRecord
from tests.metadata_topic.fake_topic import FakeTopic

QUICK = FollowSettings(batch_records=10, batch_wait_ms=10, retry_pause_ms=1, new_partitions_check_ms=10)


class Taking:
    """Takes records in when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.is_held = threading.Event()
        self.taken: list[TopicRecord] = []

    def __call__(self, records: Sequence[TopicRecord]) -> None:
        if not self.may.is_set():
            self.is_held.set()
        assert self.may.wait(60.0)
        self.taken += records


def test_it_waits_for_what_is_in_the_topic_and_not_taken_in() -> None:
    topic, taking = FakeTopic(partitions=2), Taking()
    follower = TopicFollower(KafkaClientConfig("nowhere:1"), "topic", taking, QUICK, None, topic.consumer)
    follower.start()
    assert follower.wait_until_ready(10.0)
    taking.may.clear()
    topic.append(b"k", b"1", 1)
    assert taking.is_held.wait(60.0)
    topic.append(b"k", b"2", 0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(follower.read_to_end, 10.0)
        assert follower.ready  # caught up once, and behind now
        assert not asked.done()
        taking.may.set()
        assert asked.result(60.0)
    assert {record.value for record in taking.taken} == {b"1", b"2"}
    follower.close()


def test_it_says_no_when_time_runs_out_or_nobody_tells_where_the_topic_ends() -> None:
    topic, taking = FakeTopic(), Taking()
    follower = TopicFollower(KafkaClientConfig("nowhere:1"), "topic", taking, QUICK, None, topic.consumer)
    follower.start()
    assert follower.wait_until_ready(10.0)
    topic.ends_are_told = False
    assert not follower.read_to_end(0.1)
    topic.ends_are_told = True
    assert follower.read_to_end(10.0)
    taking.may.clear()
    topic.append(b"k", b"1")
    assert not follower.read_to_end(0.02)
    taking.may.set()
    follower.close()


def serve_who_asks(barriers: ReadBarriers, ends: Mapping[int, int], positions: Mapping[int, int]) -> None:
    """Serve once somebody waits whom nobody has told of the ends yet."""
    told = []

    def end_offsets() -> Mapping[int, int]:
        told.append(ends)
        return ends

    def served() -> bool:
        barriers.serve(end_offsets, positions)
        return bool(told)

    wait_until(served, "somebody waits")


def test_a_request_made_after_the_ends_were_told_has_ends_of_its_own() -> None:
    barriers = ReadBarriers()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(barriers.wait, 10.0)
        serve_who_asks(barriers, {0: 5}, {0: 4})
        second = pool.submit(barriers.wait, 10.0)
        serve_who_asks(barriers, {0: 7}, {0: 5})
        assert first.result(60.0)
        assert not second.done()
        barriers.serve(lambda: {0: 99}, {0: 7})
        assert second.result(60.0)


def test_whoever_waits_when_reading_ends_is_told_no_at_once() -> None:
    topic, taking = FakeTopic(), Taking()
    follower = TopicFollower(KafkaClientConfig("nowhere:1"), "topic", taking, QUICK, None, topic.consumer)
    follower.start()
    assert follower.wait_until_ready(10.0)
    topic.ends_are_told = False
    asked_before = topic.ends_asked
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(follower.read_to_end, 3600.0)
        wait_until(lambda: topic.ends_asked > asked_before, "it waits")
        follower.close()
        assert asked.result(60.0) is False
    assert follower.read_to_end(3600.0) is False
