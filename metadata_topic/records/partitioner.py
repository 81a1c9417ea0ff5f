"""Chooses the partition of the metadata topic that an agent publishes to."""


def metadata_partition(broker_id: int, partition_count: int) -> int:
    """Return the one partition that the agent of `broker_id` writes.

    All records of an agent share a partition, so readers see them in the order of publication. The topic is laid out so
    that the agent's own broker leads this partition (`metadata_topic.topic.topic.replica_assignment`), so publishing
    does not cross zones. KIP-405 hashes the topic partition instead; here a record is about many partitions.
    """
    if broker_id < 0 or partition_count < 1:
        raise ValueError(f"no metadata partition for broker {broker_id} among {partition_count}")
    return broker_id % partition_count
