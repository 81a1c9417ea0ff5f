"""Calculates what an object costs and what links to it save, in dollars, for the partitions that are led here now.

An object costs one PUT, one GET for each range that a broker of another zone reads of what it follows (or that a zone
reads, if one agent reads for all of it), and the replication of its own metadata. Each byte costs the upload, the
storage for the object's life, and a retrieval for each follower in another zone; inline it would cross zones once for
each of these followers, packed. So there is a size from which on an object pays. Some partitions never pay: if no
follower is in another zone, or if objects live so long that storing them costs more than the cross-zone traffic.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import BYTES_PER_GB, REMOTE_REPLICAS, SECONDS_PER_MONTH, Prices, StorePrices
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.price import Outlook
from rlm.write_path.uploads.segment_queue import ranges_read, reading_order

_METADATA_BYTES: Final = (110, 11)
"""Bytes in the metadata topic for an object, and for each of its entries, compressed. Measured: 93 with one entry at 10
objects a second, 42 at 40; deletion takes as many again. 11.9 to 6.9 an entry with 50 to 1,000 of them."""


def _for_themselves(brokers: Collection[int]) -> Mapping[int, Hashable]:
    return {one: one for one in brokers}


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Calculates costs of objects and savings of links, with given prices."""

    prices: Prices
    store: StorePrices
    reads_for: Callable[[Collection[int]], Mapping[int, Hashable]] = _for_themselves
    """For brokers that read an object: for whom each reads it; equal for all of a zone that reads together."""
    pack_ratio: Callable[[TopicId], float] = lambda _topic: 1.0
    """How many inline bytes of a topic cross zones as one."""

    def judge(self, led: Iterable[Assignment]) -> Outlook:
        """Return what objects cost and links save, if they hold equal shares of those partitions where links pay."""
        by_cost = [one for one in led if one.link_policy is not LinkPolicy.ALWAYS]
        paying = [one for one in by_cost if self._saved_gb([one]) > 0]
        unpaying = frozenset(one.topic_id_partition for one in by_cost) - {one.topic_id_partition for one in paying}
        saved_gb = self._saved_gb(paying) if paying else 0.0
        if saved_gb <= 0:
            return Outlook(0.0, 0.0, 0.0, unpaying=unpaying)
        # A broker that follows one of the partitions reads the object, however many followers a partition has.
        readers, more_ranges = self._reads(paying)
        more_gets = self.store.requests_usd(0, more_ranges / len(paying), 0, 0)
        return Outlook(
            self.store.requests_usd(1, readers or REMOTE_REPLICAS, 0, 0) + self.metadata_usd(0),
            self.metadata_usd(1) - self.metadata_usd(0) + more_gets,
            saved_gb / BYTES_PER_GB,
            unpaying,
        )

    def metadata_usd(self, entries: float) -> float:
        """Return the dollars for sending the metadata of an object with this many entries across zones."""
        of_object, of_entry = _METADATA_BYTES
        return REMOTE_REPLICAS * (of_object + entries * of_entry) / BYTES_PER_GB * self.prices.zone_crossing_gb

    def _reads(self, together: Sequence[Assignment]) -> tuple[int, int]:
        """Return how many read an object of all of them, and how many ranges they read beyond one each."""
        in_order = sorted(together, key=lambda one: reading_order(one.topic_id_partition, one.remote_followers))
        reads_for = self.reads_for(set().union(*(one.remote_followers or () for one in together)))
        readers = [{reads_for[broker] for broker in one.remote_followers or ()} for one in in_order]
        count = len(set().union(*readers))
        return count, ranges_read(readers)[0] - count

    def _crossings(self, together: Sequence[Assignment]) -> float:
        """Return how often their bytes would cross zones inline."""
        followers = (REMOTE_REPLICAS if (ids := one.remote_followers) is None else len(ids) for one in together)
        return sum(followers) / len(together)

    def _inline_gb(self, together: Sequence[Assignment]) -> float:
        """Return the dollars for a gigabyte of them inline, for all followers."""
        packed = (self.prices.inline_gb(self.pack_ratio(one.topic_id_partition.topic_id)) for one in together)
        return self._crossings(together) * sum(packed) / len(together)

    def _saved_gb(self, together: Sequence[Assignment]) -> float:
        """Return the dollars that links to a gigabyte of them save."""
        read_gb = self.store.retrieval_gb + self.store.cross_zone_read_gb
        saved_gb = self._inline_gb(together) - self._crossings(together) * read_gb
        # What is stored in any case costs links nothing, for however long. An object lives as long as its last entry.
        lives_s = [one.object_life_s for one in together if not one.is_kept]
        if not lives_s:
            return saved_gb
        stored_gb = self.store.upload_gb + self.store.storage_gb_month * max(lives_s) / SECONDS_PER_MONTH
        return saved_gb - len(lives_s) / len(together) * stored_gb
