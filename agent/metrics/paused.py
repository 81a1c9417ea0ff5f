"""Shows Prometheus what is paused: reads of stores that fail, and links that an operator paused."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.link_pauses import LinkPauses
from plugin.remote_wal_storage_manager import WHOLE_STORE
from replication.follower.tiers import Tiers

ARCHIVE = "archive"
WAL = "wal"


class Paused(Collector):
    """Collects which stores' reads are paused by circuit breakers, and which links an operator paused.

    Stores that were never read from are left out.
    """

    def __init__(self, tiers: Tiers | None, pauses: LinkPauses | None) -> None:
        self._tiers = tiers
        self._pauses = pauses

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls it on the HTTP endpoint's threads."""
        reads = GaugeMetricFamily(
            "remote_wal_store_reads_paused",
            f"1 while reads of this store failed repeatedly and what is there comes inline: a bucket, `{WAL}` where "
            f"there is no list of buckets, or `{ARCHIVE}`",
            labels=["store"],
        )
        if self._tiers is not None:
            for place, is_paused in self._tiers.paused.items():
                reads.add_metric([WAL if place == WHOLE_STORE else place], is_paused)
            reads.add_metric([ARCHIVE], self._tiers.archive.breaker.is_open)
        links = GaugeMetricFamily(
            "remote_wal_links_paused",
            "1 while links are paused by `remote-wal pause`, for `all`, this broker or zone, a topic, or by the file "
            "(`local`)",
            labels=["scope"],
        )
        for scope in self._pauses.shown if self._pauses is not None else ():
            links.add_metric([scope], 1)
        yield from (reads, links)
