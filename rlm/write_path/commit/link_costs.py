"""Calculates what an object costs and what links to it save, in dollars, for the partitions that are led here now.

An object costs one PUT, one GET for each range that a broker of another zone reads of what it follows (or that a zone
reads, if one agent reads for all of it), and the replication of its own metadata. Each byte costs the upload, the
storage for the object's life, and a retrieval for each follower in another zone; inline it would cross zones once for
each of these followers. So there is a size from which on an object pays. Some partitions never pay: if no follower is
in another zone, or if objects live so long that storing them costs more than the cross-zone traffic.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import BYTES_PER_GB, NEVER_PAYS, SECONDS_PER_MONTH, Prices, StorePrices
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.constants import PAYS_TIMES
from rlm.write_path.uploads.segment_queue import ranges_read, reading_order

FOLLOWERS_UNKNOWN: Final = 2
"""Assumed readers in other zones: as with three replicas in three zones."""
_METADATA_BYTES: Final = 110
"""Bytes in the metadata topic for an object without its entries, compressed. Measured: 93 bytes with one entry at 10
objects a second, 42 at 40; deletion takes as many again, in larger batches."""
_METADATA_ENTRY_BYTES: Final = 11
"""Bytes for each entry; 11.9 to 6.9 bytes with 50 to 1,000 of them."""
_METADATA_CROSSINGS: Final = 2
"""How often a metadata record crosses zones: with three replicas in three zones."""
_SHARE_BESIDE_BYTES: Final = 0.1
"""An object counts as large when its requests cost no more than this share of what its bytes cost. At list prices with
two followers that is 2.7 MB, from 27 MB/s on within 100 ms; objects of twice that size would save a twentieth more."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Costs and savings for the partitions led at one time."""

    object_usd: float
    """Cost of an object without entries: requests, and cross-zone metadata."""
    entry_usd: float
    byte_saved_usd: float
    """Saved by each linked byte; 0 or less: no object ever pays."""
    byte_usd: float = 0.0
    """Cost of each linked byte."""
    unpaying: frozenset[TopicIdPartition] = frozenset()
    """Partitions that never pay, whatever the size."""

    @classmethod
    def of_size(cls, break_even_bytes: int) -> "Outlook":
        """Return one in which an object pays from this size, whatever its entries, or NEVER_PAYS."""
        return cls(0.0, 0.0, 0.0) if break_even_bytes == NEVER_PAYS else cls(break_even_bytes, 0.0, 1.0)

    def break_even_bytes(self, entries: float) -> int:
        """Return the size from which on an object of so many entries pays, or NEVER_PAYS."""
        if self.byte_saved_usd <= 0:
            return NEVER_PAYS
        return round((self.object_usd + entries * self.entry_usd) / self.byte_saved_usd)

    def paying_bytes(self, entries: float) -> float:
        """Return the average size that objects should have, so that they pay with something to spare."""
        return PAYS_TIMES * self.break_even_bytes(entries)

    def wanted_bytes(self, entries: float) -> float:
        """Return the size of an object that costs little beside its bytes, see _SHARE_BESIDE_BYTES; inf if there is
        none.
        """
        if self.byte_usd <= 0:
            return math.inf
        large_bytes = (self.object_usd + entries * self.entry_usd) / (_SHARE_BESIDE_BYTES * self.byte_usd)
        return max(self.paying_bytes(entries), large_bytes)


@dataclass(frozen=True, slots=True)
class ObjectUse:
    """How objects are used, averaged over their bytes."""

    crossings: float
    """How often a byte would cross zones inline: once for each follower in another zone."""
    readers: float
    """How many readers in other zones read an object."""
    life_s: float
    """How long an object lives."""
    for_links: float = 1.0
    """Share of the bytes that are stored only for links; the others are stored in any case."""
    more_ranges: float = 0.0
    """Ranges beyond one for each reader, for each entry."""
    inline_gb: float | None = None
    """Dollars for a gigabyte that crosses once inline, as it is packed; None: not packed."""


