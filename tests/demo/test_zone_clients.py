"""What clients of each zone cost, from what the agents counted."""

import pytest

from demo.zone_clients import Grown, dollars, zone_clients
from local_cluster.agent_metrics import Counters
from local_cluster.object_store.store_spec import StoreKind
from plugin.prices import Prices
from tests.demo.reports import ZONE_CLIENTS

_ZONES = {1: "az1", 2: "az2"}


def counted(to_broker: int = 0, to_client: int = 0, linked: int = 0, puts: int = 0, gets: int = 0) -> Counters:
    def bytes_of(side: str, direction: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        return "remote_wal_gateway_bytes_total", (("direction", direction), ("side", side))

    return Counters(
        {
            bytes_of("gateway", "to_broker"): to_broker,
            bytes_of("gateway", "to_client"): to_client,
            # The same bytes, at the other end.
            bytes_of("broker", "to_broker"): 7 * to_broker,
            ("remote_wal_gateway_produce_linked_bytes_total", ()): linked,
            ("remote_wal_store_requests_total", (("operation", "put"),)): puts,
            ("remote_wal_store_requests_total", (("operation", "get"),)): gets,
        }
    )


def test_each_zone_is_told_what_its_own_gateways_passed_on() -> None:
    grown = Grown(
        {1: counted(100, 5, linked=900, puts=3), 2: counted(400, 5, linked=300, gets=8)},
        {1: counted(1, 2000), 2: counted(1, 3000)},
        {1: counted(1, 20), 2: counted(1, 30)},
    )
    first, second = zone_clients(_ZONES, grown, Prices.load(), StoreKind.LOCAL)
    assert (first.zone, first.produced_bytes, first.produced_crossed_bytes) == ("az1", 1000, 100)
    assert (second.zone, second.produced_bytes, second.produced_crossed_bytes) == ("az2", 700, 400)
    # Leaders elsewhere read what a zone's gateway wrote: three quarters of all is the first one's.
    assert (first.puts, first.gets, second.puts, second.gets) == (3, 6, 0, 2)
    assert (first.consumed_crossed_bytes, first.consumed_with_rack_bytes) == (2000, 20)
    assert (second.consumed_crossed_bytes, second.consumed_with_rack_bytes) == (3000, 30)
    assert first.store_usd > second.store_usd > 0


def test_nothing_by_object_storage_costs_nothing_there() -> None:
    silent = {1: counted(100), 2: counted()}
    first, _ = zone_clients(_ZONES, Grown(silent, silent, silent), Prices.load(), StoreKind.LOCAL)
    assert (first.gets, first.store_usd) == (0, 0.0)


def test_dollars_are_what_crosses_and_for_the_gateway_the_store_besides() -> None:
    first = dollars(ZONE_CLIENTS[0], 0.02)
    assert first.stock == pytest.approx(0.12)
    assert first.free == pytest.approx(0.04004)
    assert first.gateway == pytest.approx(0.01006)
