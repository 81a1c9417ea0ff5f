"""`remote-wal decommission`, with snapshots in a directory and a topic whose oldest records retention removed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import cli.recovery.decommission
import cli.recovery.held
from agent.settings.agent_settings import AgentSettings
from cli.main import build_app
from cli.recovery.recovery_sources import BrokersCluster, OpenStores
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.broker_files.server_properties import load_broker_properties
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot, SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic import topic_session
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext, blobs_of
from tests.recovery.test_inventory import CLASS

CLUSTER, HEIR, GONE = "cluster-1", 2, 3
LIVING = (1, HEIR)
AGENTS = (*LIVING, GONE)
BEGINS = 500
"""Where a topic begins of which retention has removed something."""


@dataclass
class Topic:
    """The metadata topic by broker's partition, of which retention has left the offsets from `begins` on."""

    begins: int
    kept: list[tuple[RemoteWalNodeRegistration, tuple[int, int]]] = field(default_factory=list)
    meanwhile: RemoteWalNodeRegistration | None = None
    """Registered by another agent before what the command publishes."""
    loses: bool = False

    def append(self, registration: RemoteWalNodeRegistration) -> None:
        partition = registration.broker_id
        offset = self.begins + sum(kept.broker_id == partition for kept, _ in self.kept)
        self.kept.append((registration, (partition, offset)))

    def session(self, *_where: object, newest: Callable[[], NewestSnapshot]) -> Any:
        store = RemoteWalMetadataStore()
        if (image := newest().image) is not None:
            store.restore(image)
        return Session(self, store)


@dataclass
class Session:
    """Reads what the topic has into the store, and what is published when it is read to its end."""

    topic: Topic
    store: RemoteWalMetadataStore

    def __enter__(self) -> "Session":
        self.store.apply_all(self.topic.kept)
        return self

    def __exit__(self, *_: object) -> None: ...

    def publish(self, record: RemoteWalNodeRegistration) -> None:
        if self.topic.meanwhile is not None:
            self.topic.append(self.topic.meanwhile)
        if not self.topic.loses:
            self.topic.append(record)

    @property
    def publisher(self) -> "Session":
        return self

    def published(self) -> None: ...

    def read_to_end(self) -> bool:
        self.store.apply_all(self.topic.kept)
        return True


def registration(broker_id: int, incarnation: int, caretaker: int | None = None) -> RemoteWalNodeRegistration:
    return RemoteWalNodeRegistration(broker_id, incarnation, broker_id if caretaker is None else caretaker, 0)


def known_to_agents(*registrations: RemoteWalNodeRegistration) -> RemoteWalMetadataStore:
    """An agent's store, that has read the topic from its beginning."""
    store = RemoteWalMetadataStore()
    store.apply_all([(one, (one.broker_id, 0)) for one in registrations])
    store.apply_all([(None, (one.broker_id, BEGINS - 1)) for one in registrations])
    return store


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteWalStorageManager]:
    manager = load_storage_manager(StorageSpec(CLASS, None, {"directory": str(tmp_path)}), StorageContext(CLUSTER, 1))
    yield manager
    manager.close()


@dataclass
class Cluster:
    """Where the command runs: what it is to read, and which agents it marked as gone in the settings topic."""

    storage: RemoteWalStorageManager
    run: Callable[..., Result]
    """Takes the topic and the command; else to decommission."""
    marked: list[int] = field(default_factory=list)

    def save_snapshot(self, store: RemoteWalMetadataStore) -> None:
        SnapshotKeeper(blobs_of(self.storage, "put", "-"), CLUSTER, 1, 1).save(store.image(), 1)


@pytest.fixture
def cluster(storage: RemoteWalStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    config = tmp_path / "server.properties"
    config.write_text("node.id=1\nlog.dirs=/nowhere\nlisteners=PLAINTEXT://127.0.0.1:1\n")
    broker = load_broker_properties(config)

    @contextmanager
    def opened(_where: BrokersCluster) -> Iterator[OpenStores]:
        yield OpenStores(broker, KafkaClientConfig("nobody:1"), CLUSTER, storage, None, AgentSettings())

    class Writer:
        def __init__(self, _client: object) -> None: ...

        def put(self, _kind: object, agents: dict[int, AgentRegistration]) -> None:
            assert all(agent.is_gone for agent in agents.values())
            made.marked += agents

        def close(self) -> None: ...

    def run(topic: Topic, *words: str) -> Result:
        monkeypatch.setattr(topic_session, "TopicSession", topic.session)
        command = words or ("decommission", str(GONE), "--heir", str(HEIR))
        return CliRunner().invoke(build_app(), [*command, "--broker-config", str(config)])

    made = Cluster(storage, run)
    agents = {one: AgentRegistration(one, 100 + one, "", "1", 0, peer_address=f"host-{one}:1") for one in AGENTS}
    living = [type("Broker", (), {"broker_id": one})() for one in LIVING]
    for command in (cli.recovery.decommission, cli.recovery.held):
        monkeypatch.setattr(command, "open_stores", opened)
    monkeypatch.setattr(cli.recovery.held, "_partition", lambda *_: TopicIdPartition(TopicId(b"o" * 16), 0))
    monkeypatch.setattr(KafkaCluster, "brokers", lambda _self: living)
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client: SettingsTable(agents=agents))
    monkeypatch.setattr(settings_topic, "SettingsWriter", Writer)
    return made


def test_registrations_that_retention_removed_from_the_topic_are_known_by_a_snapshot(cluster: Cluster) -> None:
    agents = known_to_agents(*(registration(one, 100 + one) for one in AGENTS))
    cluster.save_snapshot(agents)
    topic = Topic(BEGINS)
    topic.append(registration(HEIR, 202))  # it was restarted this week
    told = cluster.run(topic)
    assert (told.exit_code, cluster.marked) == (0, [GONE]), (told.output, told.exception)
    agents.apply_all(topic.kept)
    assert agents.caretaker_of(GONE) == HEIR


@pytest.mark.parametrize("words", [(), *(("held", one, "orders", "0") for one in ("list", "restore", "give-up"))])
def test_nothing_is_concluded_from_a_topic_that_may_lack_records(cluster: Cluster, words: tuple[str, ...]) -> None:
    topic = Topic(BEGINS)
    topic.append(registration(HEIR, 202))
    told = cluster.run(topic, *words)
    assert "metadata rebuild" in str(told.exception)
    assert (len(topic.kept), cluster.marked) == (1, [])


@pytest.mark.parametrize("topic", [Topic(0, loses=True), Topic(0, meanwhile=registration(GONE, 303))])
def test_success_is_told_only_if_the_registration_counts_when_it_is_read_back(cluster: Cluster, topic: Topic) -> None:
    for one in AGENTS:
        topic.append(registration(one, 100 + one))
    told = cluster.run(topic)
    assert "run it again" in str(told.exception)
    assert (told.stdout, cluster.marked) == ("", [])


def test_a_topic_that_has_everything_needs_no_snapshot(cluster: Cluster) -> None:
    topic = Topic(0)
    for one in AGENTS:
        topic.append(registration(one, 100 + one))
    told = cluster.run(topic)
    assert (told.exit_code, cluster.marked) == (0, [GONE]), (told.output, told.exception)
    agents = RemoteWalMetadataStore()
    agents.apply_all(topic.kept)
    assert agents.caretaker_of(GONE) == HEIR
