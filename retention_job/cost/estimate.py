"""Estimates what a running cluster pays across zones, and what it would pay with agents, from samples of it. Sans-IO.

A sample has each partition's offsets and size, its replicas and their zones, and what consumer groups have committed.
Between two samples every load counts as steady. For each leader the agents' own rules (`LinkCosts`, `PAYS_TIMES`,
`stretched_interval_s` in `rlm.write_path.commit`) then decide whether links pay and how often an object is uploaded.
Clients are assumed to be spread evenly over the zones, as `scenario_model` assumes: Kafka does not tell where they are.

Where a topic's average rates over a longer time are known (`Averages`), they take the place of what was sampled.

What cannot be seen from outside: whether links would slow acks=all producers that reach brokers directly (then their
bytes go inline, as today), bursts shorter than the time between samples, and consumers that commit no offsets.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import INTERNAL_TOPICS, LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.inline_reason import InlineReason
from plugin.prices import BYTES_PER_GB, NEVER_PAYS, SECONDS_PER_MONTH, Prices, PriceTable, StorePrices
from retention_job.cost.scenario_model import Workload, clients_cost
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.group_commit import stretched_interval_s
from rlm.write_path.commit.link_costs import LinkCosts, Outlook
from rlm.write_path.commit.link_policy import PAYS_TIMES

Where = tuple[str, int]
"""A topic's name and a partition."""

ROUND_S: Final = 0.04
"""How long a round of producers that wait takes, as in the loads of `perf cost`: links that need more than a round's
bytes for an object would slow them, so they are not used."""
WAYS: Final = ("today", "client_rack", "links", "links_and_client_rack", "gateway")
KAFKA_TOPICS: Final = "Kafka's own topics"
"""The row of all internal topics, which are never linked."""
AVERAGED: Final = "averaged"
SAMPLED: Final = "sampled"
"""Where a topic's rate is from."""
ACKS_ALL: Final = {
    "today": "as now",
    "client_rack": "as now",
    "links": "+12 ms, where links do not slow producers; else inline",
    "links_and_client_rack": "+12 ms, where links do not slow producers; else inline",
    "gateway": "+13 ms, and nobody stands still meanwhile (held answers)",
}
"""Added to the median of one record in flight, measured with a store of 5 ms for PUT and GET (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Log:
    """A partition at one time."""

    leader: int
    replicas: tuple[int, ...]
    start: int
    end: int
    size: int
    """Bytes of the leader's log."""

    def is_later_of(self, before: "Log") -> bool:
        """Whether all bytes of `before` are still there, as far as can be seen, so that it has grown by the rest."""
        is_same = (before.leader, before.start) == (self.leader, self.start)
        return is_same and self.size >= before.size and self.end >= before.end


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one time."""

    at_s: float
    racks: Mapping[int, str | None]
    logs: Mapping[Where, Log]
    committed: Mapping[str, Mapping[Where, int]]
    """By group."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Bytes a second by topic over a longer time than samples have, in the place of the sampled rates.

    A topic's bytes are shared out to its partitions by the sizes of their logs, as one rate tells nothing of those.
    """

    produced: Mapping[str, float] = field(default_factory=dict)
    read: Mapping[str, float] = field(default_factory=dict)
    """By consumers."""


NO_AVERAGES: Final = Averages()


@dataclass(frozen=True, slots=True)
class Rules:
    """The agents' settings that costs depend on."""

    interval_s: float
    upload_wait_s: float
    archive_interval_s: float
    upload_bytes: int
    life_s: float
    share_min_readers: int
    producers_wait: bool = True
    """Whether producers wait for followers, as with acks=all to the brokers; else objects are larger."""

    @property
    def gathered_s(self) -> float:
        """The time whose bytes must pay for an object, so that links are used."""
        return min(ROUND_S, self.upload_wait_s) if self.producers_wait else self.upload_wait_s


