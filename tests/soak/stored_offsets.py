"""Does object storage hold every offset that is wanted of it? Asked of the metadata topic, of the store's listing and
of the leaders' own leader-epoch checkpoints, so that a hole shows whatever the agents believe.

Wanted are the offsets from the log's start on, or from the topic's retention on where that is later, up to the log's
end. Held is an offset by a finished object that the store lists, in an entry of the very leader epoch whose leader
wrote the offset, and not declared dead.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent.settings_file import agent_settings
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.broker_files.server_properties import load_broker_properties
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG
from metadata_topic.topic.topic_session import read_metadata
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.zones.bucket_loading import load_storage
from recovery.cluster_view import ask_cluster
from recovery.logs.stored_run import StoredRun
from recovery.metadata.inventory import Inventory, from_metadata

_READ_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 10.0


class StoredOffsetsError(Exception):
    """What is wanted could not be found out."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [first, end) of one partition."""

    name: str
    """Topic and partition, as their directory is called."""
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.name}: {self.first} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    wanted: tuple[OffsetRange, ...]
    missing: tuple[OffsetRange, ...]
    lost_objects: tuple[str, ...]
    """The metadata tells of them as finished, and the store does not list them."""

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.lost_objects

    @property
    def wanted_offsets(self) -> int:
        return sum(one.end - one.first for one in self.wanted)


def find_stored_offsets(
    cluster: LocalCluster, topics: Sequence[str], *, appended_since_ms: int | None = None
) -> StoredOffsets:
    """Ask for all partitions of these topics. Nobody should write meanwhile, and agents should have nothing to upload.

    `appended_since_ms` (since 1970) is where the topics' retention begins, with some time to spare. The store's
    credentials are taken from the environment. Raises StoredOffsetsError, and the errors of metadata_topic and plugin.
    """
    client = KafkaClientConfig(cluster.bootstrap_servers)
    inventory = _inventory(cluster, client)
    _, view = ask_cluster(client)
    wanted: list[OffsetRange] = []
    missing: list[OffsetRange] = []
    for topic in view.topics.values():
        if topic.name not in topics:
            continue
        for number in sorted(topic.partitions):
            partition = TopicIdPartition(topic.topic_id, number)
            one = _wanted(cluster, topic.name, number, appended_since_ms)
            wanted.append(one)
            epochs = _leader_epochs(cluster, topic.name, number)
            missing += not_held(one, epochs, inventory.runs.get(partition, ()))
    if len({one.name for one in wanted}) < len(topics):
        raise StoredOffsetsError(f"the cluster does not know all of {', '.join(topics)}")
    return StoredOffsets(tuple(wanted), tuple(missing), tuple(str(lost.object_id) for lost in inventory.lost_objects))


def not_held(wanted: OffsetRange, epochs: LeaderEpochs, runs: Iterable[StoredRun]) -> Iterator[OffsetRange]:
    """The ranges of `wanted` that no run of their own leader epoch holds, in order. Sans-IO."""
    by_epoch: dict[int, list[StoredRun]] = {}
    for run in runs:
        if run.living_last_offset >= run.first_offset:
            by_epoch.setdefault(run.leader_epoch, []).append(run)
    position = wanted.first
    while position < wanted.end:
        epoch = epochs.epoch_for(position)
        following = epochs.end_of(epoch)
        end = wanted.end if following is None else min(following, wanted.end)
        for run in sorted(by_epoch.get(epoch, ()), key=lambda run: run.first_offset):
            if position >= end:
                break
            if run.first_offset > position:
                yield OffsetRange(wanted.name, position, min(run.first_offset, end))
            position = max(position, min(run.living_last_offset + 1, end))
        if position < end:
            yield OffsetRange(wanted.name, position, end)
        position = end


def _inventory(cluster: LocalCluster, client: KafkaClientConfig) -> Inventory:
    store, archived = read_metadata(client)
    storage = open_storage(cluster)
    try:
        return from_metadata(store, archived, storage, None)
    finally:
        storage.close()


def open_storage(cluster: LocalCluster) -> RemoteWalStorageManager:
    """The store of the cluster's agents, for reading; the caller closes it."""
    broker_id = cluster.broker_ids[0]
    path = cluster.layout.server_properties(broker_id)
    broker = load_broker_properties(path)
    settings = agent_settings(broker, path)
    return load_storage(settings.store_spec(broker), StorageContext(cluster.layout.cluster_id, broker_id))


def _wanted(cluster: LocalCluster, topic: str, number: int, appended_since_ms: int | None) -> OffsetRange:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    config = {"bootstrap.servers": cluster.bootstrap_servers, **CLIENT_CONFIG, "group.id": f"{topic}-wanted"}
    reader = Consumer(config)
    try:
        first, end = reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_TIMEOUT_S)
        if appended_since_ms is not None:
            asked = [TopicPartition(topic, number, appended_since_ms)]
            [found] = reader.offsets_for_times(asked, timeout=_ANSWER_TIMEOUT_S)
            first = end if found.offset < 0 else max(first, found.offset)
    except KafkaException as error:
        raise StoredOffsetsError(f"{topic}-{number} does not tell its offsets: {error}") from error
    finally:
        reader.close()
    return OffsetRange(f"{topic}-{number}", first, end)


def _leader_epochs(cluster: LocalCluster, topic: str, number: int) -> LeaderEpochs:
    leader = cluster.admin.wait_for_leader(topic, number)
    directory = cluster.layout.partition_directory(leader, topic, number)
    if directory is None:
        raise StoredOffsetsError(f"broker {leader} leads {topic}-{number} and has no directory of it")
    return read_leader_epochs(directory)
