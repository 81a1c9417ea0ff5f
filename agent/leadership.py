"""Finds the partitions that this broker leads, and their followers, from the cluster's metadata.

Ids and paths come from the log directories.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor

import structlog

from agent.broker_racks import BrokerRacks
from agent.partition_directories import LocalReplicas
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_log.log_directory import PartitionDirectory
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import TopicSettings, settings_of
from metadata_topic.settings.wal_retention import WalRetention
from replication.leader.zones import Zones
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

LedByTopic = Mapping[str, Mapping[int, frozenset[int]]]
"""By topic and partition, the brokers that follow what this one leads."""
MIN_INTERVAL_S = 0.2


class LeadershipReader:
    """Asks Kafka for leaders. Blocks; for a thread of its own."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, timeout_s: float = 5.0) -> None:
        self._cluster = KafkaCluster(client, f"remote-wal-agent-{broker_id}-leadership", timeout_s)
        self._racks = BrokerRacks(self._cluster.brokers, time.monotonic)
        self._broker_id = broker_id

    def led_partitions(self) -> LedByTopic:
        """Return the partitions of every topic that this broker leads. Raises KafkaClusterError."""
        return {
            name: {
                partition.partition: frozenset(partition.replicas) - {self._broker_id}
                for partition in topic.partitions
                if partition.leader_id == self._broker_id
            }
            for name, topic in self._cluster.listing().topics.items()
        }

    def racks(self, followers: frozenset[int]) -> Mapping[int, str | None]:
        """Return the zones of these brokers, if it is time to ask, see `BrokerRacks.look`."""
        return self._racks.look(followers)


def assignments(
    led: LedByTopic,
    topics: Mapping[str, TopicSettings],
    directories: Iterable[PartitionDirectory],
    default_latency_bound_ms: int,
    zones: Zones,
    retention: WalRetention,
) -> list[Assignment]:
    """Return the partitions to take care of: led here, with the feature on, and with a directory of that topic's id.

    Objects are kept for more than links if the archive merges them, or if they are kept as long as the log, as for a
    recovery. By default that holds for logs without another replica.
    """
    found: list[Assignment] = []
    for directory in directories:
        settings = settings_of(topics, directory.topic, directory.topic_id)
        followers = led.get(directory.topic, {}).get(directory.partition)
        if settings is None or not settings.enable or followers is None:
            continue
        is_kept = retention.is_kept(settings, len(followers) + 1)
        partition = TopicIdPartition(directory.topic_id, directory.partition)
        found.append(
            Assignment(
                partition,
                directory.topic,
                directory.path,
                settings.link_policy,
                settings.link_latency_bound_ms or default_latency_bound_ms,
                settings.archive,
                zones.elsewhere(partition, followers),
                is_kept,
                0.0 if is_kept else retention.chosen_ms(settings, len(followers) + 1) / 1000,
                is_only_replica=not followers,
                is_durable=settings.is_durable,
                upload_wait_max_s=(
                    math.inf if settings.upload_wait_max_ms is None else settings.upload_wait_max_ms / 1000
                ),
            )
        )
    return found


def followers_of(led: LedByTopic, directories: Iterable[PartitionDirectory]) -> dict[TopicIdPartition, frozenset[int]]:
    """By partition, return the brokers that follow what is led here, whether or not the feature is on."""
    return {
        TopicIdPartition(directory.topic_id, directory.partition): followers
        for directory in directories
        if (followers := led.get(directory.topic, {}).get(directory.partition)) is not None
    }


class LeadershipWatch:
    """Reports the partitions to take care of, whenever they may have changed. Use it in the event loop."""

    def __init__(
        self,
        topics: Callable[[], Mapping[str, TopicSettings]],
        replicas: LocalReplicas,
        default_latency_bound_ms: int,
        is_fenced: Callable[[], bool],
        on_assignments: Callable[[list[Assignment]], None],
        threads: Executor,
        zones: Zones,
        retention: WalRetention,
    ) -> None:
        """`topics` returns the settings as they were read; while this agent `is_fenced`, it leads nothing.

        `zones` gets what the cluster says of zones.
        """
        self._topics = topics
        self._replicas = replicas
        self._default_latency_bound_ms = default_latency_bound_ms
        self._is_fenced = is_fenced
        self._on_assignments = on_assignments
        self._threads = threads
        self._zones = zones
        self._retention = retention
        self._changed = asyncio.Event()
        self.is_known = False
        self.unknown_because: str | None = None
        """Why Kafka did not answer last time; None: it did."""
        self.on_known: Callable[[], None] = lambda: None
        """Called each time that Kafka has answered."""
        if zones.readers is not None:
            zones.readers.on_new = self.look_again

    def look_again(self) -> None:
        """Ask again soon: leadership or readers may have changed. May be called often."""
        self._changed.set()

    async def run(self, reader: LeadershipReader, interval_s: float) -> None:
        """Ask for ever, at that interval or when a change is signalled."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            try:
                led = await loop.run_in_executor(self._threads, reader.led_partitions)
                followers = frozenset(one for topic in led.values() for them in topic.values() for one in them)
                self._zones.learned(await loop.run_in_executor(self._threads, reader.racks, followers))
                if self._is_fenced():
                    led = {}  # every reader would refuse what this incarnation uploads
                self._on_assignments(await loop.run_in_executor(self._threads, self._assignments, led))
                self.is_known, self.unknown_because = True, None
                self.on_known()
            except KafkaClusterError as error:
                log.warning("leadership_unknown", error=str(error))
                self.unknown_because = str(error)
            await asyncio.sleep(MIN_INTERVAL_S)
            try:
                async with asyncio.timeout(interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _assignments(self, led: LedByTopic) -> list[Assignment]:
        found = self._replicas.look()
        self._zones.led(followers_of(led, found))
        return assignments(led, self._topics(), found, self._default_latency_bound_ms, self._zones, self._retention)
