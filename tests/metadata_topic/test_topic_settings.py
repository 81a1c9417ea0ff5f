"""Per-topic settings and registrations."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.answers import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError, TopicSettingsError
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_topic import (
    SettingsReader,
    SettingsView,
    SettingsWriter,
    changed_of,
    orphaned_settings,
    read_settings,
)
from metadata_topic.settings.topic_settings import (
    FILE,
    INTERNAL_TOPICS,
    OWN,
    AgentRegistration,
    LinkPolicy,
    MalformedSettingError,
    TopicSettings,
    agent_key,
    check_topic,
    decode_setting,
    encode_agent,
    encode_topic_settings,
    pattern_key,
    settings_of,
    topic_key,
)
from metadata_topic.topic.topic_follower import FollowSettings, TopicRecord
from tests.metadata_topic.fake_topic import FakeMessage, FakeTopic

NOWHERE = KafkaClientConfig("nowhere:1")
AGENT = AgentRegistration(
    3, 77, "http://127.0.0.1:9999", "127.0.0.1:9998", "0.1.0", 1_700_000_000_000, False, {"/data": "an-id"}, -2, 5
)
QUICK = FollowSettings(batch_wait_ms=10, retry_pause_ms=1)


@given(
    st.builds(
        TopicSettings,
        st.booleans(),
        st.sampled_from(LinkPolicy),
        st.none() | st.integers(0, 2**40),
        st.booleans(),
        st.none() | st.integers(-2, 2**40),
        topic_id=st.none() | st.binary(min_size=16, max_size=16).map(TopicId),
        origin=st.text(),
    )
)
def test_topic_settings_are_read_as_written(wanted: TopicSettings) -> None:
    assert decode_setting(topic_key("orders"), encode_topic_settings(wanted)) == ("orders", wanted)


def test_the_value_has_the_names_that_operators_know() -> None:
    value = json.loads(encode_topic_settings(TopicSettings(True, LinkPolicy.COST, 40, True, -2)))
    assert value == {
        "remote.wal.storage.enable": True,
        "remote.wal.link.policy": "cost",
        "remote.wal.link.latency.bound.ms": 40,
        "remote.wal.archive.enable": True,
        "remote.wal.retention.ms": -2,
    }


def test_patterns_are_known_until_they_are_removed_and_what_is_none_is_skipped() -> None:
    view, value = SettingsView(), encode_topic_settings(TopicSettings(enable=True))
    records = [("orders-.*", value), ("a", value), ("(", value), ("a", None), ("b", b"{")]
    told = [TopicRecord(0, at, pattern_key(pattern), its) for at, (pattern, its) in enumerate(records)]
    assert not view.apply_all(told)
    assert view.patterns == {"orders-.*": TopicSettings(enable=True, origin="pattern orders-.*")}
    assert view.malformed == 2


def test_settings_are_the_topics_own_unless_they_say_where_from() -> None:
    assert [TopicSettings(True, origin=one).is_inherited for one in ("", OWN, FILE, "pattern a")] == [
        False,
        False,
        True,
        True,
    ]
    assert [TopicSettings(origin=one).is_own for one in ("", OWN, FILE)] == [False, True, False]


def test_a_record_without_the_archives_key_has_it_off() -> None:
    value = b'{"remote.wal.storage.enable": true}'
    assert decode_setting(topic_key("orders"), value) == ("orders", TopicSettings(enable=True))


def test_an_older_agents_registration_says_nothing_of_how_long_it_keeps_objects() -> None:
    told = json.loads(encode_agent(AGENT))
    older = {name: value for name, value in told.items() if not name.startswith("wal_retention")}
    _, agent = decode_setting(agent_key(3), json.dumps(older).encode())
    assert agent == replace(AGENT, wal_retention_ms=None, wal_retention_lagging_max_ms=None)


def test_what_an_agents_gateway_does_is_read_as_written_and_an_older_agent_does_not_tell() -> None:
    told = replace(AGENT, gateway=("clients", "durable"), bypass_address="10.0.0.1:19096", is_gone=True)
    assert decode_setting(agent_key(3), encode_agent(told)) == (3, told)
    newer = ("gateway", "bypass_address", "is_gone")
    older = {name: value for name, value in json.loads(encode_agent(told)).items() if name not in newer}
    assert decode_setting(agent_key(3), json.dumps(older).encode()) == (3, AGENT)


def test_registrations_are_read_as_written_and_newer_fields_passed_over() -> None:
    value = json.dumps({**json.loads(encode_agent(AGENT)), "newer": "a"}).encode()
    assert decode_setting(agent_key(3), value) == (3, AGENT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"orders", b"{}"),
        (b"topic:", b"{}"),
        (b"topic:__consumer_offsets", b'{"remote.wal.storage.enable": true}'),
        (b"topic:a/../b", b"{}"),
        (b"topic:orders", b"not json"),
        (b"topic:orders", b"[" * 100_000),
        (b"topic:orders", b"null"),
        (b"topic:orders", b'{"remote.wal.storage.enable": "yes"}'),
        (b"topic:orders", b'{"remote.wal.archive.enable": 1}'),
        (b"topic:orders", b'{"remote.wal.link.policy": "sometimes"}'),
        (b"topic:orders", b'{"remote.wal.link.policy": ["cost"]}'),
        (b"topic:orders", b'{"remote.wal.link.latency.bound.ms": true}'),
        (b"topic:orders", b'{"remote.wal.retention.ms": -3}'),
        (b"topic:orders", b'{"remote.wal.retention.ms": "3600000"}'),
        (b"topic:orders", b'{"topic_id": "0f"}'),
        (b"topic:orders", b'{"topic_id": "no number"}'),
        (b"agent:4", encode_agent(AGENT)),
        (b"agent:x", encode_agent(AGENT)),
        (b"agent:3", b'{"broker_id": 3}'),
        (b"\xff\xfe", b"{}"),
    ],
)
def test_malformed_records_are_told_apart(key: bytes | None, value: bytes) -> None:
    with pytest.raises(MalformedSettingError):
        decode_setting(key, value)


@pytest.mark.parametrize("topic", [*sorted(INTERNAL_TOPICS), "", ".", "..", "a b", "x" * 250, "orders\n"])
def test_internal_topics_and_impossible_names_cannot_be_enabled(topic: str) -> None:
    with pytest.raises(TopicSettingsError):
        check_topic(topic)


def test_the_reader_tells_of_each_change_and_skips_what_is_malformed() -> None:
    topic = FakeTopic()
    topic.append(topic_key("orders"), encode_topic_settings(TopicSettings(True)))
    topic.append(topic_key("orders"), b"not json")
    seen: list[Mapping[str, TopicSettings]] = []
    changed = threading.Semaphore(0)

    def on_change(topics: Mapping[str, TopicSettings]) -> None:
        seen.append(topics)
        changed.release()

    reader = SettingsReader(NOWHERE, on_change, consumer_factory=topic.consumer, settings=QUICK)
    reader.start()
    try:
        assert reader.wait_until_ready(10.0)
        assert seen == [{"orders": TopicSettings(True)}]
        assert changed.acquire(timeout=10)
        topic.append(agent_key(3), encode_agent(AGENT))
        topic.append(topic_key("orders"), None)
        assert changed.acquire(timeout=10)
        assert seen[1:] == [{}]
        assert reader.agents == {3: AGENT}
        assert reader.malformed == 1
    finally:
        reader.close()


def test_a_cluster_without_agents_is_told_at_once_and_without_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MetadataTopicError, match="the topic does not exist"):
        read_settings(NOWHERE, timeout_s=30.0, consumer_factory=FakeTopic(partitions=0).consumer)
    assert "warning" not in capsys.readouterr().out


def test_a_failure_that_goes_on_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    topic = FakeTopic()
    topic.fail_next = 5
    reader = SettingsReader(NOWHERE, consumer_factory=topic.consumer, settings=replace(QUICK, retry_pause_ms=1))
    topic.append(agent_key(3), encode_agent(AGENT))
    reader.start()
    try:
        while not reader.agents:
            topic.append(agent_key(3), encode_agent(AGENT))
        assert reader.counters["consumer_restarts"] == 5
    finally:
        reader.close()
    assert capsys.readouterr().out.count("metadata_topic_read_failed") == 1


class FakeProducer:
    def __init__(self, error: object | None, answers: bool = True) -> None:
        self.error, self.answers = error, answers
        self.written: list[tuple[str, bytes | None, bytes]] = []

    def partition_count(self, topic: str, timeout_s: float) -> int:
        raise AssertionError("not asked for")

    def produce(
        self, topic: str, value: bytes | None, key: bytes, partition: int,
        on_delivery: Callable[[object | None, object], None],
    ) -> None:  # fmt: skip
        self.written.append((topic, value, key))
        if self.answers:
            on_delivery(self.error, None)

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...

    def flush(self, timeout: float) -> int:
        return 0


def test_the_writer_writes_settings_and_tombstones() -> None:
    producer = FakeProducer(None)
    writer = SettingsWriter(NOWHERE, producer_factory=lambda _config: producer)
    writer.set_topic("orders", TopicSettings(True))
    writer.clear_topic("orders")
    assert [(key, value is None) for _, value, key in producer.written] == [
        (b"topic:orders", False), (b"topic:orders", True)
    ]  # fmt: skip


@pytest.mark.parametrize("producer", [FakeProducer("not enough replicas"), FakeProducer(None, answers=False)])
def test_a_write_that_is_not_acknowledged_is_an_error(producer: FakeProducer) -> None:
    writer = SettingsWriter(NOWHERE, producer_factory=lambda _config: producer)
    with pytest.raises(MetadataTopicError, match="topic:orders"):
        writer.set_topic("orders", TopicSettings(True))


def test_the_writer_refuses_internal_topics() -> None:
    producer = FakeProducer(None)
    with pytest.raises(TopicSettingsError):
        SettingsWriter(NOWHERE, producer_factory=lambda _c: producer).set_topic(
            "__consumer_offsets", TopicSettings(True)
        )
    assert producer.written == []


DURABLE = TopicSettings(True, durable=True)


def _read_with(topic: FakeTopic, memory: SettingsMemory) -> SettingsReader:
    reader = SettingsReader(NOWHERE, consumer_factory=topic.consumer, settings=QUICK, memory=memory)
    reader.start()
    assert reader.wait_until_ready(10.0)
    return reader


@pytest.mark.parametrize("topic_id", [b"t", b"n"])
def test_what_was_set_last_counts_after_the_topic_was_lost_until_it_is_set_again(
    tmp_path: Path, topic_id: bytes
) -> None:
    topic = FakeTopic()
    topic.append(topic_key("others"), encode_topic_settings(TopicSettings(True)))
    topic.append(topic_key("orders"), encode_topic_settings(DURABLE))
    first = _read_with(topic, SettingsMemory(tmp_path))
    first.close()
    assert first.topics == {"orders": DURABLE, "others": TopicSettings(True)}
    assert not first.remembered_only

    lost = FakeTopic()  # made anew, or its end was cut off
    lost.topic_id = TopicId(topic_id * 16)
    lost.append(topic_key("others"), None)
    for _ in range(2):  # the second agent neither takes it for whole
        reader = _read_with(lost, SettingsMemory(tmp_path))
        reader.close()
        assert reader.topics == {"orders": DURABLE}
        assert reader.remembered_only == ["orders"]
    lost.append(topic_key("orders"), encode_topic_settings(TopicSettings(True)))
    for _ in range(2):
        reader = _read_with(lost, SettingsMemory(tmp_path))
        reader.close()
        assert reader.topics == {"orders": TopicSettings(True)}
        assert not reader.remembered_only


def test_a_topic_that_is_whole_counts_alone(tmp_path: Path) -> None:
    topic = FakeTopic()
    topic.append(topic_key("orders"), encode_topic_settings(DURABLE))
    _read_with(topic, SettingsMemory(tmp_path)).close()
    topic.append(topic_key("orders"), None)  # while the agent was away
    reader = _read_with(topic, SettingsMemory(tmp_path))
    reader.close()
    assert not reader.topics


class Topic:
    """The settings topic, as several writers have it."""

    def __init__(self) -> None:
        self.records: list[TopicSettings] = []
        self.before_each: list[Callable[[], object]] = []
        """What others do before the next records are written."""

    def written(self, _topic: str) -> list[tuple[int, TopicSettings]]:
        return list(enumerate(self.records))

    def writer(self) -> SettingsWriter:
        return SettingsWriter(NOWHERE, 1.0, lambda _config: _Producer(self))

    def other_changes(self, change: Callable[[TopicSettings], TopicSettings]) -> None:
        self.writer().change_topic("orders", change, self.written)


class _Producer(FakeProducer):
    def __init__(self, topic: Topic) -> None:
        super().__init__(None)
        self._topic = topic

    def produce(
        self, topic: str, value: bytes | None, key: bytes, partition: int,
        on_delivery: Callable[[object | None, object], None],
    ) -> None:  # fmt: skip
        if self._topic.before_each:
            self._topic.before_each.pop(0)()
        settings = decode_setting(key, value)[1]
        assert isinstance(settings, TopicSettings)
        self._topic.records.append(settings)
        on_delivery(None, FakeMessage(partition, len(self._topic.records) - 1))


def archived(before: TopicSettings) -> TopicSettings:
    return replace(before, archive=True)


def bounded(before: TopicSettings) -> TopicSettings:
    return replace(before, link_latency_bound_ms=7)


def kept(before: TopicSettings) -> TopicSettings:
    return replace(before, wal_retention_ms=5)


@pytest.mark.parametrize("times", [1, 2])
def test_of_two_who_change_one_topics_settings_neither_undoes_the_others(times: int) -> None:
    topic = Topic()
    topic.records.append(TopicSettings(True))
    wanted = bounded(topic.records[0])
    for change in (archived, kept)[:times]:
        topic.before_each += [partial(topic.other_changes, change), int]  # and the other's own record
        wanted = change(wanted)
    topic.writer().change_topic("orders", bounded, topic.written)
    assert topic.records[-1] == wanted


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    topic = Topic()
    topic.records.append(bounded(TopicSettings(True)))
    topic.writer().change_topic("orders", bounded, topic.written)
    assert len(topic.records) == 1


OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
OF_OLD = replace(DURABLE, topic_id=OLD)


def test_a_topic_made_anew_has_no_settings_of_the_one_before_it() -> None:
    assert settings_of({"orders": OF_OLD}, "orders", OLD) == OF_OLD
    assert settings_of({"orders": OF_OLD}, "orders", NEW) is None


def test_settings_of_an_older_release_count_for_whichever_topic_has_the_name_until_they_are_bound() -> None:
    key, value = topic_key("orders"), b'{"remote.wal.storage.enable": true, "remote.wal.durable.enable": true}'
    _, older = decode_setting(key, value)
    assert isinstance(older, TopicSettings)
    assert settings_of({"orders": older}, "orders", OLD) == settings_of({"orders": older}, "orders", NEW) == DURABLE
    topic = Topic()
    topic.records.append(older)
    topic.other_changes(lambda before: before.bound_to(OLD))
    topic.other_changes(lambda before: before.bound_to(NEW))  # somebody else, later
    assert topic.records[-1] == OF_OLD


def test_what_somebody_sets_while_settings_are_bound_is_kept() -> None:
    topic = Topic()
    topic.records.append(DURABLE)
    topic.before_each += [partial(topic.other_changes, archived), int]
    topic.writer().change_topic("orders", lambda before: before.bound_to(OLD), topic.written)
    assert topic.records[-1] == replace(OF_OLD, archive=True)


def test_who_changes_one_setting_of_a_topic_made_anew_begins_with_the_defaults() -> None:
    assert changed_of(NEW, archived)(OF_OLD) == TopicSettings(archive=True, topic_id=NEW)
    assert changed_of(OLD, archived)(OF_OLD) == replace(OF_OLD, archive=True)
    assert changed_of(OLD, lambda _before: TopicSettings())(OF_OLD).is_default
    hidden = changed_of(None, archived)(OF_OLD)
    assert hidden == replace(OF_OLD, archive=True)  # this client may not describe the topic


def test_settings_whose_topic_is_gone_are_told_apart() -> None:
    topics = dict.fromkeys(("anew", "gone", "hidden", "there"), OF_OLD)
    described = [
        DescribedTopic("anew", 0, NEW),
        DescribedTopic("gone", UNKNOWN_TOPIC_OR_PARTITION),
        DescribedTopic("hidden", TOPIC_AUTHORIZATION_FAILED),
        DescribedTopic("there", 0, OLD),
    ]
    assert orphaned_settings(topics, described).keys() == {"anew", "gone"}
