"""Model of what a leader's replication costs, in stock Kafka and with links. Sans-IO.

Each log grows at a steady rate. The agents' own rules (`rlm.write_path.commit`) decide whether links pay and how often
an object is uploaded, and `Amounts` puts the price on what follows from that. `remote-wal scenario` makes the logs of a
plan, `remote-wal estimate` those of a running cluster, and `perf cost` prices what the write path itself has counted.

Clients are spread evenly over the zones. By the gateway, produced records go through object storage if that is cheaper:
requests of an interval share an object, and the agent beside their leader reads each request.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from plugin.prices import BYTES_PER_GB, NEVER_PAYS, SECONDS_PER_MONTH, Prices, PriceTable, StorePrices
from rlm.write_path.assignment import Assignment
from rlm.write_path.link_costs import LinkCosts
from rlm.write_path.uploads.segment_queue import ReadingOrder, ranges_read, reading_order

Where = tuple[str, int]
"""A topic's name and a partition."""

ROUND_S: Final = 0.04
"""How long a round of producers that wait takes, as in the loads of `perf cost`: links that need more than a round's
bytes for an object would slow them, so a trial takes them away (`rlm.write_path.commit.trial`)."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices that a cost calculation needs."""

    store: StorePrices
    crossing_gb: float
    free_bytes: int = 0
    """Bytes of each request without upload and retrieval fees, as in older price tables."""

    @classmethod
    def of(cls, table: PriceTable, store: str) -> Self:
        """Take the prices of one store. Raises PriceError if one is missing."""
        free_bytes = table.free_bytes_per_request(store)
        return cls(table.store(store), table.zone_crossing_gb, free_bytes)

    def for_objects_of(self, size: float) -> Self:
        """Return the prices without the fees that objects of this size do not pay."""
        charged = max(0.0, 1 - self.free_bytes / size)
        upload_gb, retrieval_gb = (charged * fee for fee in (self.store.upload_gb, self.store.retrieval_gb))
        return replace(self, store=replace(self.store, upload_gb=upload_gb, retrieval_gb=retrieval_gb))

    def link_costs(self, reads_for: Callable[[Collection[int]], Mapping[int, Hashable]]) -> LinkCosts:
        """Return the agents' calculation at these prices."""
        return LinkCosts(Prices(self.store, self.store, self.crossing_gb), self.store, reads_for)


PARTS: Final = (
    "put_requests", "get_requests", "upload", "retrieval", "cross_zone_reads", "metadata", "wal_storage",
    "zone_transfer",
)  # fmt: skip
"""The parts of replication's cost."""


@dataclass(slots=True)
class Amounts:
    """Requests, bytes and storage of replication, as they were or would be."""

    puts: float = 0.0
    gets: float = 0.0
    uploaded_bytes: float = 0.0
    retrieved_bytes: float = 0.0
    stored_byte_s: float = 0.0
    entries: float = 0.0
    """Of all objects together: the size of their metadata."""
    crossing_bytes: float = 0.0
    """Bytes that cross zones as they are sent, once for each follower: inline bytes, packed, and links."""

    def add(self, other: "Amounts", times: float = 1.0) -> None:
        """Add `other`, multiplied by `times`."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + times * getattr(other, one.name))

    def usd(self, tariff: Tariff) -> dict[str, float]:
        """Return the amounts' dollars, by part."""
        store, costs = tariff.store, tariff.link_costs(lambda _brokers: {})
        entry_usd = costs.metadata_usd(1) - costs.metadata_usd(0)
        uploaded_bytes = max(self.uploaded_bytes - self.puts * tariff.free_bytes, 0.0)
        retrieved_bytes = max(self.retrieved_bytes - self.gets * tariff.free_bytes, 0.0)
        usd = (
            store.requests_usd(self.puts, 0, 0, 0),
            store.requests_usd(0, self.gets, 0, 0),
            store.requests_usd(0, 0, uploaded_bytes, 0),
            store.requests_usd(0, 0, 0, retrieved_bytes),
            self.retrieved_bytes / BYTES_PER_GB * store.cross_zone_read_gb,
            self.puts * costs.metadata_usd(0) + self.entries * entry_usd,
            self.stored_byte_s / SECONDS_PER_MONTH / BYTES_PER_GB * store.storage_gb_month,
            self.crossing_bytes / BYTES_PER_GB * tariff.crossing_gb,
        )
        return dict(zip(PARTS, usd, strict=True))


