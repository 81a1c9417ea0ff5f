"""What to change so that replication costs less: which topics lose money, which interval, where links never pay.

Intervals are judged by the scenarios' model at each broker's mean rate, so bursts are taken for steady load: the
differences between the choices are sounder than the dollars in them. An object is written once, into the bucket of its
writer's zone, so the number of buckets is no choice of cost. Sans-IO.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from plugin.prices import EXPRESS, NEVER_PAYS, PriceTable
from retention_job.cost.scenario_model import ScenarioPolicy, Workload, break_even_mb_s, outlook, replication_usd

INTERVALS_MS: Final = (5, 10, 25, 50, 100)
"""remote.wal.log.manager.combiner.task.interval.ms, up to what the agents stretch it to where nobody waits. A fetch
waits for its links for half a second at most (remote.wal.link.wait.max.ms), in which uploads must have their time.
"""
DEFAULT_INTERVAL_MS: Final = 25
RATES_MB_S: Final = tuple(0.05 * 10 ** (step / 10) for step in range(34))
"""0.05 to 100."""
RETENTION_HOURS: Final = (0.25, 0.5, 1, 2, 4, 8, 16, 24, 48, 72, 96, 120, 144, 168, 192, 216, 240, 288, 336)
_NEAR: Final = 1.1
"""An interval that costs no more than this times the cheapest is as good, and quicker."""


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """What a topic did and cost in the time of the report. None is unknown."""

    topic: str
    upload_bytes: float
    objects: float
    """That it has bytes in."""
    linked_bytes: float | None
    inline_bytes: float | None
    remote_followers: int | None
    """Brokers in other zones that follow a partition of it."""
    remote_wal_usd: float | None
    stock_usd: float | None
    unknown_days: int
    """Days of brokers of which no usage record tells."""
    archive_usd: float = 0.0
    """Of `remote_wal_usd`, what its archive costs: links neither cause nor save it."""
    produced_bytes: float | None = None
    """By what its followers were given."""
    crossings: float | None = None
    """How often each of these crossed a border, or would have inline. None: as often as it has followers there."""
    object_hours: float = 0.0
    """How long its objects are kept for links."""
    is_kept: bool = False
    """They are stored for more than links."""
    remote_zones: int | None = None
    """In which the remote followers stand. None: in one each."""

    @property
    def saved_usd(self) -> float | None:
        if self.remote_wal_usd is None or self.stock_usd is None:
            return None
        return self.stock_usd - self.remote_wal_usd


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """What links do for a topic."""

    topic: str
    rate_mb_s: float
    break_even_mb_s: float | None
    """The rate from which links would pay for this topic if it were alone, at the objects that it takes part in now.
    With others it shares the objects, and pays earlier. None: unknown, or nothing can be saved at these prices.
    """
    saved_usd: float | None
    advice: str


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The mean load of what one broker leads."""

    broker_id: int
    rate_mb_s: float
    """Produced."""
    crossings: float
    """How often each byte crosses a border, or would inline: once for each follower in another zone."""
    readers: float
    """Brokers in other zones that want bytes of its objects."""
    object_hours: float
    """How long these are kept for links: remote.wal.retention.ms."""
    is_kept: bool = False
    """Most of it is stored for more than links: links cost it neither upload nor storage."""
    zones: float | None = None
    """In which the readers stand. None: in one each."""
    zone_reads: bool = True
    """remote.wal.hydration.share.min.readers: one of a zone reads an object for all of it."""

    @property
    def reads(self) -> float:
        """How often an object is read, at least: who reads for itself may do so in several ranges."""
        return self.readers if self.zones is None or not self.zone_reads else self.zones

    def workload(self, store: str, interval_ms: float = DEFAULT_INTERVAL_MS) -> Workload:
        """`store` names the section of its prices."""
        return Workload(
            store=store,
            brokers=1,
            rate_mb_s=self.rate_mb_s,
            interval_ms=interval_ms,
            replication_factor=int(self.crossings) + 2,
            remote_followers=self.crossings,
            readers=self.reads,
            partitions=1,
            is_kept=self.is_kept,
            wal_hours=self.object_hours,
            stored_copies=0,
            local_hours=0,
            local_hours_with_wal=0,
        )


