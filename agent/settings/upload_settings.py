"""The settings of what is stored: object storage, the write path, the archive. See `agent.settings.setting_types`."""

from pydantic import Field, ValidationInfo, field_validator

from agent.settings.setting_types import BucketsSetting, Seconds, Section, keyed
from plugin.loading import (
    DEFAULT_ARCHIVE_CLASS_NAME,
    DEFAULT_ARCHIVE_IMPL_PREFIX,
    DEFAULT_CLASS_NAME,
    DEFAULT_IMPL_PREFIX,
)
from plugin.prices import section_of
from plugin.zones.buckets import ACKNOWLEDGED_KEY, BUCKETS_KEY, COPIES_KEY, check_copies


class StorageSettings(Section, alias_generator=keyed("remote.log.wal.storage.")):
    """Whether there is object storage, and which storage manager."""

    system_enable: bool = Field(
        False, description="Whether the agent uploads and links at all (KIP-1176). Off, it relays everything as it is."
    )
    manager_class_name: str = Field(
        DEFAULT_CLASS_NAME, description="The RemoteWalStorageManager, a dotted class name (KIP-1176)."
    )
    manager_class_path: str | None = Field(
        None, description="A directory that is added to the import path for that class (KIP-1176)."
    )
    manager_impl_prefix: str = Field(
        DEFAULT_IMPL_PREFIX, description="What the storage manager's own keys begin with (KIP-1176)."
    )
    buckets: BucketsSetting = Field(
        alias=BUCKETS_KEY,
        default={},
        description="A bucket for each zone: `az1=bucket-one,az2=bucket-two`, where a zone is a broker.rack. An agent "
        "writes to that of its own zone, and reads and deletes in all. Default: one bucket for all, as the storage "
        "manager's own key names it.",
    )
    bucket_copies: int = Field(
        alias=COPIES_KEY,
        default=1,
        ge=1,
        le=16,
        description="In so many of these buckets an object is written at once: that of the own zone, and those of the "
        "zones that follow it in the order of their names. 1: there are no copies.",
    )
    bucket_copies_acknowledged: int = Field(
        alias=ACKNOWLEDGED_KEY,
        default=1,
        ge=1,
        description="So many of them must have taken an object before it counts as stored, as with Kafka's "
        "min.insync.replicas. A bucket that takes its copies is waited for all the same; this says with how few it "
        "goes on while others fail, or are slow.",
    )
    prices_store: str | None = Field(
        alias="remote.wal.prices.store",
        default=None,
        description="The section of the price table that the store's prices stand in, such as azure_hot. Default: by "
        "the storage manager.",
    )

    @field_validator("bucket_copies")
    @classmethod
    def _has_buckets(cls, copies: int, info: ValidationInfo) -> int:
        check_copies(info.data.get("buckets", {}), copies)
        return copies

    @field_validator("bucket_copies_acknowledged")
    @classmethod
    def _are_written(cls, acknowledged: int, info: ValidationInfo) -> int:
        if acknowledged > (copies := info.data.get("bucket_copies", acknowledged)):
            raise ValueError(f"{COPIES_KEY} is {copies}")
        return acknowledged

    @property
    def price_section(self) -> str:
        """The section of the price table for the store."""
        return self.prices_store or section_of(self.manager_class_name)


class LogManagerSettings(Section, alias_generator=keyed("remote.wal.log.manager.")):
    """RemoteWalLogManager, its RLMWalTasks and its RLMWalCombineTask."""

    thread_pool_size: int = Field(
        2,
        ge=1,
        le=64,
        description="Threads that read active segments, the RLMWalTasks (KIP-1176), where a disk may "
        "have to be waited for; what is in memory is read without them.",
    )
    combiner_thread_pool_size: int = Field(
        4,
        ge=1,
        le=64,
        description="So many uploads may be under way (KIP-1176), each in a thread of RLMWalCombineTask; small ones to "
        "S3 take none.",
    )
    combiner_queue_size: int = Field(4096, ge=1, description="Items that remoteSegmentQ holds at most (KIP-1176).")
    combiner_queue_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Bytes that remoteSegmentQ holds at most, besides those that are being uploaded.",
    )
    combiner_task_interval_s: Seconds = Field(
        25,
        ge=1,
        description="How often an object is uploaded for links (KIP-1176). While much is appended, it may be two "
        "intervals, or less when producers wait; while little is appended, with the policy always, an upload begins "
        "when none is under way.",
    )
    combiner_task_upload_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=1024**3, description="How large an object becomes at most (KIP-1176)."
    )
    task_interval_s: Seconds = Field(
        60_000, ge=100, description="How often a partition is looked at without any sign of an append."
    )
    task_retry_interval_s: Seconds = Field(
        200, ge=1, description="The first back-off after a failed upload or read; it doubles with each failure."
    )
    task_retry_interval_max_s: Seconds = Field(
        10_000, ge=1, description="The longest back-off after a failed upload or read."
    )
    upload_timeout_s: Seconds = Field(
        60_000,
        ge=1,
        description="An upload that the storage manager has not ended by then counts as failed, whatever its own "
        "deadlines; keep it above its total.timeout.ms.",
    )


