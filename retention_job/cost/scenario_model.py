"""Model of the monthly cost per broker of replication, stock and through object storage, and of clients. Sans-IO.

A scenario is a plan: steady load, each object uploaded on its interval, and read once in each other zone, or by each
broker there that follows one of its partitions, in as many ranges as their order requires
(`rlm.write_path.uploads.segment_queue`). The agents' own functions (`link_costs` and `group_commit` in
`rlm.write_path.commit`) decide when links pay, and when an object is large enough. `cost_tables` computes the cost of
what really happened.

Clients are spread over the zones as leaders are, so the other zones' part of a leader's bytes is cross-zone traffic.
Consumers that name their zone are sent to a replica there (KIP-392), if the zone has one; that needs only settings.
With the gateway, produced records go through object storage if that is cheaper: each gateway's requests of an interval
share an object, and the agent beside its leader reads each request.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from random import Random
from typing import Final

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.prices import BYTES_PER_GB, EXPRESS, NEVER_PAYS, Prices, PriceTable, StorePrices
from rlm.write_path.commit.group_commit import stretched_interval_s
from rlm.write_path.commit.link_costs import LinkCosts, ObjectUse, Outlook
from rlm.write_path.uploads.segment_queue import ranges_read

_BYTES_PER_MB: Final = 10**6
_MS_PER_HOUR: Final = 3_600_000


class ScenarioError(ValueError):
    """A scenario, or a parameter of one, is unknown or makes no sense; the message names it."""


class ScenarioPolicy(Enum):
    """When records travel as links: a topic's `remote.wal.link.policy`, as far as it matters for costs."""

    COST = "cost"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster's load, per broker. All brokers are alike."""

    brokers: int
    rate_mb_s: float
    """Megabytes (10^6) per second that producers write to the partitions that one broker leads."""
    interval_ms: float
    """remote.wal.log.manager.combiner.task.interval.ms"""
    replication_factor: int
    remote_followers: float
    """The number of followers of each partition in other zones than the leader."""
    wal_hours: float
    """The life time of an object in hours: remote.wal.retention.ms."""
    stored_copies: float
    """Copies of each byte on the brokers' disks."""
    local_hours: float
    """The hours for which a byte stays on the brokers' disks in stock Kafka."""
    local_hours_with_wal: float
    count_gets: bool = True
    """Whether GETs count; the KIP's own table leaves them out."""
    link_policy: ScenarioPolicy = ScenarioPolicy.COST
    is_kept: bool | None = None
    """Whether objects are stored even if links do not pay: for the archive, or as long as the log for a recovery. None:
    the default, which is true with one or two replicas."""
    readers: float | None = None
    """The brokers of other zones that read an object, because they follow one of its partitions. None: computed from
    `brokers` and `partitions`."""
    zone_reads: bool = True
    """remote.wal.hydration.share.min.readers: one broker of a zone reads an object for all of its zone."""
    partitions: float = 12
    """An object has entries of this many partitions, at most all that a broker leads; replicas are spread by chance."""
    producers_wait: bool = True
    """Whether producers wait, as with acks=all. If none waits, objects are uploaded later, and are larger."""
    archive_interval_ms: float = 1000
    """remote.wal.archive.interval.ms: the upload interval of an object that is stored although links do not pay."""
    count_metadata: bool = True
    """Whether the cross-zone traffic of each object's own metadata counts; the KIP's table leaves it out."""
    upload_bytes: int = 4 * 1024 * 1024
    """remote.wal.log.manager.combiner.task.upload.bytes: an object is uploaded early when it is full."""
    hours_per_month: float = 720
    cross_zone_read_gb: float | None = None
    """Dollars for a gigabyte read from another zone's bucket; None: the price table's."""
    cross_zone_write_gb: float | None = None
    """Dollars for a gigabyte written to another zone's bucket; None: the price table's."""
    copies: int = 1
    """remote.wal.bucket.copies: the number of zones' buckets that an object is written to."""
    one_bucket: bool = False
    """Whether one zone's bucket serves all zones, so that the others read and write across zones; else each has its
    own."""
    store: str = EXPRESS
    """The section of the price table for the objects' store."""
    zones: int = 3
    """The number of zones that leaders and clients are spread over."""
    consumer_reads: float = 1
    """The number of times that consumers read each byte."""
    client_request_bytes: float = 64 * 1024
    """Record bytes of a Produce request to one leader: its batches together."""
    client_interval_ms: float = 25
    """remote.wal.gateway.produce.interval.ms"""

    def __post_init__(self) -> None:
        for name in ("brokers", "rate_mb_s", "interval_ms", "hours_per_month", "archive_interval_ms", "upload_bytes",
                     "replication_factor", "partitions", "client_request_bytes", "client_interval_ms"):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must be above 0, not {getattr(self, name)!r}")
        for name in ("wal_hours", "stored_copies", "local_hours", "local_hours_with_wal", "remote_followers",
                     "consumer_reads"):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must not be below 0, nor {getattr(self, name)!r}")
        if self.zones < 2:
            raise ScenarioError(f"zones: must be 2 or more, not {self.zones}")
        if not 1 <= self.copies <= (1 if self.one_bucket else self.zones):
            raise ScenarioError(f"copies: {self.copies} need as many buckets")
        if self.remote_followers >= self.replication_factor:
            raise ScenarioError(
                f"remote_followers: {self.remote_followers} cannot be with a replication factor of "
                f"{self.replication_factor}: one replica is the leader"
            )

    @property
    def is_stored_anyway(self) -> bool:
        """Whether objects are made although links do not pay."""
        if self.is_kept is not None:
            return self.is_kept
        return WalRetention().is_kept(TopicSettings(enable=True), self.replication_factor)

    @property
    def object_readers(self) -> float:
        """The brokers of other zones that read an object because they follow one of its partitions, or their zones."""
        if self.readers is not None:
            return self.readers
        missing: float = (1 - self.remote_followers / self._others) ** self.partitions
        found = self._others * (1 - missing)
        return min(found, self.zones - 1) if self.zone_reads else found

    @property
    def _others(self) -> float:
        """The number of brokers in other zones."""
        return max(self.brokers * (1 - 1 / self.zones), self.remote_followers, 1)

    def ranges(self, max_gap: float = 0) -> tuple[float, float]:
        """Return the number of ranges beyond one for each reader, and the ratio of read bytes to wanted bytes.

        The object has an entry of each partition, all of the same length; gaps of up to `max_gap` entries are read too.
        """
        if self.readers is not None or self.zone_reads or self.remote_followers < 1:
            return 0.0, 1.0
        placed = _placed_by_chance(round(self._others), round(self.remote_followers), round(self.partitions) or 1)
        ranges, along = ranges_read(placed, max_gap)
        wanted = sum(map(len, placed))
        return max(ranges - self.object_readers, 0.0), (wanted + along) / wanted

    @property
    def far_writes(self) -> float:
        """The number of times that a byte is written to another zone's bucket."""
        return 1 - 1 / self.zones if self.one_bucket else self.copies - 1

    @property
    def far_reads(self) -> float:
        """The number of times that a byte is read from another zone's bucket:

        by followers without a copy in their own zone.
        """
        with_it = 1 / self.zones if self.one_bucket else (self.copies - 1) / (self.zones - 1)
        return self.remote_followers * (1 - with_it)

    @property
    def gb_per_hour(self) -> float:
        """Gigabytes (10^9) per hour."""
        return self.rate_mb_s * _BYTES_PER_MB * 3600 / BYTES_PER_GB

    @property
    def gb_per_month(self) -> float:
        return self.gb_per_hour * self.hours_per_month

    def objects_per_month(self, interval_ms: float) -> float:
        """Return the objects per month at this interval; more if the maximum size is reached before."""
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
"""The parts of the KIP's line "Storage/Instance Cost"; the other parts are its "Transfer Cost"."""


