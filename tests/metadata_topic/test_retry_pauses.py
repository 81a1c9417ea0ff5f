"""What fails is tried again after pauses that grow."""

import time

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.topic.topic_consumer import ConsumerLike
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower
from tests.metadata_topic.fake_topic import FakeTopic


def test_a_topic_that_is_made_only_now_is_looked_for_after_such_pauses() -> None:
    topic, made_s = FakeTopic(partitions=0), list[float]()

    def consumer(config: object) -> ConsumerLike:
        made_s.append(time.monotonic())
        if len(made_s) == 4:
            topic.partitions.append([])
        return topic.consumer(config)

    follower = TopicFollower(
        KafkaClientConfig("nowhere:1"),
        "t",
        lambda _records: None,
        FollowSettings(batch_wait_ms=10, retry_pause_ms=1000),
        consumer_factory=consumer,
    )
    follower.start()
    try:
        assert follower.wait_until_ready(10.0)
        assert follower.counters["consumer_restarts"] == 3
    finally:
        follower.close()
    assert all(
        after - before >= pause_s for before, after, pause_s in zip(made_s, made_s[1:4], (0.1, 0.2, 0.4), strict=False)
    )
