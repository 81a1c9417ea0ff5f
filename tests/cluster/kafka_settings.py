"""Kafka's own settings of topics, changed as by `kafka-configs.sh`."""

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from local_cluster.cluster import LocalCluster


def set_topic_setting(cluster: LocalCluster, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    [future] = cluster.admin.client.incremental_alter_configs([resource]).values()
    future.result(30)
