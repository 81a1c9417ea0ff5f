"""Estimates what a running cluster pays across zones, and what it would pay with agents, from samples of it. Sans-IO.

A sample has each partition's offsets and size, its replicas and their zones, and what consumer groups have committed.
Between two samples every load counts as steady, and `cost_model` says what it costs. Clients are assumed to be spread
evenly over the zones: Kafka does not tell where they are.

Where a topic's average rates over a longer time are known (`Averages`), they take the place of what was sampled.

What cannot be seen from outside: whether links would slow acks=all producers that reach brokers directly (then their
bytes go inline, as today), bursts shorter than the time between samples, and consumers that commit no offsets.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from metadata_topic.settings.topic_settings import INTERNAL_TOPICS, TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.inline_reason import InlineReason
from plugin.prices import BYTES_PER_GB, NEVER_PAYS, SECONDS_PER_MONTH, PriceTable
from retention_job.cost.cost_model import Amounts, Leader, LedLog, Rules, Tariff, Where, gateway_ratio

WAYS: Final = ("today", "client_rack", "packing", "links", "links_and_client_rack", "gateway")
KAFKA_TOPICS: Final = "Kafka's own topics"
"""The row of all internal topics, which are never linked."""
AVERAGED: Final = "averaged"
SAMPLED: Final = "sampled"
"""Where a topic's rate is from."""
ACKS_ALL: Final = {
    "today": "as now",
    "client_rack": "as now",
    "packing": "as now",
    "links": "+12 ms, where links do not slow producers; else inline",
    "links_and_client_rack": "+12 ms, where links do not slow producers; else inline",
    "gateway": "+13 ms, and nobody stands still meanwhile (held answers)",
}
"""Added to the median of one record in flight, measured with a store of 5 ms for PUT and GET (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Log:
    """A partition in a sample: offsets, bytes and replicas."""

    leader: int
    replicas: tuple[int, ...]
    start: int
    end: int
    size: int
    """Bytes of the leader's log."""

    def is_later_of(self, before: "Log") -> bool:
        """Whether the log still has all bytes of `before`, as far as can be seen, so that it only grew."""
        is_same = (before.leader, before.start) == (self.leader, self.start)
        return is_same and self.size >= before.size and self.end >= before.end


@dataclass(frozen=True, slots=True)
class Sample:
    """The logs, brokers and groups of a cluster at one time."""

    at_s: float
    racks: Mapping[int, str | None]
    logs: Mapping[Where, Log]
    committed: Mapping[str, Mapping[Where, int]]
    """By group."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Bytes per second by topic over a longer time than the samples', which replace the sampled rates.

    A topic's bytes are divided among its partitions by their logs' sizes, because one rate says nothing of those.
    """

    produced: Mapping[str, float] = field(default_factory=dict)
    read: Mapping[str, float] = field(default_factory=dict)
    """By consumers."""


NO_AVERAGES: Final = Averages()


