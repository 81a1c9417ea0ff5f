"""What is stored is ahead of the high watermark until every follower has asked for what comes after it."""

from prometheus_client import CollectorRegistry

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.leader.follower_offsets import WatermarkTimes
from rlm.write_path.metrics import StageTimes

PARTITION = TopicIdPartition(TopicId(b"w" * 16), 0)


def watermarks() -> WatermarkTimes:
    return WatermarkTimes(StageTimes(CollectorRegistry()))


def test_what_one_follower_lacks_is_ahead() -> None:
    times = watermarks()
    times.stored(PARTITION, 10, 1.0)
    assert times.any_ahead
    times.fetched(PARTITION, "a", 0, 1.0)
    times.fetched(PARTITION, "b", 10, 1.1)
    assert times.any_ahead
    times.fetched(PARTITION, "a", 10, 1.2)
    assert not times.any_ahead


def test_a_watermark_that_passes_without_a_follower_settles_what_it_lacks() -> None:
    times = watermarks()
    times.fetched(PARTITION, "slow", 0, 1.0)
    times.stored(PARTITION, 10, 1.0)
    times.stored(PARTITION, 20, 1.0)
    times.passed(PARTITION, 10, 1.1)
    assert times.any_ahead
    times.passed(PARTITION, 20, 1.2)
    assert not times.any_ahead


def test_nothing_of_a_partition_that_is_led_elsewhere_is_ahead() -> None:
    times = watermarks()
    times.stored(PARTITION, 10, 1.0)
    times.drop(PARTITION)
    times.drop(PARTITION)
    assert not times.any_ahead