def topic_verdict(
    totals: TopicTotals, seconds: float, prices: PriceTable, store: str = EXPRESS, *, zone_reads: bool = True
) -> TopicVerdict:
    """Over the `seconds` that the totals are of; `store` names the section of its prices, `zone_reads` is as
    `BrokerLoad` has it. Raises PriceError.
    """
    produced = totals.upload_bytes if totals.produced_bytes is None else totals.produced_bytes
    rate = produced / seconds / 1e6 if seconds > 0 else 0.0
    alone = _break_even_alone_mb_s(totals, seconds, prices, store, zone_reads)
    return TopicVerdict(totals.topic, rate, alone, totals.saved_usd, _advice(totals, rate, alone))


def _break_even_alone_mb_s(
    totals: TopicTotals, seconds: float, prices: PriceTable, store: str, zone_reads: bool
) -> float | None:
    if not totals.remote_followers or not totals.objects or seconds <= 0:
        return None
    crossings = totals.remote_followers if totals.crossings is None else totals.crossings
    of = (totals.remote_followers, totals.object_hours, totals.is_kept, totals.remote_zones, zone_reads)
    alone = BrokerLoad(0, 1.0, crossings, *of)
    size = outlook(alone.workload(store), prices).break_even_bytes(1)
    return None if size == NEVER_PAYS else totals.objects / seconds * size / 1e6


def _advice(totals: TopicTotals, rate_mb_s: float, alone_mb_s: float | None) -> str:
    saved = totals.saved_usd
    if saved is None:
        return "unknown: usage records of its leaders' agents do not tell, or not yet"
    if not totals.upload_bytes and not totals.linked_bytes and not totals.inline_bytes:
        return "no traffic"
    if saved + totals.archive_usd >= 0:
        return "pays" if totals.linked_bytes else "goes inline, as in stock Kafka"
    command = f"remote-wal topics enable {totals.topic} --link-policy cost"
    if not totals.linked_bytes:
        return (
            "costs its uploads and sends inline, as something wants it stored: a longer remote.wal.archive.interval.ms,"
            " or remote.wal.retention.ms other than -2"
        )
    if alone_mb_s is None:
        return f"links do not pay here: {command}, which sends all inline"
    if rate_mb_s < alone_mb_s:
        return f"loses money, below its break-even: {command}"
    return "loses money although above its break-even: too many small objects; a longer interval"


@dataclass(frozen=True, slots=True)
class Choice:
    """An interval, and what all brokers together would cost with it."""

    interval_ms: int
    usd_per_month: float
    """Where producers wait (acks=all)."""
    unwaited_usd_per_month: float
    """Where none does: objects are uploaded later, and are larger."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Dollars for each gigabyte produced, at some interval, rate or retention."""

    at: float
    usd_gb: float
    """By the policy cost, where producers wait."""
    unwaited_usd_gb: float
    always_usd_gb: float
    """By the policy always, where producers wait."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Cost over one thing, all others as they are."""

    over_interval_ms: tuple[CostPoint, ...]
    over_rate_mb_s: tuple[CostPoint, ...]
    """Of a broker with the mean of the loads' followers, readers and lives."""
    over_retention_hours: tuple[CostPoint, ...]
    stock_usd_gb: float
    mean_rate_mb_s: float
    object_hours: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """What it makes whether one agent of a zone reads an object for all of it, or each for itself.

    Dollars are of all brokers together and a month, rates in MB/s those from which links pay on a broker with the mean
    of the loads, both at the interval of `Choices.quickest_near`. Who reads for itself may do so in several ranges, so
    that costs as much at least.
    """

    is_on: bool
    readers: float
    """Brokers that want bytes of an object, in the mean."""
    zones: float
    """That these stand in."""
    shared_usd: float
    alone_usd: float
    shared_break_even_mb_s: float | None
    """None: links never pay."""
    alone_break_even_mb_s: float | None

    @property
    def saved_usd(self) -> float:
        """By sharing."""
        return self.alone_usd - self.shared_usd


@dataclass(frozen=True, slots=True)
class Choices:
    """All that were computed, the cheapest, and the quickest that costs about as little."""

    all: tuple[Choice, ...]
    cheapest: Choice
    quickest_near: Choice
    default: Choice
    stock_usd_per_month: float
    inline_brokers: tuple[int, ...]
    """To whose loads links do not pay, at whatever interval."""
    brokers: int
    """All that have a load with followers in other zones."""
    curves: Curves
    sharing: Sharing | None = None
    """None: no zone has two brokers that read the same objects."""

    @property
    def links_pay(self) -> bool:
        """To any broker's load."""
        return len(self.inline_brokers) < self.brokers