@dataclass(slots=True)
class TopicEstimate:
    """What a topic moves in a month, and what that costs."""

    topic: str
    produced_bytes: float = 0.0
    read_bytes: float = 0.0
    linked_bytes: float = 0.0
    """Bytes that would be linked, once for each follower in another zone."""
    held_linked_bytes: float = 0.0
    """Like `linked_bytes`, where agents hold the answers to producers."""
    inline: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes to followers in other zones that would go inline, and those of followers elsewhere that there are not, by
    why (`InlineReason`)."""
    stock: Amounts = field(default_factory=Amounts)
    packed: Amounts = field(default_factory=Amounts)
    """Like `stock`, packed by agents without any link."""
    links: Amounts = field(default_factory=Amounts)
    held: Amounts = field(default_factory=Amounts)
    """Like `links`, where agents hold the answers to producers, so that none waits."""
    crossed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Clients' bytes that cross zones: `produce_today`, `produce_gateway`, `consume_today`, `consume_client_rack`."""
    usd: Mapping[str, float] = field(default_factory=dict)
    """Dollars by part: those of links, and of `crossed`."""
    replication: Mapping[str, float] = field(default_factory=dict)
    """Dollars of replication: today, packed alone, with links, and with links and held answers, as by the gateway."""
    lag_records: int = 0
    """The largest lag of a group now."""
    rates: set[str] = field(default_factory=set)
    """Where the rate of what was produced is from: `AVERAGED`, `SAMPLED`, or both in a row of several topics."""

    def priced(self, tariff: Tariff) -> "TopicEstimate":
        """Return the topic's estimate with its costs in dollars."""
        parts = ("produce_today", "produce_gateway", "consume_today", "consume_client_rack")
        crossed = {part: self.crossed[part] / BYTES_PER_GB * tariff.crossing_gb for part in parts}
        links = self.links.usd(tariff)
        replication = {
            "today": sum(self.stock.usd(tariff).values()),
            "packing": sum(self.packed.usd(tariff).values()),
            "links": sum(links.values()),
            "gateway": sum(self.held.usd(tariff).values()),
        }
        return replace(self, usd=links | crossed, replication=replication)

    @property
    def clients(self) -> dict[str, float]:
        """Dollars a month of clients' bytes, by way."""
        usd = self.usd
        return {
            "today": usd["produce_today"] + usd["consume_today"],
            "client_rack": usd["produce_today"] + usd["consume_client_rack"],
            "gateway": usd["produce_gateway"] + usd["consume_client_rack"],
        }

    @property
    def ways(self) -> dict[str, float]:
        """Dollars a month for replication and clients together, by the names in `WAYS`: as today, packed, by
        links..."""
        replication, clients = self.replication, self.clients
        pairs = [("today", "today"), ("today", "client_rack"), ("packing", "today"), ("links", "today"),
                 ("links", "client_rack"), ("gateway", "gateway")]  # fmt: skip
        return {way: replication[one] + clients[other] for way, (one, other) in zip(WAYS, pairs, strict=True)}

    @property
    def pack_ratio(self) -> float:
        """Bytes that cross zones for each inline byte, once agents pack it."""
        return self.packed.crossing_bytes / self.stock.crossing_bytes if self.stock.crossing_bytes else 1.0

    @property
    def linked_share(self) -> float | None:
        """The share of the bytes to followers in other zones that would be linked; None if there are none."""
        return self._share(self.linked_bytes)

    @property
    def held_linked_share(self) -> float | None:
        """Like `linked_share`, where agents hold the answers to producers."""
        return self._share(self.held_linked_bytes)

    def _share(self, linked_bytes: float) -> float | None:
        inline = sum(size for why, size in self.inline.items() if why != InlineReason.NO_FOLLOWER_ELSEWHERE)
        crossing = self.linked_bytes + inline
        return linked_bytes / crossing if crossing else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated dollars a month of a cluster, as it is today and in each way of `WAYS`."""

    seconds: float
    brokers: int
    zones: int
    topics: Sequence[TopicEstimate]
    """The dearest first."""
    total: TopicEstimate
    break_even_bytes: int | None
    """The size from which an object pays, of the leader for which it is smallest; None: none ever pays."""
    break_even_mb_s: float | None
    """The rate of a broker from which links are used."""
    notes: Sequence[str]


class _Window:
    """The amounts between two samples, for each leader."""

    def __init__(self, before: Sample, after: Sample, record_bytes: Mapping[Where, float], averages: Averages) -> None:
        self.seconds = after.at_s - before.at_s
        self.grown = {
            where: _grown(before.logs.get(where), log, record_bytes[where]) for where, log in after.logs.items()
        }
        self.read = defaultdict[Where, float](float)
        for group, offsets in after.committed.items():
            for where, offset in offsets.items():
                since = before.committed.get(group, {}).get(where, offset)
                if where in after.logs:
                    self.read[where] += max(offset - since, 0) * record_bytes[where]
        shares = _shares(after.logs)
        for moved, rates in ((self.grown, averages.produced), (self.read, averages.read)):
            moved.update({one: rates[one[0]] * self.seconds * shares[one] for one in after.logs if one[0] in rates})


def _shares(logs: Mapping[Where, Log]) -> Mapping[Where, float]:
    """Return each partition's share of its topic by the size of its log, or equal ones if the topic is empty."""
    sizes, partitions = Counter[str](), Counter[str]()
    for where, log in logs.items():
        sizes[where[0]] += log.size
        partitions[where[0]] += 1
    return {
        where: log.size / sizes[where[0]] if sizes[where[0]] else 1 / partitions[where[0]]
        for where, log in logs.items()
    }


