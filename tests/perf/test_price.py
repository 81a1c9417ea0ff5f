"""Dollars for a gigabyte by what agents counted."""

import pytest

from local_cluster.agent_metrics import Counters, Series
from perf.ladder.price import usd_per_gb
from perf.ladder.turns import spread
from plugin.prices import Prices

GB = 10**9


def counted(**more: float) -> Counters:
    labels = {"put": ("operation", "put"), "get": ("operation", "get"), "inline": ("path", "inline")}
    values: dict[Series, float] = {("remote_wal_appended_bytes_total", ()): 2 * GB}
    for name, value in more.items():
        metric, _, label = name.rpartition("__")
        key = (labels[label],) if label in labels else (("role", "leader"),)
        values[f"remote_wal_{metric}_total", key] = value
    return Counters(values)


def test_all_inline_costs_what_stock_does_and_no_more() -> None:
    usd = usd_per_gb(counted(replicated_record_bytes__inline=4 * GB, peer_bytes__all=4 * GB), Prices.load())
    assert sum(usd.values()) == usd["inline"] == pytest.approx(0.04)


def test_links_cost_requests_their_bytes_an_hour_in_the_store_and_what_crosses_beside() -> None:
    usd = usd_per_gb(
        counted(
            store_requests__put=2000,
            store_requests__get=4000,
            store_bytes__put=2 * GB,
            store_bytes__get=4 * GB,
            peer_bytes__all=GB // 100,
        ),
        Prices.load(),
    )
    expected = (0.00113, 0.00006, 0.0032, 0.0012, 0.11 / 720, 0, 0.0001)
    assert list(usd.values()) == pytest.approx(expected)


def test_what_went_inline_in_packed_messages_is_priced_as_it_crossed() -> None:
    usd = usd_per_gb(counted(replicated_record_bytes__inline=4 * GB, peer_bytes__all=GB), Prices.load())
    assert [usd["inline"], usd["other border"]] == pytest.approx([0.01, 0.0])


def test_partitions_are_led_by_one_broker_or_by_all_in_turn() -> None:
    assert spread([1], [1, 2, 3], 2) == [[1, 2, 3], [1, 2, 3]]
    assert spread([1, 2, 3], [1, 2, 3], 4) == [[1, 2, 3], [2, 1, 3], [3, 1, 2], [1, 2, 3]]
