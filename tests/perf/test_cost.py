"""By the policy `cost`, replication is never dearer than in stock Kafka, whatever the load."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from perf.__main__ import app
from perf.cost.load import SHAPES, Load
from perf.cost.sweep import RATES, Priced, price
from plugin.prices import Prices

PRICES = Prices.load()
SECONDS = 10.0


def priced(rate: float, shape: str = "steady", **load: Any) -> Priced:
    return price(Load(rate, shape, **load), SECONDS, PRICES)


@pytest.mark.parametrize("acks_all", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", RATES)
def test_no_load_costs_more_than_stock(rate: float, shape: str, acks_all: bool) -> None:
    # Of a small load the first tries are a larger part, so they need more time to become few.
    seconds = min(max(SECONDS, 12e6 / rate), 120.0)
    assert price(Load(rate, shape, acks_all), seconds, PRICES).ratio <= 1.03


@pytest.mark.parametrize("acks_all", [False, True])
@pytest.mark.parametrize(("rate", "shape"), [(0.6e6, "steady"), (2e6, "steady"), (5e6, "2 s of 10 s")])
def test_no_load_costs_more_than_stock_where_the_store_and_the_machine_are_noisy(
    rate: float, shape: str, acks_all: bool
) -> None:
    assert price(Load(rate, shape, acks_all), min(36e6 / rate, 60.0), PRICES, is_noisy=True).ratio <= 1.03


def test_links_are_kept_where_the_store_and_the_machine_are_noisy() -> None:
    found = price(Load(3e6, "steady", acks_all=False), 20.0, PRICES, is_noisy=True)
    assert found.linked_share > 0.9


def test_below_the_break_even_nothing_is_uploaded() -> None:
    counts = priced(100e3).counts
    assert (counts.amounts.puts, counts.amounts.gets) == (0, 0)
    assert counts.inline_bytes == 2 * counts.produced_bytes


@pytest.mark.parametrize(("rate", "acks_all", "usd_gb"), [(30e6, False, 0.0095), (5e6, False, 0.0110)])
def test_large_loads_cost_a_small_part_of_stock(rate: float, acks_all: bool, usd_gb: float) -> None:
    found = price(Load(rate, "steady", acks_all), 2 * SECONDS, PRICES)
    assert found.usd_gb <= usd_gb
    assert found.counts.linked_bytes > 0.85 * 2 * found.counts.produced_bytes


@pytest.mark.parametrize(("rate", "of_stock"), [(0.8e6, 0.65), (0.9e6, 0.6), (1e6, 0.5), (1.1e6, 0.5), (1.2e6, 0.45)])
def test_where_nobody_waits_links_pay_below_what_one_interval_would_have_to_bring(rate: float, of_stock: float) -> None:
    assert price(Load(rate, "steady", acks_all=False), 30.0, PRICES).ratio <= of_stock


def test_producers_that_wait_are_hardly_held_up_by_trials_there() -> None:
    found = price(Load(0.8e6, "steady", acks_all=True), 60.0, PRICES)
    assert found.ratio <= 1.03
    assert found.counts.produced_bytes / found.counts.seconds >= 0.96 * 0.8e6


def test_producers_that_wait_are_not_held_up_for_larger_objects() -> None:
    waiting, others = (priced(30e6, acks_all=acks_all).counts.amounts for acks_all in (True, False))
    assert waiting.puts / waiting.uploaded_bytes > 1.5 * others.puts / others.uploaded_bytes


@pytest.mark.parametrize("shape", ["2 s of 10 s", "0.1 s of 1 s"])
def test_producers_that_wait_bring_bursts_of_more_than_an_object_holds_as_quickly_as_objects_let_them(
    shape: str,
) -> None:
    burst = priced(50e6, shape, acks_all=True).counts
    assert burst.produced_bytes / burst.seconds > 33e6


def test_what_is_stored_in_any_case_is_uploaded_below_the_break_even_too() -> None:
    counts = priced(100e3, is_kept=True, object_life_s=0.0).counts
    assert counts.amounts.uploaded_bytes == counts.produced_bytes


def test_objects_that_live_for_too_long_are_not_made() -> None:
    counts = priced(5e6, object_life_s=20 * 24 * 3600.0).counts
    assert counts.amounts.puts == 0


def held_up(load: Load, share: float, seconds: float = 30.0) -> float:
    """How much longer than inline a share of a producer's requests takes at least."""
    inline, tried = (sorted(price(load, seconds, PRICES, is_off=is_off).counts.latencies_s) for is_off in (True, False))
    assert len(tried) >= 0.97 * len(inline)
    return tried[int(len(tried) * share)] / inline[int(len(inline) * share)]


@pytest.mark.parametrize(("request_bytes", "mb_per_s"), [(50_000, 5), (100_000, 20)])
def test_a_producer_whose_requests_pay_one_by_one_keeps_its_rate_and_waits_for_a_round_at_most(
    request_bytes: int, mb_per_s: float
) -> None:
    load = Load(mb_per_s * 1e6, acks_all=True, partitions=2, request_bytes=request_bytes)
    assert held_up(load, 0.5) <= 15


@pytest.mark.parametrize("mb_per_s", [4, 7])
def test_producers_that_wait_and_would_lose_their_rate_go_inline_in_step_or_not(mb_per_s: float) -> None:
    found = price(Load(mb_per_s * 1e6, "steady", acks_all=True), 30.0, PRICES)
    assert found.ratio < 1
    assert found.counts.produced_bytes / found.counts.seconds >= 0.9 * mb_per_s * 1e6


def test_the_command_tells_of_each_load() -> None:
    told = CliRunner().invoke(app, ["cost", "--rate", "2e6", "--seconds", "2", "--json"])
    assert told.exit_code == 0, told.output
    rows = json.loads(told.stdout)
    assert len(rows) == 2 * len(SHAPES)
    assert all(row["usd_gb"] <= 1.01 * row["stock_usd_gb"] for row in rows)
