"""Model of the monthly cost of clients' bytes per broker: stock Kafka, follower fetching, zone gateway. Sans-IO.

Clients are spread over the zones as leaders are, so the other zones' part of a leader's bytes is cross-zone traffic.
Consumers that name their zone are sent to a replica there (KIP-392), if the zone has one; that needs only settings.
With the gateway, produced records go through object storage if that is cheaper: each gateway's requests of an interval
share an object, and the agent beside its leader reads each request.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from plugin.prices import BYTES_PER_GB, PriceTable
from retention_job.cost.scenario_model import MonthlyCost, Workload, read_fee

_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class ClientsCost:
    """Dollars of the three ways."""

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
    objects_usd = _objects_usd(workload, prices, elsewhere_gb)
    linked = objects_usd < crossing_usd
    return ClientsCost(
        _cost(crossing_usd, reads_usd),
        _cost(crossing_usd, reads_usd * without_replica),
        _cost(min(objects_usd, crossing_usd), reads_usd * without_replica),
        linked,
    )


def _cost(produce_usd: float, consume_usd: float) -> MonthlyCost:
    return MonthlyCost({"produce": produce_usd, "consume": consume_usd})


def _objects_usd(workload: Workload, prices: PriceTable, gb: float) -> float:
    store, size_bytes = prices.store(workload.store), gb * BYTES_PER_GB
    requests = size_bytes / workload.client_request_bytes
    objects = min(workload.hours_per_month * _MS_PER_HOUR / workload.client_interval_ms, requests)
    free_bytes = prices.free_bytes_per_request(workload.store)
    put_bytes, get_bytes = (max(size_bytes - free_bytes * count, 0.0) for count in (objects, requests))
    return store.requests_usd(objects, requests, put_bytes, get_bytes) + gb * read_fee(workload, prices)
