"""Pauses grow while a thing fails again and again, and are short again once it has worked for long enough."""

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.topic.topic_follower import FollowSettings, RetryPauses, TopicFollower
from tests.metadata_topic.fake_topic import FakeTopic


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def failures(pauses: RetryPauses, clock: Clock, count: int, worked_s: float = 0.0) -> list[float]:
    """The pauses, each of which is waited for; the thing works for so long after each."""
    waited = []
    for _ in range(count):
        waited.append(pauses.next_s())
        clock.now_s += waited[-1] + worked_s
    return waited


def test_they_grow_to_the_longest_and_no_further() -> None:
    pauses = RetryPauses(1.0, clock := Clock())
    assert failures(pauses, clock, 7) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


def test_what_fails_now_and_then_waits_for_a_moment_alone() -> None:
    pauses = RetryPauses(1.0, clock := Clock())
    failures(pauses, clock, 7)
    clock.now_s += 2.1
    assert failures(pauses, clock, 2) == pytest.approx([0.1, 0.2])
    assert failures(pauses, clock, 3, worked_s=2.1) == pytest.approx([0.4, 0.1, 0.1])


def test_what_works_for_a_moment_between_two_failures_is_not_tried_in_a_hurry() -> None:
    pauses = RetryPauses(1.0, clock := Clock())
    assert failures(pauses, clock, 6, worked_s=1.9)[-1] == 1.0


def test_a_topic_that_is_made_only_now_is_looked_for_after_such_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, asked = FakeTopic(partitions=0), list[float]()

    class Short(RetryPauses):
        def next_s(self) -> float:
            asked.append(super().next_s())
            if len(asked) == 3:
                topic.partitions.append([])
            return 0.0

    monkeypatch.setattr("metadata_topic.topic.topic_follower.RetryPauses", Short)
    settings = FollowSettings(batch_wait_ms=10, retry_pause_ms=60_000)
    follower = TopicFollower(
        KafkaClientConfig("nowhere:1"),
        "t",
        lambda _records: None,
        settings,
        consumer_factory=topic.consumer,
        clock=Clock(),
    )
    follower.start()
    try:
        assert follower.wait_until_ready(10.0)
    finally:
        follower.close()
    assert asked == [6.0, 12.0, 24.0]
