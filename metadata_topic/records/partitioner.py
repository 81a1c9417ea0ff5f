"""Which partition of the metadata topic an agent publishes to."""


def metadata_partition(broker_id: int, partition_count: int) -> int:
    """The one partition that the agent of `broker_id` writes.

    All records of an agent share a partition, so readers see them in the order of publication. The topic is
    laid out so that this partition is led by the agent's own broker (see
    `metadata_topic.topic.topic.replica_assignment`), so publishing does not cross a zone border. KIP-405 hashes the
    topic partition instead; here a record tells of many.
    """
    if broker_id < 0 or partition_count < 1:
        raise ValueError(f"no metadata partition for broker {broker_id} among {partition_count}")
    return broker_id % partition_count
