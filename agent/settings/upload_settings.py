"""The settings of what is stored: object storage, the write path, the archive. See `agent.settings.setting_types`."""

from pydantic import Field

from agent.settings.setting_types import BucketsSetting, PatternsSetting, Seconds, Section, keyed
from metadata_topic.settings.topic_settings import ENABLE_KEY
from plugin.loading import (
    DEFAULT_ARCHIVE_CLASS_NAME,
    DEFAULT_CLASS_NAME,
)
from plugin.prices import section_of
from plugin.zones.buckets import BUCKETS_KEY


class StorageSettings(Section, alias_generator=keyed("remote.log.wal.storage.")):
    """Settings of whether there is object storage, and of its storage manager."""

    system_enable: bool = Field(
        False, description="Whether the agent uploads and links at all (KIP-1176). Off, it relays everything as it is."
    )
    manager_class_name: str = Field(
        DEFAULT_CLASS_NAME, description="The RemoteWalStorageManager: a dotted class name (KIP-1176)."
    )
    manager_class_path: str | None = Field(
        None, description="A directory to add to the import path for that class (KIP-1176)."
    )
    buckets: BucketsSetting = Field(
        alias=BUCKETS_KEY,
        default={},
        description="A bucket for each zone (broker.rack): az1=bucket-one,az2=bucket-two. An agent writes to its own "
        "zone's and reads and deletes in all. Default: one bucket for all.",
    )
    topics_enable: bool = Field(
        alias=ENABLE_KEY,
        default=False,
        description="The default of all topics, present and future, but Kafka's own. A topic's own setting and a "
        "pattern (`remote-wal topics enable --pattern`) win. The file of the broker that leads partition 0 counts.",
    )
    topics_include: PatternsSetting = Field(
        alias="remote.wal.storage.topics.include",
        default=(),
        description="Regular expressions (RE2) by commas: that default is for topics with such a name. Default: all.",
    )
    topics_exclude: PatternsSetting = Field(
        alias="remote.wal.storage.topics.exclude",
        default=(),
        description="Regular expressions (RE2) by commas: that default is not for topics with such a name.",
    )
    prices_store: str | None = Field(
        alias="remote.wal.prices.store",
        default=None,
        description="The section of the price table for the store, such as azure_hot. Default: by the storage manager.",
    )

    puts_per_minute: int = Field(
        alias="remote.wal.store.puts.per.minute",
        default=15_000,
        ge=1,
        description="PUTs and LISTs to the store in a minute at most, a bound on spending. Beyond it all goes inline "
        "until the minute is over.",
    )
    gets_per_minute: int = Field(
        alias="remote.wal.store.gets.per.minute",
        default=45_000,
        ge=1,
        description="GETs and HEADs in a minute at most.",
    )

    @property
    def price_section(self) -> str:
        """The section of the price table that has the store's prices."""
        return self.prices_store or section_of(self.manager_class_name)


class LogManagerSettings(Section, alias_generator=keyed("remote.wal.log.manager.")):
    """Settings of RemoteWalLogManager, its RLMWalTasks and its RLMWalCombineTask, and how much they may upload."""

    combiner_thread_pool_size: int = Field(
        4,
        ge=1,
        le=64,
        description="Uploads under way at most (KIP-1176).",
    )
    combiner_task_interval_s: Seconds = Field(
        25,
        ge=1,
        description="How often an object is uploaded for links (KIP-1176). Longer: fewer and larger objects, less "
        "CPU, more latency.",
    )
    combiner_task_upload_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="The largest object (KIP-1176); a larger batch gets an object of its own.",
    )
    copy_max_bytes_per_second: int | None = Field(
        None,
        ge=1024,
        description="Uploads at most; the rest goes inline, for ever if more is produced. Default: no quota.",
    )
    cluster_objects_per_second: int = Field(
        600,
        ge=1,
        description="Objects that all agents together make at most, whole ones too, because each reads about all of "
        "them. Set it alike on all.",
    )
    backlog_max_bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="Uploads of what an outage left behind at most; new records are stored first.",
    )
    archive_interval_s: Seconds = Field(
        alias="remote.wal.archive.interval.ms",
        default=1000,
        ge=1,
        description="How long inline bytes may wait for upload, if something wants them stored (a retention of -2, "
        "one replica, the archive). The name is historical.",
    )


class ArchiveSettings(Section, alias_generator=keyed("remote.wal.archive.")):
    """Settings of the archive: its storage manager, its task, and the deletion of its objects."""

    enable: bool = Field(
        False,
        description="Whether this agent merges combined segments into archive objects, for topics with the key of "
        "the same name.",
    )
    storage_manager_class_name: str = Field(DEFAULT_ARCHIVE_CLASS_NAME, description="The archive's storage manager.")
    object_max_age_s: Seconds = Field(
        3_600_000, ge=1000, description="The age at which records are archived although they are below 16 MiB."
    )
    bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="What the archive reads and writes together at most.",
    )

    @property
    def price_section(self) -> str:
        """The section of the price table that has the archive's store's prices."""
        return section_of(self.storage_manager_class_name)
