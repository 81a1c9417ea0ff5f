"""What clients' bytes cost, by the three ways."""

import pytest

from retention_job.cost.client_model import ClientsCost
from retention_job.cost.scenario_model import ScenarioError
from retention_job.cost.scenarios import load_scenario


def clients(*overrides: str, name: str = "today") -> ClientsCost:
    return load_scenario(name, overrides).clients


def test_in_stock_kafka_the_other_zones_part_of_each_byte_crosses_for_each_use() -> None:
    scenario = load_scenario("today", ["consumer_reads=2"])
    crossing_usd = scenario.workload.gb_per_month * 2 / 3 * scenario.prices.zone_crossing_gb
    assert scenario.clients.stock.parts == {
        "produce": pytest.approx(crossing_usd),
        "consume": pytest.approx(2 * crossing_usd),
    }


def test_follower_fetching_saves_all_that_is_consumed_and_nothing_of_what_is_produced() -> None:
    found = clients()
    assert found.follower_fetching.parts == {"produce": found.stock.parts["produce"], "consume": 0.0}


def test_zones_without_a_replica_read_from_the_leader() -> None:
    found = clients("remote_followers=1", "replication_factor=2")
    assert found.follower_fetching.parts["consume"] == pytest.approx(found.stock.parts["consume"] / 2)


def test_large_requests_go_by_object_storage_and_small_ones_cross() -> None:
    large, small = clients("client_request_bytes=262144"), clients("client_request_bytes=500")
    assert large.linked
    assert large.gateway.parts["produce"] < large.stock.parts["produce"] / 2
    assert not small.linked
    assert small.gateway == small.follower_fetching


def test_where_borders_are_free_nothing_is_to_be_saved() -> None:
    found = clients(name="azure")
    assert found.stock.total == found.gateway.total == 0
    assert not found.linked


def test_one_zone_has_no_border() -> None:
    with pytest.raises(ScenarioError, match="zones"):
        load_scenario("today", ["zones=1"])