@dataclass(frozen=True, slots=True)
class ScenarioCost:
    """The cost of both ways, and the rate from which links pay."""

    baseline: MonthlyCost
    remote_wal: MonthlyCost
    linked: bool
    """Whether the records travel as links; False if the policy by cost sends them inline."""
    objects_per_month: float
    """0 if nothing is uploaded, because no objects are needed."""
    object_bytes: float
    """0 if nothing is uploaded."""
    break_even_mb_s: float | None
    """The broker's rate from which links are cheaper than cross-zone traffic; None: never at these prices."""

    @property
    def saved_ratio(self) -> float:
        return 1 - self.remote_wal.total / self.baseline.total


def cost_of(workload: Workload, prices: PriceTable) -> ScenarioCost:
    """Compute the cost of both ways: by links or, if they do not pay, with the records inline.

    Raises PriceError if a price that this needs is missing.
    """
    store, break_even = _store(workload, prices), break_even_mb_s(workload, prices)
    crossing_usd = workload.gb_per_month * workload.remote_followers * prices.zone_crossing_gb
    is_linked = workload.link_policy is ScenarioPolicy.ALWAYS or (
        break_even is not None and workload.rate_mb_s >= break_even * _shortened(workload, prices)
    )
    objects, stored_usd, object_parts = 0.0, 0.0, dict.fromkeys(_OBJECT_PARTS, 0.0)
    if is_linked or workload.is_stored_anyway:
        interval_ms = _interval_ms(workload, prices) if is_linked else workload.archive_interval_ms
        objects = workload.objects_per_month(interval_ms)
        stored_usd = workload.gb_per_hour * workload.wal_hours * store.storage_gb_month
        object_parts = _object_usd(workload, objects, is_linked, store, prices)
    instance = prices.usd("broker", "instance_hour") * workload.hours_per_month
    baseline = {
        "instance": instance,
        "local_storage": _disk_usd(workload, workload.local_hours, prices),
        "zone_transfer": crossing_usd,
    }
    remote = {
        "instance": instance,
        "local_storage": _disk_usd(workload, workload.local_hours_with_wal, prices),
        "wal_storage": stored_usd,
        **object_parts,
        "zone_transfer": 0.0 if is_linked else crossing_usd,
    }
    object_bytes = workload.gb_per_month * BYTES_PER_GB / objects if objects else 0.0
    return ScenarioCost(MonthlyCost(baseline), MonthlyCost(remote), is_linked, objects, object_bytes, break_even)


