"""One real agent beside one real broker, among played ones: what `perf.fan_out.command` measures.

Zones are three. Each partition has a replica in each, as rack-aware placement has it, so two thirds of the brokers
follow this one, and none in its own zone (`perf.fan_out.played_followers`). A burst of records for every partition
comes at the pace that objects are wanted at, so nearly each object is read by all followers.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

from kafka_log.crc32c import Buffer
from kafka_log.partition_metadata import read_partition_metadata
from kafka_log.topic_partition import TopicId
from local_cluster.agent_metrics import Scrape, scrape
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from local_cluster.topic_switch import LINKED, set_topics
from perf.clusters import directory_in_memory, started_cluster
from perf.fan_out.played_followers import Leader, LinkedRecords, PlayedFollower, PlayedFollowerError, Tally
from perf.fan_out.registered_brokers import RegisteredBroker, Registrar
from perf.gateway.world import quantile
from plugin.format.archive_object_id import ArchiveObjectId
from replication.wire.link import SegmentLink
from replication.wire.peer_connection import Address
from tests.soak.stored_offsets import open_storage

LEADER: Final = 1
_ZONES: Final = 3
_NOBODY: Final = "127.0.0.1:9"
"""Where the agent would find those whom it never dials, as they lead nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is produced, and for how long it is measured."""

    objects_per_s: float
    mb_per_s: float
    partitions: int
    warm_up_s: float
    seconds: float

    @property
    def record_bytes(self) -> int:
        """Of each partition's record in each burst."""
        return max(1, round(self.mb_per_s * 1e6 / self.objects_per_s / self.partitions))


@dataclass(frozen=True, slots=True)
class Carried:
    """What one agent did among so many brokers."""

    brokers: int
    followers: int
    objects_per_s: float
    mb_per_s: float
    linked_share: float
    idle_cores: float
    """While nothing is produced, with all followers there."""
    cores: float
    memory_mb: float
    late_p50_ms: float
    """From a record's time until a follower has its link."""
    late_p99_ms: float

    @property
    def cpu_ms_per_object(self) -> float:
        """All of the agent's, over what it uploads."""
        return 1000 * self.cores / self.objects_per_s

    def cpu_ms_per_follower(self, fewer: "Carried | None") -> float | None:
        """What each further follower adds to an object, beside a run with fewer; None without one."""
        if fewer is None or fewer.followers == self.followers:
            return None
        return (self.cpu_ms_per_object - fewer.cpu_ms_per_object) / (self.followers - fewer.followers)


def followers_of(brokers: int) -> list[int]:
    """Those of other zones than the leader's; broker ids count from 1, zones take turns."""
    return [one for one in range(1, brokers + 1) if zone_of(one) != zone_of(LEADER)]


def zone_of(broker_id: int) -> int:
    """From 1, as the first brokers of a local cluster have it."""
    return 1 + (broker_id - 1) % _ZONES


def replicas_of(brokers: int, partitions: int) -> list[list[int]]:
    """Of each partition: the leader, and in turns one broker of each other zone."""
    others = sorted({zone_of(one) for one in followers_of(brokers)})
    zones = [[one for one in followers_of(brokers) if zone_of(one) == zone] for zone in others]
    return [[LEADER, *(zone[number % len(zone)] for zone in zones)] for number in range(partitions)]


def measure(brokers: Sequence[int], shape: Shape, latency_ms: int) -> list[Carried]:
    """For each of these numbers of brokers, ascending. Raises PlayedFollowerError, OSError, ExceptionGroup of them."""
    overrides = {
        "remote.wal.agent.peers": ",".join(f"{one}@{_NOBODY}" for one in range(2, max(brokers) + 1)),
        "remote.wal.log.metadata.topic.replication.factor": "1",
        "remote.wal.log.manager.combiner.task.interval.ms": str(round(1000 / shape.objects_per_s)),
    }
    # What followers look up of objects is not to be waited for, as nobody's GETs are measured here.
    with (
        directory_in_memory() as objects,
        TemporaryDirectory(prefix="remote-wal-fan-out-") as directory,
        started_cluster(
            Path(directory) / "agents", AgentsMode(LocalDirectoryStore(latency_ms, 0, objects), overrides), brokers=1
        ) as cluster,
    ):
        return asyncio.run(_World(cluster, shape).measure(brokers))


