"""The settings of metadata and of the life of stored objects. See `agent.settings.setting_types`."""

from pydantic import Field

from agent.settings.setting_types import Seconds, Section, keyed


class MetadataSettings(Section, alias_generator=keyed("remote.wal.log.metadata.")):
    """The agents' topics, and what is periodically written into them."""

    topic_num_partitions: int = Field(12, ge=1, description="Partitions of __remote_wal_log_metadata, when it is made.")
    topic_replication_factor: int = Field(
        3, ge=1, description="Replication factor of the agents' topics, when they are made."
    )
    topic_retention_s: Seconds = Field(
        691_200_000,
        ge=60_000,
        description="Retention of __remote_wal_log_metadata; longer than any local.retention.ms, which is retention.ms "
        "(7 days) unless a topic says otherwise.",
    )
    unpublished_max_s: Seconds = Field(
        60_000,
        ge=1000,
        description="How long metadata may wait to be published. Then all goes inline, nothing is uploaded, and "
        "/readyz says why, until it can be published again.",
    )
    memory_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="How many bytes of objects' entries are in memory at most. What is beyond lies in files without "
        "names in remote.wal.agent.state.directory, which end with the agent.",
    )
    snapshot_interval_s: Seconds = Field(
        600_000,
        ge=1000,
        description="How often a changed metadata store is saved to object storage, for a quick start.",
    )
    usage_interval_s: Seconds = Field(
        alias="remote.wal.usage.interval.ms",
        default=600_000,
        ge=1000,
        description="How often the agent writes into the metadata topic what it has moved and asked for, for the costs "
        "in reports. At each multiple of it, by the clock.",
    )


class LifecycleSettings(Section, alias_generator=keyed("remote.wal.")):
    """Settings of expiration, orphans, failover and care."""

    retention_s: Seconds = Field(
        3_600_000,
        ge=-2,
        description="How long a combined segment is kept for followers. -2: as long as the brokers keep the log, the "
        "default of topics with one or two replicas; -1 is no limit of its own. What is below a log's start goes.",
    )
    retention_lagging_max_s: Seconds = Field(
        86_400_000,
        ge=0,
        description="How long at most, while a partition has a replica that is not in sync. Then its bytes go inline.",
    )
    expiration_task_interval_s: Seconds = Field(
        5000, ge=10, description="How often objects are looked for that may go, and deleted when it is their time."
    )
    expiration_delete_grace_s: Seconds = Field(
        60_000,
        ge=0,
        description="How long after DELETE_SEGMENT_STARTED an object is still there for links given before. A follower "
        "that comes later gets its bytes inline. Keep it above replica.socket.timeout.ms.",
    )
    expiration_deletes_per_second: int = Field(
        200, ge=1, description="Objects deleted at most in a second; more than the agent uploads."
    )
    expiration_topic_gone_s: Seconds = Field(
        300_000, ge=0, description="How long a topic must be missing from the cluster before its records may go."
    )
    expiration_cluster_interval_s: Seconds = Field(
        30_000, ge=100, description="How often topics, their retention and log start offsets are asked for."
    )
    uncommitted_ttl_s: Seconds = Field(
        600_000,
        ge=1000,
        description="Age at which an object goes that was begun and never finished, or that has no metadata. Far above "
        "the storage manager's total.timeout.ms.",
    )
    orphans_interval_s: Seconds = Field(
        21_600_000, ge=1000, description="How often the store's listing is held against the metadata."
    )
    orphans_heal_enable: bool = Field(True, description="Whether what that finds is healed, or only told.")
    orphans_heal_max_percent: float = Field(
        5.0,
        ge=0,
        le=100,
        description="Where healing would delete or forget more than this share of a broker's objects, it waits for "
        "remote-wal orphans --heal --confirm.",
    )
    orphans_heal_min_objects: int = Field(100, ge=0, description="So many objects are healed whatever their share is.")
    failover_check_interval_s: Seconds = Field(
        10_000,
        ge=100,
        description="How often entries of older leaders are looked for that the led partitions' logs do not have; also "
        "done when leadership changes.",
    )
    node_takeover_s: Seconds = Field(
        3_600_000, ge=1000, description="How long a broker must be missing before another agent cares for its objects."
    )
