"""A plan for a cluster that has one keeps its addresses and ports, whatever listener was asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.plan import plan
from gateway.planned_ports import BrokerSite, PlanError, PlanRules
from gateway.running_plan import running_plan
from kafka_log.server_properties import BrokerProperties, parse_broker_properties

SITES = [BrokerSite(1, "az1", "kafka-1"), BrokerSite(2, "az2", "kafka-2", 9192), BrokerSite(3, "az3", "kafka-3")]
GATEWAYS = {site.zone: f"gateway-{site.zone}" for site in SITES}
STOCK = {
    "listeners": "WAL://127.0.0.1:{port}",
    "advertised.listeners": "WAL://127.0.0.1:{port}",
    "listener.security.protocol.map": "WAL:PLAINTEXT",
}


def running(planned: dict[int, dict[str, str]]) -> dict[int, BrokerProperties]:
    """Brokers with these lines."""
    found = {}
    for one, keys in planned.items():
        lines = {
            key: ",".join(filter(None, (keys[key], value.format(port=19900 + one)))) for key, value in STOCK.items()
        }
        raw = {**keys, **lines, "node.id": str(one), "inter.broker.listener.name": "WAL"}
        found[one] = parse_broker_properties(raw, Path(f"broker {one}"))
    return found


def as_told(zone: str) -> dict[int, BrokerSite]:
    """By the listener for the zone's clients."""
    return {
        site.broker_id: BrokerSite(site.broker_id, site.zone, site.host, site.port)
        if site.zone == zone
        else BrokerSite(site.broker_id, site.zone, GATEWAYS[zone], 19300 + site.broker_id)
        for site in SITES
    }


def as_agents_are_told() -> dict[int, BrokerSite]:
    return {site.broker_id: BrokerSite(site.broker_id, site.zone, site.host, 19097) for site in SITES}


@pytest.mark.parametrize("rules", [PlanRules(), PlanRules(admin=True, durable=True)], ids=["plain", "durable"])
def test_the_same_plan_comes_out_whatever_listener_is_asked(rules: PlanRules) -> None:
    planned = plan(SITES, GATEWAYS, rules)
    for told in (as_told("az1"), as_told("az3"), as_agents_are_told()):
        found = running_plan(told, running(planned), rules)
        assert plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases) == planned


def test_zones_and_admin_tools_keep_their_ports_wherever_they_are() -> None:
    rules = PlanRules(admin=True)
    before = plan(SITES, GATEWAYS, replace(rules, admin_port_base=19700), {"az3": 19400, "az1": 19600})
    found = running_plan(as_agents_are_told(), running(before), rules)
    assert found.loopback_bases == {"az3": 19400, "az2": 19500, "az1": 19600}
    assert found.rules.admin_port_base == 19700


def test_a_cluster_without_a_plan_is_as_it_says() -> None:
    stock = {
        1: {**dict.fromkeys(STOCK, ""), "listeners": "CLIENT://:9092", "advertised.listeners": "CLIENT://kafka-1:9092"}
    }
    stock[1]["listener.security.protocol.map"] = "CLIENT:PLAINTEXT"
    found = running_plan({1: SITES[0]}, running(stock), PlanRules())
    assert (found.brokers, dict(found.loopback_bases)) == ([SITES[0]], {})


def test_what_does_not_fit_together_is_refused() -> None:
    planned = running(plan(SITES, GATEWAYS))
    moved = {one: replace(site, zone="az9") if one == 2 else site for one, site in as_agents_are_told().items()}
    with pytest.raises(PlanError, match="broker 2 has listeners of a plan, and none is CLIENT_AZ9"):
        running_plan(moved, planned, PlanRules())
    other = running(plan(SITES, GATEWAYS, known_bases={"az1": 19700}))
    with pytest.raises(PlanError, match="CLIENT_AZ1 is not at one base plus the broker's id: see brokers"):
        running_plan(as_agents_are_told(), {**planned, 2: other[2]}, PlanRules())