def mean_record_bytes(samples: Sequence[Sample]) -> dict[Where, float]:
    """Return the mean size of each partition's records, as they were appended between the samples.

    If a log did not grow, it is the mean over the log's offsets: too small where records were compacted away or are in
    another tier.
    """
    found = {
        where: log.size / (log.end - log.start) if log.end > log.start else 0.0
        for sample in samples
        for where, log in sample.logs.items()
    }
    sizes, records = Counter[Where](), Counter[Where]()
    for before, after in pairwise(samples):
        for where, log in after.logs.items():
            if (old := before.logs.get(where)) is not None and log.is_later_of(old):
                sizes[where] += log.size - old.size
                records[where] += log.end - old.end
    return found | {where: size / records[where] for where, size in sizes.items() if size and records[where]}


def _grown(before: Log | None, after: Log, record_bytes: float) -> float:
    """Return the bytes appended. Where the beginning was deleted meanwhile, records of the mean size are assumed."""
    if before is None:
        return 0.0
    return after.size - before.size if after.is_later_of(before) else max(after.end - before.end, 0) * record_bytes


def _racks(samples: Sequence[Sample]) -> dict[int, str | None]:
    """Return the racks of all brokers, also of those that were away at times or that only replicas tell of."""
    racks: dict[int, str | None] = dict.fromkeys(_replicas(samples[-1]))
    for sample in samples:
        racks |= sample.racks
    return racks


def _replicas(sample: Sample) -> set[int]:
    return {one for log in sample.logs.values() for one in (log.leader, *log.replicas)}


def estimate(
    samples: Sequence[Sample],
    prices: PriceTable,
    store_section: str,
    rules: Rules,
    averages: Averages = NO_AVERAGES,
    pack_ratios: Mapping[str, float] = MappingProxyType({}),
) -> Estimate:
    """Estimate from two samples or more. Raises PriceError where a price is missing, ValueError without two samples.

    `pack_ratios` are bytes that cross zones packed for each byte, by topic; others count as if they do not pack.
    """
    if len(samples) < 2:
        raise ValueError("two samples are needed")
    last, record_bytes = replace(samples[-1], racks=_racks(samples)), mean_record_bytes(samples)
    seconds, tariff = last.at_s - samples[0].at_s, Tariff.of(prices, store_section)
    placed = _Placed(last, tariff, rules, pack_ratios)
    topics = defaultdict[str, TopicEstimate](lambda: TopicEstimate(""))
    for before, after in pairwise(samples):
        window = _Window(before, after, record_bytes, averages)
        placed.replicate(window, topics)
        placed.serve_clients(window, topics)
    for where in last.logs:
        topics[_row(where)].rates.add(AVERAGED if where[0] in averages.produced else SAMPLED)
    found = [_sum(name, [topic], SECONDS_PER_MONTH / seconds) for name, topic in topics.items()]
    by_gateway = 1.0
    if len(placed.zones) > 1:
        crossed = sum(one.crossed["produce_today"] for one in found)
        by_gateway = gateway_ratio(crossed / SECONDS_PER_MONTH / len(last.racks), tariff)
    for topic in found:
        topic.lag_records = _largest_lag(topic.topic, last)
        topic.crossed["produce_gateway"] = topic.crossed["produce_today"] * by_gateway
    priced = [one.priced(tariff) for one in found]
    entries = max(map(len, placed.led.values()), default=1)
    size = min((one.break_even_bytes(entries) for one in placed.leaders.values()), default=NEVER_PAYS)
    rates = [one.paying_rate(entries) for one in placed.leaders.values()]
    return Estimate(
        seconds,
        len(last.racks),
        len(placed.zones),
        sorted(priced, key=lambda one: (-one.ways["today"], one.topic)),
        _sum("all", found).priced(tariff),
        None if size == NEVER_PAYS else size,
        min((one / 1e6 for one in rates if one is not None), default=None),
        list(_notes(samples, len(placed.zones), has_read=bool(pack_ratios))),
    )


