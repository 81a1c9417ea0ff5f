"""What replication costs per broker and month, stock and through object storage, from a workload and prices. Sans-IO.

A scenario is a plan: steady load, each object uploaded on its interval and read once by each remote follower. What
really happened is `cost_tables`' matter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from plugin.prices import BYTES_PER_GB, EXPRESS, PriceTable, StorePrices

_BYTES_PER_MB: Final = 10**6
_MS_PER_HOUR: Final = 3_600_000


class ScenarioError(ValueError):
    """A scenario, or a parameter of one, is unknown or makes no sense; the message names it."""


class ScenarioPolicy(Enum):
    """When records travel as links: a topic's `remote.wal.link.policy`, as far as costs tell."""

    COST = "cost"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster's load, per broker. All brokers are alike."""

    brokers: int
    rate_mb_s: float
    """Megabytes (10^6) a second that producers write to the partitions which one broker leads."""
    interval_ms: float
    """remote.wal.log.manager.combiner.task.interval.ms"""
    replication_factor: int
    remote_followers: int
    """Of them in other zones than the leader, of each partition."""
    buckets: int
    """So many zones' buckets take each object."""
    wal_hours: float
    """How long an object lives."""
    stored_copies: float
    """Copies of each byte on the brokers' disks."""
    local_hours: float
    """How long a byte stays on the brokers' disks in stock Kafka."""
    local_hours_with_wal: float
    count_gets: bool = True
    """The KIP's own table leaves the GETs out."""
    link_policy: ScenarioPolicy = ScenarioPolicy.COST
    archive_interval_ms: float = 1000
    """remote.wal.archive.interval.ms: how often an object is uploaded while links do not pay."""
    upload_bytes: int = 4 * 1024 * 1024
    """remote.wal.log.manager.combiner.task.upload.bytes: an object is uploaded early when it is full."""
    hours_per_month: float = 720
    cross_zone_read_gb: float | None = None
    """Dollars for a gigabyte read from another zone's bucket; None takes the price table's."""
    store: str = EXPRESS
    """The section of the price table for the store that objects are in."""

    def __post_init__(self) -> None:
        for name in ("brokers", "rate_mb_s", "interval_ms", "buckets", "hours_per_month", "archive_interval_ms",
                     "upload_bytes", "replication_factor"):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must be above 0, not {getattr(self, name)!r}")
        for name in ("wal_hours", "stored_copies", "local_hours", "local_hours_with_wal", "remote_followers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must not be below 0, nor {getattr(self, name)!r}")
        if self.remote_followers >= self.replication_factor:
            raise ScenarioError(
                f"remote_followers: {self.remote_followers} cannot be with a replication factor of "
                f"{self.replication_factor}: one replica is the leader"
            )

    @property
    def gb_per_hour(self) -> float:
        """Gigabytes (10^9)."""
        return self.rate_mb_s * _BYTES_PER_MB * 3600 / BYTES_PER_GB

    @property
    def gb_per_month(self) -> float:
        return self.gb_per_hour * self.hours_per_month

    def objects_per_month(self, interval_ms: float) -> float:
        """At this interval, or more where the largest size is reached before."""
        full_ms = self.upload_bytes / (self.rate_mb_s * _BYTES_PER_MB) * 1000
        return self.hours_per_month * _MS_PER_HOUR / min(interval_ms, full_ms)


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """Dollars per broker and month, by part."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def sum_of(self, *names: str) -> float:
        return sum(self.parts[name] for name in names)


STORAGE_PARTS: Final = ("instance", "local_storage", "wal_storage")
"""The KIP's line "Storage/Instance Cost"; what is left of the parts is its "Transfer Cost"."""


@dataclass(frozen=True, slots=True)
class ScenarioCost:
    """Both ways, and where links begin to pay."""

    baseline: MonthlyCost
    remote_wal: MonthlyCost
    linked: bool
    """Whether the records travel as links; False where the policy by cost sends them inline."""
    objects_per_month: float
    object_bytes: float
    break_even_mb_s: float | None
    """The broker's rate from which links are cheaper than the border; None: at these prices they never are."""

    @property
    def saved_ratio(self) -> float:
        return 1 - self.remote_wal.total / self.baseline.total


def cost_of(workload: Workload, prices: PriceTable) -> ScenarioCost:
    """Raises PriceError when a price that this needs is missing."""
    replication = _replication(workload, prices)
    instance = prices.usd("broker", "instance_hour") * workload.hours_per_month
    baseline = {
        "instance": instance,
        "local_storage": _disk_usd(workload, workload.local_hours, prices),
        "zone_transfer": _crossing_usd(workload, prices),
    }
    remote = {
        "instance": instance,
        "local_storage": _disk_usd(workload, workload.local_hours_with_wal, prices),
        "wal_storage": replication.stored_usd,
        **replication.parts,
        "zone_transfer": replication.crossing_usd,
    }
    return ScenarioCost(
        MonthlyCost(baseline),
        MonthlyCost(remote),
        replication.is_linked,
        replication.objects,
        workload.gb_per_month * BYTES_PER_GB / replication.objects,
        replication.break_even_mb_s,
    )


