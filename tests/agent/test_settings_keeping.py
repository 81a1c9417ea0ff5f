"""What an agent writes into the settings topic: its registration, what a lost topic held, what topics inherit."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent import settings_keeping
from agent.settings.upload_settings import StorageSettings
from agent.settings_keeping import Records, SettingsKeeping, inherited
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError, TopicSettingsError
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import AGENTS, PATTERNS, PAUSES, TOPICS, Kind, longest_first
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import (
    FILE,
    OWN,
    AgentRegistration,
    LinkPolicy,
    TopicSettings,
    check_pattern,
)
from metadata_topic.topic.topic_follower import FollowSettings
from tests.metadata_topic.fake_topic import FakeTopic
from tests.metadata_topic.settings_samples import PAUSE

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
ENABLED, NOTHING = TopicSettings(enable=True), TopicSettings(origin=FILE)
BY_FILE = TopicSettings(enable=True, origin=FILE)
QUICK = FollowSettings(batch_wait_ms=5, retry_pause_ms=1, request_timeout_ms=100)
REGISTERED = AgentRegistration(1, 5, "", "1", 0, peer_address="10.0.0.1:19090")
PATIENCE_S = 10.0


def file(**keys: str) -> StorageSettings:
    return StorageSettings.model_validate(
        {f"remote.wal.storage.{key.replace('_', '.')}": one for key, one in keys.items()}
    )


class Rig:
    """The settings topic, and the agent of broker 1."""

    def __init__(self, state_directory: Path) -> None:
        self.topic, self.state_directory = FakeTopic(), state_directory
        self.failures, self.now_s = 0, 0.0
        self.is_fenced = False
        self.start()

    def start(self, keys: Mapping[str, str] | None = None, broker_id: int = 1) -> None:
        client, memory = KafkaClientConfig("nowhere:1"), SettingsMemory(self.state_directory)
        self.reader = SettingsReader(client, consumer_factory=self.topic.consumer, settings=QUICK, memory=memory)
        self.keeping = SettingsKeeping(
            self.reader, self._write, lambda: replace(REGISTERED, broker_id=broker_id), (broker_id, 5),
            file(**keys or {}), lambda: self.is_fenced, lambda: self.now_s,
        )  # fmt: skip
        self.reader.start()
        assert self.reader.wait_until_ready(PATIENCE_S)

    def restart(self, keys: Mapping[str, str] | None = None, broker_id: int = 1) -> None:
        self.reader.close()
        self.start(keys, broker_id)

    def _write(self, records: Records) -> None:
        if self.failures:
            self.failures -= 1
            raise MetadataTopicError("write setting", "agent:1", "not acknowledged within 30 s")
        for key, value in records.items():
            self.topic.append(key, value)

    def put(self, kind: Kind[Any, Any], name: Any, value: Any) -> None:
        self.topic.append(kind.key(name), None if value is None else kind.encode(value))
        self.read()

    @property
    def written(self) -> int:
        """How many records the topic has."""
        return len(self.topic.partitions[0])

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.keeping.look()
            self.read()

    def lose_topic(self) -> None:
        """Delete the topic and create it again."""
        with self.topic.changed:
            self.topic.partitions, self.topic.topic_id = (
                [[]],
                TopicId(bytes([(self.topic.topic_id or b"a")[0] + 1]) * 16),
            )

    def read(self) -> None:
        """Wait until the reader knows all that is in the topic."""
        assert self.reader.read_to_end(PATIENCE_S)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.reader.close()


# Registration.


async def test_an_agent_registers_once_and_what_was_not_written_at_the_next_look(rig: Rig) -> None:
    rig.failures = 2
    for written in (0, 0, 1, 1):
        await rig.look()
        assert rig.written == written
    assert rig.reader.agents == {1: REGISTERED}


async def test_an_older_incarnations_late_record_is_replaced_and_a_newer_ones_stays(rig: Rig) -> None:
    await rig.look()
    rig.put(AGENTS, 1, replace(REGISTERED, incarnation=4))
    await rig.look()
    assert rig.written == 3
    rig.put(AGENTS, 1, replace(REGISTERED, incarnation=6))
    await rig.look()
    assert rig.written == 4


async def test_a_broker_that_was_removed_stays_removed(rig: Rig) -> None:
    await rig.look()
    rig.put(AGENTS, 1, replace(REGISTERED, peer_address=None, is_gone=True))
    await rig.look()
    assert rig.written == 2


async def test_a_fenced_agent_does_not_register(rig: Rig) -> None:
    rig.is_fenced = True
    await rig.look()
    assert rig.written == 0


# A lost topic.


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_a_lost_topic_held_is_written_again_and_nothing_is_inherited_meanwhile(
    rig: Rig, restarts: bool
) -> None:
    durable = TopicSettings(True, durable=True, origin="pattern pay.*")
    rig.restart({"enable": "true"})
    rig.put(PATTERNS, "pay.*", TopicSettings(True, durable=True))
    rig.put(PAUSES, "all", PAUSE)
    rig.keeping.set_led({"payments": NEW})
    await rig.look(3)
    assert rig.reader.topics == {"payments": replace(durable, topic_id=NEW)}
    before = rig.reader.table
    rig.lose_topic()
    rig.restart({"enable": "true"}) if restarts else rig.read()
    rig.keeping.set_led({"payments": NEW, "clicks": NEW})
    assert rig.reader.memory.is_lost
    assert rig.reader.table == before, "what was known last counts"
    await rig.look()
    assert rig.reader.topics == before.topics
    await rig.look(3)
    assert not rig.reader.memory.restorations()
    before = replace(before, topics={**before.topics, "clicks": replace(BY_FILE, topic_id=NEW)})
    for _ in range(2):
        assert replace(rig.reader.table, restored={}) == before
        await rig.look()
        rig.restart()


async def test_no_agent_registers_in_a_lost_topic_before_all_is_put_back(rig: Rig) -> None:
    rig.put(AGENTS, 0, replace(REGISTERED, broker_id=0))
    rig.put(PATTERNS, "pay.*", TopicSettings(True, durable=True))
    rig.lose_topic()
    rig.read()
    await rig.look()
    assert rig.written == 0, "it has its turn later, and readers would take the topic for whole"
    rig.now_s += 2.0
    await rig.look(3)
    assert rig.reader.agents.keys() == {0, 1}


async def test_agents_take_turns_to_restore(rig: Rig) -> None:
    rig.put(AGENTS, 0, replace(REGISTERED, broker_id=0))
    rig.put(PAUSES, "all", PAUSE)
    await rig.look()
    rig.lose_topic()
    rig.read()
    await rig.look()
    assert rig.written == 0
    rig.now_s += 2.0
    await rig.look(2)
    assert rig.written == 4  # three values, and that they are restored


async def test_nothing_is_restored_while_the_topic_cannot_be_read_to_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_keeping, "_READ_TIMEOUT_S", 0.02)
    await rig.look()
    rig.lose_topic()
    rig.read()
    rig.topic.ends_are_told = False
    await rig.keeping.look()
    assert rig.written == 0


# What topics inherit.


def by(pattern: str, **settings: Any) -> dict[str, TopicSettings]:
    return {pattern: TopicSettings(enable=True, origin=f"pattern {pattern}", **settings)}


PATTERNS_KNOWN = by("orders-.*", link_policy=LinkPolicy.ALWAYS) | by("orders-eu-.*") | by("[a-z]+")


@pytest.mark.parametrize(
    ("topic", "keys", "wanted"),
    [
        ("Clicks", {}, NOTHING),
        ("Clicks", {"enable": "true"}, BY_FILE),
        ("Clicks", {"enable": "true", "topics_include": "Cl.*, X"}, BY_FILE),
        ("Clicks", {"enable": "true", "topics_include": "Cl"}, NOTHING),  # a whole name must match
        ("Clicks", {"enable": "true", "topics_exclude": "X,.*icks"}, NOTHING),
        ("Clicks", {"topics_include": "Clicks"}, NOTHING),
        ("Clicks", {"enable": "true", "topics_include": "Cl[a-z]{1,4},X"}, BY_FILE),  # a quantifier's comma is no other
        ("Clicks", {"enable": "true", "topics_exclude": "Z{,2}, [A-Za-z]{2,},X"}, NOTHING),
        ("clicks", {"enable": "true"}, PATTERNS_KNOWN["[a-z]+"]),
        ("orders-us-1", {}, PATTERNS_KNOWN["orders-.*"]),
        ("orders-eu-1", {}, PATTERNS_KNOWN["orders-eu-.*"]),  # the longest
    ],
)
def test_a_pattern_comes_before_the_file(topic: str, keys: dict[str, str], wanted: TopicSettings) -> None:
    assert inherited(topic, longest_first(PATTERNS_KNOWN), file(**keys)) == wanted


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a{2000}"])
def test_what_re2_does_not_understand_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"topics\.exclude`\s.*no regular expression"):
        file(topics_exclude=f"a,{pattern}")
    with pytest.raises(TopicSettingsError, match="no regular expression"):
        check_pattern(pattern)


@pytest.mark.timeout(60)
def test_no_topics_name_makes_matching_slow() -> None:
    assert inherited("a" * 249, by("([a-z0-9]+[.]?)*-orders"), file()) == NOTHING


ON = {"enable": "true"}
BOUND = replace(BY_FILE, topic_id=NEW)


@pytest.mark.parametrize(
    ("now", "keys", "wanted"),
    [
        (None, {}, None),
        (None, ON, BOUND),
        (BOUND, ON, None),
        (replace(BY_FILE, topic_id=OLD), ON, BOUND),  # a topic that is made anew inherits for itself
        (BOUND, {}, replace(NOTHING, topic_id=NEW)),
        (replace(ENABLED, topic_id=NEW, link_policy=LinkPolicy.ALWAYS), ON, None),
        (TopicSettings(origin=OWN, topic_id=NEW), ON, None),
        (TopicSettings(wal_retention_ms=5, topic_id=NEW), ON, None),
    ],
)
async def test_only_what_is_no_topics_own_word_is_changed(
    rig: Rig, now: TopicSettings | None, keys: dict[str, str], wanted: TopicSettings | None
) -> None:
    rig.restart(keys)
    rig.put(TOPICS, "clicks", now)
    rig.keeping.set_led({"clicks": NEW})
    await rig.look(3)
    assert rig.reader.topics.get("clicks") == (wanted or now)
    assert rig.written == (2 if wanted is None else 3)


async def test_a_changed_pattern_changes_its_topics_and_one_that_is_removed_leaves_them_to_the_file(rig: Rig) -> None:
    rig.keeping.set_led({"clicks": NEW, "__consumer_offsets": NEW, "__remote_wal_topic_settings": NEW})
    await rig.look()  # it registers
    archived, durable = replace(ENABLED, archive=True), replace(ENABLED, durable=True)
    for pattern, wanted in (
        (ENABLED, replace(ENABLED, origin="pattern c.*")),
        (archived, replace(archived, origin="pattern c.*")),
        (durable, replace(durable, origin="pattern c.*")),  # counts at once, and is written nevertheless
        (None, NOTHING),
    ):
        rig.put(PATTERNS, "c.*", pattern)
        written = rig.written
        await rig.look(2)
        assert rig.reader.topics == {"clicks": replace(wanted, topic_id=NEW)}
        assert rig.written == written + 1


async def test_what_is_inherited_and_could_not_be_written_is_tried_again(rig: Rig) -> None:
    rig.restart(ON)
    await rig.look()
    rig.keeping.set_led({"clicks": NEW})
    rig.failures = 1
    for known in ({}, {"clicks": BOUND}):
        await rig.look()
        assert rig.reader.topics == known
