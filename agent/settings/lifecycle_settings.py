"""The settings of metadata and of the life of stored objects. See `agent.settings.setting_types`."""

from pydantic import Field

from agent.settings.setting_types import Seconds, Section, keyed


class MetadataSettings(Section, alias_generator=keyed("remote.wal.log.metadata.")):
    """The agents' topics, and what is periodically written into them."""

    topic_num_partitions: int = Field(
        12, ge=1, description="Partitions of __remote_wal_log_metadata when agents create it."
    )
    topic_replication_factor: int = Field(
        3, ge=1, description="Replication factor of the agents' topics when they create them."
    )
    topic_retention_s: Seconds = Field(
        691_200_000,
        ge=60_000,
        description="Retention of __remote_wal_log_metadata. Keep it longer than any object is kept.",
    )
    unpublished_max_s: Seconds = Field(
        60_000,
        ge=1000,
        description="How long metadata may wait to be published. Then all goes inline and nothing is uploaded until "
        "it can be.",
    )
    memory_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="How many bytes of the file with what is known of objects are in memory at most. The file is in "
        "remote.wal.agent.state.directory.",
    )
    snapshot_interval_s: Seconds = Field(
        600_000,
        ge=1000,
        description="How often a changed metadata store is saved to object storage.",
    )
    usage_interval_s: Seconds = Field(
        alias="remote.wal.usage.interval.ms",
        default=600_000,
        ge=1000,
        description="How often the agent publishes what it has moved and asked for, for the costs in reports.",
    )


class LifecycleSettings(Section, alias_generator=keyed("remote.wal.")):
    """Settings of expiration, orphans, failover and care."""

    retention_s: Seconds = Field(
        3_600_000,
        ge=-2,
        description="How long a combined segment is kept. -2: as long as brokers keep the log, the default of topics "
        "with one or two replicas; -1: no limit of its own. What is below a log's start goes.",
    )
    retention_lagging_max_s: Seconds = Field(
        86_400_000,
        ge=0,
        description="How long it is kept at most while a replica is not in sync.",
    )
    expiration_task_interval_s: Seconds = Field(
        5000, ge=10, description="How often the agent looks for objects that may go."
    )
    expiration_delete_grace_s: Seconds = Field(
        60_000,
        ge=0,
        description="How long an object stays after DELETE_SEGMENT_STARTED, for links given before. Keep it above "
        "replica.socket.timeout.ms.",
    )
    expiration_topic_gone_s: Seconds = Field(
        300_000, ge=0, description="How long a topic must be missing from the cluster before its records may go."
    )
    expiration_cluster_interval_s: Seconds = Field(
        30_000, ge=100, description="How often the agent asks for topics, their retention and log start offsets."
    )
    uncommitted_ttl_s: Seconds = Field(
        600_000,
        ge=1000,
        description="Age at which an object goes that was never finished or has no metadata. Far above "
        "total.timeout.ms and any difference of clocks.",
    )
    orphans_interval_s: Seconds = Field(
        21_600_000, ge=1000, description="How often the store's listing is compared with the metadata."
    )
    orphans_heal_enable: bool = Field(True, description="Whether differences are healed, or only reported.")
    orphans_heal_min_objects: int = Field(
        100, ge=0, description="This many objects are healed whatever their share is."
    )
    failover_check_interval_s: Seconds = Field(
        10_000,
        ge=100,
        description="How often entries of older leaders that the logs do not have are looked for; also at each "
        "change of leadership.",
    )
    node_takeover_s: Seconds = Field(
        3_600_000,
        ge=1000,
        description="How long a broker must be missing before another agent cares for its objects. Longer than any "
        "maintenance.",
    )