def replication_usd(workload: Workload, prices: PriceTable) -> tuple[float, bool]:
    """Dollars per broker and month for replication alone, brokers and their disks left out, and whether it is by links.

    Raises PriceError when a price that this needs is missing.
    """
    found = _replication(workload, prices)
    return found.stored_usd + sum(found.parts.values()) + found.crossing_usd, found.is_linked


@dataclass(frozen=True, slots=True)
class _Replication:
    """Through object storage, by links or, where they do not pay, with the records inline."""

    stored_usd: float
    parts: Mapping[str, float]
    crossing_usd: float
    objects: float
    is_linked: bool
    break_even_mb_s: float | None


def _replication(workload: Workload, prices: PriceTable) -> _Replication:
    store = prices.store(workload.store)
    break_even = break_even_mb_s(workload, store, prices)
    is_linked = workload.link_policy is ScenarioPolicy.ALWAYS or (
        break_even is not None and workload.rate_mb_s >= break_even
    )
    interval_ms = workload.interval_ms if is_linked else max(workload.archive_interval_ms, workload.interval_ms)
    return _Replication(
        workload.gb_per_hour * workload.wal_hours * workload.buckets * store.storage_gb_month,
        _object_usd(workload, interval_ms, workload.remote_followers if is_linked else 0, store, prices),
        0.0 if is_linked else _crossing_usd(workload, prices),
        workload.objects_per_month(interval_ms),
        is_linked,
        break_even,
    )


def _crossing_usd(workload: Workload, prices: PriceTable) -> float:
    """All records to all followers in other zones."""
    return workload.gb_per_month * workload.remote_followers * prices.zone_crossing_gb


def _disk_usd(workload: Workload, hours: float, prices: PriceTable) -> float:
    return workload.gb_per_hour * workload.stored_copies * hours * prices.usd("broker", "disk_gb_month")


def _object_usd(
    workload: Workload, interval_ms: float, readers: int, store: StorePrices, prices: PriceTable
) -> dict[str, float]:
    """Of an object on each interval, all of it read by each reader."""
    objects = workload.objects_per_month(interval_ms)
    chargeable_gb = workload.gb_per_month * _chargeable_ratio(workload, objects, prices)
    gets = objects * readers if workload.count_gets else 0.0
    return {
        "put_requests": objects * workload.buckets * store.put_per_1000 / 1000,
        "get_requests": gets * store.get_per_1000 / 1000,
        "upload": chargeable_gb * workload.buckets * store.upload_gb,
        "retrieval": chargeable_gb * readers * store.retrieval_gb,
        "cross_zone_reads": workload.gb_per_month * _readers_from_afar(workload, readers) * _read_fee(workload, prices),
    }


def _readers_from_afar(workload: Workload, readers: int) -> int:
    """Those without a bucket in their zone: a bucket is in one zone, the first in the leader's."""
    return max(0, readers - (workload.buckets - 1))


def _read_fee(workload: Workload, prices: PriceTable) -> float:
    return prices.cross_zone_read_gb if workload.cross_zone_read_gb is None else workload.cross_zone_read_gb


def _chargeable_ratio(workload: Workload, objects: float, prices: PriceTable) -> float:
    """Which part of an object's bytes pays upload and retrieval fees."""
    object_bytes = workload.gb_per_month * BYTES_PER_GB / objects
    return max(0.0, 1 - prices.free_bytes_per_request(workload.store) / object_bytes)


def break_even_mb_s(workload: Workload, store: StorePrices, prices: PriceTable) -> float | None:
    """The rate at which an object of the workload's interval costs what its bytes inline would. None: there is none."""
    followers = workload.remote_followers
    gets = followers if workload.count_gets else 0
    object_usd = (workload.buckets * store.put_per_1000 + gets * store.get_per_1000) / 1000
    read_fees_gb = _readers_from_afar(workload, followers) * _read_fee(workload, prices)
    byte_fees_gb = workload.buckets * store.upload_gb + followers * store.retrieval_gb
    for fees_gb, up_to_bytes in ((0.0, prices.free_bytes_per_request(workload.store)), (byte_fees_gb, math.inf)):
        saved_gb = followers * prices.zone_crossing_gb - read_fees_gb - fees_gb
        if saved_gb <= 0:
            return None
        object_bytes = object_usd / saved_gb * BYTES_PER_GB
        if object_bytes <= up_to_bytes:
            return object_bytes / _BYTES_PER_MB / (workload.interval_ms / 1000)
    return None