def _shortened(workload: Workload, prices: PriceTable) -> float:
    """Return the ratio of the longest interval, which the break-even uses, to the actual interval.

    A full object may be small, and an object that does not pay is not made.
    """
    return 1.0 if workload.producers_wait else _longest_ms(workload) / _interval_ms(workload, prices)


def _longest_ms(workload: Workload) -> float:
    """Return the longest time from one upload for links to the next."""
    interval_ms = workload.interval_ms
    return interval_ms if workload.producers_wait else 1000 * stretched_interval_s(interval_ms / 1000)


def _interval_ms(workload: Workload, prices: PriceTable) -> float:
    """Return the time from one upload for links to the next."""
    if workload.producers_wait:
        return workload.interval_ms
    full_bytes = outlook(workload, prices).full_object_bytes(workload.partitions)
    full_s = full_bytes / (workload.rate_mb_s * _BYTES_PER_MB)
    return 1000 * stretched_interval_s(workload.interval_ms / 1000, full_s)


def _disk_usd(workload: Workload, hours: float, prices: PriceTable) -> float:
    return workload.gb_per_hour * workload.stored_copies * hours * prices.usd("broker", "disk_gb_month")


_OBJECT_PARTS: Final = (
    "put_requests", "get_requests", "upload", "retrieval", "cross_zone_writes", "cross_zone_reads", "metadata",
)  # fmt: skip


def _object_usd(
    workload: Workload, objects: float, is_linked: bool, store: StorePrices, prices: PriceTable
) -> dict[str, float]:
    """Return the cost of this many objects; linked ones are read."""
    gb = workload.gb_per_month
    chargeable_bytes = gb * BYTES_PER_GB * _chargeable_ratio(workload, objects, prices)
    readers, followers, far_reads = (
        (workload.object_readers, workload.remote_followers, workload.far_reads) if is_linked else (0, 0, 0)
    )
    more_ranges, bytes_read = _ranges(workload, objects, store) if is_linked else (0.0, 1.0)
    gets = objects * (readers + more_ranges) if workload.count_gets else 0.0
    parts = (
        store.requests_usd(objects, 0, 0, 0),
        store.requests_usd(0, gets, 0, 0),
        store.requests_usd(0, 0, chargeable_bytes, 0),
        store.requests_usd(0, 0, 0, chargeable_bytes * followers * bytes_read),
        gb * workload.far_writes * _write_fee(workload, prices),
        gb * far_reads * _read_fee(workload, prices),
        objects * _link_costs(workload, store, prices).metadata_usd(workload.partitions)
        if workload.count_metadata
        else 0.0,
    )
    return dict(zip(_OBJECT_PARTS, parts, strict=True))


