"""Where leader epochs end, as a broker is asked for it and answers on the wire."""

from typing import Any

import pytest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kafka.protocol.metadata import MetadataResponse

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.topic.topic_consumer import ConfluentReader
from tests.metadata_topic.metadata_recorder import MetadataRecorder

_OFFSET_FOR_LEADER_EPOCH, _FENCED_LEADER_EPOCH = 23, 74
_ENDS = {(0, 3): (3, 120), (0, 5): (4, 150), (1, 3): (3, 7), (1, 9): (-1, -1)}
"""By partition and the epoch that is asked for: the epoch that the leader found, and where it ends."""


class Leader(MetadataRecorder):
    def __init__(self, leader_id: int = 1, error_code: int = 0) -> None:
        super().__init__()
        self.leader_id, self.error_code = leader_id, error_code
        self.requests = 0

    def topic(self, name: str) -> Any:
        partitions = [
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                error_code=0,
                partition_index=partition,
                leader_id=self.leader_id,
                leader_epoch=10 + partition,
                replica_nodes=[1],
                isr_nodes=[1],
                offline_replicas=[],
            )
            for partition in range(2)
        ]
        return MetadataResponse.MetadataResponseTopic(
            error_code=0, name=name, topic_id=None, is_internal=False, partitions=partitions
        )

    def answer(self, frame: bytes, api_key: int, version: int) -> Any:
        assert api_key == _OFFSET_FOR_LEADER_EPOCH
        self.requests += 1
        request: Any = OffsetForLeaderEpochRequest.decode(frame, version=version, header=True)
        assert request.replica_id == -1
        topics = [
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[self._end(one) for one in topic.partitions]
            )
            for topic in request.topics
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics, version=version)

    def _end(self, asked: Any) -> Any:
        assert asked.current_leader_epoch == -1
        epoch, end = _ENDS[asked.partition, asked.leader_epoch]
        return OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset(
            error_code=self.error_code, partition=asked.partition, leader_epoch=epoch, end_offset=end
        )


def asking(broker: Leader) -> KafkaCluster:
    return KafkaCluster(KafkaClientConfig(broker.address), "ends", 5.0)


def test_each_epoch_is_asked_for_at_its_partitions_leader() -> None:
    with Leader() as broker:
        asked = [*_ENDS, (2, 3)]  # the last partition was of an earlier topic
        wanted = {(0, 3): 120, (0, 5): 150, (1, 3): 7, (1, 9): 0}
        assert asking(broker).ends_of_epochs("orders", asked) == wanted
        assert broker.requests == 2, "each partition once in a request"
        reader = ConfluentReader({"bootstrap.servers": broker.address, "group.id": "g"}, asking(broker))
        assert reader.state("orders") == (None, {0: 10, 1: 11})
        assert reader.ends_of_epochs("orders", asked[:1]) == {(0, 3): 120}
        reader.close()


@pytest.mark.parametrize(
    "broker", [Leader(leader_id=-1), Leader(error_code=_FENCED_LEADER_EPOCH)], ids=["none", "other"]
)
def test_without_a_leader_that_answers_nothing_is_known(broker: Leader) -> None:
    with broker, pytest.raises(KafkaClusterError, match="ask where leader epochs end"):
        asking(broker).ends_of_epochs("orders", [(0, 3)])