@dataclass(frozen=True, slots=True)
class Rules:
    """The agents' settings that costs depend on. Sizes are in bytes."""

    interval_s: float
    upload_wait_s: float
    archive_interval_s: float
    upload_bytes: int
    life_s: float
    """How long objects live that are only for links."""
    shares_reads: bool
    producers_wait: bool = True
    """Whether producers wait for followers, as with acks=all to the brokers; else objects are larger."""

    @property
    def gathered_s(self) -> float:
        """For how many seconds bytes are gathered for an object; links are used if these pay for it."""
        return min(ROUND_S, self.upload_wait_s) if self.producers_wait else self.upload_wait_s

    def led_log(
        self,
        where: Where,
        followers: Collection[int],
        link_policy: LinkPolicy = LinkPolicy.COST,
        *,
        is_kept: bool,
        stored_bytes: float | None = None,
        pack_ratio: float = 1.0,
    ) -> "LedLog":
        """Return a log, with its followers in other zones; what is kept may have `stored_bytes`."""
        topic_id = TopicId(hashlib.md5(where[0].encode(), usedforsecurity=False).digest())
        assignment = Assignment(
            TopicIdPartition(topic_id, where[1]), where[0], Path(), link_policy, 0,
            remote_followers=frozenset(followers), is_kept=is_kept, object_life_s=self.life_s,
        )  # fmt: skip
        return LedLog(assignment, stored_bytes if is_kept else None, pack_ratio)

    def reads_for(self, zones: Mapping[int, str], brokers: Collection[int]) -> Mapping[int, Hashable]:
        """Return by broker who reads an object for it: its zone, if reads are shared and several read, or itself."""
        counts = Counter(zones[one] for one in brokers)
        return {one: zones[one] if self.shares_reads and counts[zones[one]] > 1 else one for one in brokers}


@dataclass(frozen=True, slots=True)
class LedLog:
    """A log as its leader's agent sees it: followers, policy, retention."""

    assignment: Assignment
    stored_bytes: float | None = None
    """What objects hold of it at any time; None: what it grows by in an object's life."""
    pack_ratio: float = 1.0
    """Bytes that cross zones for each inline byte."""

    @property
    def followers(self) -> Collection[int]:
        """The brokers in other zones that follow the log."""
        return self.assignment.remote_followers or ()


@dataclass(frozen=True, slots=True)
class LogAmounts:
    """What replication of one log amounts to in a second."""

    amounts: Amounts
    sent_bytes: float
    """Record bytes to followers in other zones together; without such followers, those that were appended."""
    inline: InlineReason | None
    """Why they go inline; None: they are linked."""