def _ranges(workload: Workload, objects: float, store: StorePrices) -> tuple[float, float]:
    """Return `Workload.ranges`, reading gaps that cost less than another request, as leaders' agents announce it."""
    entry_bytes = workload.gb_per_month * BYTES_PER_GB / objects / workload.partitions
    gap_bytes = store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * BYTES_PER_GB
    return workload.ranges(gap_bytes // entry_bytes)


def _read_fee(workload: Workload, prices: PriceTable) -> float:
    """Return the dollars for a gigabyte read from another zone's bucket."""
    return prices.cross_zone_read_gb if workload.cross_zone_read_gb is None else workload.cross_zone_read_gb


def _write_fee(workload: Workload, prices: PriceTable) -> float:
    """Return the dollars for a gigabyte written to another zone's bucket; 0 without such writes, which need no
    price.
    """
    if not workload.far_writes:
        return 0.0
    return prices.cross_zone_write_gb if workload.cross_zone_write_gb is None else workload.cross_zone_write_gb


def _store(workload: Workload, prices: PriceTable) -> StorePrices:
    """Return the prices of all copies, without the surcharge for other zones' buckets."""
    return prices.store(workload.store).copied(workload.copies, 0.0)


def _chargeable_ratio(workload: Workload, objects: float, prices: PriceTable) -> float:
    """Return the part of an object's bytes that pays upload and retrieval fees."""
    object_bytes = workload.gb_per_month * BYTES_PER_GB / objects
    return max(0.0, 1 - prices.free_bytes_per_request(workload.store) / object_bytes)


def outlook(workload: Workload, prices: PriceTable, *, with_byte_fees: bool = True) -> Outlook:
    """Return the agents' judgement of these prices and this workload.

    Agents assume that each follower reads across zones, and know nothing of a bucket in another zone.
    """
    store = _store(workload, prices)
    if not workload.count_gets:
        store = replace(store, get_per_1000=0.0)
    if not with_byte_fees:
        store = replace(store, upload_gb=0.0, retrieval_gb=0.0)
    store = replace(store, upload_gb=store.upload_gb + (workload.copies - 1) * _write_fee(workload, prices))
    use = ObjectUse(
        workload.remote_followers,
        workload.object_readers,
        workload.wal_hours * 3600,
        0.0 if workload.is_stored_anyway else 1.0,
        workload.ranges()[0] / workload.partitions,
    )
    return _link_costs(workload, store, prices).outlook_for(use)


def _link_costs(workload: Workload, store: StorePrices, prices: PriceTable) -> LinkCosts:
    """Return the costs as the agents compute them."""
    return LinkCosts(Prices(store, store, prices.zone_crossing_gb, _read_fee(workload, prices)), store)


def break_even_mb_s(workload: Workload, prices: PriceTable) -> float | None:
    """Return the rate at which an object of the workload's interval costs as much as its bytes inline. None: none
    does.
    """
    for with_byte_fees, up_to_bytes in ((False, prices.free_bytes_per_request(workload.store)), (True, math.inf)):
        size = outlook(workload, prices, with_byte_fees=with_byte_fees).break_even_bytes(workload.partitions)
        if size <= up_to_bytes and size != NEVER_PAYS:
            return size / _BYTES_PER_MB / (_longest_ms(workload) / 1000)
    return None


@cache
def _placed_by_chance(brokers: int, of_each: int, partitions: int) -> tuple[tuple[int, ...], ...]:
    """Return the followers of each partition, in the order in which an object holds the partitions.

    `brokers` is the number of brokers in other zones, `of_each` of them follow each partition. Equal inputs give equal
    results.
    """
    drawn = Random(partitions)  # noqa: S311 - nobody is to be surprised
    in_zone = max(brokers // of_each, 1)
    placed = [tuple([zone * in_zone + drawn.randrange(in_zone) for zone in range(of_each)]) for _ in range(partitions)]
    return tuple(sorted(placed))


# Clients' bytes.


@dataclass(frozen=True, slots=True)
class ClientsCost:
    """Dollars of the three ways of clients' bytes."""

    stock: MonthlyCost
    follower_fetching: MonthlyCost
    gateway: MonthlyCost
    """The cost through the gateway, with follower fetching."""
    linked: bool
    """Whether produced records go through object storage there; else all of them cross zones, as without a gateway."""

    @property
    def ways(self) -> Mapping[str, MonthlyCost]:
        """The three costs, by the names that JSON output uses."""
        return {"stock": self.stock, "follower_fetching": self.follower_fetching, "gateway": self.gateway}


def clients_cost(workload: Workload, prices: PriceTable) -> ClientsCost:
    """Compute the costs of all three ways. Raises PriceError if a price that this needs is missing."""
    elsewhere_gb = workload.gb_per_month * (1 - 1 / workload.zones)
    crossing_usd = elsewhere_gb * prices.zone_crossing_gb
    # A partition with fewer replicas than there are zones leaves some zones' consumers to its leader.
    without_replica = max(workload.zones - 1 - workload.remote_followers, 0.0) / (workload.zones - 1)
    reads_usd = crossing_usd * workload.consumer_reads
    objects_usd = _client_objects_usd(workload, prices, elsewhere_gb)
    return ClientsCost(
        MonthlyCost({"produce": crossing_usd, "consume": reads_usd}),
        MonthlyCost({"produce": crossing_usd, "consume": reads_usd * without_replica}),
        MonthlyCost({"produce": min(objects_usd, crossing_usd), "consume": reads_usd * without_replica}),
        objects_usd < crossing_usd,
    )


def _client_objects_usd(workload: Workload, prices: PriceTable, gb: float) -> float:
    store, size_bytes = prices.store(workload.store), gb * BYTES_PER_GB
    requests = size_bytes / workload.client_request_bytes
    objects = min(workload.hours_per_month * _MS_PER_HOUR / workload.client_interval_ms, requests)
    free_bytes = prices.free_bytes_per_request(workload.store)
    put_bytes, get_bytes = (max(size_bytes - free_bytes * count, 0.0) for count in (objects, requests))
    return store.requests_usd(objects, requests, put_bytes, get_bytes) + gb * _read_fee(workload, prices)