class AlarmSettings(Section, alias_generator=keyed("remote.wal.")):
    """Limits from which on an alarm is raised, and the most requests to the store."""

    upload_lag_alarm_s: Seconds = Field(
        60_000,
        ge=1000,
        description="From this age of the oldest record on that is not stored, /readyz and the log say so.",
    )
    store_puts_per_minute: int = Field(
        15_000,
        ge=1,
        description="What the store is sent at most in a minute that is priced as a PUT (PUT, LIST), without the "
        "archive's. A bound on spending, far above ordinary use; beyond it all goes inline until the minute is over.",
    )
    store_gets_per_minute: int = Field(45_000, ge=1, description="The same for what is priced as a GET (GET, HEAD).")


class QuotaSettings(Section, alias_generator=keyed("remote.wal.log.manager.")):
    """Limits on open files and uploads of the write path."""

    open_files: int = Field(1024, ge=16, description="Segment files that are kept open at most.")
    copy_max_bytes_per_second: int | None = Field(
        None,
        ge=1024,
        description="What is uploaded at most; the rest goes inline (KIP-956 has such a key). No quota by default.",
    )
    cluster_objects_per_second: int = Field(
        360,
        ge=1,
        description="How many objects all agents together are to make at most, as each of them reads what all make: "
        "where they would make more, each waits for longer from upload to upload, but for objects that are as large as "
        "they may be. Set it alike on all.",
    )
    backlog_max_bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="What is uploaded at most, beside uploads for links, of logs that were passed over as they were "
        "far behind: after the store was away for long, what is new is stored and linked first.",
    )
    archive_interval_s: Seconds = Field(
        alias="remote.wal.archive.interval.ms",
        default=1000,
        ge=1,
        description="How often an object is uploaded while linking would cost more than the zone border, of topics "
        "that something wants stored beside links: a recovery (remote.wal.retention.ms=-2, or one replica), the "
        "archive.",
    )


class ArchiveSettings(Section, alias_generator=keyed("remote.wal.archive.")):
    """The archive: its storage manager, its task, the care of its objects."""

    enable: bool = Field(
        False,
        description="Whether this agent merges combined segments into archive objects, for topics with the key of the "
        "same name. Not to be mixed up with remote.wal.archive.interval.ms.",
    )
    storage_manager_class_name: str = Field(
        DEFAULT_ARCHIVE_CLASS_NAME, description="The archive's storage manager, one of those that store objects."
    )
    storage_manager_class_path: str | None = Field(
        None, description="A directory that is added to the import path for that class."
    )
    storage_manager_impl_prefix: str = Field(
        DEFAULT_ARCHIVE_IMPL_PREFIX, description="What the archive's storage manager's own keys begin with."
    )
    prices_store: str | None = Field(None, description="As remote.wal.prices.store, for the archive's store.")
    object_min_bytes: int = Field(
        16 * 1024 * 1024, ge=1, description="From how many bytes on a partition's records become an archive object."
    )
    object_max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="How large an archive object becomes at most. One is made at a time, and held in memory twice.",
    )
    object_max_age_s: Seconds = Field(
        3_600_000, ge=1000, description="The age from which on records are archived although they are few."
    )
    object_run_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="The length of the runs in an archive object: what a reader reads and checks at once.",
    )
    bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="What the archive reads and writes together at most, so that uploads are not delayed.",
    )
    thread_pool_size: int = Field(
        2, ge=1, le=64, description="Threads of the archive: so many combined segments are read at a time."
    )
    task_interval_s: Seconds = Field(
        60_000, ge=100, description="How often a partition's archive is looked at when there was nothing to do."
    )
    task_retry_interval_s: Seconds = Field(
        1000, ge=1, description="The first back-off after the archive failed; it doubles with each failure."
    )
    task_retry_interval_max_s: Seconds = Field(
        300_000, ge=1, description="The longest back-off after the archive failed."
    )
    prepared_ttl_s: Seconds = Field(
        3_600_000, ge=1000, description="After this time an archive object that was never committed is deleted."
    )
    care_interval_s: Seconds = Field(
        30_000, ge=100, description="How often archive objects are looked for that may go, or whose time it is."
    )
    delete_grace_s: Seconds = Field(
        600_000, ge=1000, description="How long an archive object stays after it was marked as to be deleted."
    )

    @property
    def price_section(self) -> str:
        """The section of the price table for the archive's store."""
        return self.prices_store or section_of(self.storage_manager_class_name)