class _Placed:
    """Logs and their leaders as they are placed in one sample."""

    def __init__(self, sample: Sample, tariff: Tariff, rules: Rules, pack_ratios: Mapping[str, float]) -> None:
        self._pack_ratios = pack_ratios
        # A broker without a known rack counts as a zone of its own, as for the agents.
        self._zone = {one: rack or f"broker {one}" for one, rack in sample.racks.items()}
        self.zones = frozenset(self._zone.values())
        self._logs = sample.logs
        self.led: defaultdict[int, dict[Where, LedLog]] = defaultdict(dict)
        for where, log in sample.logs.items():
            if where[0] not in INTERNAL_TOPICS:
                # What is kept as long as the log takes what the log takes now.
                is_kept = WalRetention().is_kept(TopicSettings(enable=True), len(log.replicas))
                self.led[log.leader][where] = rules.led_log(
                    where, self._elsewhere(log), is_kept=is_kept, stored_bytes=log.size,
                    pack_ratio=pack_ratios.get(where[0], 1.0),
                )  # fmt: skip
        held = replace(rules, producers_wait=False)
        self.leaders = {one: Leader(led, tariff, rules, self._zone) for one, led in self.led.items()}
        self._held = {one: Leader(led, tariff, held, self._zone) for one, led in self.led.items()}

    def _elsewhere(self, log: Log) -> frozenset[int]:
        own = self._zone[log.leader]
        return frozenset(one for one in log.replicas if one != log.leader and self._zone[one] != own)

    def replicate(self, window: _Window, topics: Mapping[str, TopicEstimate]) -> None:
        """Add what replication does in this time, today and with links."""
        for where, log in self._logs.items():
            size, topic = window.grown.get(where, 0.0), topics[_row(where)]
            crossed = size * len(self._elsewhere(log))
            topic.produced_bytes += size
            topic.stock.crossing_bytes += crossed
            topic.packed.crossing_bytes += crossed * self._pack_ratios.get(where[0], 1.0)
            if _row(where) == KAFKA_TOPICS and crossed:
                topic.inline[InlineReason.NOT_ENABLED.value] += crossed
                topic.links.crossing_bytes += crossed
                topic.held.crossing_bytes += crossed
        for leader, led in self.led.items():
            rates = {where: window.grown.get(where, 0.0) / window.seconds for where in led}
            for where, one in self.leaders[leader].replicate(rates).items():
                topic, size = topics[where[0]], one.sent_bytes * window.seconds
                topic.links.add(one.amounts, window.seconds)
                if one.inline is None:
                    topic.linked_bytes += size
                else:
                    topic.inline[one.inline.value] += size
            for where, one in self._held[leader].replicate(rates).items():
                topics[where[0]].held.add(one.amounts, window.seconds)
                topics[where[0]].held_linked_bytes += one.sent_bytes * window.seconds if one.inline is None else 0.0

    def serve_clients(self, window: _Window, topics: Mapping[str, TopicEstimate]) -> None:
        """Add clients' bytes of this time."""
        zones = len(self.zones)
        for where, log in self._logs.items():
            if _row(where) == KAFKA_TOPICS:  # brokers and coordinators write and read them
                continue
            topic, read = topics[where[0]], window.read[where]
            with_replica = len({self._zone[one] for one in log.replicas})
            topic.read_bytes += read
            topic.crossed["produce_today"] += window.grown.get(where, 0.0) * (1 - 1 / zones)
            topic.crossed["consume_today"] += read * (1 - 1 / zones)
            topic.crossed["consume_client_rack"] += read * (zones - with_replica) / zones