@dataclass(slots=True)
class TopicEstimate:
    """A topic's amounts in a month."""

    topic: str
    produced_bytes: float = 0.0
    read_bytes: float = 0.0
    linked_bytes: float = 0.0
    """Bytes that would be linked, once for each follower in another zone."""
    inline: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes to followers in other zones that would go inline, and those of followers elsewhere that there are not, by
    why (`InlineReason`)."""
    usd: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Dollars by part: `replication_today`, `crossing`, `requests`, `bytes`, `storage` (the four are
    replication with links), `links_held` (the same where agents hold the answers to producers, so that none waits),
    `produce_today`, `produce_gateway`, `consume_today`, `consume_client_rack`."""
    lag_records: int = 0
    """The largest lag of a group now."""
    rates: set[str] = field(default_factory=set)
    """Where the rate of what was produced is from: `AVERAGED`, `SAMPLED`, or both in a row of several topics."""

    @property
    def replication(self) -> dict[str, float]:
        """Dollars a month of replication: today, with links, and with links and held answers, as by the gateway."""
        linked = sum(self.usd[part] for part in ("crossing", "requests", "bytes", "storage"))
        return {"today": self.usd["replication_today"], "links": linked, "gateway": self.usd["links_held"]}

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
        """Dollars a month by way, replication and clients together."""
        replication, clients = self.replication, self.clients
        pairs = [("today", "today"), ("today", "client_rack"), ("links", "today"), ("links", "client_rack"),
                 ("gateway", "gateway")]  # fmt: skip
        return {way: replication[one] + clients[other] for way, (one, other) in zip(WAYS, pairs, strict=True)}

    @property
    def linked_share(self) -> float | None:
        """The share of the bytes to followers in other zones that would be linked; None if there are none."""
        inline = sum(size for why, size in self.inline.items() if why != InlineReason.NO_FOLLOWER_ELSEWHERE)
        return self.linked_bytes / (self.linked_bytes + inline) if self.linked_bytes + inline else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cluster's dollars a month."""

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

    If nothing was seen to grow, it is that of the log, by all its offsets: too small where records were compacted away
    or are in another tier.
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
) -> Estimate:
    """Estimate from two samples or more. Raises PriceError where a price is missing, ValueError without two samples."""
    if len(samples) < 2:
        raise ValueError("two samples are needed")
    last, record_bytes = replace(samples[-1], racks=_racks(samples)), mean_record_bytes(samples)
    seconds, store = last.at_s - samples[0].at_s, prices.store(store_section)
    leaders = _Leaders(last, prices, store, rules)
    held = _Leaders(last, prices, store, replace(rules, producers_wait=False))
    topics, by_held = (defaultdict[str, TopicEstimate](lambda: TopicEstimate("")) for _ in range(2))
    for before, after in pairwise(samples):
        window = _Window(before, after, record_bytes, averages)
        leaders.replicate(window, topics)
        leaders.serve_clients(window, topics)
        held.replicate(window, by_held)
    for where in last.logs:
        topics[_row(where)].rates.add(AVERAGED if where[0] in averages.produced else SAMPLED)
    for name, topic in topics.items():
        topic.usd["links_held"] = by_held[name].replication["links"]
    found = [_sum(name, [topic], SECONDS_PER_MONTH / seconds) for name, topic in topics.items()]
    by_gateway = _gateway_ratio(found, len(last.racks), len(leaders.zones), prices, store_section)
    for topic in found:
        topic.lag_records = _largest_lag(topic.topic, last)
        topic.usd["produce_gateway"] = topic.usd["produce_today"] * by_gateway
    size = min((one.break_even_bytes(leaders.entries) for one in leaders.outlooks.values()), default=NEVER_PAYS)
    return Estimate(
        seconds,
        len(last.racks),
        len(leaders.zones),
        sorted(found, key=lambda one: (-one.ways["today"], one.topic)),
        _sum("all", found),
        None if size == NEVER_PAYS else size,
        None if size == NEVER_PAYS else PAYS_TIMES * size / rules.gathered_s / 1e6,
        list(_notes(samples, len(leaders.zones))),
    )


