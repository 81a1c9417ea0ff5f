"""Scenarios: the KIP's own table to the dollar, and what follows from other inputs."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.prices import PriceError
from retention_job.cost.scenario_model import ScenarioError
from retention_job.cost.scenarios import load_scenario, scenario_json, scenario_names


def test_the_kips_table_comes_out_to_the_dollar_line_by_line() -> None:
    cost = load_scenario("kip-1176").cost

    assert round(cost.baseline.sum_of("instance", "local_storage")) == 866
    assert round(cost.baseline.parts["zone_transfer"]) == 1612
    assert round(cost.baseline.total) == math.floor(cost.baseline.total) == 2478
    assert round(cost.remote_wal.sum_of("instance", "local_storage", "wal_storage")) == 776
    assert round(cost.remote_wal.parts["put_requests"]) == 648
    assert round(cost.remote_wal.total) == math.floor(cost.remote_wal.total) == 1424
    assert round(100 * cost.saved_ratio) == 43


def test_the_kips_figures_are_computed_from_its_inputs() -> None:
    doubled = load_scenario("kip-1176", ["interval_ms=5"]).cost
    assert doubled.remote_wal.parts["put_requests"] == pytest.approx(2 * 648)
    half_rate = load_scenario("kip-1176", ["rate-mb-s=15.55"]).cost
    assert half_rate.baseline.parts["zone_transfer"] == pytest.approx(1612.224 / 2)


def test_json_names_totals_their_parts_and_what_the_kip_does_not_tell() -> None:
    told = scenario_json(load_scenario("kip-1176"))
    baseline, remote_wal = told["baseline"], told["remote_wal"]
    assert isinstance(baseline, dict)
    assert isinstance(remote_wal, dict)
    assert (int(baseline["total"]), int(remote_wal["total"])) == (2478, 1424)
    assert baseline["total"] == pytest.approx(baseline["storage_and_instance"] + baseline["transfer"], abs=0.02)
    assert told["inferred_parameters"] == ["rate_mb_s", "local_hours", "local_hours_with_wal", "count_gets"]


def test_the_gets_that_the_kip_leaves_out_have_their_price() -> None:
    with_gets = load_scenario("kip-1176-with-gets").cost
    assert with_gets.remote_wal.parts["get_requests"] == pytest.approx(259.2e6 * 0.0002 / 1000)


def test_dollars_per_gb_produced_are_those_of_the_price_list() -> None:
    scenario = load_scenario("today")
    per_gb = {
        buckets: sum(
            load_scenario("today", [f"buckets={buckets}"]).cost.remote_wal.parts[part]
            for part in ("upload", "retrieval", "cross_zone_reads")
        )
        / scenario.workload.gb_per_month
        for buckets in (1, 2, 3)
    }
    assert per_gb == pytest.approx({1: 0.0044, 2: 0.0076, 3: 0.0108})
    assert scenario.cost.baseline.parts["zone_transfer"] / scenario.workload.gb_per_month == pytest.approx(0.04)


@pytest.mark.parametrize(("interval_ms", "mb_s"), [(10, 3.3), (20, 1.7), (250, 0.13)])
def test_break_even_rates(interval_ms: int, mb_s: float) -> None:
    found = load_scenario("today", [f"interval_ms={interval_ms}"]).cost.break_even_mb_s
    assert found == pytest.approx(mb_s, rel=0.03)


def test_at_the_break_even_both_ways_cost_the_same() -> None:
    rate = load_scenario("today").cost.break_even_mb_s
    cost = load_scenario("today", [f"rate_mb_s={rate}", "link_policy=always"]).cost
    storage = ("instance", "local_storage", "wal_storage")
    links = cost.remote_wal.total - cost.remote_wal.sum_of(*storage)
    assert links == pytest.approx(cost.baseline.parts["zone_transfer"])


def test_below_the_break_even_the_policy_by_cost_sends_inline_and_always_loses_money() -> None:
    by_cost, always = load_scenario("small").cost, load_scenario("small-always").cost
    assert not by_cost.linked
    assert by_cost.remote_wal.parts["zone_transfer"] == by_cost.baseline.parts["zone_transfer"]
    assert by_cost.remote_wal.parts["retrieval"] == 0
    assert always.linked
    assert always.remote_wal.total > by_cost.remote_wal.total


def test_an_object_that_is_full_goes_before_its_interval() -> None:
    cost = load_scenario("today-250ms").cost
    assert cost.object_bytes == pytest.approx(4 * 1024 * 1024)


def test_a_read_fee_is_for_followers_without_a_bucket_of_their_zone() -> None:
    fees = [
        load_scenario("today-read-fee", [f"buckets={buckets}"]).cost.remote_wal.parts["cross_zone_reads"]
        for buckets in (1, 2, 3)
    ]
    gb = load_scenario("today").workload.gb_per_month
    assert fees == pytest.approx([2 * gb * 0.01, gb * 0.01, 0])


@given(name=st.sampled_from(sorted(scenario_names())), rate=st.floats(0.01, 1000), interval=st.floats(1, 10_000))
def test_every_scenario_has_whole_figures_at_any_load(name: str, rate: float, interval: float) -> None:
    cost = load_scenario(name, [f"rate_mb_s={rate}", f"interval_ms={interval}"]).cost
    assert all(
        math.isfinite(usd) and usd >= 0 for usd in (*cost.baseline.parts.values(), *cost.remote_wal.parts.values())
    )
    if cost.break_even_mb_s is not None and abs(rate - cost.break_even_mb_s) > 1e-6 * rate:
        assert (rate > cost.break_even_mb_s) == load_scenario(
            name, [f"rate_mb_s={rate}", f"interval_ms={interval}", "link_policy=cost"]
        ).cost.linked


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("colour=red", "colour"),
        ("interval_ms", "interval_ms"),
        ("interval_ms=soon", "interval_ms"),
        ("interval_ms=0", "interval_ms"),
        ("rate_mb_s=nan", "rate_mb_s"),
        ("remote_followers=3", "remote_followers"),
        ("prices=yesterday", "yesterday"),
    ],
)
def test_a_wrong_parameter_is_named(override: str, names: str) -> None:
    with pytest.raises(ScenarioError, match=names):
        load_scenario("today", [override])


def test_an_unknown_scenario_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="kip-1176"):
        load_scenario("kip-1177")


def test_a_missing_price_is_an_error_and_never_nothing(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("confirmed = 2026-01-01\n[network]\nzone_transfer_gb_per_side = 0.01\n")
    with pytest.raises(PriceError, match=r"s3_express\.storage_gb_month"):
        _ = load_scenario("today", prices_file=prices).cost
    prices.write_text("[network]\nzone_transfer_gb_per_side = 0.01\n")
    with pytest.raises(PriceError, match="confirmed"):
        load_scenario("today", prices_file=prices)


def test_on_google_cloud_one_side_pays_for_the_border_and_nobody_for_bytes() -> None:
    cost = load_scenario("gcs").cost
    objects = 720 * 3600 * 10
    assert cost.linked
    assert cost.baseline.parts["zone_transfer"] == pytest.approx(30 * 3.6 * 720 * 2 * 0.01)
    assert cost.remote_wal.parts["put_requests"] == pytest.approx(objects * 0.005 / 1000)
    assert cost.remote_wal.parts["get_requests"] == pytest.approx(objects * 2 * 0.0004 / 1000)
    assert cost.remote_wal.sum_of("upload", "retrieval") == 0
    assert cost.break_even_mb_s == pytest.approx(2.9), "290 KB, ten times a second"


def test_on_azure_the_border_is_free_and_all_goes_inline() -> None:
    cost = load_scenario("azure").cost
    assert (cost.linked, cost.break_even_mb_s) == (False, None)
    assert cost.baseline.parts["zone_transfer"] == cost.remote_wal.parts["zone_transfer"] == 0


def test_a_store_without_prices_is_named() -> None:
    with pytest.raises(PriceError, match=r"no_store\.storage_gb_month"):
        scenario_json(load_scenario("today", ["store=no_store"]))
    with pytest.raises(PriceError, match=r"before-2025-04-10\]: gcs_standard"):
        scenario_json(load_scenario("kip-1176", ["store=gcs_standard"]))
