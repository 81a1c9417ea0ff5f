"""A plan for a cluster that has one keeps its addresses and ports, whatever listener was asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.planning.front import FrontRules, front_plans
from gateway.planning.plan import plan, running_plan
from gateway.planning.planned_ports import BrokerSite, PlanError, PlanRules
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint, parse_broker_properties

SITES = [BrokerSite(1, "az1", "kafka-1"), BrokerSite(2, "az2", "kafka-2", 9192), BrokerSite(3, "az3", "kafka-3")]
GATEWAYS = {site.zone: f"gateway-{site.zone}" for site in SITES}
MAP = "listener.security.protocol.map"
STOCK = {
    "listeners": "WAL://127.0.0.1:{port}",
    "advertised.listeners": "WAL://127.0.0.1:{port}",
    "listener.security.protocol.map": "WAL:PLAINTEXT",
}


def running(planned: dict[int, dict[str, str]]) -> dict[int, BrokerProperties]:
    found = {}
    for one, keys in planned.items():
        lines = {
            key: ",".join(filter(None, (keys[key], value.format(port=19900 + one)))) for key, value in STOCK.items()
        }
        raw = {**keys, **lines, "node.id": str(one), "inter.broker.listener.name": "WAL"}
        found[one] = parse_broker_properties(raw, Path(f"broker {one}"))
    return found


def as_told(zone: str) -> dict[int, BrokerSite]:
    return {
        site.broker_id: BrokerSite(site.broker_id, site.zone, site.host, site.port)
        if site.zone == zone
        else BrokerSite(site.broker_id, site.zone, GATEWAYS[zone], 19300 + site.broker_id)
        for site in SITES
    }


def as_agents_are_told() -> dict[int, BrokerSite]:
    return {site.broker_id: BrokerSite(site.broker_id, site.zone, site.host, 19097) for site in SITES}


@pytest.mark.parametrize("rules", [PlanRules(), PlanRules(durable=True)], ids=["plain", "durable"])
def test_the_same_plan_comes_out_whatever_listener_is_asked(rules: PlanRules) -> None:
    planned = plan(SITES, GATEWAYS, rules)
    for told in (as_told("az1"), as_told("az3"), as_agents_are_told()):
        found = running_plan(told, running(planned), rules)
        assert plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases) == planned


def test_lines_are_whole_with_what_the_plan_does_not_name() -> None:
    controllers = {
        "process.roles": "broker",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "kafka-1:9093",
        MAP: f"{stock('CLIENT', 'OUTSIDE')[1].raw[MAP]},CONTROLLER:SSL",
    }
    brokers = {
        one: parse_broker_properties({**its.raw, **controllers}, its.path)
        for one, its in stock("CLIENT", "OUTSIDE").items()
    }
    found = running_plan(as_agents_are_told(), brokers, PlanRules(agents_listener="CLIENT"))
    made = found.whole(plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases))
    for broker_id, keys in made.items():
        whole = parse_broker_properties({**brokers[broker_id].raw, **keys}, Path("server.properties"))
        for name in ("WAL", "OUTSIDE", "CONTROLLER"):
            assert whole.listeners.get(name) == brokers[broker_id].listeners.get(name)
            assert whole.advertised_listeners.get(name) == brokers[broker_id].advertised_listeners.get(name)
            assert whole.security_protocols[name] == brokers[broker_id].security_protocols[name]
        assert {"CLIENT", "CLIENT_AZ1", "CLIENT_AZ2", "CLIENT_AZ3"} < whole.listeners.keys()


def test_zones_keep_their_ports_wherever_they_are() -> None:
    before = plan(SITES, GATEWAYS, PlanRules(), {"az3": 19400, "az1": 19600})
    found = running_plan(as_agents_are_told(), running(before), PlanRules())
    assert found.loopback_bases == {"az3": 19400, "az2": 19500, "az1": 19600}


def test_all_brokers_of_one_machine_may_have_their_listeners_for_agents_on_loopback() -> None:
    sites = [
        replace(site, agents_host="127.0.0.1", agents_port=9100 + site.broker_id, agents_bind_host="127.0.0.1")
        for site in SITES
    ]
    planned = plan(sites, GATEWAYS)
    found = running_plan(as_told("az1"), running(planned), PlanRules())
    assert plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases) == planned


def stock(*names: str) -> dict[int, BrokerProperties]:
    """Brokers that have had no plan yet, with these listeners for clients at 9092 and on."""
    lines = {}
    for site in SITES:
        ports = dict(zip(names, range(9092, 9099), strict=False))
        lines[site.broker_id] = {
            "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://{site.host}:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:SASL_SSL" for name in names),
        }
    return running(lines)


def test_a_listener_that_clients_have_stays_as_it_is_for_agents_and_zones_get_new_ones() -> None:
    for names in (("CLIENT",), ("CLIENT", "OTHER")):
        told = {site.broker_id: replace(site, port=9092) for site in SITES}
        found = running_plan(told, stock(*names), PlanRules(security_protocol="SASL_SSL"))
        planned = plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases)
        assert planned[2]["listeners"].startswith("CLIENT://0.0.0.0:9092,CLIENT_AZ2://0.0.0.0:9192,")
        assert planned[2]["advertised.listeners"].startswith("CLIENT://kafka-2:9092,CLIENT_AZ2://kafka-2:9192,")
        assert planned[2]["listener.security.protocol.map"].startswith("CLIENT:SASL_SSL,")
        assert planned[2]["remote.wal.agent.client.listener"] == "CLIENT"
        # And once that is so, it stays.
        for again in (told, as_told("az1"), {one: replace(site, port=9192) for one, site in told.items()}):
            twice = running_plan(again, running(planned), PlanRules(security_protocol="SASL_SSL"))
            assert plan(twice.brokers, GATEWAYS, twice.rules, twice.loopback_bases) == planned


def test_which_of_several_listeners_is_for_agents_is_asked_for() -> None:
    elsewhere = {site.broker_id: replace(site, host="by-another-way") for site in SITES}
    with pytest.raises(PlanError, match="one of CLIENT, OTHER is to be for agents"):
        running_plan(elsewhere, stock("CLIENT", "OTHER"), PlanRules())
    found = running_plan(elsewhere, stock("CLIENT", "OTHER"), PlanRules(agents_listener="other"))
    assert found.brokers[0].agents_port == 9093


def test_an_older_plan_without_a_listener_for_agents_gets_one() -> None:
    keys = plan(SITES, GATEWAYS)
    older = {
        one: {key: ",".join(item for item in value.split(",") if "AGENTS" not in item) for key, value in its.items()}
        for one, its in keys.items()
    }
    found = running_plan(as_told("az2"), running(older), PlanRules())
    assert plan(found.brokers, GATEWAYS, found.rules, found.loopback_bases) == keys


@pytest.mark.parametrize("hosts", [("kafka-1", "kafka-2", "kafka-3"), ("127.0.0.1",) * 3])
def test_an_agent_in_front_is_not_mistaken_for_the_way_to_the_broker(hosts: tuple[str, ...]) -> None:
    """Also where all is on one machine, so that loopback is what clients know."""
    told = {one: BrokerSite(one, f"az{one}", host, 9091 + one) for one, host in enumerate(hosts, 1)}
    before = {}
    for one, site in told.items():
        at = f"CLIENT://{site.host}:{site.port}"
        before[one] = {"listeners": at, "advertised.listeners": at, MAP: "CLIENT:PLAINTEXT"}
    asked = {one: Endpoint(site.host, site.port) for one, site in told.items()}
    stock_brokers = running(before)
    planned = front_plans(asked, stock_brokers, FrontRules("CLIENT"))
    fronted = {
        one: parse_broker_properties({**its.raw, **planned[one].first, **planned[one].then}, its.path)
        for one, its in stock_brokers.items()
    }
    with pytest.raises(PlanError, match=r"its agent is in front of it .* its line `listeners` of before"):
        running_plan(told, fronted, PlanRules())


def test_what_does_not_fit_together_is_refused() -> None:
    planned = running(plan(SITES, GATEWAYS))
    moved = {one: replace(site, zone="az9") if one == 2 else site for one, site in as_agents_are_told().items()}
    with pytest.raises(PlanError, match="broker 2 has no listener CLIENT_AZ9, and yet others"):
        running_plan(moved, planned, PlanRules())
    other = running(plan(SITES, GATEWAYS, known_bases={"az1": 19700}))
    with pytest.raises(PlanError, match="CLIENT_AZ1 is not at one base plus the broker's id: see brokers"):
        running_plan(as_agents_are_told(), {**planned, 2: other[2]}, PlanRules())