def _for_themselves(brokers: Collection[int]) -> Mapping[int, Hashable]:
    return {one: one for one in brokers}


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """The calculation with given prices."""

    prices: Prices
    store: StorePrices
    reads_for: Callable[[Collection[int]], Mapping[int, Hashable]] = _for_themselves
    """For brokers that read an object: for whom each reads it; equal for all of a zone that reads together."""
    pack_ratio: Callable[[TopicId], float] = lambda _topic: 1.0
    """How many inline bytes of a topic cross zones as one."""

    def judge(self, led: Iterable[Assignment]) -> Outlook:
        """Return the outlook for objects of these partitions."""
        by_cost = [one for one in led if one.link_policy is not LinkPolicy.ALWAYS]
        paying = [one for one in by_cost if self._saved_gb(self._use([one])) > 0]
        unpaying = frozenset(one.topic_id_partition for one in by_cost) - {one.topic_id_partition for one in paying}
        return replace(self.outlook_for(self._use(paying)), unpaying=unpaying)

    def outlook_for(self, use: ObjectUse) -> Outlook:
        """Return the outlook for objects that are used like this."""
        entry_usd = self.metadata_usd(1) - self.metadata_usd(0) + self.store.requests_usd(0, use.more_ranges, 0, 0)
        saved_gb = self._saved_gb(use)
        if saved_gb <= 0:
            return Outlook(0.0, entry_usd, 0.0)
        requests_usd = self.store.requests_usd(1, use.readers or FOLLOWERS_UNKNOWN, 0, 0)
        inline_gb = use.crossings * self._inline_gb(use)
        return Outlook(
            requests_usd + self.metadata_usd(0),
            entry_usd,
            saved_gb / BYTES_PER_GB,
            (inline_gb - saved_gb) / BYTES_PER_GB,
        )

    def metadata_usd(self, entries: float) -> float:
        """Return the cross-zone cost of the metadata of an object with so many entries."""
        metadata_bytes = _METADATA_BYTES + entries * _METADATA_ENTRY_BYTES
        return _METADATA_CROSSINGS * metadata_bytes / BYTES_PER_GB * self.prices.zone_crossing_gb

    def _use(self, together: Sequence[Assignment]) -> ObjectUse:
        """Return the use of objects that hold an equal share of each of these partitions."""
        for_links = [one for one in together if not one.is_kept]
        count = max(len(together), 1)
        readers, more_ranges = self._reads(together)
        return ObjectUse(
            sum(map(self._crossings, together)) / count,
            # A broker that follows one of the partitions reads the object, however many followers a partition has.
            readers,
            # An object lives as long as the longest-lived of its entries.
            max((one.object_life_s for one in for_links), default=0.0),
            len(for_links) / count,
            more_ranges / count,
            sum(self._packed_gb(one) for one in together) / len(together) if together else None,
        )

    def _packed_gb(self, one: Assignment) -> float:
        return self.prices.inline_gb(self.pack_ratio(one.topic_id_partition.topic_id))

    def _inline_gb(self, use: ObjectUse) -> float:
        return self.prices.zone_crossing_gb if use.inline_gb is None else use.inline_gb

    def _reads(self, together: Sequence[Assignment]) -> tuple[int, int]:
        """Return how many read an object of all of them, and how many ranges they read beyond one each."""
        in_order = sorted(together, key=lambda one: reading_order(one.topic_id_partition, one.remote_followers))
        reads_for = self.reads_for(set().union(*(one.remote_followers or () for one in together)))
        readers = [{reads_for[broker] for broker in one.remote_followers or ()} for one in in_order]
        count = len(set().union(*readers))
        return count, ranges_read(readers)[0] - count

    def _crossings(self, one: Assignment) -> int:
        """Return how often each of its bytes would cross zones inline."""
        return FOLLOWERS_UNKNOWN if one.remote_followers is None else len(one.remote_followers)

    def _saved_gb(self, use: ObjectUse) -> float:
        """Return the saving in dollars per gigabyte."""
        read_gb = self.store.retrieval_gb + self.prices.express_cross_zone_read_gb
        stored_gb = self.store.upload_gb + self.store.storage_gb_month * use.life_s / SECONDS_PER_MONTH
        # Bytes that are stored in any case cost links nothing, for however long.
        for_links_gb = use.for_links and use.for_links * stored_gb
        return use.crossings * (self._inline_gb(use) - read_gb) - for_links_gb
