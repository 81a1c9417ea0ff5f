"""KIP-405 beside the agents: what Kafka puts on its tier, moves there and deletes is known, and never more."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.record_batch import scan_batches
from kafka_log.segment_files import list_segments
from kafka_log.topic_partition import TopicIdPartition, topic_id_to_text
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.kip405.kip405 import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TieredRange, TierFollower
from metadata_topic.records.states import FINISHED
from metadata_topic.topic.topic_follower import FollowSettings
from plugin.segment_metadata import RemoteLogSegmentState
from tests.cluster.conftest import IMPATIENT, cluster_of
from tests.cluster.replica_moves import TIERED_TOPIC, delete_topic, elect_uncleanly, move_leader, wait_for_isr
from tests.cluster.script import PATIENCE_S, Script

EAGER = FollowSettings(fetch_min_bytes=1, fetch_wait_ms=100, batch_wait_ms=100, absence_check_ms=500)
RECORD = b"\xa5" * 10_000
RECORDS_PER_SEGMENT = 1_048_576 // len(RECORD)


tiering_cluster = cluster_of(lambda _: ClusterSettings(AgentsMode(), IMPATIENT, tiered_storage=True))


class TieredSegments(TieredOffsets):
    """With the segments that were copied whole, by the records alone."""

    def __init__(self) -> None:
        super().__init__()
        self._apply_or_ask = threading.Lock()
        self._offsets: dict[RemoteLogSegmentId, tuple[int, int]] = {}
        self._states: dict[RemoteLogSegmentId, RemoteLogSegmentState] = {}

    def apply_all(self, records: Iterable[RemoteLogMetadata]) -> None:
        told = list(records)
        with self._apply_or_ask:
            for record in told:
                if isinstance(record, RemoteLogSegmentMetadata):
                    self._offsets[record.segment_id] = (record.start_offset, record.end_offset)
                if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
                    self._states[record.segment_id] = record.state
                elif isinstance(record, RemotePartitionDeleteMetadata):
                    for known in [one for one in self._states if one.topic_id_partition == record.topic_id_partition]:
                        del self._states[known]
            super().apply_all(told)

    def finished_segments(self, partition: TopicIdPartition) -> list[tuple[int, int]]:
        with self._apply_or_ask:
            finished = [known for known, state in self._states.items() if state is FINISHED]
        return sorted(self._offsets[known] for known in finished if known.topic_id_partition == partition)


@contextmanager
def following_the_tier(cluster: LocalCluster) -> Iterator[tuple[TierFollower, TieredSegments]]:
    offsets = TieredSegments()
    follower = TierFollower(KafkaClientConfig(cluster.bootstrap_servers), offsets, EAGER)
    follower.start()
    try:
        yield follower, offsets
    finally:
        follower.close()


class TieredPartition:
    """Partition 0 of a topic: what Kafka says and has, beside what the store knows."""

    def __init__(self, cluster: LocalCluster, topic: str, key: TopicIdPartition, offsets: TieredSegments) -> None:
        self.cluster = cluster
        self.topic = topic
        self.key = key
        self._offsets = offsets
        name = f"{topic}-{key.partition}-{topic_id_to_text(key.topic_id)}"
        self.tier_directory = cluster.layout.tiered_storage_directory / "kafka-tiered-storage" / name

    @property
    def leaders_directory(self) -> Path:
        leader = self.cluster.admin.wait_for_leader(self.topic)
        directory = self.cluster.layout.partition_directory(leader, self.topic, 0)
        assert directory is not None
        return directory

    def leader_epochs(self) -> LeaderEpochs:
        return read_leader_epochs(self.leaders_directory)

    def tiered_up_to(self) -> int:
        ranges = self._offsets.tiered_ranges(self.key, self.leader_epochs())
        return ranges[0].last_offset if ranges else -1

    def finished(self) -> list[tuple[int, int]]:
        return self._offsets.finished_segments(self.key)

    def on_disk(self) -> list[tuple[int, int]]:
        """First and last offset of each segment that LocalTieredStorage has, as its batches say."""
        found = []
        for path in self.tier_directory.glob("*.log"):
            with suppress(FileNotFoundError):
                raw = path.read_bytes()
                spans = scan_batches(raw, 0, len(raw))
                if spans:
                    found.append((spans[0].base_offset, spans[-1].last_offset))
        return sorted(found)

    def local_segments(self) -> list[int]:
        return sorted(list_segments(self.leaders_directory))

    def kafka_says(self, which: str) -> int:
        """GetOffsetShell's answer; -1 when it has none."""
        tool = "org.apache.kafka.tools.GetOffsetShell"
        servers = self.cluster.bootstrap_servers
        answer = self.cluster.tools.run(tool, ["--bootstrap-server", servers, "--topic", self.topic, "--time", which])
        match = re.search(rf"{re.escape(self.topic)}:0:(-?\d+)", answer)
        return int(match[1]) if match else -1

    def produce(self, segments: int) -> None:
        """So many whole segments, and one more record that is in the active one."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "batch.size": 100_000})
        for _ in range(segments * RECORDS_PER_SEGMENT + 1):
            producer.produce(self.topic, RECORD, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def expect_all_but_the_active_segment_on_the_tier(self) -> int:
        """Wait for it; meanwhile the store never says more than Kafka has. What it says at the end."""

        def caught_up() -> int:
            finished, up_to = self.finished(), self.tiered_up_to()
            held = self.on_disk()  # read last: nothing is deleted from the tier meanwhile, so this can only be more
            assert set(finished) <= set(held)
            assert up_to <= max((last for _, last in held), default=-1)
            return up_to if up_to == self.local_segments()[-1] - 1 else 0

        return wait_until(caught_up, "all but the active segment is on the tier", PATIENCE_S, interval_s=0.2)


@pytest.mark.gate
def test_what_kafka_tiers_is_known_follows_it_everywhere_and_is_never_more(
    tiering_cluster: LocalCluster, topic: str
) -> None:
    cluster = tiering_cluster
    with following_the_tier(cluster) as (follower, offsets), Script(cluster, topic) as script:
        assert follower.wait_until_ready(PATIENCE_S)
        wait_until(lambda: follower.is_there, "Kafka has made its topic", PATIENCE_S)
        cluster.admin.create_topic(topic, assignment=[[1, 2, 3]], config=TIERED_TOPIC)
        script.link_topic()
        topic_id = script.topic_id()
        assert topic_id is not None
        partition = TieredPartition(cluster, topic, TopicIdPartition(topic_id, 0), offsets)

        # Segments roll, go to the tier, and from the local log.
        partition.produce(segments=4)
        first = partition.expect_all_but_the_active_segment_on_the_tier()
        assert first >= 3 * RECORDS_PER_SEGMENT
        wait_until(lambda: partition.local_segments()[0] > 0, "local segments are deleted", PATIENCE_S)
        # What is not in the leader's log any more is on the tier.
        assert partition.kafka_says("earliest-local") <= partition.tiered_up_to() + 1
        assert partition.kafka_says("latest-tiered") == partition.tiered_up_to() == first

        # Another leader goes on.
        move_leader(cluster.admin, topic, 0, 2)
        partition.produce(segments=2)
        second = partition.expect_all_but_the_active_segment_on_the_tier()
        assert second > first
        assert len(partition.leader_epochs().entries) > 1
        assert partition.kafka_says("latest-tiered") == partition.tiered_up_to() == second

        # Records are deleted: the tier's first offset moves on, its last one stays.
        cut = partition.finished()[2][0]
        for future in cluster.admin.client.delete_records([TopicPartition(topic, 0, cut)]).values():
            assert future.result(PATIENCE_S).low_watermark == cut
        wait_until(
            lambda: partition.finished() == partition.on_disk() and partition.finished()[0][0] == cut,
            "segments below the log's start are gone from the tier, and from the store",
            PATIENCE_S,
        )
        assert partition.tiered_up_to() == second
        epochs = partition.leader_epochs()
        assert not offsets.is_tiered(partition.key, epochs, epochs.epoch_for(cut - 1), TieredRange(cut - 1, cut - 1))
        assert offsets.is_tiered(partition.key, epochs, epochs.epoch_for(cut), TieredRange(cut, cut))

        # A reader that begins now comes to the same end.
        with following_the_tier(cluster) as (later, known_later):
            assert later.wait_until_ready(PATIENCE_S)
            assert known_later.finished_segments(partition.key) == offsets.finished_segments(partition.key)

        # The topic is deleted: the tier forgets it, and so do we.
        delete_topic(cluster.admin, topic)
        wait_until(lambda: not offsets.epoch_ranges(partition.key), "the partition is forgotten", PATIENCE_S)
        wait_until(lambda: not partition.on_disk(), "the tier is empty", PATIENCE_S)
        assert not offsets.tiered_ranges(partition.key, epochs)
        assert not [name for name in offsets.counters if name.startswith("unknown_")]
        assert "without_start" not in offsets.counters


@pytest.mark.thorough
def test_what_an_unclean_election_threw_away_is_on_the_tier_and_is_never_counted(
    tiering_cluster: LocalCluster, topic: str
) -> None:
    cluster = tiering_cluster
    with following_the_tier(cluster) as (_follower, offsets), Script(cluster, topic) as script:
        unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        cluster.admin.create_topic(topic, assignment=[[1, 2]], config={**TIERED_TOPIC, **unclean})
        script.link_topic()
        topic_id = script.topic_id()
        assert topic_id is not None
        partition = TieredPartition(cluster, topic, TopicIdPartition(topic_id, 0), offsets)

        # Both brokers have this.
        partition.produce(segments=1)
        kept = partition.expect_all_but_the_active_segment_on_the_tier()

        # Only broker 1 has this, and the tier.
        cluster.broker(2).kill()
        wait_for_isr(cluster.admin, topic, [1])
        partition.produce(segments=3)
        lost = partition.expect_all_but_the_active_segment_on_the_tier()
        assert lost > kept

        # Broker 2 goes on from what it has.
        cluster.broker(1).kill()
        cluster.start_broker(2)
        elect_uncleanly(cluster.admin, topic, 0, 2)
        old_epoch, _ = partition.leader_epochs().entries[0]
        wait_until(lambda: partition.leader_epochs().latest_epoch > old_epoch, "the epoch is begun", PATIENCE_S)
        log = partition.leader_epochs()
        began = log.entries[-1][1]
        assert kept < began <= lost
        assert max(last for _, last in partition.finished()) == lost
        assert partition.tiered_up_to() == began - 1
        assert not offsets.is_tiered(partition.key, log, old_epoch, TieredRange(began - 1, began))

        # What it writes in the dead records' place counts, once it is on the tier.
        partition.produce(segments=2)
        wait_until(
            lambda: began < partition.tiered_up_to() == partition.local_segments()[-1] - 1,
            "all but the active segment is on the tier",
            PATIENCE_S,
        )
        assert partition.kafka_says("latest-tiered") == partition.tiered_up_to()

        cluster.start_broker(1)
        cluster.admin.wait_for_full_isr(topic)
        delete_topic(cluster.admin, topic)
        wait_until(lambda: not offsets.epoch_ranges(partition.key), "dead segments are forgotten too", PATIENCE_S)