class _World:
    """A cluster of one broker, to which played ones come."""

    def __init__(self, cluster: LocalCluster, shape: Shape) -> None:
        self._cluster, self._shape = cluster, shape
        self._played: dict[int, RegisteredBroker] = {}

    async def measure(self, brokers: Sequence[int]) -> list[Carried]:
        layout, carried = self._cluster.layout, list[Carried]()
        host, ports = layout.host(LEADER), layout.ports(LEADER)
        places = Address(host, ports.controller), Address(host, ports.client)
        registrar = await Registrar.connect(layout.cluster_id, *places)
        for count in brokers:
            for one in followers_of(count):
                if one not in self._played:
                    self._played[one] = await registrar.register(one, f"az{zone_of(one)}")
            async with asyncio.TaskGroup() as tasks:
                alive = tasks.create_task(registrar.keep_alive(self._played.values()))
                carried.append(await self._among(count))
                alive.cancel()
        registrar.close()
        return carried

    async def _among(self, brokers: int) -> Carried:
        leader, replicas = await asyncio.to_thread(self._created, brokers)
        with _linked_records(self._cluster) as linked:
            followers = [
                PlayedFollower(
                    self._played[one], leader, [n for n, assigned in enumerate(replicas) if one in assigned], linked
                )
                for one in followers_of(brokers)
            ]
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(one.follow()) for one in followers]
                await asyncio.sleep(self._shape.warm_up_s)
                idle = await self._used(self._shape.warm_up_s)
                with _produced(self._cluster.bootstrap_servers, leader.topic, self._shape):
                    await asyncio.sleep(self._shape.warm_up_s)
                    for one in followers:
                        one.tally = Tally()
                    used = await self._used(self._shape.seconds)
                    tallies = [one.tally for one in followers]
                for task in following:
                    task.cancel()
        await asyncio.to_thread(self._cluster.admin.delete_topic, leader.topic)
        return _carried(brokers, idle, used, tallies)

    def _created(self, brokers: int) -> tuple[Leader, list[list[int]]]:
        """A topic of its own for each number of brokers, and whom they follow."""
        cluster, topic = self._cluster, f"fan-out-{brokers}"
        replicas = replicas_of(brokers, self._shape.partitions)
        cluster.admin.create_topic(topic, assignment=replicas, config={"min.insync.replicas": "1"})
        set_topics(cluster.bootstrap_servers, [topic], LINKED)
        host, port = cluster.layout.peer_address(LEADER).rsplit(":", 1)
        topic_id = wait_until(lambda: self._topic_id(topic), f"broker {LEADER} has {topic}", 30.0)
        return Leader(LEADER, cluster.layout.cluster_id, Address(host, int(port)), topic, topic_id), replicas

    def _topic_id(self, topic: str) -> TopicId | None:
        """None while the controller alone has heard of it."""
        directory = self._cluster.files.partition_directory(LEADER, topic, 0)
        try:
            return None if directory is None else read_partition_metadata(directory)
        except FileNotFoundError:
            return None

    async def _used(self, seconds: float) -> "_Used":
        began, before = time.monotonic(), await asyncio.to_thread(scrape, self._cluster, LEADER)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(scrape, self._cluster, LEADER)
        return _Used(time.monotonic() - began, before, after)


@dataclass(frozen=True, slots=True)
class _Used:
    """What the agent counted between two moments."""

    seconds: float
    before: Scrape
    after: Scrape

    def per_s(self, counter: str) -> float:
        """The counter's growth."""
        return self.after.counters.since(self.before.counters).of(counter) / self.seconds


def _carried(brokers: int, idle: _Used, used: _Used, tallies: Sequence[Tally]) -> Carried:
    linked, inline = sum(one.linked_bytes for one in tallies), sum(one.inline_bytes for one in tallies)
    late_ms = [late for one in tallies for late in one.late_ms]
    if not late_ms:
        raise PlayedFollowerError("nothing came to any follower")
    return Carried(
        brokers,
        len(tallies),
        used.per_s("remote_wal_uploaded_segments_total"),
        used.per_s("remote_wal_appended_bytes_total") / 1e6,
        linked / max(linked + inline, 1),
        idle.per_s("process_cpu_seconds_total"),
        used.per_s("process_cpu_seconds_total"),
        used.after.gauge("process_resident_memory_bytes") / 1e6,
        quantile(late_ms, 0.5),
        quantile(late_ms, 0.99),
    )


@contextmanager
def _linked_records(cluster: LocalCluster) -> Iterator[LinkedRecords]:
    """Out of the agent's store."""
    storage = open_storage(cluster)

    def fetch(link: SegmentLink) -> Buffer:
        if isinstance(link.object_id, ArchiveObjectId):
            raise PlayedFollowerError("nothing is archived here")
        return storage.fetch_log_segment(link.object_id, link.start_position, link.end_position)

    try:
        yield LinkedRecords(fetch)
    finally:
        storage.close()


@contextmanager
def _produced(bootstrap_servers: str, topic: str, shape: Shape) -> Iterator[None]:
    """Bursts at their pace, in a thread, for as long as this lasts."""
    over = Event()
    thread = Thread(target=_produce, args=(bootstrap_servers, topic, shape, over), name="bursts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _produce(bootstrap_servers: str, topic: str, shape: Shape, over: Event) -> None:
    from confluent_kafka import Producer

    config: Mapping[str, object] = {"acks": 1, "linger.ms": 2, "batch.num.messages": 100_000}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **CLIENT_CONFIG, **config})
    value, due_s = bytes(shape.record_bytes), time.monotonic()
    while not over.wait(max(0.0, due_s - time.monotonic())):
        due_s = max(due_s + 1 / shape.objects_per_s, time.monotonic())  # what could not come in time does not come
        for number in range(shape.partitions):
            producer.produce(topic, value, partition=number)
        producer.poll(0)
    producer.flush(10)
