"""Which partitions an agent takes care of."""

from pathlib import Path

from agent.leadership import assignments
from kafka_log.log_directory import PartitionDirectory
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from replication.leader.zones import Zones

OLD_ID, NEW_ID, OTHER_ID = (TopicId(letter * 16) for letter in (b"o", b"n", b"x"))


def directory(topic: str, number: int, topic_id: TopicId = NEW_ID) -> PartitionDirectory:
    return PartitionDirectory(topic, number, topic_id, Path(f"/logs/{topic}-{number}"))


def led_here(*partitions: int, followers: frozenset[int] = frozenset({2, 3})) -> dict[int, frozenset[int]]:
    return dict.fromkeys(partitions, followers)


def test_only_led_partitions_of_enabled_topics_with_a_directory_are_taken_on() -> None:
    led = {"on": led_here(0, 2, 7), "off": led_here(0), "unknown": led_here(0), "idle": led_here()}
    topics = {"on": TopicSettings(True, LinkPolicy.ALWAYS, 5), "off": TopicSettings(False), "idle": TopicSettings(True)}
    directories = [directory("on", n) for n in (0, 1, 2)]
    directories += [directory(topic, 0, OTHER_ID) for topic in ("off", "unknown", "idle", "gone from metadata")]
    found = assignments(led, topics, directories, 20, Zones())
    assert [(a.topic, a.topic_id_partition) for a in found] == [
        ("on", TopicIdPartition(NEW_ID, 0)),
        ("on", TopicIdPartition(NEW_ID, 2)),
    ]
    assert {(a.link_policy, a.latency_bound_ms) for a in found} == {(LinkPolicy.ALWAYS, 5)}
    assert found[1].directory == Path("/logs/on-2")


def test_the_id_comes_from_the_directory_so_that_a_topic_made_anew_is_another_one() -> None:
    led, topics = {"t": led_here(0)}, {"t": TopicSettings(True)}
    before = assignments(led, topics, [directory("t", 0, OLD_ID)], 20, Zones())
    after = assignments(led, topics, [directory("t", 0, NEW_ID)], 20, Zones())
    assert before[0].topic_id_partition != after[0].topic_id_partition


def test_a_topic_without_a_latency_bound_takes_the_agents() -> None:
    topics = {"t": TopicSettings(True, LinkPolicy.LATENCY)}
    found = assignments({"t": led_here(0)}, topics, [directory("t", 0)], 33, Zones())
    assert found[0].latency_bound_ms == 33


def test_the_followers_that_count_are_those_of_other_zones_as_the_cluster_tells_now() -> None:
    zones, topics = Zones("az1"), {"t": TopicSettings(True)}
    led = {"t": {0: frozenset({2, 3}), 1: frozenset({2}), 2: frozenset[int]()}}

    def counting() -> list[frozenset[int] | None]:
        found = assignments(led, topics, [directory("t", number) for number in range(3)], 20, zones)
        return [assignment.remote_followers for assignment in found]

    assert counting() == [{2, 3}, {2}, frozenset()], "of whom no zone is known, they count"
    zones.learned({2: "az1", 3: "az2"})
    assert counting() == [{3}, frozenset(), frozenset()]
