"""Scenarios: the KIP's own table to the dollar, and what follows from other inputs."""

import math
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.cost.load import Load
from perf.cost.sweep import price
from plugin.prices import DEFAULT_PRICES_FILE, PriceError, Prices
from retention_job.cost import scenarios
from retention_job.cost.scenarios import (
    ScenarioCost,
    ScenarioError,
    Workload,
    load_scenario,
    scenario_json,
    scenario_names,
)


def replication_usd(cost: ScenarioCost) -> float:
    return cost.remote_wal.total - cost.remote_wal.sum_of("instance", "local_storage")


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
    assert told["inferred_parameters"] == ["rate_mb_s", "local_hours", "local_hours_with_wal", "leaves_out"]


def test_the_gets_that_the_kip_leaves_out_have_their_price() -> None:
    with_gets = load_scenario("kip-1176-with-gets").cost
    assert with_gets.remote_wal.parts["get_requests"] == pytest.approx(259.2e6 * 0.0002 / 1000)


def test_dollars_per_gb_produced_are_those_of_the_price_list() -> None:
    scenario = load_scenario("today")
    cost = scenario.cost
    per_gb = cost.remote_wal.sum_of("upload", "retrieval", "cross_zone_reads") / scenario.workload.gb_per_month
    assert per_gb == pytest.approx(0.0044)
    assert cost.baseline.parts["zone_transfer"] / scenario.workload.gb_per_month == pytest.approx(0.04)


@pytest.mark.parametrize(("rate", "acks_all"), [(30e6, True), (5e6, False), (100e3, True)])
def test_a_steady_load_costs_what_the_write_path_itself_comes_to(rate: float, acks_all: bool) -> None:
    """`python -m perf cost` counts the write path's own decisions on a virtual clock, here after the first looks."""
    counted = price(Load(rate, "steady", acks_all), 10.0, Prices.load(), after_s=18.0)
    changes = [f"rate_mb_s={rate / 1e6}", f"producers_wait={acks_all}"]
    scenario = load_scenario("today", changes)
    cost = scenario.cost
    assert replication_usd(cost) / scenario.workload.gb_per_month == pytest.approx(counted.linked_usd_gb, rel=0.05)
    assert cost.linked == (counted.counts.linked_bytes > 0)


@pytest.mark.parametrize(("ratio", "mb_s"), [(1.0, 1.27), (0.5, 2.91), (0.4, 3.93)])
def test_packed_inline_bytes_cost_less_and_links_pay_from_more(ratio: float, mb_s: float) -> None:
    packed = load_scenario("small", [f"pack_ratio={ratio}"]).cost
    assert packed.remote_wal.parts["zone_transfer"] == pytest.approx(ratio * packed.baseline.parts["zone_transfer"])
    assert load_scenario("today", [f"pack_ratio={ratio}"]).cost.break_even_mb_s == pytest.approx(mb_s, abs=0.01)


@pytest.mark.parametrize(("factor", "objects"), [(1, True), (2, True), (3, False)])
def test_by_default_objects_of_few_replicas_are_wanted_in_any_case(factor: int, objects: bool) -> None:
    cost = load_scenario("small", [f"replication_factor={factor}", "remote_followers=0"]).cost
    assert not cost.linked
    assert (cost.objects_per_month > 0) == (cost.remote_wal.parts["put_requests"] > 0) == objects


def test_links_of_what_is_stored_in_any_case_pay_sooner_and_of_what_lives_for_long_never() -> None:
    for_links, kept = (load_scenario("today", [f"is_kept={kept}"]).cost.break_even_mb_s for kept in (False, True))
    assert for_links is not None
    assert kept is not None
    assert kept < for_links
    for hours, linked in ((9 * 24, True), (10 * 24, False)):
        assert load_scenario("today", [f"wal_hours={hours}"]).cost.linked == linked


@pytest.mark.parametrize(
    ("brokers", "partitions", "readers"),
    [(3, 1, 2), (3, 1000, 2), (9, 1, 2), (9, 1000, 6), (90, 20, 29), (90, 1000, 60)],
)
def test_it_is_read_by_more_brokers_the_more_there_are_and_the_more_partitions_it_holds(
    brokers: int, partitions: int, readers: int
) -> None:
    led, _ = load_scenario("today", [f"brokers={brokers}", f"partitions={partitions}"]).workload.led()
    assert len(set().union(*(one.followers for one in led.values()))) == pytest.approx(readers, abs=1)
    cost = load_scenario("today", [f"brokers={brokers}", f"partitions={partitions}"]).cost
    gets = cost.remote_wal.parts["get_requests"] / cost.objects_per_month / 0.03e-6
    assert gets == pytest.approx(2), "one broker of each zone reads for all of it"


@pytest.mark.parametrize(
    ("interval_ms", "usd", "own_reads"),
    [(25, 460, 1539), (50, 439, 1394), (100, 396, 900), (250, 384, 745)],
)
def test_what_ninety_brokers_pay_with_reads_in_common_and_each_for_itself(
    interval_ms: int, usd: int, own_reads: int
) -> None:
    interval = f"interval_ms={interval_ms}"
    found, apart = (load_scenario(f"ninety-brokers{name}", [interval]) for name in ("", "-own-reads"))
    assert round(replication_usd(found.cost)) == usd
    assert round(replication_usd(apart.cost)) == own_reads


