"""What is stored is timed until every follower has asked for what comes after it."""

import pytest
from prometheus_client import CollectorRegistry

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.leader.follower_offsets import WatermarkTimes
from rlm.write_path.metrics import StageTimes

PARTITION = TopicIdPartition(TopicId(b"w" * 16), 0)


class Times(StageTimes):
    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.taken_s: list[float] = []

    def observe(self, stage: str, seconds: float) -> None:
        assert stage == "high_watermark"
        self.taken_s.append(seconds)


def watermarks() -> tuple[WatermarkTimes, list[float]]:
    stages = Times()
    return WatermarkTimes(stages), stages.taken_s


def test_what_one_follower_lacks_is_ahead() -> None:
    times, taken_s = watermarks()
    times.stored(PARTITION, 10, 1.0)
    times.fetched(PARTITION, "a", 0, 1.0)
    times.fetched(PARTITION, "b", 10, 1.1)
    assert not taken_s
    times.fetched(PARTITION, "a", 10, 1.2)
    assert taken_s == pytest.approx([0.2])


def test_a_watermark_that_passes_without_a_follower_settles_what_it_lacks() -> None:
    times, taken_s = watermarks()
    times.fetched(PARTITION, "slow", 0, 1.0)
    times.stored(PARTITION, 10, 1.0)
    times.stored(PARTITION, 20, 1.0)
    times.passed(PARTITION, 10, 1.1)
    assert taken_s == pytest.approx([0.1])
    times.passed(PARTITION, 20, 1.2)
    assert taken_s == pytest.approx([0.1, 0.2])


def test_nothing_of_a_partition_that_is_led_elsewhere_is_ahead() -> None:
    times, taken_s = watermarks()
    times.stored(PARTITION, 10, 1.0)
    times.drop(PARTITION)
    times.drop(PARTITION)
    times.passed(PARTITION, 10, 1.1)
    assert not taken_s
