"""What a run of the job is told: where its sources are, and where its output goes.

Plain values only: the job may run on a Spark cluster, where nothing of this machine is at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from plugin.loading import DEFAULT_CLASS_NAME

DEFAULT_DELETE_GRACE_MS: Final = 60_000
DEFAULT_UNCOMMITTED_TTL_MS: Final = 600_000
DEFAULT_ARCHIVE_DELETE_GRACE_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """How to reach the cluster, from the driver and from the executors."""

    bootstrap_servers: str
    client_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """A Java client's properties, as `--command-config` has them. May hold secrets, hence not part of the repr."""
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class StoreListing:
    """List the store by its storage manager; each broker's objects are a task of their own."""

    settings: Mapping[str, str] = field(repr=False)
    """The storage manager's own, without their prefix."""
    cluster_id: str
    class_name: str = DEFAULT_CLASS_NAME
    class_path: str | None = None
    store_class: str | None = None
    """What the store is in price tables, for instance `s3_express`."""
    buckets: Mapping[str, str] = field(default_factory=dict)
    """By zone, where there is one for each."""


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """An S3 Inventory of one bucket: CSV or Parquet files with key, size, last modified date, maybe storage class."""

    path: str
    """Of the files, or of the `manifest.json` that names them, which then tells format and columns as well."""
    cluster_id: str
    prefix: str = ""
    """The storage manager's `prefix`: objects elsewhere in the bucket are passed over."""
    format: str = "parquet"
    csv_schema: tuple[str, ...] = ("Bucket", "Key", "Size", "LastModifiedDate")
    """The manifest's `fileSchema`; an inventory's CSV files have no header."""
    store_class: str | None = None
    """For inventories without a column StorageClass."""


@dataclass(frozen=True, slots=True)
class LifeTimes:
    """The agents' settings that the findings are held against."""

    delete_grace_ms: int = DEFAULT_DELETE_GRACE_MS
    """`remote.wal.expiration.delete.grace.ms`"""
    uncommitted_ttl_ms: int = DEFAULT_UNCOMMITTED_TTL_MS
    """`remote.wal.uncommitted.ttl.ms`"""
    archive_delete_grace_ms: int = DEFAULT_ARCHIVE_DELETE_GRACE_MS
    """`remote.wal.archive.delete.grace.ms`"""
    slack_ms: int = 3_600_000
    """How late an agent may be before that is a finding."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of a run."""

    kafka: KafkaSource
    inventory: StoreListing | tuple[InventoryFile, ...] | None = None
    """Inventories are those of all buckets. None: nothing is said of orphans and lost objects."""
    state_path: str | None = None
    """Where runs leave what the next one goes on from; None: every run reads all."""
    is_incremental: bool = False
    """Go on from `state_path`, if it has a state that fits."""
    life_times: LifeTimes = field(default_factory=LifeTimes)
    archive: StoreListing | tuple[InventoryFile, ...] | None = None
    """As `inventory`, of archive objects; their storage manager's own settings, as it is another one."""
