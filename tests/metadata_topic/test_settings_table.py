"""The settings topic's values: what is written, read, refused, and how topics without a record are treated."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic
from kafka_log.topic_partition import TopicId
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TierFollower
from metadata_topic.records.errors import MetadataTopicError, TopicSettingsError
from metadata_topic.settings import patterns
from metadata_topic.settings.setting_keys import FIELDS, changed_settings, text_of
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import (
    AGENTS,
    KINDS,
    PATTERNS,
    PAUSES,
    RESTORED,
    TOPICS,
    Key,
    Kind,
    MalformedSettingError,
    Place,
    SettingsTable,
    parse_key,
    table_of,
)
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter, orphaned_settings, read_settings
from metadata_topic.settings.topic_settings import (
    FILE,
    INTERNAL_TOPICS,
    OWN,
    LinkPolicy,
    TopicSettings,
    check_topic,
    settings_of,
)
from metadata_topic.topic.topic_consumer import MessageLike
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord
from tests.metadata_topic.fake_topic import FakeConsumer, FakeTopic
from tests.metadata_topic.settings_samples import AGENT, BY_KIND, DURABLE, PAUSE, record

NOWHERE = KafkaClientConfig("nowhere:1")
QUICK = FollowSettings(batch_wait_ms=10, retry_pause_ms=1)
ON = TopicSettings(enable=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix)
@pytest.mark.parametrize("place", [None, Place("0f" * 16, 7)])
def test_values_of_every_kind_are_read_as_written(kind: Kind[Any, Any], place: Place | None) -> None:
    name, *values = BY_KIND[kind]
    assert parse_key(kind.key(name)) == (kind, name)
    for value in (*values, None):
        assert kind.decode(kind.encode(value, place)) == (value, place)


@given(
    st.builds(
        TopicSettings,
        st.booleans(),
        st.sampled_from(LinkPolicy),
        st.none() | st.integers(1, 2**40),
        st.booleans(),
        st.none() | st.integers(-2, 2**40),
        topic_id=st.none() | st.binary(min_size=16, max_size=16).map(TopicId),
        origin=st.text(),
    )
)
def test_topic_settings_are_read_as_written(wanted: TopicSettings) -> None:
    assert TOPICS.decode(TOPICS.encode(wanted)) == (wanted, None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix)
def test_another_version_and_unknown_fields_are_refused(kind: Kind[Any, Any]) -> None:
    fields = json.loads(kind.encode(BY_KIND[kind][1]))
    with pytest.raises(MalformedSettingError, match="version"):
        kind.decode(json.dumps({**fields, "version": 2}).encode())
    with pytest.raises(MalformedSettingError, match="version"):
        kind.decode(json.dumps({name: value for name, value in fields.items() if name != "version"}).encode())
    with pytest.raises(MalformedSettingError, match="newer"):
        kind.decode(json.dumps({**fields, "newer": 1}).encode())


def _valued(**fields: object) -> bytes:
    return json.dumps({"version": 1, "value": fields}).encode()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TOPICS, b"not json"),
        (TOPICS, b"[" * 100_000),
        (TOPICS, b"null"),
        (TOPICS, b"\xff\xfe"),
        (TOPICS, _valued(enable="yes")),
        (TOPICS, _valued(archive=1)),
        (TOPICS, _valued(link_policy="sometimes")),
        (TOPICS, _valued(link_policy=["cost"])),
        (TOPICS, _valued(link_latency_bound_ms=True)),
        (TOPICS, _valued(wal_retention_ms=-3)),
        (TOPICS, _valued(wal_retention_ms="3600000")),
        (TOPICS, _valued(topic_id="0f")),
        (TOPICS, _valued(topic_id="no number")),
        (TOPICS, _valued(enabled=True)),
        (AGENTS, _valued(broker_id=3)),
        (PAUSES, _valued(by="anna", since_ms="today", reason="")),
        (PAUSES, _valued(by="anna", since_ms=10**18, reason="")),
    ],
)
def test_a_value_without_meaning_is_refused(kind: Kind[Any, Any], value: bytes) -> None:
    with pytest.raises(MalformedSettingError):
        kind.decode(value)


@pytest.mark.parametrize(
    "key",
    [None, b"orders", b"topic:", b"topic:__consumer_offsets", b"topic:a/../b", b"\xff\xfe", b"agent:x", b"pattern:(",
     b"pause:broker:", b"pause:local", b"pause:moon:1", b"tail:orders", b"tail:../t:0", b"tail:t:x", b"lease:a"],
)  # fmt: skip
def test_a_key_without_meaning_is_refused(key: bytes | None) -> None:
    with pytest.raises(MalformedSettingError):
        parse_key(key)


@pytest.mark.parametrize("topic", [*sorted(INTERNAL_TOPICS), "", ".", "..", "a b", "x" * 250, "orders\n"])
def test_internal_topics_and_impossible_names_cannot_be_enabled(topic: str) -> None:
    with pytest.raises(TopicSettingsError):
        check_topic(topic)


def _read(*records: TopicRecord) -> tuple[SettingsTable, int]:
    memory = SettingsMemory()
    memory.apply_all(records)
    return memory.table(is_read=True), memory.malformed


def test_a_record_that_cannot_be_read_changes_nothing_that_is_known_and_else_the_strictest_counts() -> None:
    bad = b'{"version": 2, "value": {}}'
    known = [record(at, kind, name, value) for at, (kind, (name, value, _)) in enumerate(BY_KIND.items())]
    wrong = [TopicRecord(0, 100 + at, kind.key(name), bad) for at, (kind, (name, *_)) in enumerate(BY_KIND.items())]
    assert _read(*known, *wrong) == (_read(*known)[0], len(KINDS))
    alone, malformed = _read(*wrong)
    assert malformed == len(KINDS)
    assert alone.topics["orders"].is_durable
    assert alone.patterns["pay.*"].is_durable
    assert alone.pauses.keys() == {"zone:az-1"}
    assert not alone.leases
    assert _read(TopicRecord(0, 0, b"moon:1", bad)) == (SettingsTable(), 1)


def test_a_topics_own_settings_stay_when_what_it_inherits_comes_behind_them() -> None:
    own, inherited = replace(DURABLE, archive=False), replace(DURABLE, archive=True, origin=FILE)
    assert _read(record(0, TOPICS, "orders", own), record(1, TOPICS, "orders", inherited))[0].topics == {"orders": own}
    other = replace(inherited, topic_id=TopicId(b"n" * 16))  # the topic was deleted and made again
    assert _read(record(0, TOPICS, "orders", own), record(1, TOPICS, "orders", other))[0].topics == {"orders": other}


OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
OF_OLD = replace(DURABLE, topic_id=OLD)


def test_a_topic_made_anew_has_no_settings_of_the_one_before_it() -> None:
    assert settings_of({"orders": OF_OLD}, "orders", OLD) == OF_OLD
    assert settings_of({"orders": OF_OLD}, "orders", NEW) is None


def test_a_topic_without_a_record_is_treated_by_the_strictest_pattern_that_matches_it() -> None:
    patterns = {"pay.*": replace(ON, durable=True), "payments-.*": replace(ON, archive=True), "off-.*": TopicSettings()}
    own = replace(ON, topic_id=OLD)
    table, _ = _read(
        *(record(at, PATTERNS, pattern, its) for at, (pattern, its) in enumerate(patterns.items())),
        record(8, TOPICS, "pay-file", TopicSettings(enable=True, origin=FILE, topic_id=NEW)),
        record(9, TOPICS, "payments-old", own),
    )

    def of(topic: str, topic_id: TopicId | None = NEW) -> TopicSettings | None:
        return table.of(topic, topic_id)

    assert of("payments-new") == replace(patterns["pay.*"], origin="pattern pay.*")
    assert of("payments-old", OLD) == of("payments-old", None) == own
    assert of("payments-old") == of("payments-new"), "it was made again"
    assert of("pay-file") == replace(of("pay-new") or ON, topic_id=NEW), "who read the file knew no pattern"
    assert of("off-1") == TopicSettings(origin="pattern off-.*")
    assert (of("orders"), of("__consumer_offsets")) == (None, None)
    assert table.is_any_durable


def test_a_topic_is_durable_once_its_pattern_is_before_its_agent_has_written_that() -> None:
    inherited = {name: replace(ON, origin="pattern pay.*", topic_id=OLD) for name in ("pay-1", "pay-off-1")}
    table, _ = _read(
        *(record(at, TOPICS, name, its) for at, (name, its) in enumerate(inherited.items())),
        record(2, PATTERNS, "pay-off-.*", ON),
        record(3, PATTERNS, "pay.*", DURABLE),
    )
    durable = replace(DURABLE, origin="pattern pay.*", topic_id=OLD)
    assert (table.of("pay-1", OLD), table.may_be_durable("pay-1")) == (durable, True)
    assert table.of("pay-off-1", OLD) == inherited["pay-off-1"], "a longer pattern counts, as for its agent"
    assert table.outdated == {"pay-1"}


def test_settings_are_the_topics_own_unless_they_say_where_from() -> None:
    origins = ("", OWN, FILE, "pattern a")
    assert [TopicSettings(True, origin=one).is_inherited for one in origins] == [False, False, True, True]
    assert [TopicSettings(origin=one).is_own for one in origins[:3]] == [False, True, False]


def test_settings_whose_topic_is_gone_are_told_apart() -> None:
    topics = dict.fromkeys(("anew", "gone", "hidden", "there"), OF_OLD)
    described = [
        DescribedTopic("anew", 0, NEW),
        DescribedTopic("gone", UNKNOWN_TOPIC_OR_PARTITION),
        DescribedTopic("hidden", TOPIC_AUTHORIZATION_FAILED),
        DescribedTopic("there", 0, OLD),
    ]
    assert orphaned_settings(topics, described).keys() == {"anew", "gone"}


def test_who_paused_when_and_how_it_ends_is_told() -> None:
    since = "since 2023-11-14 22:13:20 UTC by anna@ops-1 (store is slow); to end it: remote-wal resume"
    assert PAUSE.describe("all") == f"all links are paused {since} --all"
    assert PAUSE.describe("topic:orders") == f"links of topic orders are paused {since} --topic orders"
    assert PAUSE.describe("local") == f"this agent's links are paused {since} --local"


# A topic's settings by their keys.


def test_keys_change_what_they_name_and_make_settings_the_topics_own() -> None:
    inherited = replace(DURABLE, origin=FILE)
    values: dict[str, object] = {
        "remote.wal.storage.enable": True,
        "remote.wal.link.policy": "always",
        "remote.wal.link.latency.bound.ms": 7,
        "remote.wal.link.upload.wait.max.ms": 8,
        "remote.wal.archive.enable": False,
        "remote.wal.retention.ms": -1,
        "remote.wal.durable.enable": False,
        "remote.wal.pack.enable": False,
    }
    assert values.keys() == FIELDS.keys()
    changed = changed_settings("orders", inherited, values)
    assert changed == TopicSettings(True, LinkPolicy.ALWAYS, 7, False, -1, False, 8, DURABLE.topic_id, pack=False)
    assert {key: text_of(changed, key) for key in values} == {key: str(one).lower() for key, one in values.items()}
    assert changed_settings("orders", inherited, {}) == DURABLE
    assert text_of(TopicSettings(), "remote.wal.retention.ms") is None
    off = changed_settings("orders", TopicSettings(origin=OWN), {"remote.wal.pack.enable": True})
    assert off == TopicSettings(origin=OWN), "off in so many words"
    assert changed_settings("orders", off, {"remote.wal.storage.enable": True}) == ON


@pytest.mark.parametrize(
    ("key", "value"),
    [("remote.wal.link.policy", "never"), ("remote.wal.link.latency.bound.ms", 0), ("remote.wal.retention.ms", -3),
     ("remote.wal.retention.ms", 2**63)],
)  # fmt: skip
def test_a_value_that_is_none_is_refused_by_the_keys_name(key: str, value: object) -> None:
    with pytest.raises(TopicSettingsError, match=key.replace(".", r"\.")):
        changed_settings("orders", TopicSettings(), {key: value})


# The topic's reader and writer.


def test_the_reader_tells_of_each_change_and_skips_what_is_malformed() -> None:
    topic = FakeTopic()
    topic.append(b"moon:1", b"{}")
    topic.append(TOPICS.key("orders"), TOPICS.encode(ON))
    seen: list[SettingsTable] = []
    changed = threading.Semaphore(0)

    def on_change(table: SettingsTable) -> None:
        seen.append(table)
        changed.release()

    reader = SettingsReader(NOWHERE, on_change, consumer_factory=topic.consumer, settings=QUICK)
    reader.start()
    try:
        assert reader.wait_until_ready(10.0)
        assert reader.topics == {"orders": ON}
        assert changed.acquire(timeout=10)
        topic.append(AGENTS.key(3), AGENTS.encode(AGENT))
        topic.append(TOPICS.key("orders"), None)
        while seen[-1].agents != {3: AGENT} or seen[-1].topics:
            assert changed.acquire(timeout=10)
        assert (reader.agents, reader.memory.malformed) == ({3: AGENT}, 1)
    finally:
        reader.close()


@pytest.mark.parametrize("make", [SettingsReader, lambda client: TierFollower(client, TieredOffsets())])
def test_readers_ask_whether_the_topic_is_the_same_as_before(
    make: Callable[[KafkaClientConfig], TopicFollower], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked = FakeTopic(), list[str]()

    def consumer(_config: object, descriptions: KafkaCluster) -> FakeConsumer:
        asked.append(type(descriptions).__name__)
        return topic.consumer(_config)

    monkeypatch.setattr("metadata_topic.topic.topic_follower.ConfluentReader", consumer)
    reader = make(NOWHERE)
    reader.start()
    try:
        assert reader.wait_until_ready(10.0)
    finally:
        reader.close()
    assert asked[0] == "KafkaCluster"


def test_a_cluster_without_agents_is_told_at_once_and_without_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MetadataTopicError, match="the topic does not exist"):
        read_settings(NOWHERE, timeout_s=30.0, consumer_factory=FakeTopic(partitions=0).consumer)
    assert "warning" not in capsys.readouterr().out


LOST = Place("ab" * 16, 7)
AGENT_IS_BACK = (AGENTS.key(3), AGENTS.encode(AGENT, LOST))
DURABLE_IS_BACK = (TOPICS.key("orders"), TOPICS.encode(ON, LOST))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "no agent has registered"),
        ([(TOPICS.key("orders"), TOPICS.encode(ON))], "no agent has registered"),
        ([AGENT_IS_BACK], "putting back"),
        ([AGENT_IS_BACK, DURABLE_IS_BACK], "putting back"),
        ([AGENT_IS_BACK, DURABLE_IS_BACK, (RESTORED.key(LOST.topic), RESTORED.encode(8))], None),
        ([(AGENTS.key(3), AGENTS.encode(AGENT, Place((b"t" * 16).hex(), 0)))], None),
    ],
)
def test_commands_are_not_told_settings_while_the_topic_may_lack_what_it_held_before_it_was_lost(
    records: list[tuple[bytes, bytes]], why: str | None
) -> None:
    topic = FakeTopic()
    topic.partitions[0] += records
    if why is None:
        assert read_settings(NOWHERE, consumer_factory=topic.consumer).agents == {3: AGENT}
        return
    for memory in (None, SettingsMemory()):
        with pytest.raises(MetadataTopicError, match=why):
            read_settings(NOWHERE, timeout_s=1.0, consumer_factory=topic.consumer, memory=memory)


@pytest.mark.parametrize("is_made_again", [True, False])
def test_who_remembers_what_a_lost_topic_held_need_not_wait_for_it(tmp_path: Path, is_made_again: bool) -> None:
    topic, memory = FakeTopic(), SettingsMemory(tmp_path)
    topic.partitions[0] += [(AGENTS.key(3), AGENTS.encode(AGENT)), (TOPICS.key("orders"), TOPICS.encode(DURABLE))]
    assert read_settings(NOWHERE, consumer_factory=topic.consumer, memory=memory).is_any_durable
    memory.save()
    topic.topic_id, topic.partitions = TopicId(b"n" * 16), [[]] if is_made_again else []
    remembered = partial(
        read_settings, NOWHERE, timeout_s=1.0, consumer_factory=topic.consumer, memory=SettingsMemory(tmp_path)
    )
    assert (remembered().is_any_durable, remembered().agents) == (True, {3: AGENT})


@pytest.mark.parametrize("is_restored", [False, True])
def test_commands_are_told_nothing_by_a_topic_whose_beginning_is_gone_before_agents_put_it_back(
    *, is_restored: bool
) -> None:
    topic = FakeTopic()
    topic.partitions[0] += [DURABLE_IS_BACK, (AGENTS.key(3), AGENTS.encode(AGENT))]
    topic.log_starts[0] = 1
    if is_restored:
        topic.partitions[0].append((RESTORED.key("74" * 16), RESTORED.encode(2)))
        assert read_settings(NOWHERE, consumer_factory=topic.consumer).agents == {3: AGENT}
        return
    with pytest.raises(MetadataTopicError, match="putting back"):
        read_settings(NOWHERE, timeout_s=1.0, consumer_factory=topic.consumer)


def test_commands_wait_until_agents_have_put_back_what_the_topic_held() -> None:
    topic = FakeTopic()
    due = [AGENT_IS_BACK, DURABLE_IS_BACK, (RESTORED.key(LOST.topic), RESTORED.encode(8))]

    class Consumer(FakeConsumer):
        def consume(self, num_messages: int, timeout: float) -> list[MessageLike]:
            if not (read := super().consume(num_messages, timeout)) and due:
                topic.append(*due.pop(0))
            return read

    assert read_settings(NOWHERE, consumer_factory=lambda _: Consumer(topic)).topics == {"orders": ON}


def test_a_failure_that_goes_on_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    topic = FakeTopic()
    topic.fail_next = 5
    reader = SettingsReader(NOWHERE, consumer_factory=topic.consumer, settings=QUICK)
    reader.start()
    try:
        while not reader.agents:
            topic.append(AGENTS.key(3), AGENTS.encode(AGENT))
        assert reader.counters["consumer_restarts"] == 5
    finally:
        reader.close()
    assert capsys.readouterr().out.count("metadata_topic_read_failed") == 1


class FakeProducer:
    def __init__(self, error: object | None, answers: bool = True) -> None:
        self.error, self.answers = error, answers
        self.written: list[tuple[bytes, bytes | None]] = []

    def partition_count(self, topic: str, timeout_s: float) -> int:
        raise AssertionError("not asked for")

    def produce(
        self, topic: str, value: bytes | None, key: bytes, partition: int,
        on_delivery: Callable[[object | None, object], None],
    ) -> None:  # fmt: skip
        self.written.append((key, value))
        if self.answers:
            on_delivery(self.error, None)

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...

    def flush(self, timeout: float) -> int:
        return 0


def test_the_writer_writes_values_and_tombstones_and_refuses_internal_topics() -> None:
    producer = FakeProducer(None)
    writer = SettingsWriter(NOWHERE, producer_factory=lambda _config: producer)
    writer.put(TOPICS, {"orders": ON, "clicks": None})
    with pytest.raises(TopicSettingsError):
        writer.put(TOPICS, {"a": ON, "__consumer_offsets": ON})
    assert producer.written == [(b"topic:orders", TOPICS.encode(ON)), (b"topic:clicks", None)]


@pytest.mark.parametrize("producer", [FakeProducer("not enough replicas"), FakeProducer(None, answers=False)])
def test_a_write_that_is_not_acknowledged_is_an_error(producer: FakeProducer) -> None:
    writer = SettingsWriter(NOWHERE, producer_factory=lambda _config: producer)
    with pytest.raises(MetadataTopicError, match="topic:orders"):
        writer.put(TOPICS, {"orders": ON})


def test_names_are_matched_once_while_the_patterns_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[str] = []

    def is_match(_pattern: str, name: str) -> bool:
        matched.append(name)
        return True

    monkeypatch.setattr(patterns, "is_match", is_match)
    patterns.first_match.cache_clear()
    by_file = replace(DURABLE, durable=False, origin=FILE)
    values: dict[Key, object] = {(TOPICS, f"t{number}"): by_file for number in range(100)}
    values[PATTERNS, ".*"] = DURABLE
    table = table_of(values)
    for name in ("x" * 250, "y" * 5_000_000, "a topic", "."):
        assert table.of(name, None) is None
    for changed in range(10):
        table = table_of({**values, (PAUSES, f"broker:{changed}"): PAUSE})
        assert table.topics["t7"].is_durable
        assert table.of("another", None) == table.patterns[".*"]
    assert len(matched) == 101
    assert patterns.first_match.cache_info().maxsize is not None, "clients ask for names, too"
    patterns.first_match.cache_clear()
    assert SettingsTable({"orders": DURABLE}).of("t", None) is None
