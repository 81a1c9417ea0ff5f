"""An agent takes no partition on before it has read what tells from where to upload; until then all goes inline."""

import asyncio
import base64
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import agent.leadership as leadership
import agent.wiring.kafka_following as kafka_following
from agent.http.status import status_of
from agent.wiring.lifecycle import Lifecycle
from agent.wiring.storage_system import StorageRun
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.kip405.tiered_offsets import TierFollower
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import AgentRegistration, LinkPolicy, TopicSettings
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.metadata_topics import MetadataTopics
from plugin.wall_clock import Clocks, wall_ms
from rlm.write_path.commit.link_policy import LinkMode
from tests.agent.agent_rig import PARTITION, AgentRig, running_agent
from tests.kafka_log.log_writer import LogWriter


class Answer:
    """What Kafka has to say of one thing; in vain it is asked until it is given."""

    def __init__(self) -> None:
        self.asked = 0
        self._given = threading.Event()

    def give(self) -> None:
        self._given.set()

    @property
    def is_given(self) -> bool:
        return self._given.is_set()

    def wait_until_ready(self, *_reader_and_timeout: object) -> bool:
        """Time runs out soon."""
        self.asked += 1
        return self._given.wait(0.01)


class Registrations:
    """In the place of what writes them to the settings topic."""

    def __init__(self, _client: object) -> None: ...

    def write(self, _records: object) -> None: ...

    def close(self) -> None: ...


