"""The settings of metadata and of the life of stored objects. See `agent.settings.setting_types`."""

from pydantic import Field

from agent.settings.setting_types import Seconds, Section, keyed, milliseconds
from metadata_topic.settings.wal_retention import WalRetention


class LifecycleSettings(Section, alias_generator=keyed("remote.wal.")):
    """Settings of the agents' topics, and of the life of stored objects."""

    topic_replication_factor: int = Field(
        alias="remote.wal.log.metadata.topic.replication.factor",
        default=3,
        ge=1,
        description="Replication factor of the agents' topics when they create them.",
    )
    retention_s: Seconds = Field(
        3_600_000,
        ge=-2,
        description="How long a combined segment is kept. -2: as long as brokers keep the log, the default of topics "
        "with one or two replicas; -1: no limit of its own. What is below a log's start goes.",
    )
    uncommitted_ttl_s: Seconds = Field(
        600_000,
        ge=1000,
        description="Age at which an object goes that was never finished or has no metadata. Far above "
        "total.timeout.ms and any difference of clocks.",
    )

    @property
    def wal_retention(self) -> WalRetention:
        """How long this agent keeps combined segments."""
        return WalRetention(milliseconds(self.retention_s))
