"""What was saved is what stock Kafka would have cost across zones, less what was paid there and to the store."""

from dataclasses import replace

from agent.metrics.savings import Savings
from gateway.metrics import ClientTraffic
from plugin.prices import EXPRESS, Prices, StorePrices
from plugin.remote_wal_storage_manager import RequestCounts
from replication.wire.metrics import FollowerTraffic

GB = 10**9
STORE = StorePrices(
    storage_gb_month=1, put_per_1000=4, get_per_1000=2, upload_gb=0.5, retrieval_gb=0.25, cross_zone_read_gb=0.01
)
PRICES = Prices(STORE, STORE, zone_crossing_gb=0.02)
REQUESTS = RequestCounts(put=900, list=100, get=400, head=100, put_bytes=2 * GB, get_bytes=4 * GB)
FOLLOWERS = {1: FollowerTraffic(peer_bytes=GB, stock_bytes=101 * GB), 2: FollowerTraffic(50 * GB, 50 * GB)}


def savings(section: str = EXPRESS, prices: Prices = PRICES, own: int | None = None) -> Savings:
    return Savings(prices, section, lambda: REQUESTS, FOLLOWERS, lambda broker_id: broker_id == own)


def test_requests_and_crossings_are_taken_off_what_stock_kafka_would_have_cost() -> None:
    found = savings().dollars()
    requests = 4 + 1 + 2 * 0.5 + 4 * 0.25 + 4 * 0.01
    assert round(found.stock, 9) == 151 * 0.02
    assert round(found.crossings, 9) == 51 * 0.02
    assert round(found.requests, 9) == requests
    assert round(found.saved, 9) == round(100 * 0.02 - requests, 9)


def test_bytes_within_the_own_zone_neither_cost_nor_save() -> None:
    found = savings(own=1).dollars()
    assert (round(found.stock, 9), round(found.crossings, 9)) == (1.0, 1.0)


def test_what_a_gateways_clients_did_not_send_across_zones_is_saved() -> None:
    clients = ClientTraffic("az1")
    clients.own.sent_bytes, clients.own.sent_crossed_bytes = 30 * GB, 10 * GB
    clients.own.given_bytes, clients.own.given_crossed_bytes = 20 * GB, 5 * GB
    clients.by_zone["az2"].near_bytes = 7 * GB  # of a gateway elsewhere, which counts it
    with_clients, without = replace(savings(), clients=clients).dollars(), savings().dollars()
    assert round(with_clients.stock - without.stock, 9) == 50 * 0.02
    assert round(with_clients.saved - without.saved, 9) == round(35 * 0.02, 9)