class _Leaders:
    """Replication and clients as they are placed in one sample."""

    def __init__(self, sample: Sample, prices: PriceTable, store: StorePrices, rules: Rules) -> None:
        self._prices, self._store, self._rules = prices, store, rules
        # A broker without a known rack counts as a zone of its own, as for the agents.
        self._zone = {one: rack or f"broker {one}" for one, rack in sample.racks.items()}
        self.zones = frozenset(self._zone.values())
        all_prices = Prices(store, store, prices.zone_crossing_gb, prices.cross_zone_read_gb)
        costs = LinkCosts(all_prices, store, reads_for=self._reads_for)
        self._led: defaultdict[int, dict[Where, Assignment]] = defaultdict(dict)
        for number, (where, log) in enumerate(sorted(sample.logs.items())):
            if where[0] not in INTERNAL_TOPICS:
                self._led[log.leader][where] = self._assignment(where, log, number)
        self.outlooks = {leader: costs.judge(led.values()) for leader, led in self._led.items()}
        self._logs = sample.logs
        self.entries = max(map(len, self._led.values()), default=1)

    def _reads_for(self, brokers: Iterable[int]) -> Mapping[int, int | str]:
        counts = Counter(self._zone[one] for one in brokers)
        shares = max(self._rules.share_min_readers, 2) if self._rules.share_min_readers else math.inf
        return {one: self._zone[one] if counts[self._zone[one]] >= shares else one for one in brokers}

    def _assignment(self, where: Where, log: Log, number: int) -> Assignment:
        is_kept = WalRetention().is_kept(TopicSettings(enable=True), len(log.replicas))
        return Assignment(
            TopicIdPartition(TopicId(number.to_bytes(16, "big")), where[1]),
            where[0],
            Path(),
            LinkPolicy.COST,
            0,
            remote_followers=self._elsewhere(log),
            is_kept=is_kept,
            object_life_s=self._rules.life_s,
        )

    def _elsewhere(self, log: Log) -> frozenset[int]:
        own = self._zone[log.leader]
        return frozenset(one for one in log.replicas if one != log.leader and self._zone[one] != own)

    def replicate(self, window: _Window, topics: Mapping[str, TopicEstimate]) -> None:
        """Add what replication costs in this time, today and with links."""
        crossing_gb = self._prices.zone_crossing_gb
        for where, size in window.grown.items():
            if where not in self._logs:
                continue
            topic, crossed = topics[_row(where)], size * len(self._elsewhere(self._logs[where]))
            topic.produced_bytes += size
            topic.usd["replication_today"] += crossed / BYTES_PER_GB * crossing_gb
            if _row(where) == KAFKA_TOPICS and crossed:
                topic.inline[InlineReason.NOT_ENABLED.value] += crossed
                topic.usd["crossing"] += crossed / BYTES_PER_GB * crossing_gb
        for leader, led in self._led.items():
            grown = {where: window.grown.get(where, 0.0) for where in led}
            self._replicate_by(led, grown, self.outlooks[leader], window.seconds, topics)

    def _replicate_by(
        self,
        led: Mapping[Where, Assignment],
        grown: Mapping[Where, float],
        outlook: Outlook,
        seconds: float,
        topics: Mapping[str, TopicEstimate],
    ) -> None:
        """Add the costs of one leader with links."""
        entries = sum(1 for size in grown.values() if size)
        may_pay = (where for where, one in led.items() if one.topic_id_partition not in outlook.unpaying)
        paying = {where for where in may_pay if led[where].remote_followers}
        rate = sum(grown[where] for where in paying) / seconds
        size = outlook.break_even_bytes(entries or 1)
        is_linking = size != NEVER_PAYS and rate * self._rules.gathered_s >= PAYS_TIMES * size
        stored: dict[Where, float] = {}
        for where, one in led.items():
            topic, followers = topics[where[0]], len(one.remote_followers or ())
            moved = grown[where] * followers
            if is_linking and where in paying:
                topic.linked_bytes += moved
                read_gb = self._store.retrieval_gb + self._prices.cross_zone_read_gb
                topic.usd["bytes"] += moved / BYTES_PER_GB * read_gb
            elif not followers:
                topic.inline[InlineReason.NO_FOLLOWER_ELSEWHERE.value] += grown[where]
            else:
                why = InlineReason.NEVER_PAYS if where not in paying or size == NEVER_PAYS else InlineReason.LOAD
                topic.inline[why.value] += moved
                topic.usd["crossing"] += moved / BYTES_PER_GB * self._prices.zone_crossing_gb
            if one.is_kept or (is_linking and where in paying):
                stored[where] = grown[where]
        self._store_by(stored, led, outlook if is_linking else None, seconds, topics)

    def _store_by(
        self,
        stored: Mapping[Where, float],
        led: Mapping[Where, Assignment],
        linking: Outlook | None,
        seconds: float,
        topics: Mapping[str, TopicEstimate],
    ) -> None:
        """Add the costs of objects. Their requests are shared out by bytes."""
        total = sum(stored.values())
        entries = sum(1 for size in stored.values() if size)
        if not total:
            return
        if linking is None:
            interval_s, object_usd = self._rules.archive_interval_s, self._store.requests_usd(1, 0, 0, 0)
        else:
            interval_s = self._interval_s(linking, entries, total / seconds)
            object_usd = linking.object_usd + entries * linking.entry_usd
        objects = max(seconds / interval_s, total / self._rules.upload_bytes)
        for where, size in stored.items():
            usd = topics[where[0]].usd
            usd["requests"] += objects * object_usd * size / total
            usd["bytes"] += size / BYTES_PER_GB * self._store.upload_gb
            # What is kept as long as the log takes what the log takes now.
            held = self._logs[where].size if led[where].is_kept else size / seconds * led[where].object_life_s
            usd["storage"] += held / BYTES_PER_GB * self._store.storage_gb_month * seconds / SECONDS_PER_MONTH

    def _interval_s(self, outlook: Outlook, entries: int, rate: float) -> float:
        """Return the time from one upload to the next where links pay (`GroupCommit`)."""
        if self._rules.producers_wait:
            return self._rules.interval_s
        full = max(outlook.full_object_bytes(entries), PAYS_TIMES * outlook.break_even_bytes(entries))
        return stretched_interval_s(self._rules.interval_s, full / rate, self._rules.upload_wait_s)

    def serve_clients(self, window: _Window, topics: Mapping[str, TopicEstimate]) -> None:
        """Add what clients cost in this time."""
        zones, crossing_gb = len(self.zones), self._prices.zone_crossing_gb
        for where, log in self._logs.items():
            if _row(where) == KAFKA_TOPICS:  # brokers and coordinators write and read them
                continue
            topic, read = topics[where[0]], window.read[where]
            with_replica = len({self._zone[one] for one in log.replicas})
            topic.read_bytes += read
            for part, crossed in (
                ("produce_today", window.grown.get(where, 0.0) * (1 - 1 / zones)),
                ("consume_today", read * (1 - 1 / zones)),
                ("consume_client_rack", read * (zones - with_replica) / zones),
            ):
                topic.usd[part] += crossed / BYTES_PER_GB * crossing_gb