def choices(loads: Sequence[BrokerLoad], prices: PriceTable, store: str = EXPRESS) -> Choices | None:
    """None without any load; `store` names the section of its prices. Raises PriceError."""
    loads = [load for load in loads if load.rate_mb_s > 0 and load.crossings > 0]
    if not loads:
        return None

    def usd(interval_ms: int, *, producers_wait: bool) -> float:
        works = (replace(load.workload(store, interval_ms), producers_wait=producers_wait) for load in loads)
        return sum(replication_usd(work, prices)[0] for work in works)

    computed = tuple(
        Choice(interval_ms, usd(interval_ms, producers_wait=True), usd(interval_ms, producers_wait=False))
        for interval_ms in INTERVALS_MS
    )
    cheapest = min(computed, key=lambda choice: choice.usd_per_month)
    near = [choice for choice in computed if choice.usd_per_month <= _NEAR * cheapest.usd_per_month]
    quickest_near = min(near, key=lambda choice: choice.interval_ms)
    curves = _curves(loads, prices, store)
    gb_per_month = sum(load.workload(store).gb_per_month for load in loads)
    return Choices(
        computed,
        cheapest,
        quickest_near,
        next(choice for choice in computed if choice.interval_ms == DEFAULT_INTERVAL_MS),
        gb_per_month * curves.stock_usd_gb,
        tuple(load.broker_id for load in loads if not _ever_pays(load, prices, store)),
        len(loads),
        curves,
        _sharing(loads, prices, store, quickest_near.interval_ms),
    )


def _sharing(loads: Sequence[BrokerLoad], prices: PriceTable, store: str, interval_ms: int) -> Sharing | None:
    if all(load.zones is None or load.zones >= load.readers for load in loads):
        return None

    def usd(*, zone_reads: bool) -> float:
        works = (replace(load, zone_reads=zone_reads).workload(store, interval_ms) for load in loads)
        return sum(replication_usd(work, prices)[0] for work in works)

    typical = _typical(loads)

    def break_even(*, zone_reads: bool) -> float | None:
        return break_even_mb_s(replace(typical, zone_reads=zone_reads).workload(store, interval_ms), prices)

    return Sharing(
        typical.zone_reads,
        typical.readers,
        typical.readers if typical.zones is None else typical.zones,
        usd(zone_reads=True),
        usd(zone_reads=False),
        break_even(zone_reads=True),
        break_even(zone_reads=False),
    )


def _ever_pays(load: BrokerLoad, prices: PriceTable, store: str) -> bool:
    found = break_even_mb_s(load.workload(store, INTERVALS_MS[-1]), prices)
    return found is not None and load.rate_mb_s >= found


def _typical(loads: Sequence[BrokerLoad]) -> BrokerLoad:
    """With the mean of their followers, readers and lives, by their bytes, and the mean of their rates."""
    total = sum(load.rate_mb_s for load in loads)

    def mean(of: Callable[[BrokerLoad], float]) -> float:
        return math.fsum(load.rate_mb_s * of(load) for load in loads) / total

    return BrokerLoad(
        -1,
        total / len(loads),
        mean(lambda load: load.crossings),
        mean(lambda load: load.readers),
        mean(lambda load: load.object_hours),
        mean(lambda load: float(load.is_kept)) > 1 / 2,
        mean(lambda load: load.readers if load.zones is None else load.zones),
        loads[0].zone_reads,
    )


def _curves(loads: Sequence[BrokerLoad], prices: PriceTable, store: str) -> Curves:
    typical = _typical(loads)

    def point(at: float, works: Sequence[Workload]) -> CostPoint:
        gb = sum(work.gb_per_month for work in works)

        def usd_gb(changed: Iterable[Workload]) -> float:
            return sum(replication_usd(work, prices)[0] for work in changed) / gb

        return CostPoint(
            at,
            usd_gb(works),
            usd_gb(replace(work, producers_wait=False) for work in works),
            usd_gb(replace(work, link_policy=ScenarioPolicy.ALWAYS) for work in works),
        )

    return Curves(
        tuple(point(ms, [load.workload(store, ms) for load in loads]) for ms in range(5, INTERVALS_MS[-1] + 1, 5)),
        tuple(point(rate, [replace(typical, rate_mb_s=rate).workload(store)]) for rate in RATES_MB_S),
        tuple(
            point(hours, [replace(load, object_hours=hours, is_kept=False).workload(store) for load in loads])
            for hours in RETENTION_HOURS
        ),
        typical.crossings * prices.zone_crossing_gb,
        typical.rate_mb_s,
        typical.object_hours,
    )
