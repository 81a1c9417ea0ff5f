"""A whole agent in this process: a scripted local broker, a directory as object storage, and no Kafka to ask."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import metadata_topic.topic.metadata_topics as metadata_topics
from agent.defects import BackOff
from agent.identity import AgentLock
from agent.process import Agent
from agent.settings_file import agent_settings
from agent.wiring.storage_system import StorageRun
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.server_properties import load_broker_properties
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.loading import IMPL_PREFIX
from replication.wire.peer_connection import Address
from rlm.write_path.assignment import Assignment
from tests.kafka_log.log_writer import LogWriter
from tests.replication.fetch_frames import request
from tests.replication.two_agents import ScriptedBroker, framed, read_frame

PARTITION = TopicIdPartition(TopicId(b"l" * 16), 0)
PATIENCE_S = 60
_SERVER_PROPERTIES = """
process.roles=broker
node.id=1
log.dirs={directory}/data
listeners=PLAINTEXT://127.0.0.1:1,REPLICATION://{broker}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT
inter.broker.listener.name=REPLICATION
remote.log.wal.storage.system.enable=true
remote.log.wal.storage.manager.class.name=plugin.local_directory.LocalWalStorageManager
{prefix}directory={directory}/objects
remote.wal.archive.enable=true
remote.wal.archive.storage.manager.class.name=plugin.local_directory.LocalWalStorageManager
rsm.wal.archive.config.directory={directory}/archive
remote.wal.agent.state.directory={directory}/state
remote.wal.agent.peer.listener=127.0.0.1:0
remote.wal.agent.http.listener=127.0.0.1:0
remote.wal.agent.shutdown.timeout.ms=0
"""


async def is_relayed(peer_listener: tuple[str, int], correlation_id: int = 1) -> bool:
    """Whether a follower without an agent, which connects and asks, is answered by the local broker."""
    try:
        reader, writer = await asyncio.open_connection(*peer_listener[:2])
    except OSError:
        return False
    try:
        writer.write(framed(request({0: 0}, correlation_id=correlation_id)))
        answer = await read_frame(reader)
        return answer is not None and int.from_bytes(answer[:4], "big") == correlation_id
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@dataclass
class AgentRig:
    """A running agent, and the ends that its neighbours have."""

    agent: Agent
    broker: ScriptedBroker
    directory: Path
    registry: CollectorRegistry
    correlation_id: int = 0

    async def expect_relaying(self) -> None:
        """A follower without an agent connects, asks, and is answered by the local broker."""
        assert self.agent.state.relaying is not None
        (where,) = self.agent.state.relaying.leader.addresses
        self.correlation_id += 1
        assert await is_relayed((where.host, where.port), self.correlation_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - threads and parts of all kinds are behind it
                await asyncio.sleep(0.002)

    def failures(self, part: str) -> float:
        return self.registry.get_sample_value("remote_wal_part_failures_total", {"part": part}) or 0.0

    @property
    def storage_run(self) -> StorageRun | None:
        return self.agent.state.storage_run

    @property
    def uploaded_offset(self) -> int | None:
        return self.storage_run.write_path.manager.uploaded_offset(PARTITION) if self.storage_run is not None else None

    def lead(self, log: LogWriter) -> None:
        """As if Kafka had said so."""
        assert self.storage_run is not None
        self.storage_run.assigned([Assignment(PARTITION, "t", log.path, LinkPolicy.ALWAYS, 20)])


class _AcknowledgingProducer:
    def partition_count(self, topic: str, timeout_s: float) -> int:
        return 12

    def produce(
        self, topic: str, value: bytes | None, key: bytes, partition: int, on_delivery: Callable[[None, None], None]
    ) -> None:
        on_delivery(None, None)

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...

    def flush(self, timeout: float) -> int:
        return 0


def _brokers_are_away(client: KafkaClientConfig, *_: object) -> object:
    """Without Kafka's own client, which would go on dialling, and telling so, for long after the test."""
    raise MetadataTopicError("make topics", client.bootstrap_servers, "no broker answers")


def write_properties(directory: Path, broker: Address, **changes: str) -> Path:
    """A broker's server.properties, with a formatted log directory. `changes` are the agent's settings."""
    (directory / "objects").mkdir()
    (directory / "archive").mkdir()
    format_log_directory(directory)
    path = directory / "server.properties"
    changed = "".join(f"{key.replace('_', '.')}={value}\n" for key, value in changes.items())
    text = _SERVER_PROPERTIES.format(directory=directory, broker=broker, prefix=IMPL_PREFIX)
    path.write_text(text + changed)
    return path


def format_log_directory(directory: Path) -> None:
    """As kafka-storage.sh does, seen from outside."""
    (directory / "data").mkdir(exist_ok=True)
    (directory / "data/meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")


@asynccontextmanager
async def running_agent(
    directory: Path, monkeypatch: pytest.MonkeyPatch, back_off: BackOff | None = None, **changes: str
) -> AsyncIterator[AgentRig]:
    """An agent that has begun to relay. `changes` are settings, as `write_properties` takes them."""
    monkeypatch.setattr(metadata_topics, "KafkaCluster", _brokers_are_away)
    monkeypatch.setattr(RemoteWalMetadataPublisher, "_new_producer", lambda _self: _AcknowledgingProducer())
    scripted = ScriptedBroker()
    path = write_properties(directory, await scripted.start(), **changes)
    broker = load_broker_properties(path)
    settings = agent_settings(broker, path)
    lock = AgentLock(settings.process.state_directory)
    agent = Agent(broker, settings, lock, back_off=back_off or BackOff(0.05, 0.05))
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    rig = AgentRig(agent, scripted, directory, agent.registry)
    try:
        await rig.until(lambda: agent.state.relaying is not None or running.done())
        yield rig
    finally:
        stop.set()
        await running
        lock.release()
        await scripted.stop()