class Leader:
    """Calculates what replication of one leader's logs amounts to."""

    def __init__(
        self,
        led: Mapping[Where, LedLog],
        tariff: Tariff,
        rules: Rules,
        zones: Mapping[int, str],
        object_bytes: float = math.inf,
    ) -> None:
        """`zones` has the zone of each follower. Objects of about `object_bytes` may be free of some fees."""
        self._led, self._tariff, self._rules = led, tariff, rules
        self._reads_for = partial(rules.reads_for, zones)
        by_cost = [replace(one.assignment, link_policy=LinkPolicy.COST) for one in led.values()]
        packed = {one.assignment.topic_id_partition.topic_id: 1 / one.pack_ratio for one in led.values()}
        costs = tariff.for_objects_of(object_bytes).link_costs(self._reads_for)
        self._outlook = replace(costs, pack_ratio=packed.__getitem__).judge(by_cost)

    def break_even_bytes(self, entries: int) -> int:
        """Return the size from which an object with this many entries pays, or NEVER_PAYS."""
        return self._outlook.break_even_bytes(entries)

    def paying_rate(self, entries: int) -> float | None:
        """Return the bytes a second of all logs from which links are used by cost; None if they never pay."""
        never_pays = self.break_even_bytes(entries) == NEVER_PAYS
        return None if never_pays else self._outlook.paying_bytes(entries) / self._rules.gathered_s

    def replicate(self, bytes_per_s: Mapping[Where, float]) -> dict[Where, LogAmounts]:
        """Return what replication of each log amounts to in a second, if they grow at these rates."""
        entries = sum(1 for where in self._led if bytes_per_s[where]) or 1
        paying = {where for where, one in self._led.items() if one.followers and self._may_pay(one)}
        needed = self.paying_rate(entries)
        pays = needed is not None and sum(bytes_per_s[where] for where in paying) >= needed
        found: dict[Where, LogAmounts] = {}
        stored: dict[Where, LedLog] = {}
        for where, one in self._led.items():
            inline = self._why_inline(one, may_pay=where in paying and needed is not None, pays=pays)
            sent_bytes = bytes_per_s[where] * max(len(one.followers), 1)
            crossing_bytes = sent_bytes * one.pack_ratio if inline and one.followers else 0.0
            found[where] = LogAmounts(Amounts(crossing_bytes=crossing_bytes), sent_bytes, inline)
            if (one.assignment.is_kept or inline is None) and bytes_per_s[where]:
                stored[where] = one
        self._store(stored, found, bytes_per_s)
        return found

    def _may_pay(self, one: LedLog) -> bool:
        return one.assignment.topic_id_partition not in self._outlook.unpaying

    def _why_inline(self, one: LedLog, *, may_pay: bool, pays: bool) -> InlineReason | None:
        if not one.followers:
            return InlineReason.NO_FOLLOWER_ELSEWHERE
        if one.assignment.link_policy is LinkPolicy.ALWAYS or (may_pay and pays):
            return None
        return InlineReason.LOAD if may_pay else InlineReason.NEVER_PAYS

    def _store(
        self, stored: Mapping[Where, LedLog], found: Mapping[Where, LogAmounts], bytes_per_s: Mapping[Where, float]
    ) -> None:
        """Add objects. Their requests are shared out by bytes."""
        rate = sum(bytes_per_s[where] for where in stored)
        if not rate:
            return
        linked = {where: one for where, one in stored.items() if found[where].inline is None}
        interval_s = self._rules.archive_interval_s
        if any(one.assignment.link_policy is LinkPolicy.ALWAYS for one in linked.values()):
            interval_s = self._rules.interval_s
        elif linked:
            interval_s = self._interval_s(len(stored), rate)
        objects = max(1 / interval_s, rate / self._rules.upload_bytes)
        ranges, bytes_read = self._reads(linked.values(), rate / objects / len(stored))
        for where, one in stored.items():
            amounts, share = found[where].amounts, bytes_per_s[where] / rate
            amounts.puts, amounts.gets = objects * share, objects * ranges * share
            amounts.entries = objects * len(stored) * share
            amounts.uploaded_bytes = bytes_per_s[where]
            amounts.retrieved_bytes = found[where].sent_bytes * bytes_read if where in linked else 0.0
            life_s = one.assignment.object_life_s
            amounts.stored_byte_s = bytes_per_s[where] * life_s if one.stored_bytes is None else one.stored_bytes

    def _interval_s(self, entries: int, rate: float) -> float:
        """Return the time from one upload to the next where links pay (`Cadence`)."""
        wait_s = max(self._rules.gathered_s, self._outlook.paying_bytes(entries) / rate)
        return max(min(wait_s, self._rules.upload_wait_s), self._rules.interval_s)

    def _reads(self, linked: Collection[LedLog], entry_bytes: float) -> tuple[int, float]:
        """Return how many ranges are read of an object, and the ratio of bytes read to those wanted.

        Readers read along a gap that costs less than another request, as leaders' agents announce it.
        """
        reads_for = self._reads_for(set().union(*(one.followers for one in linked)))
        readers = [{reads_for[broker] for broker in one.followers} for one in sorted(linked, key=_order)]
        store = self._tariff.store
        gap_bytes = store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * BYTES_PER_GB
        ranges, along = ranges_read(readers, gap_bytes // entry_bytes)
        wanted = sum(map(len, readers))
        return ranges, (wanted + along) / max(wanted, 1)


def _order(one: LedLog) -> ReadingOrder:
    return reading_order(one.assignment.topic_id_partition, one.assignment.remote_followers)


def gateway_ratio(
    bytes_per_s: float, tariff: Tariff, request_bytes: float = 64 * 1024, interval_s: float = 0.025
) -> float:
    """Return what producing through the gateway costs, relative to crossing zones; 1 where all bytes cross as before.

    `bytes_per_s` come from clients in other zones than their leaders', to one broker. `request_bytes` are a Produce
    request's to one leader. `interval_s` is how long requests are gathered.
    """
    requests = bytes_per_s / request_bytes
    crossing_usd = bytes_per_s / BYTES_PER_GB * tariff.crossing_gb
    objects = min(1 / interval_s, requests)
    by_objects = Amounts(objects, requests, bytes_per_s, bytes_per_s).usd(tariff)
    usd = sum(usd for part, usd in by_objects.items() if part != "metadata")
    return min(usd / crossing_usd, 1.0) if crossing_usd else 1.0