@pytest.mark.parametrize(("interval_ms", "gets", "bytes_read"), [(100, 650, 1.0), (50, 408, 4.5), (10, 61, 14.5)])
def test_brokers_that_read_for_themselves_read_many_ranges_or_much_that_they_do_not_want(
    interval_ms: int, gets: int, bytes_read: float
) -> None:
    """In an object each 100 ms an entry has 3 KB, so gaps of up to 16 are read along; each 10 ms, up to 166."""
    changes = [f"interval_ms={interval_ms}", "link_policy=always"]
    cost = load_scenario("ninety-brokers-own-reads", changes).cost
    objects = cost.objects_per_month
    assert cost.remote_wal.parts["get_requests"] == pytest.approx(objects * gets * 0.03e-6, rel=0.01)
    wanted_gb = 2 * 30e6 * 3600 * 720 / 1e9
    assert cost.remote_wal.parts["retrieval"] == pytest.approx(wanted_gb * 0.0006 * bytes_read, rel=0.01)


def test_metadata_has_an_entry_of_each_partition_that_is_in_an_object() -> None:
    few, many = (load_scenario("today", [f"partitions={count}"]).cost for count in (12, 1000))
    more_usd = 988 * 11 * 2 * 0.02 / 1e9 * many.objects_per_month
    assert many.remote_wal.parts["metadata"] - few.remote_wal.parts["metadata"] == pytest.approx(more_usd)
    assert many.break_even_mb_s is not None
    assert few.break_even_mb_s is not None
    assert many.break_even_mb_s > 1.3 * few.break_even_mb_s


def test_a_read_fee_is_for_each_follower_in_another_zone(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    fee = "express_cross_zone_read_gb = 0.0"
    prices.write_text(DEFAULT_PRICES_FILE.read_text().replace(fee, "express_cross_zone_read_gb = 0.01"))
    found = load_scenario("today", prices_file=prices)
    assert found.cost.remote_wal.parts["cross_zone_reads"] == pytest.approx(2 * found.workload.gb_per_month * 0.01)


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
        ("interval_ms=soon", "today: interval_ms: must be a number, not 'soon'$"),
        ("interval_ms=0", "today: interval_ms: must be above 0, not 0"),
        ("interval_ms=1_0", "1_0 is no number"),
        ("rate_mb_s=nan", "rate_mb_s"),
        ("remote_followers=3", "remote_followers"),
        ("zones=1", "zones"),
        ("pack_ratio=0", "pack_ratio"),
        ("partitions=1.5", "today: partitions: must be a whole number, not '1.5'$"),
        ("producers_wait=maybe", "today: producers_wait: must be true or false, not 'maybe'$"),
        ("link_policy=never", "today: link_policy: must be 'cost' or 'always', not 'never'$"),
        ("leaves_out=metadata,tolls", "today: leaves_out: tolls: no part of the cost; put_requests, "),
        ("prices=yesterday", "yesterday"),
    ],
)
def test_a_wrong_parameter_is_named(override: str, names: str) -> None:
    with pytest.raises(ScenarioError, match=names):
        load_scenario("today", [override])


def test_the_file_names_no_parameter_that_there_is_not() -> None:
    file = Path(scenarios.__file__).with_name("scenarios.toml")
    own = {"about", "prices", "inferred", "base"}
    known = own | {parameter.name for parameter in fields(Workload)}
    assert all(known >= scenario.keys() for scenario in tomllib.loads(file.read_text())["scenarios"].values())


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


def test_on_google_cloud_one_side_pays_for_crossing_zones_and_nobody_for_bytes() -> None:
    cost = load_scenario("gcs").cost
    objects = 720 * 3600 * 10
    assert cost.linked
    assert cost.baseline.parts["zone_transfer"] == pytest.approx(30 * 3.6 * 720 * 2 * 0.01)
    assert cost.remote_wal.parts["put_requests"] == pytest.approx(objects * 0.005 / 1000)
    assert cost.remote_wal.parts["get_requests"] == pytest.approx(objects * 2 * 0.0004 / 1000)
    assert cost.remote_wal.sum_of("upload", "retrieval") == 0
    assert cost.break_even_mb_s == pytest.approx(10.9, rel=0.01), "290 KB and half more, in 40 ms"


def test_on_azure_crossing_zones_is_free_and_all_goes_inline() -> None:
    cost = load_scenario("azure").cost
    assert (cost.linked, cost.break_even_mb_s) == (False, None)
    assert cost.baseline.parts["zone_transfer"] == cost.remote_wal.parts["zone_transfer"] == 0
    assert cost.objects_per_month == cost.object_bytes == 0
    assert cost.remote_wal.total == cost.baseline.total, "nothing is uploaded that nobody wants stored"


def test_a_store_without_prices_is_named() -> None:
    with pytest.raises(PriceError, match=r"no_store\.storage_gb_month"):
        scenario_json(load_scenario("today", ["store=no_store"]))
    with pytest.raises(PriceError, match=r"before-2025-04-10\]: gcs_standard"):
        scenario_json(load_scenario("kip-1176", ["store=gcs_standard"]))