def _row(where: Where) -> str:
    return KAFKA_TOPICS if where[0] in INTERNAL_TOPICS else where[0]


def _sum(name: str, topics: Iterable[TopicEstimate], times: float = 1.0) -> TopicEstimate:
    total = TopicEstimate(name)
    for one in topics:
        total.produced_bytes += one.produced_bytes * times
        total.read_bytes += one.read_bytes * times
        total.linked_bytes += one.linked_bytes * times
        total.held_linked_bytes += one.held_linked_bytes * times
        for all_, own in ((total.inline, one.inline), (total.crossed, one.crossed)):
            for part, amount in own.items():
                all_[part] += amount * times
        for amounts, added in (
            (total.stock, one.stock),
            (total.packed, one.packed),
            (total.links, one.links),
            (total.held, one.held),
        ):
            amounts.add(added, times)
        total.lag_records = max(total.lag_records, one.lag_records)
        total.rates |= one.rates
    return total


def _largest_lag(topic: str, sample: Sample) -> int:
    lags = Counter[str]()
    for group, offsets in sample.committed.items():
        for where, offset in offsets.items():
            if where[0] == topic and where in sample.logs:
                lags[group] += max(sample.logs[where].end - offset, 0)
    return max(lags.values(), default=0)


def _notes(samples: Sequence[Sample], zones: int, *, has_read: bool) -> Iterable[str]:
    seen = {one: rack for sample in samples for one, rack in sample.racks.items()}
    if unseen := sorted(_replicas(samples[-1]) - seen.keys()):
        yield f"brokers {', '.join(map(str, unseen))} have replicas but were away: each counts as a zone of its own"
    without = sorted(one for one, rack in seen.items() if not rack)
    if without:
        yield f"brokers {', '.join(map(str, without))} have no broker.rack: each counts as a zone of its own"
    if zones < 2:
        yield "all brokers are in one zone: nothing crosses, so there is nothing to save"
    if not has_read:
        yield "no records were read, so none count as packed: --read-records shows what packing saves"
    yield "clients are taken to be spread evenly over the zones; consumers that commit no offsets are not seen"
    yield "acks=all producers that send to brokers directly may stay inline, as today, if links would slow them"


def estimate_json(found: Estimate) -> dict[str, Any]:
    """Return the estimate as values for JSON; money in US dollars a month."""

    def row(one: TopicEstimate) -> dict[str, Any]:
        return {
            "topic": one.topic,
            "produced_bytes": round(one.produced_bytes),
            "read_bytes": round(one.read_bytes),
            "lag_records": one.lag_records,
            "rate": "averaged and sampled" if len(one.rates) > 1 else next(iter(one.rates), SAMPLED),
            "usd": {way: round(usd, 2) for way, usd in one.ways.items()},
            "replication_usd": {way: round(usd, 4) for way, usd in one.replication.items()},
            "clients_usd": {way: round(usd, 4) for way, usd in one.clients.items()},
            "parts_usd": {part: round(usd, 4) for part, usd in one.usd.items()},
            "linked_share": one.linked_share,
            "held_linked_share": one.held_linked_share,
            "pack_ratio": round(one.pack_ratio, 3),
            "inline_bytes": {why: round(size) for why, size in one.inline.items() if size},
        }

    return {
        "unit": "US dollars and bytes a month of 30 days",
        "sampled_s": round(found.seconds, 1),
        "brokers": found.brokers,
        "zones": found.zones,
        "break_even_bytes": found.break_even_bytes,
        "break_even_mb_s": found.break_even_mb_s,
        "acks_all_added": ACKS_ALL,
        "total": row(found.total),
        "topics": [row(one) for one in found.topics],
        "notes": list(found.notes),
    }
