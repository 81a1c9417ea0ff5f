"""What metrics tell by topic."""

import math
from collections import Counter

from agent.metrics.topic_metrics import TopicCollector
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.metrics import PartitionTraffic
from rlm.write_path.core.led_partition import PartitionStatus


def test_the_largest_topics_are_told_each_with_all_its_partitions() -> None:
    status = {}
    traffic = {}
    for number, (topic, partition, lag, linked, inline) in enumerate(
        [("small", 0, 7, 1, 1), ("large", 0, 100, 500, 20), ("large", 1, 11, 400, 0), ("idle", 0, 0, 0, 0)]
    ):
        key = TopicIdPartition(TopicId(bytes([number]) * 16), partition)
        status[key] = PartitionStatus(topic, partition, 9, 8, lag, 1000 * lag, 0)
        if linked:
            traffic[key] = PartitionTraffic(
                linked, inline, inline // 2, reasons=+Counter(look=inline // 4, load=inline - inline // 4)
            )
    held_back: dict[str, float | None] = {"large": 0.02, "small": None, "idle": 1.0}
    told = [
        (one.name, *one.labels.values(), "unknown" if math.isnan(one.value) else one.value)
        for family in TopicCollector(lambda: status, lambda: traffic, lambda: held_back, 2).collect()
        for one in family.samples
    ]
    assert told == [
        ("remote_wal_topic_lag_bytes", "large", 111),
        ("remote_wal_topic_lag_bytes", "small", 7),
        ("remote_wal_topic_oldest_unstored_seconds", "large", 100),
        ("remote_wal_topic_oldest_unstored_seconds", "small", 7),
        ("remote_wal_topic_record_bytes_total", "large", "linked", "", 900),
        ("remote_wal_topic_record_bytes_total", "large", "inline", "look", 5),
        ("remote_wal_topic_record_bytes_total", "large", "inline", "load", 15),
        ("remote_wal_topic_record_bytes_total", "small", "linked", "", 1),
        ("remote_wal_topic_record_bytes_total", "small", "inline", "load", 1),
        ("remote_wal_topic_unsaved_bytes_total", "large", 10),
        ("remote_wal_topic_unsaved_bytes_total", "small", 0),
        ("remote_wal_topic_link_held_back_seconds", "large", 0.02),
        ("remote_wal_topic_link_held_back_seconds", "small", "unknown"),
    ]