class Kafka:
    """In the place of brokers that answer one question after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = {name: Answer() for name in ("topic settings", "metadata", "leadership")}
        settings, metadata = self.answers["topic settings"], self.answers["metadata"]
        never = asyncio.Event()

        async def made(_: object) -> None: ...

        async def endless(_: object) -> None:
            await never.wait()

        for reader, answer in ((SettingsReader, settings), (RemoteWalMetadataConsumer, metadata)):
            monkeypatch.setattr(reader, "start", lambda _reader: None)
            monkeypatch.setattr(reader, "wait_until_ready", answer.wait_until_ready)
        monkeypatch.setattr(RemoteWalMetadataConsumer, "ready", property(lambda _: metadata.is_given))
        monkeypatch.setattr(RemoteWalMetadataConsumer, "read_to_end", lambda *_: metadata.is_given)
        monkeypatch.setattr(SettingsReader, "read_to_end", lambda *_: False)  # the lease would wait 30 s
        table = SettingsTable({"t": TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS)})
        monkeypatch.setattr(SettingsReader, "ready", property(lambda _: settings.is_given))
        monkeypatch.setattr(
            SettingsReader, "table", property(lambda _: table if settings.is_given else SettingsTable())
        )
        monkeypatch.setattr(TierFollower, "start", lambda _follower: None)
        monkeypatch.setattr(kafka_following, "SettingsWriter", Registrations)
        monkeypatch.setattr(kafka_following, "LeadershipReader", lambda *_: self)
        monkeypatch.setattr(MetadataTopics, "make", made)
        monkeypatch.setattr(MetadataTopics, "watch", endless)
        monkeypatch.setattr(Lifecycle, "run", endless)
        for module, pause in ((kafka_following, "RETRY_S"), (leadership, "MIN_INTERVAL_S")):
            monkeypatch.setattr(module, pause, 0.01)

    def racks(self, _followers: frozenset[int]) -> Mapping[int, str | None]:
        return {}

    def led_partitions(self) -> Mapping[str, Mapping[int, frozenset[int]]]:
        if not self.answers["leadership"].wait_until_ready():
            raise KafkaClusterError("list topics", "nowhere:1", "no broker answers")
        return MappingProxyType({"t": {0: frozenset({2, 3})}})


def led_log(directory: Path) -> LogWriter:
    """Of a partition that this broker leads, and has written nothing of yet: there are no leader epochs."""
    log = LogWriter(directory / "data/t-0")
    topic_id = base64.urlsafe_b64encode(PARTITION.topic_id).decode().rstrip("=")
    (log.path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return log


async def until_asked_in_vain(rig: AgentRig, answer: Answer) -> None:
    """So often that it would have gone on without by now, if it ever did."""

    def asked() -> bool:
        assert rig.agent.state.relaying is not None
        rig.agent.state.relaying.leadership_asked.set()  # followers fetch
        return answer.asked > 3

    await rig.until(asked)


async def expect_inline(rig: AgentRig, reason: str) -> None:
    """Nothing is led, and readyz says why."""
    await rig.until(lambda: any(reason in told for told in rig.agent.state.not_ready()))
    await rig.until(lambda: rig.storage_run is not None)
    assert rig.storage_run is not None
    assert rig.agent.state.relaying is not None
    assert rig.agent.state.relaying.write_path.mode_of(PARTITION) is LinkMode.OFF
    assert rig.storage_run.write_path.manager.status() == {}


@pytest.mark.parametrize("is_restored", [True, False])
async def test_who_remembers_nothing_waits_until_others_have_put_back_what_a_lost_settings_topic_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    kafka, lacks, looks = Kafka(monkeypatch), ["no agent has registered in it"], 0

    def may_lack(_memory: SettingsMemory) -> str | None:
        nonlocal looks
        looks += 1
        return lacks[0] if lacks else None

    monkeypatch.setattr(kafka_following, "RESTORED_WITHIN_S", 3600.0 if is_restored else 0.2)
    monkeypatch.setattr(SettingsMemory, "may_lack", may_lack)
    registered = [RemoteWalNodeRegistration(2, 1, 2, 0)]
    monkeypatch.setattr(RemoteWalMetadataStore, "newest_registrations", lambda _: registered)
    told, published = list[SettingsTable](), list[bool]()
    monkeypatch.setattr(StorageRun, "settings_read", lambda _, table: told.append(table))
    monkeypatch.setattr(kafka_following.KafkaFollowing, "register", lambda _: published.append(True))
    for answer in kafka.answers.values():
        answer.give()
    async with running_agent(tmp_path, monkeypatch) as rig:
        if is_restored:
            await rig.until(lambda: looks > 3)
            await expect_inline(rig, "topic settings not known yet")
            assert not told, "a durable topic would not be one"
            assert not published, "agents that start together would take a new topic for a lost one"
            lacks.clear()
        await rig.until(lambda: not any("topic settings" in one for one in rig.agent.state.not_ready()))
        await rig.until(lambda: bool(told and published))


async def test_who_finds_no_room_for_its_registration_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, has_room, tried = Kafka(monkeypatch), False, 0

    def register(_: object) -> None:
        nonlocal tried
        tried += 1
        if not has_room:
            raise PublicationBacklogFullError("publish", "topic", "too much waits")

    monkeypatch.setattr(kafka_following.KafkaFollowing, "register", register)
    for answer in kafka.answers.values():
        answer.give()
    led_log(tmp_path).append(records=3)
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: tried > 2)
        run = rig.storage_run
        await expect_inline(rig, "leadership not known yet")
        has_room = True
        await rig.until(lambda: rig.uploaded_offset == 3)
        assert rig.storage_run is run, "it did not begin anew"


async def test_a_partition_is_taken_on_once_settings_metadata_leadership_and_its_leader_epochs_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka(monkeypatch)
    log = led_log(tmp_path)
    async with running_agent(tmp_path, monkeypatch) as rig:
        for name, answer in kafka.answers.items():
            await until_asked_in_vain(rig, answer)
            await expect_inline(rig, f"{name} not known yet")
            answer.give()
        await expect_inline(rig, "not known from where to upload")
        log.append(records=3)
        await rig.until(lambda: rig.uploaded_offset == 3)
        await rig.until(lambda: not rig.agent.state.not_ready())


async def test_readyz_says_that_nobody_holds_the_answers_of_a_durable_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kafka(monkeypatch)
    table = SettingsTable(
        {"t": TopicSettings(enable=True, durable=True)}, agents={2: AgentRegistration(2, 5, "", "1", 0)}
    )
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: rig.storage_run is not None)
        assert not any("durable" in told for told in rig.agent.state.degraded())
        monkeypatch.setattr(SettingsReader, "table", property(lambda _: table))
        assert any("durable, and answers are not held beside broker 2" in told for told in rig.agent.state.degraded())


async def test_a_broker_that_ends_is_told_with_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kafka(monkeypatch)
    monkeypatch.setattr("replication.leader.leader_proxy._LOOK_S", 0.005)
    async with running_agent(tmp_path, monkeypatch) as rig:
        state = rig.agent.state
        assert (state.describe()["broker_away"], state.degraded()) == (None, [])
        await rig.broker.stop()
        await rig.until(lambda: state.broker_away is not None)
        (told,) = state.degraded()
        assert told.startswith("broker 1 has not answered its agent for 0 s (")
        assert "if it is down, it leads nothing, and clients do not reach it" in told
        assert state.describe()["broker_away"] is not None
        assert status_of(state, Clocks(time.monotonic, wall_ms)).broker_away is not None
