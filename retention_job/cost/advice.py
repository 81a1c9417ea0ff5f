"""What to change so that replication costs less: which topics lose money, which interval, how many buckets. Sans-IO.

Intervals and buckets are judged by the scenarios' model at each broker's mean rate, so bursts are taken for steady
load: the differences between the choices are sounder than the dollars in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plugin.prices import BYTES_PER_GB, EXPRESS, PriceTable, StorePrices
from retention_job.cost.scenario_model import Workload, replication_usd

INTERVALS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1000)
BUCKETS: Final = (1, 2, 3)
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
    remote_wal_usd: float | None
    stock_usd: float | None
    unknown_days: int
    """Days of brokers of which no usage record tells."""
    archive_usd: float = 0.0
    """Of `remote_wal_usd`, what its archive costs: links neither cause nor save it."""

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


def topic_verdict(totals: TopicTotals, seconds: float, prices: PriceTable, store: str = EXPRESS) -> TopicVerdict:
    """Over the `seconds` that the totals are of; `store` names the section of its prices. Raises PriceError."""
    rate = totals.upload_bytes / seconds / 1e6 if seconds > 0 else 0.0
    alone = _break_even_alone_mb_s(totals, seconds, prices, prices.store(store))
    return TopicVerdict(totals.topic, rate, alone, totals.saved_usd, _advice(totals, rate, alone))


def _break_even_alone_mb_s(totals: TopicTotals, seconds: float, prices: PriceTable, store: StorePrices) -> float | None:
    if not totals.remote_followers or not totals.objects or seconds <= 0:
        return None
    followers = totals.remote_followers
    object_usd = (store.put_per_1000 + followers * store.get_per_1000) / 1000
    saved_gb = followers * (prices.zone_crossing_gb - store.retrieval_gb - prices.cross_zone_read_gb) - store.upload_gb
    if saved_gb <= 0:
        return None
    return totals.objects / seconds * object_usd / saved_gb * BYTES_PER_GB / 1e6


def _advice(totals: TopicTotals, rate_mb_s: float, alone_mb_s: float | None) -> str:
    saved = totals.saved_usd
    if saved is None:
        return "unknown: no usage records of its leaders' agents"
    if not totals.upload_bytes and not totals.linked_bytes and not totals.inline_bytes:
        return "no traffic"
    if saved + totals.archive_usd >= 0:
        return "pays"
    command = f"remote-wal topics enable {totals.topic} --link-policy cost"
    if not totals.linked_bytes:
        return "costs its uploads and sends inline: a longer remote.wal.archive.interval.ms, or switch it off"
    if alone_mb_s is not None and rate_mb_s < alone_mb_s:
        return f"loses money, below its break-even: {command}, or a longer interval"
    return "loses money although above its break-even: too many small objects; a longer interval"


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """A broker's mean load."""

    rate_mb_s: float
    remote_followers: int
    wal_hours: float
    """How long its objects live."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An interval and a number of buckets, and what all brokers together would cost with it."""

    interval_ms: int
    buckets: int
    usd_per_month: float


@dataclass(frozen=True, slots=True)
class Choices:
    """All that were computed, the cheapest, and the quickest that costs about as little."""

    all: tuple[Choice, ...]
    cheapest: Choice
    quickest_near: Choice
    stock_usd_per_month: float


def choices(loads: Sequence[BrokerLoad], prices: PriceTable, store: str = EXPRESS) -> Choices | None:
    """None without any load; `store` names the section of its prices. Raises PriceError."""
    loads = [load for load in loads if load.rate_mb_s > 0 and load.remote_followers > 0]
    if not loads:
        return None
    computed = []
    for buckets in BUCKETS:
        for interval_ms in INTERVALS_MS:
            costs = [replication_usd(_workload(load, interval_ms, buckets, store), prices) for load in loads]
            computed.append(Choice(interval_ms, buckets, sum(usd for usd, _ in costs)))
    cheapest = min(computed, key=lambda choice: choice.usd_per_month)
    near = [
        choice
        for choice in computed
        if choice.buckets == cheapest.buckets and choice.usd_per_month <= _NEAR * cheapest.usd_per_month
    ]
    stock = sum(
        _workload(load, 1, 1, store).gb_per_month * load.remote_followers * prices.zone_crossing_gb for load in loads
    )
    return Choices(tuple(computed), cheapest, min(near, key=lambda choice: choice.interval_ms), stock)


def _workload(load: BrokerLoad, interval_ms: int, buckets: int, store: str) -> Workload:
    return Workload(
        store=store,
        brokers=1,
        rate_mb_s=load.rate_mb_s,
        interval_ms=interval_ms,
        replication_factor=load.remote_followers + 1,
        remote_followers=load.remote_followers,
        buckets=buckets,
        wal_hours=load.wal_hours,
        stored_copies=0,
        local_hours=0,
        local_hours_with_wal=0,
    )
