"""Which requests go by object storage: by the price table, by what an interval brings, and while uploads are quick."""

import math
from dataclasses import replace

import pytest

from gateway.produce.route_decider import RouteCosts, RouteDecider
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import Prices
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker

PRICES = Prices.load()
EXPRESS = RouteCosts.of(PRICES, PRICES.s3_express)
INTERVAL_S = 0.025
MIB = 1024 * 1024


def decider(policy: LinkPolicy = LinkPolicy.COST, costs: RouteCosts = EXPRESS) -> RouteDecider:
    return RouteDecider(policy, costs, INTERVAL_S, CircuitBreaker(BreakerLimits(2, 1.0, 4.0)))


def usd_linked(sizes: list[int]) -> float:
    return PRICES.s3_express.requests_usd(1, len(sizes), sum(sizes), sum(sizes)) + (
        sum(sizes) / 1e9 * PRICES.s3_express.cross_zone_read_gb
    )


def test_an_object_pays_when_it_costs_less_than_its_bytes_at_the_border() -> None:
    """Held against the bill itself, for objects of few large and of many small requests."""
    for sizes in ([60_000], [90_000], [20_000] * 4, [30_000] * 4, [3_000] * 50, [3_000] * 120, [1_000] * 1000):
        inline_usd = sum(sizes) / 1e9 * PRICES.zone_crossing_gb
        net_bytes = sum(map(EXPRESS.net_bytes, sizes))
        assert decider().judge(net_bytes, 1.0) is (inline_usd > usd_linked(sizes)), sizes


def test_read_and_put_together_are_the_break_even_size_of_the_price_table() -> None:
    break_even = PRICES.break_even_bytes(1, PRICES.s3_express)
    assert EXPRESS.read_bytes + EXPRESS.put_bytes == pytest.approx(break_even)
    assert 0 < EXPRESS.read_bytes < EXPRESS.put_bytes


def test_where_crossing_zones_is_free_nothing_is_linked() -> None:
    free = RouteCosts.of(replace(PRICES, zone_crossing_gb=0.0), PRICES.s3_express)
    assert free == RouteCosts(math.inf, math.inf)
    assert not decider(costs=free).is_linked(100 * MIB, 1.0)


def test_records_that_do_not_pay_for_their_read_go_inline_however_many_there_are() -> None:
    by_cost, always = decider(), decider(LinkPolicy.ALWAYS)
    small = int(EXPRESS.read_bytes)
    assert not any(by_cost.is_linked(small, 1.0 + 0.0001 * number) for number in range(5000))
    assert always.is_linked(small, 1.0)


def test_while_an_operator_pauses_links_nothing_goes_by_object_storage() -> None:
    pauses = [True]
    always = RouteDecider(LinkPolicy.ALWAYS, EXPRESS, 0.025, CircuitBreaker(BreakerLimits()), lambda: pauses[0])
    assert not always.is_linked(MIB, 1.0)
    pauses[0] = False
    assert always.is_linked(MIB, 1.1)


def test_small_loads_go_inline_and_large_ones_are_linked() -> None:
    slow, quick = decider(), decider()
    linked = {
        name: [one.is_linked(16_000, 1.0 + number / rate) for number in range(200)]
        for name, one, rate in (("slow", slow, 50), ("quick", quick, 2_000))
    }
    assert not any(linked["slow"])
    assert all(linked["quick"][100:])


def test_what_an_interval_brought_and_does_not_pay_ends_links_for_a_while() -> None:
    one = decider()
    assert one.is_linked(MIB, 1.0)
    assert not one.judge(100, 1.0)
    assert not one.is_linked(MIB, 1.9)
    assert one.is_linked(MIB, 2.1)


def test_whatever_it_costs_is_linked_where_that_is_wanted() -> None:
    one = decider(LinkPolicy.ALWAYS)
    assert one.is_linked(100, 1.0)
    assert one.judge(0, 1.0)


def test_failures_end_links_and_one_request_at_a_time_tries_anew() -> None:
    one = decider(LinkPolicy.ALWAYS)
    one.failed(1.0)
    assert one.is_linked(MIB, 1.0)
    one.failed(1.1)
    assert not one.is_linked(MIB, 1.2)
    assert [one.is_linked(MIB, 2.2), one.is_linked(MIB, 2.3)] == [True, False]
    one.uploaded()
    assert one.is_linked(MIB, 2.4)
