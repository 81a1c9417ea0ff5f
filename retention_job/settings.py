"""The inputs of a run: where its sources are, and where its output goes.

Plain values only: the job may run on a Spark cluster, which has nothing of this machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from metadata_topic.settings.wal_retention import ARCHIVE_DELETE_GRACE_MS
from plugin.loading import StorageSpec
from plugin.prices import EXPRESS, NETWORK, STANDARD


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """How driver and executors connect to the cluster."""

    bootstrap_servers: str
    client_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """A Java client's properties, as in `--command-config`. They may hold secrets, so the repr leaves them out."""
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class StoreListing:
    """A store to list, by its storage manager."""

    spec: StorageSpec
    cluster_id: str


@dataclass(frozen=True, slots=True)
class LifeTimes:
    """How long agents leave objects alone, in milliseconds; findings are judged by it."""

    delete_grace_ms: int = 60_000
    """Time from DELETE_SEGMENT_STARTED on; by the brokers' time-outs."""
    uncommitted_ttl_ms: int = 600_000
    """`remote.wal.uncommitted.ttl.ms`"""
    archive_delete_grace_ms: int = ARCHIVE_DELETE_GRACE_MS
    slack_ms: int = 3_600_000
    """The delay of an agent that is not yet a finding."""


@dataclass(frozen=True, slots=True)
class Sources:
    kafka: KafkaSource
    state_path: str
    """The directory with the run's tables, and with the state that the next run continues from."""
    store: StoreListing | None = None
    """None: orphans and lost objects are not reported."""
    is_incremental: bool = False
    """Whether to continue from `state_path`, if it has a state that fits."""
    life_times: LifeTimes = field(default_factory=LifeTimes)
    archive: StoreListing | None = None
    """The store of archive objects, whose storage manager has its own settings."""


@dataclass(frozen=True, slots=True)
class StoreSections:
    """The sections of price tables for the two stores and for cross-zone traffic."""

    wal: str = EXPRESS
    archive: str = STANDARD
    network: str = NETWORK
