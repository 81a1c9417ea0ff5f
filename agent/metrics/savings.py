"""Calculates what links have saved so far, in dollars of the price table.

Each agent counts the bytes to its broker's followers in other zones, the bytes of clients that connect to it, and the
cost of its own requests to the store. So the sum over all agents is the cluster's. The storage of objects and the
archive are left out; `remote-wal report` includes them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plugin.prices import BYTES_PER_GB, Prices
from plugin.remote_wal_storage_manager import RequestCounts
from replication.wire.metrics import FollowerTraffic

if TYPE_CHECKING:
    from gateway.metrics import ClientTraffic


@dataclass(frozen=True, slots=True)
class Dollars:
    """Dollars that links have cost and saved since the agent started."""

    stock: float
    """What the same frames would have cost across zones as stock Kafka sends them."""
    crossings: float
    """What cross-zone bytes did cost."""
    requests: float
    """What the store cost for requests, and for bytes between zones."""

    @property
    def saved(self) -> float:
        """What links saved, less their cost; negative for a loss."""
        return self.stock - self.crossings - self.requests


@dataclass(frozen=True, slots=True)
class Savings:
    """Calculates in dollars what links save, from counters of other parts; any thread may ask."""

    prices: Prices
    section: str
    """The section of the price table for the store's class."""
    requests: Callable[[], RequestCounts]
    followers: Mapping[int, FollowerTraffic]
    """By broker id."""
    is_own_zone: Callable[[int], bool]
    """Whether bytes to this broker do not cross zones."""
    clients: "ClientTraffic | None" = None
    """None without a zone gateway."""

    def dollars(self) -> Dollars:
        """Return what links have cost and saved until now."""
        crossing = self.prices.zone_crossing_gb / BYTES_PER_GB
        remote = [moved for one, moved in dict(self.followers).items() if not self.is_own_zone(one)]
        stock_bytes = sum(moved.stock_bytes for moved in remote)
        crossed_bytes = sum(moved.peer_bytes for moved in remote)
        if self.clients is not None:
            own = self.clients.own
            stock_bytes += own.sent_bytes + own.given_bytes
            crossed_bytes += own.sent_crossed_bytes + own.given_crossed_bytes
        return Dollars(
            stock_bytes * crossing,
            crossed_bytes * crossing,
            self._requests_usd(self.requests()),
        )

    def _requests_usd(self, counts: RequestCounts) -> float:
        return self.prices.of_section(self.section).requests_across_usd(
            counts.put + counts.list, counts.get + counts.head, counts.put_bytes, counts.get_bytes
        )


class SavingsCollector(Collector):
    """Collects the savings; in shadow mode what would be saved, under other names."""

    def __init__(self, dollars: Callable[[], Dollars], *, is_shadow: bool = False) -> None:
        self._dollars = dollars
        self._prefix = "remote_wal_shadow_" if is_shadow else "remote_wal_"
        self._is_shadow = is_shadow

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls it on the HTTP endpoint's threads."""
        dollars = self._dollars()
        spent = CounterMetricFamily(
            f"{self._prefix}dollars",
            "In shadow: remote_wal_dollars_total, estimated"
            if self._is_shadow
            else "By the price table: what crossing zones would have cost as stock Kafka (stock), what it did "
            "cost (crossings), of followers and of the gateway's clients, and requests to the store (requests)",
            labels=["of"],
        )
        for name in ("stock", "crossings", "requests"):
            spent.add_metric([name], getattr(dollars, name))
        yield spent
        what = (
            "In shadow: remote_wal_saved_dollars, estimated"
            if self._is_shadow
            else "Stock less crossings and requests since the agent started; all agents together are the cluster's"
        )
        yield GaugeMetricFamily(f"{self._prefix}saved_dollars", what, dollars.saved)