def _row(where: Where) -> str:
    return KAFKA_TOPICS if where[0] in INTERNAL_TOPICS else where[0]


def _sum(name: str, topics: Iterable[TopicEstimate], times: float = 1.0) -> TopicEstimate:
    total = TopicEstimate(name)
    for one in topics:
        total.produced_bytes += one.produced_bytes * times
        total.read_bytes += one.read_bytes * times
        total.linked_bytes += one.linked_bytes * times
        for all_, own in ((total.inline, one.inline), (total.usd, one.usd)):
            for part, amount in own.items():
                all_[part] += amount * times
        total.lag_records = max(total.lag_records, one.lag_records)
        total.rates |= one.rates
    return total


def _gateway_ratio(
    topics: Sequence[TopicEstimate], brokers: int, zones: int, prices: PriceTable, store_section: str
) -> float:
    """Return what producing by the gateway costs, as a share of today's; `scenario_model` has the other inputs."""
    produced = sum(one.produced_bytes for one in topics if one.topic != KAFKA_TOPICS)
    if zones < 2 or not produced:
        return 1.0
    rate_mb_s = produced / SECONDS_PER_MONTH / 1e6 / brokers
    workload = Workload(brokers, rate_mb_s, 25, 3, 2, 1, 0, 0, 0, zones=zones, store=store_section)
    found = clients_cost(workload, prices)
    return found.gateway.parts["produce"] / (found.stock.parts["produce"] or 1.0)


def _largest_lag(topic: str, sample: Sample) -> int:
    lags = Counter[str]()
    for group, offsets in sample.committed.items():
        for where, offset in offsets.items():
            if where[0] == topic and where in sample.logs:
                lags[group] += max(sample.logs[where].end - offset, 0)
    return max(lags.values(), default=0)


def _notes(samples: Sequence[Sample], zones: int) -> Iterable[str]:
    seen = {one: rack for sample in samples for one, rack in sample.racks.items()}
    if unseen := sorted(_replicas(samples[-1]) - seen.keys()):
        yield f"brokers {', '.join(map(str, unseen))} have replicas but were away: each counts as a zone of its own"
    without = sorted(one for one, rack in seen.items() if not rack)
    if without:
        yield f"brokers {', '.join(map(str, without))} have no broker.rack: each counts as a zone of its own"
    if zones < 2:
        yield "all brokers are in one zone: nothing crosses, so there is nothing to save"
    yield "clients are taken to be spread evenly over the zones; consumers that commit no offsets are not seen"
    yield "acks=all producers that send to brokers directly may stay inline, as today, if links would slow them"


def estimate_json(found: Estimate) -> dict[str, Any]:
    """Return the estimate for programs; money in US dollars a month."""

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
