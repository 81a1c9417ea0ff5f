"""Which partitions this broker leads: leaders from the cluster's metadata, ids and paths from the log directories."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from kafka_log.leader_epoch_checkpoint import MalformedFileError, read_leader_epochs
from kafka_log.log_directory import PartitionDirectory
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.client_config import LIBRDKAFKA_LOGGER, KafkaClientConfig
from metadata_topic.leader_epochs import LeaderEpochChain
from metadata_topic.store import UNKNOWN_OFFSET, RemoteWalMetadataStore
from metadata_topic.topic_settings import TopicSettings
from rlm.led_partition import Assignment

LedByTopic = Mapping[str, frozenset[int]]


class LeadershipReader:
    """Asks Kafka who leads what. Blocks; for a thread of its own."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, timeout_s: float = 5.0) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(
            client.for_confluent(client_id=f"remote-wal-agent-{broker_id}-leadership"),
            logger=logging.getLogger(LIBRDKAFKA_LOGGER),
        )
        self._broker_id = broker_id
        self._timeout_s = timeout_s

    def led_partitions(self) -> LedByTopic:
        """The partitions of every topic that this broker leads. Raises confluent_kafka.KafkaException."""
        metadata = self._admin.list_topics(timeout=self._timeout_s)
        return {
            name: frozenset(
                partition.id for partition in topic.partitions.values() if partition.leader == self._broker_id
            )
            for name, topic in metadata.topics.items()
        }


def assignments(
    led: LedByTopic,
    topics: Mapping[str, TopicSettings],
    directories: Iterable[PartitionDirectory],
    default_latency_bound_ms: int,
) -> list[Assignment]:
    """The partitions to take care of: led here, of a topic with the feature on, with a directory of that topic's id."""
    found: list[Assignment] = []
    for directory in directories:
        settings = topics.get(directory.topic)
        if settings is None or not settings.enable or directory.partition not in led.get(directory.topic, ()):
            continue
        partition = TopicIdPartition(directory.topic_id, directory.partition)
        found.append(
            Assignment(
                partition,
                directory.topic,
                directory.path,
                settings.link_policy,
                settings.link_latency_bound_ms or default_latency_bound_ms,
                settings.archive,
            )
        )
    return found


def resume_offset(
    store: RemoteWalMetadataStore, archive: ArchiveStore, partition: TopicIdPartition, directory: Path
) -> int | None:
    """`offset_to_resume` of the log as its directory has it; None too when the checkpoint cannot be read."""
    try:
        epochs = read_leader_epochs(directory)
    except (OSError, MalformedFileError):
        return None
    return offset_to_resume(store, archive, partition, LeaderEpochChain(epochs.entries))


def offset_to_resume(
    store: RemoteWalMetadataStore, archive: ArchiveStore, partition: TopicIdPartition, epochs: LeaderEpochChain
) -> int | None:
    """Where the upload of this log goes on, as the metadata topic and the log's leader epochs tell together.

    What was uploaded is in combined segments, or, once these were released, in archive objects alone. Of these nothing
    counts from the first offset on that was declared dead and is the log's again: it is uploaded anew, as nothing
    else tells a recovery that it is (`recovery.epoch_ends`). None when nothing of the log was uploaded.
    """
    archived = _last_archived_offset(archive, partition, epochs)
    if archived != UNKNOWN_OFFSET and (dead := store.first_dead_offset(partition, epochs)) is not None:
        archived = min(archived, dead - 1)
    last = max(store.last_uploaded_offset(partition, epochs), archived)
    return None if last == UNKNOWN_OFFSET else last + 1


def _last_archived_offset(archive: ArchiveStore, partition: TopicIdPartition, epochs: LeaderEpochChain) -> int:
    """The highest offset of this log in a committed object; UNKNOWN_OFFSET when there is none."""
    last = UNKNOWN_OFFSET
    while (found := archive.archived_range(partition, epochs, last + 1)) is not None:
        _, last = found
    return last
