"""Finds the partitions that this broker leads, and their followers, from the cluster's metadata.

Ids and paths come from the log directories.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.log_directory import LogDirectory, PartitionDirectory
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.wal_retention import WalRetention
from plugin.hot_path.deadline import wait_at_most
from replication.leader.zones import Zones
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

_LOOK_S = 30.0
"""A broker's zone changes only with its restart."""
_UNKNOWN_S = 5.0
"""Used while a follower's zone was never seen, maybe because that broker is away."""
_ASK_S = 5.0


def partition_directories(log_directories: Sequence[LogDirectory]) -> list[PartitionDirectory]:
    """List the replicas of all readable log directories; a failing directory does not affect the others.

    If the process lacks file descriptors, the directory's replicas are those of the last look.
    """
    found: list[PartitionDirectory] = []
    for directory in log_directories:
        faults: list[MalformedFileError] = []
        try:
            faults = directory.scan()
        except LogDirectoryError as error:
            log.error("log_directory_failed", error=str(error))
            if not error.lacks_descriptors:
                continue
        for fault in faults:
            log.warning("partition_directory_malformed", error=str(fault))
        found += directory.partitions.values()
    return found


class LocalReplicas:
    """The replicas on this broker's disks, as the last look found them. Any thread may ask."""

    def __init__(self, log_directories: Sequence[LogDirectory]) -> None:
        self._log_directories = log_directories
        self._paths: dict[TopicIdPartition, Path] = {}
        self.topic_names: Mapping[TopicId, str] = {}
        """Names of all topics with a replica here."""

    def look(self) -> Sequence[PartitionDirectory]:
        """Scan the log directories for replicas. Blocks."""
        found = partition_directories(self._log_directories)
        self._paths = {directory.topic_id_partition: directory.path for directory in found}
        self.topic_names = {directory.topic_id: directory.topic for directory in found}
        return found

    def directory_of(self, partition: TopicIdPartition) -> Path | None:
        """Return the directory of the partition's replica here; None without one."""
        return self._paths.get(partition)

    def is_here(self, partition: TopicIdPartition) -> bool:
        """Whether the replica's directory still belongs to that topic, not to one recreated under its name."""
        path = self._paths.get(partition)
        try:
            return path is not None and read_partition_metadata(path) == partition.topic_id
        except (OSError, MalformedFileError):
            return False


LedByTopic = Mapping[str, Mapping[int, frozenset[int]]]
"""By topic and partition, the brokers that follow what this one leads."""
MIN_INTERVAL_S = 0.2


class LeadershipReader:
    """Asks Kafka for leaders and zones. Blocks; for a thread of its own."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._cluster = KafkaCluster(client, f"remote-wal-agent-{broker_id}-leadership", _ASK_S)
        self._broker_id = broker_id
        self._clock = clock
        self._seen: set[int] = set()
        self._asked_s = -_LOOK_S

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

    def racks(self, followers: Collection[int]) -> Mapping[int, str | None]:
        """Return the living brokers' racks by id; empty without a response, or if `followers` were asked for lately."""
        since_s = self._clock() - self._asked_s
        if since_s < (_LOOK_S if self._seen.issuperset(followers) else _UNKNOWN_S):
            return {}
        self._asked_s = self._clock()
        try:
            racks = {broker.broker_id: broker.rack for broker in self._cluster.brokers()}
        except KafkaClusterError as error:
            log.warning("zones_unknown", error=str(error), consequence="followers keep the zones that they had")
            return {}
        self._seen.update(racks)
        return racks


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The agent's values for settings that a topic does not set itself."""

    latency_bound_ms: int
    retention: WalRetention


def assignments(
    led: LedByTopic,
    table: SettingsTable,
    directories: Iterable[PartitionDirectory],
    defaults: TopicDefaults,
    zones: Zones,
) -> list[Assignment]:
    """Return the partitions to upload: led here, enabled, and with a directory of that topic's id.

    Objects are kept for more than links if the archive merges them, or if they are kept as long as the log, as for a
    recovery. By default that holds for logs without another replica.
    """
    found: list[Assignment] = []
    retention = defaults.retention
    for directory in directories:
        settings = table.of(directory.topic, directory.topic_id)
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
                settings.link_latency_bound_ms or defaults.latency_bound_ms,
                settings.archive,
                zones.find_elsewhere(partition, followers),
                is_kept,
                0.0 if is_kept else retention.chosen_ms(settings, len(followers) + 1) / 1000,
                is_only_replica=not followers,
                is_durable=settings.is_durable,
                is_bounded=settings.link_latency_bound_ms is not None,
                upload_wait_max_s=(
                    math.inf if settings.upload_wait_max_ms is None else settings.upload_wait_max_ms / 1000
                ),
            )
        )
    return found


def followers_of(led: LedByTopic, directories: Iterable[PartitionDirectory]) -> dict[TopicIdPartition, frozenset[int]]:
    """Return the brokers that follow each partition led here, whether or not the feature is on."""
    return {
        TopicIdPartition(directory.topic_id, directory.partition): followers
        for directory in directories
        if (followers := led.get(directory.topic, {}).get(directory.partition)) is not None
    }


@dataclass(frozen=True, slots=True)
class Led:
    """The partitions to upload of those that this broker leads, and the topics whose partition 0 it leads."""

    assignments: list[Assignment]
    first: Mapping[str, TopicId]
    """The topics whose partition 0 is led here, whether or not the feature is on."""


class LeadershipWatch:
    """Yields what this broker leads, whenever that may have changed. Use it in the event loop."""

    def __init__(
        self,
        table: Callable[[], SettingsTable],
        defaults: TopicDefaults,
        replicas: LocalReplicas,
        zones: Zones,
        is_fenced: Callable[[], bool],
        threads: Executor,
        changed: asyncio.Event,
    ) -> None:
        """`table` returns the settings as last read; while `is_fenced` returns True, this agent leads nothing.

        `zones` is given the brokers' zones. `changed` is set when leadership or readers may have changed.
        """
        self._table = table
        self._defaults = defaults
        self._replicas = replicas
        self._zones = zones
        self._is_fenced = is_fenced
        self._threads = threads
        self._changed = changed
        self._last = Led([], {})
        self.is_known = False
        self.unknown_because: str | None = None
        """Why Kafka did not answer last time; None: it did."""

    async def looks(self, reader: LeadershipReader, interval_s: float) -> AsyncGenerator[Led, None]:
        """Ask for leadership for ever, at this interval or when `changed` is set, and yield each result.

        While nothing changes, the same objects are yielded, so that the receiver need not compare thousands of logs.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            try:
                yield await loop.run_in_executor(self._threads, self._look, reader)
                self.is_known, self.unknown_because = True, None
            except KafkaClusterError as error:
                log.warning("leadership_unknown", error=str(error))
                self.unknown_because = str(error)
            await asyncio.sleep(MIN_INTERVAL_S)
            await wait_at_most(self._changed, interval_s)

    def _look(self, reader: LeadershipReader) -> Led:
        led = reader.led_partitions()
        followers = frozenset[int]().union(*chain.from_iterable(topic.values() for topic in led.values()))
        self._zones.learned(reader.racks(followers))
        if self._is_fenced():
            led = {}  # every reader would refuse what this incarnation uploads
        found = self._replicas.look()
        self._zones.set_led(followers_of(led, found))
        first = (one for one in found if one.partition == 0 and 0 in led.get(one.topic, {}))
        found_led = assignments(led, self._table(), found, self._defaults, self._zones)
        answer = Led(found_led, {one.topic: one.topic_id for one in first})
        self._last = self._last if answer == self._last else answer
        return self._last
