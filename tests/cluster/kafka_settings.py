"""Kafka's own settings of topics, changed as by `kafka-configs.sh`."""

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from local_cluster.cluster import LocalCluster


def set_topic_setting(cluster: LocalCluster, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    [future] = cluster.admin.client.incremental_alter_configs([resource]).values()
    future.result(30)


TIERED_TOPIC = {
    "remote.storage.enable": "true",
    # A segment may go from the local log as soon as it is on the tier. (By age, Kafka would roll and tier the active
    # segment too.)
    "local.retention.bytes": "1",
    # The smallest that Kafka takes.
    "segment.bytes": "1048576",
}
"""Settings that make a topic of a cluster with `tiered_storage` go to the tier within seconds."""
