"""A leader that is not in sync, as an operator makes it when nobody else is left."""

import contextlib

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from local_cluster.cluster_admin import ClusterAdmin
from local_cluster.polling import wait_until
from tests.cluster.replica_moves import leader_of


def elect_uncleanly(admin: ClusterAdmin, topic: str, partition: int, broker_id: int) -> None:
    """Wait until this replica leads, which is not in sync, and the only one that lives. Raises WaitTimeoutError."""

    def leads() -> bool:
        with contextlib.suppress(KafkaException, TimeoutError):
            wanted = [TopicPartition(topic, partition)]
            admin.client.elect_leaders(ElectionType.UNCLEAN, wanted).result(15.0)
        return leader_of(admin, topic, partition) == broker_id

    wait_until(leads, f"broker {broker_id} leads {topic}-{partition}", interval_s=0.5)
