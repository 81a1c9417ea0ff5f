"""An agent is registered for as long as it runs, whatever happens to the settings topic."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.wiring.kafka_following import Registration
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import AgentRegistration, agent_key, encode_agent
from metadata_topic.topic.topic_follower import FollowSettings
from tests.metadata_topic.fake_topic import FakeTopic

QUICK = FollowSettings(batch_wait_ms=5, retry_pause_ms=1, request_timeout_ms=100)
OWN = AgentRegistration(1, 5, "", "", "1", 0, peer_address="10.0.0.1:19090")
PATIENCE_S = 10.0


class Rig:
    """The settings topic, its reader, and the registration of the agent of broker 1."""

    def __init__(self, state_directory: Path) -> None:
        self.topic = FakeTopic()
        self.failures = 0
        self.is_fenced = False
        memory = SettingsMemory(state_directory)
        client = KafkaClientConfig("nowhere:1")
        self.reader = SettingsReader(client, consumer_factory=self.topic.consumer, settings=QUICK, memory=memory)
        self.registration = Registration(1, 5, self.reader, self._write, lambda: self.is_fenced)

    def _write(self) -> None:
        if self.failures:
            self.failures -= 1
            raise MetadataTopicError("write setting", "agent:1", "not acknowledged within 30 s")
        self.append(OWN)

    def append(self, registration: AgentRegistration) -> None:
        self.topic.append(agent_key(registration.broker_id), encode_agent(registration))

    @property
    def written(self) -> int:
        """How many records the topic has."""
        return len(self.topic.partitions[0])

    def lose_topic(self) -> None:
        """Delete the topic and create it again."""
        with self.topic.changed:
            self.topic.partitions, self.topic.topic_id = [[]], TopicId(b"n" * 16)
        self.read()

    def read(self) -> None:
        """Wait until the reader knows all that is in the topic."""
        assert self.reader.read_to_end(PATIENCE_S)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.reader.start()
    assert made.reader.wait_until_ready(PATIENCE_S)
    yield made
    made.reader.close()


async def test_an_agent_registers_once_while_the_topic_has_its_registration(rig: Rig) -> None:
    for _ in range(3):
        await rig.registration.look()
    assert rig.reader.registration_of(1) == OWN
    assert rig.written == 1


async def test_a_registration_that_was_not_written_is_written_at_the_next_look(rig: Rig) -> None:
    rig.failures = 2
    for written in (0, 0, 1):
        await rig.registration.look()
        assert rig.written == written


async def test_an_agent_registers_again_in_a_topic_that_was_made_again(rig: Rig) -> None:
    rig.append(replace(OWN, broker_id=2))
    await rig.registration.look()
    rig.read()
    rig.lose_topic()
    assert rig.reader.registration_of(1) is None
    assert rig.reader.agents.keys() == {1, 2}, "what was registered last counts"
    rig.failures = 1
    for written in (0, 1, 1):
        await rig.registration.look()
        assert rig.written == written
    assert rig.reader.registration_of(1) == OWN


async def test_an_older_incarnations_late_record_is_replaced_and_a_newer_ones_stays(rig: Rig) -> None:
    await rig.registration.look()
    rig.append(replace(OWN, incarnation=4))
    rig.read()
    await rig.registration.look()
    assert rig.written == 3
    rig.append(replace(OWN, incarnation=6))
    rig.read()
    await rig.registration.look()
    assert rig.written == 4


async def test_a_broker_that_was_removed_stays_removed(rig: Rig) -> None:
    await rig.registration.look()
    rig.append(replace(OWN, peer_address=None, is_gone=True))
    rig.read()
    await rig.registration.look()
    assert rig.written == 2


async def test_a_fenced_agent_does_not_register(rig: Rig) -> None:
    rig.is_fenced = True
    await rig.registration.look()
    assert rig.written == 0


async def test_nothing_is_written_while_the_topic_cannot_be_read_to_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.wiring.kafka_following.LOOK_S", 0.02)
    await rig.registration.look()
    rig.read()
    rig.lose_topic()
    rig.topic.ends_are_told = False
    await rig.registration.look()
    assert rig.written == 0
