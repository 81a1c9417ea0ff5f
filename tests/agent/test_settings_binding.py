"""Settings that name no topic id are bound to the topic that has the name."""

from dataclasses import replace
from pathlib import Path

from agent.wiring.kafka_following import SettingsBinding
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from rlm.write_path.assignment import Assignment

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
ENABLED = TopicSettings(True)


def led(topic_id: TopicId, partition: int = 0) -> Assignment:
    return Assignment(TopicIdPartition(topic_id, partition), "orders", Path("orders"), LinkPolicy.COST, 20)


def test_the_leader_of_partition_0_binds_what_it_saw_twice() -> None:
    topics = {"orders": ENABLED}
    binding = SettingsBinding(lambda: topics, lambda _owners: None)
    binding.assigned([led(OLD)])
    assert binding.look() == {}  # a broker may tell of a deleted topic for a while
    binding.assigned([led(NEW)])
    assert binding.look() == {}
    assert binding.look() == {"orders": NEW}
    topics["orders"] = replace(ENABLED, topic_id=NEW)
    assert binding.look() == {}


def test_others_leave_it_to_that_leader() -> None:
    binding = SettingsBinding(lambda: {"orders": ENABLED}, lambda _owners: None)
    binding.assigned([led(OLD, partition=1)])
    assert [binding.look(), binding.look()] == [{}, {}]
