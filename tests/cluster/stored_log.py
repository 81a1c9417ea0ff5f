"""One partition's log as a broker's files, the metadata topic and the agents tell of it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import ReplicaLog
from metadata_topic.records.offset_ranges import joined_ranges
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from tests.cluster.script import PATIENCE_S, Script


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Partition 0 of the script's topic."""

    script: Script
    partition: TopicIdPartition
    store: RemoteWalMetadataStore
    """What the metadata topic tells, up to now."""

    @property
    def cluster(self) -> LocalCluster:
        return self.script.cluster

    def directory(self, broker_id: int) -> Path:
        directory = self.cluster.layout.partition_directory(broker_id, self.script.topic, 0)
        assert directory is not None, f"broker {broker_id} has no replica"
        return directory

    def epochs(self, broker_id: int) -> LeaderEpochs:
        return read_leader_epochs(self.directory(broker_id))

    def start_offset(self, broker_id: int) -> int:
        """Where the broker's first segment begins."""
        return min(int(path.name[:20]) for path in self.directory(broker_id).glob("*.log"))

    def end_offset(self, broker_id: int) -> int:
        return ReplicaLog(self.directory(broker_id)).end_offset()

    def ranges(self, broker_id: int) -> list[tuple[int, int]]:
        """What finished objects hold of the log that this broker has."""
        return self.store.stored_ranges(self.partition, self.epochs(broker_id))

    def declared_dead(self) -> list[tuple[int, int]]:
        """The ranges of offsets, ascending, of which agents have told that an election killed them."""
        agents = [self.script.agent_log(broker_id).splitlines() for broker_id in self.cluster.broker_ids]
        told = [json.loads(line) for log in agents for line in log if "dead_entries_published" in line]
        return joined_ranges(
            (one["from_offset"], one["to_offset"]) for one in told if one["partition"] == str(self.partition)
        )

    def produce(self, value: bytes, records: int, *, acks: str = "all", brokers: Sequence[int] = (1, 2, 3)) -> None:
        """Append a batch; `brokers` are those that can be asked."""
        producer = Producer(
            {"bootstrap.servers": addresses(self.cluster, brokers), "acks": acks, "linger.ms": 100, "log_level": 0}
        )
        for _ in range(records):
            producer.produce(self.script.topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def expect_all_stored(self, broker_id: int, end_offset: int) -> None:
        wait_until(
            lambda: self.ranges(broker_id) == [(0, end_offset)],
            f"offsets 0 to {end_offset - 1} of broker {broker_id}'s log are stored",
            PATIENCE_S,
        )


@contextmanager
def stored_log(script: Script) -> Iterator[StoredLog]:
    topic_id = script.topic_id()
    assert topic_id is not None
    with followed_metadata(script.cluster) as store:
        yield StoredLog(script, TopicIdPartition(topic_id, 0), store)


@contextmanager
def followed_metadata(cluster: LocalCluster, archive: ArchiveStore | None = None) -> Iterator[RemoteWalMetadataStore]:
    """What the metadata topic tells, up to now; of archive objects too, where a store for them is given."""
    store = RemoteWalMetadataStore()
    reader = RemoteWalMetadataConsumer(KafkaClientConfig(cluster.bootstrap_servers), store, archive=archive)
    reader.start()
    try:
        assert reader.wait_until_ready(PATIENCE_S)
        yield store
    finally:
        reader.close()


def addresses(cluster: LocalCluster, brokers: Sequence[int]) -> str:
    return ",".join(map(cluster.layout.client_address, brokers))


def read_log(cluster: LocalCluster, topic: str) -> list[str]:
    """All of partition 0's log that is committed, from the leader itself."""
    settings = {"group.id": "-", "enable.partition.eof": True, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.layout.bootstrap_servers, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        values.append((message.value() or b"").decode())
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError._PARTITION_EOF
    return values
