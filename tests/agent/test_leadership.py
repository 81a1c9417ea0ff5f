"""Which partitions an agent takes care of."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from agent.leadership import (
    LeadershipReader,
    LeadershipWatch,
    LedByTopic,
    LocalReplicas,
    TopicDefaults,
    assignments,
    followers_of,
)
from kafka_log.log_directory import LogDirectory, PartitionDirectory
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL, NO_LIMIT, WalRetention
from replication.leader.zones import RemoteReaders, Zones

OLD_ID, NEW_ID, OTHER_ID = (TopicId(letter * 16) for letter in (b"o", b"n", b"x"))


HOUR = TopicDefaults(20, WalRetention())


def directory(topic: str, number: int, topic_id: TopicId = NEW_ID) -> PartitionDirectory:
    return PartitionDirectory(topic, number, topic_id, Path(f"/logs/{topic}-{number}"))


def led_here(*partitions: int, followers: frozenset[int] = frozenset({2, 3})) -> dict[int, frozenset[int]]:
    return dict.fromkeys(partitions, followers)


def test_only_led_partitions_of_enabled_topics_with_a_directory_are_taken_on() -> None:
    led = {"on": led_here(0, 2, 7), "off": led_here(0), "unknown": led_here(0), "idle": led_here()}
    topics = {"on": TopicSettings(True, LinkPolicy.ALWAYS, 5), "off": TopicSettings(False), "idle": TopicSettings(True)}
    directories = [directory("on", n) for n in (0, 1, 2)]
    directories += [directory(topic, 0, OTHER_ID) for topic in ("off", "unknown", "idle", "gone from metadata")]
    found = assignments(led, SettingsTable(topics), directories, HOUR, Zones())
    assert [(a.topic, a.topic_id_partition) for a in found] == [
        ("on", TopicIdPartition(NEW_ID, 0)),
        ("on", TopicIdPartition(NEW_ID, 2)),
    ]
    assert {(a.link_policy, a.latency_bound_ms) for a in found} == {(LinkPolicy.ALWAYS, 5)}
    assert found[1].directory == Path("/logs/on-2")


def test_a_new_topic_is_taken_on_by_its_pattern_before_its_settings_are_a_record() -> None:
    table = SettingsTable(patterns={"pay.*": TopicSettings(True, durable=True)})
    (found,) = assignments({"payments": led_here(1)}, table, [directory("payments", 1)], HOUR, Zones())
    assert found.is_durable


def test_followers_are_known_of_all_that_is_led_with_the_feature_on_or_off() -> None:
    led = {"on": led_here(0, 1), "off": led_here(0, followers=frozenset()), "no directory": led_here(0)}
    directories = [directory("on", 1), directory("on", 2), directory("off", 0, OTHER_ID)]
    assert followers_of(led, directories) == {
        TopicIdPartition(NEW_ID, 1): frozenset({2, 3}),
        TopicIdPartition(OTHER_ID, 0): frozenset(),
    }


def test_the_id_comes_from_the_directory_so_that_a_topic_made_anew_is_another_one() -> None:
    led, topics = {"t": led_here(0)}, {"t": TopicSettings(True)}
    before = assignments(led, SettingsTable(topics), [directory("t", 0, OLD_ID)], HOUR, Zones())
    after = assignments(led, SettingsTable(topics), [directory("t", 0, NEW_ID)], HOUR, Zones())
    assert before[0].topic_id_partition != after[0].topic_id_partition


def test_a_replica_is_here_until_its_directory_is_another_topics(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    path, replicas = tmp_path / "t-0" / "partition.metadata", LocalReplicas([LogDirectory(tmp_path)])
    path.write_text(f"version: 0\ntopic_id: {topic_id_to_text(OLD_ID)}\n")
    assert not replicas.is_here(TopicIdPartition(OLD_ID, 0)), "not seen yet"
    replicas.look()
    assert replicas.is_here(TopicIdPartition(OLD_ID, 0))
    path.write_text(f"version: 0\ntopic_id: {topic_id_to_text(NEW_ID)}\n")
    assert not replicas.is_here(TopicIdPartition(OLD_ID, 0))
    path.unlink()
    assert not replicas.is_here(TopicIdPartition(OLD_ID, 0)), "the broker is about to write it"


def test_a_topic_without_a_latency_bound_takes_the_agents() -> None:
    topics = {"t": TopicSettings(True, LinkPolicy.COST)}
    found = assignments(
        {"t": led_here(0)}, SettingsTable(topics), [directory("t", 0)], TopicDefaults(33, WalRetention()), Zones()
    )
    assert found[0].latency_bound_ms == 33


def test_the_followers_that_count_are_those_of_other_zones_as_the_cluster_tells_now() -> None:
    zones, topics = Zones("az1"), {"t": TopicSettings(True)}
    led = {"t": {0: frozenset({2, 3}), 1: frozenset({2}), 2: frozenset[int]()}}

    def counting() -> list[frozenset[int] | None]:
        found = assignments(led, SettingsTable(topics), [directory("t", number) for number in range(3)], HOUR, zones)
        return [assignment.remote_followers for assignment in found]

    assert counting() == [{2, 3}, {2}, frozenset()], "of whom no zone is known, they count"
    zones.learned({2: "az1", 3: "az2"})
    assert counting() == [{3}, frozenset(), frozenset()]


@pytest.mark.parametrize(
    ("settings", "followers", "defaults", "kept"),
    [
        (TopicSettings(True), {2, 3}, HOUR, (False, 3600.0)),
        (TopicSettings(True, wal_retention_ms=60_000), {2, 3}, HOUR, (False, 60.0)),
        (TopicSettings(True), set[int](), HOUR, (True, 0.0)),
        (TopicSettings(True, archive=True), {2, 3}, HOUR, (True, 0.0)),
        (TopicSettings(True, durable=True), {2, 3}, HOUR, (True, 0.0)),
        (TopicSettings(True, wal_retention_ms=AS_LOCAL), {2, 3}, HOUR, (True, 0.0)),
        (TopicSettings(True), {2, 3}, TopicDefaults(20, WalRetention(AS_LOCAL)), (True, 0.0)),
        (TopicSettings(True), {2, 3}, TopicDefaults(20, WalRetention(NO_LIMIT)), (True, 0.0)),
    ],
)
def test_objects_are_for_links_alone_but_where_a_recovery_or_the_archive_wants_them_or_no_replica_is(
    settings: TopicSettings, followers: set[int], defaults: TopicDefaults, kept: tuple[bool, float]
) -> None:
    led = {"t": led_here(0, followers=frozenset(followers))}
    (found,) = assignments(led, SettingsTable({"t": settings}), [directory("t", 0)], defaults, Zones())
    assert (found.is_kept, found.object_life_s) == kept
    assert found.is_durable is settings.durable


class OneLeader:
    """As `LeadershipReader`, of a cluster in which nothing changes."""

    def led_partitions(self) -> LedByTopic:
        return {"t": {0: frozenset()}}

    def racks(self, _followers: frozenset[int]) -> dict[int, str | None]:
        return {}


async def test_an_agent_by_which_consumers_begin_to_read_counts_at_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(NEW_ID)}\n")
    changed = asyncio.Event()
    readers = RemoteReaders(lambda: 0.0, changed.set)
    zones = Zones("az1", readers)
    with ThreadPoolExecutor(1) as threads:
        watch = LeadershipWatch(
            lambda: SettingsTable({"t": TopicSettings(True)}),
            HOUR,
            LocalReplicas([LogDirectory(tmp_path)]),
            zones,
            lambda: False,
            threads,
            changed,
        )
        async with asyncio.timeout(60), aclosing(watch.looks(cast(LeadershipReader, OneLeader()), 1000.0)) as looks:
            [before] = (first := await anext(looks)).assignments
            changed.set()
            assert await anext(looks) is first, "nothing has changed"
            readers.read(before.topic_id_partition, 2)
            [after] = (await anext(looks)).assignments
    assert before.remote_followers == frozenset()
    assert zones.has_replica("az2", before.topic_id_partition) is False
    assert after.remote_followers == frozenset({2})
