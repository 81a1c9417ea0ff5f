"""Which listeners keep clients in their zone."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import build_app
from gateway.planning.plan import listener_name, plan
from gateway.planning.planned_ports import BrokerSite, PlanError, PlanRules
from kafka_cluster.responses import DescribedBroker
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint, parse_broker_properties

BROKERS = [
    BrokerSite(1, "az1", "kafka-1.example.com"),
    BrokerSite(2, "az2", "kafka-2.example.com", 9192),
    BrokerSite(3, "az3", "kafka-3.example.com"),
    BrokerSite(4, "az1", "kafka-4.example.com"),
]
GATEWAYS = {zone: f"gateway.{zone}.example.com" for zone in ("az1", "az2", "az3")}


def joined(keys: dict[str, str]) -> BrokerProperties:
    """A broker's whole file: the planned lines, joined to listeners for brokers and controllers."""
    others = {
        "listeners": "REPLICATION://127.0.0.1:19901",
        "advertised.listeners": "REPLICATION://127.0.0.1:19901",
        "listener.security.protocol.map": "REPLICATION:PLAINTEXT",
    }
    raw = {**keys, **{key: f"{value},{keys[key]}" for key, value in others.items()}}
    raw |= {"node.id": "1", "log.dirs": "/data/kafka", "inter.broker.listener.name": "REPLICATION"}
    return parse_broker_properties(raw, Path("server.properties"))


def test_its_own_zones_listener_advertises_the_broker_and_the_others_the_gateways_at_a_port_for_it() -> None:
    broker = joined(plan(BROKERS, GATEWAYS)[2])
    assert broker.advertised_listeners["CLIENT_AZ2"] == Endpoint("kafka-2.example.com", 9192)
    assert broker.advertised_listeners["CLIENT_AZ1"] == Endpoint("gateway.az1.example.com", 19302)
    assert broker.advertised_listeners["CLIENT_AZ3"] == Endpoint("gateway.az3.example.com", 19302)
    assert broker.rack == "az2"


def test_listeners_of_other_zones_are_bound_to_loopback_alone() -> None:
    for broker_id, keys in plan(BROKERS, GATEWAYS).items():
        broker = joined(keys)
        own = listener_name(BROKERS[broker_id - 1].zone)
        assert broker.listeners[own].host == ""
        reached = (own, "CLIENT_AGENTS", "REPLICATION")
        others = {name: where for name, where in broker.listeners.items() if name not in reached}
        assert len(others) == 2
        assert {where.host for where in others.values()} == {"127.0.0.1"}


def test_agents_have_a_listener_that_leads_past_all_agents_whatever_is_held() -> None:
    for rules in (PlanRules(), PlanRules(durable=True)):
        planned = plan(BROKERS, GATEWAYS, rules)
        for site in BROKERS:
            keys = planned[site.broker_id]
            broker = joined(keys)
            assert broker.advertised_listeners["CLIENT_AGENTS"] == Endpoint(site.host, 19097)
            assert keys["listeners"].startswith("CLIENT_AGENTS://")
            assert keys["remote.wal.agent.client.listener"] == "CLIENT_AGENTS"
            assert keys["remote.wal.agent.bootstrap.servers"].startswith(f"{site.host}:19097,")
    own = replace(BROKERS[1], agents_host="10.0.2.11", agents_port=9094, agents_bind_host="10.0.2.11")
    keys = plan([BROKERS[0], own], {zone: GATEWAYS[zone] for zone in ("az1", "az2")})[2]
    assert "CLIENT_AGENTS://10.0.2.11:9094" in keys["listeners"].split(",")
    assert keys["remote.wal.agent.bootstrap.servers"] == "10.0.2.11:9094,kafka-1.example.com:19097"
    with pytest.raises(PlanError, match="port 9092 would be used twice on the host of broker 1"):
        plan(BROKERS, GATEWAYS, PlanRules(agents_port=9092))


def many_zones(count: int) -> tuple[list[BrokerSite], dict[str, str]]:
    zones = [f"az{number}" for number in range(1, count + 1)]
    return [BrokerSite(one, zone, f"kafka-{one}") for one, zone in enumerate(zones, 1)], dict.fromkeys(zones, "gw")


def test_no_listener_for_clients_takes_a_port_by_which_brokers_reach_each_other() -> None:
    brokers, gateways = many_zones(8)
    for keys in plan(brokers, gateways, PlanRules(durable=True)).values():
        ports = [int(listener.rpartition(":")[2]) for listener in keys["listeners"].split(",")]
        assert not set(ports) & set(range(19900, 19910))
        assert len(set(ports)) == len(ports)
    known = {"az1": 19900}
    with pytest.raises(PlanError, match="port 19901 would be used twice"):
        plan(brokers[:2], dict.fromkeys(("az1", "az2"), "gw"), PlanRules(durable=True), known)


def test_ports_stay_when_a_zone_comes_that_is_named_before_the_others() -> None:
    brokers, gateways = many_zones(3)
    rules = PlanRules(durable=True)
    before = plan(brokers, gateways, rules)
    new = BrokerSite(9, "az0", "kafka-9")
    bases = {"az1": 19400, "az2": 19500, "az3": 19600}
    after = plan([*brokers, new], {"az0": "gw", **gateways}, rules, bases)
    for one in before:
        for listener in before[one]["listeners"].split(","):
            assert listener in after[one]["listeners"].split(",")
    assert "CLIENT_AZ0://127.0.0.1:19701" in after[1]["listeners"].split(",")
    # And when one goes.
    left = plan(brokers[1:], dict.fromkeys(("az2", "az3"), "gw"), rules, bases)
    assert "CLIENT_AZ3://127.0.0.1:19602" in left[2]["listeners"].split(",")


def test_a_port_for_clients_of_all_zones_leads_to_the_own_zones_listener() -> None:
    planned = plan(BROKERS, GATEWAYS, PlanRules(bootstrap=True))
    assert planned[2]["remote.wal.gateway.bootstrap.listener"] == "CLIENT_AZ2"
    assert "remote.wal.gateway.bootstrap.listener" not in plan(BROKERS, GATEWAYS)[2]
    with pytest.raises(PlanError, match="port 19299 would be used twice"):
        plan(BROKERS, GATEWAYS, PlanRules(bootstrap=True, agents_port=19299))


def test_the_gateway_advertised_for_a_broker_is_where_agents_of_the_zone_listen_for_it() -> None:
    planned = plan(BROKERS, GATEWAYS)
    for broker_id, keys in planned.items():
        for other in (one for one in BROKERS if one.zone != BROKERS[broker_id - 1].zone):
            agent = planned[other.broker_id]
            port = int(agent["remote.wal.gateway.port.base"]) + broker_id
            assert f"{listener_name(other.zone)}://{GATEWAYS[other.zone]}:{port}" in keys["advertised.listeners"]
            assert f"{other.zone}={listener_name(other.zone)}" in keys["remote.wal.gateway.zone.listeners"]


@pytest.mark.parametrize(
    ("clients", "loopback"),
    [("PLAINTEXT", "PLAINTEXT"), ("SSL", "PLAINTEXT"), ("SASL_SSL", "SASL_PLAINTEXT")],
)
def test_tls_ends_at_the_gateway(clients: str, loopback: str) -> None:
    broker = joined(plan(BROKERS, GATEWAYS, PlanRules(security_protocol=clients))[1])
    assert broker.security_protocols["CLIENT_AZ1"] == clients
    assert broker.security_protocols["CLIENT_AZ2"] == broker.security_protocols["CLIENT_AZ3"] == loopback


def test_a_broker_that_is_added_changes_nothing_at_the_others() -> None:
    before = plan(BROKERS, GATEWAYS)
    after = plan([*BROKERS, BrokerSite(5, "az2", "kafka-5.example.com")], GATEWAYS)
    assert {broker_id: after[broker_id] for broker_id in before} == before


def test_a_zones_name_becomes_a_listeners_name_that_kafka_takes() -> None:
    assert listener_name("us-east-1a") == "CLIENT_US_EAST_1A"


@pytest.mark.parametrize(
    ("brokers", "gateways", "rules", "reason"),
    [
        ([], GATEWAYS, PlanRules(), "no broker"),
        ([BrokerSite(1, "az9", "h")], GATEWAYS, PlanRules(), "zone 'az9', of which no gateway"),
        ([BrokerSite(1, "", "h")], GATEWAYS, PlanRules(), "no zone (broker.rack)"),
        (BROKERS[:2], GATEWAYS, PlanRules(), "zone az3 has no broker"),
        (BROKERS[:1], {"az1": "g"}, PlanRules(), "one zone alone"),
        ([*BROKERS, BROKERS[0]], GATEWAYS, PlanRules(), "named twice"),
        (
            [BrokerSite(1, "a-1", "h"), BrokerSite(2, "a_1", "h")],
            {"a-1": "g", "a_1": "g"},
            PlanRules(),
            "CLIENT_A_1",
        ),
        (
            [*BROKERS, BrokerSite(5, "az1", "kafka-1.example.com")],
            GATEWAYS,
            PlanRules(),
            "2 brokers share the host kafka-1",
        ),
        ([*BROKERS, BrokerSite(105, "az1", "h")], GATEWAYS, PlanRules(), "raise the step"),
        (BROKERS, GATEWAYS, PlanRules(gateway_port_base=9190), "port 9192 would be used twice"),
        (BROKERS, GATEWAYS, PlanRules(agents_port=0), "is below 1"),
        (BROKERS, GATEWAYS, PlanRules(gateway_port_base=-500), "is below 1"),
        (BROKERS, GATEWAYS, PlanRules(gateway_port_base=65533), "is above 65535"),
        (BROKERS, GATEWAYS, PlanRules(security_protocol="TLS"), "'TLS' is not one of"),
    ],
)
def test_what_cannot_be_planned_is_told(
    brokers: list[BrokerSite], gateways: dict[str, str], rules: PlanRules, reason: str
) -> None:
    if "9192" in reason:
        brokers = [BrokerSite(2, "az2", "h2", 9192), BrokerSite(1, "az1", "h1", 9192), BrokerSite(3, "az3", "h3")]
        gateways = GATEWAYS
    with pytest.raises(PlanError, match=re.escape(reason)):
        plan(brokers, gateways, rules)


def test_the_command_prints_lines_that_the_agent_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {
        "node.id": "1",
        "log.dirs": "/data/kafka",
        "listeners": "PLAIN://:9092,REPLICATION://127.0.0.1:19901",
        "inter.broker.listener.name": "REPLICATION",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,REPLICATION:PLAINTEXT",
    }
    brokers = [DescribedBroker(one.broker_id, one.zone, one.host, 9092) for one in BROKERS]
    properties = {
        one.broker_id: parse_broker_properties(
            raw | {"advertised.listeners": f"PLAIN://{one.host}:9092,REPLICATION://127.0.0.1:19901"}, Path("broker")
        )
        for one in BROKERS
    }
    monkeypatch.setattr("cli.fleet.gateway._asked", lambda _sites: (brokers, properties))
    words = ["gateway", "plan", "--bootstrap-server", "h:1", "--gateway-name", "gateway.{zone}.example.com"]
    told = CliRunner().invoke(build_app(), words)
    assert told.exit_code == 0, told.output
    first = told.output.partition("# broker 2")[0]
    keys = dict(line.split("=", 1) for line in first.splitlines() if line and not line.startswith("#"))
    planned = parse_broker_properties({**raw, **keys}, Path("broker"))
    assert planned.listeners["CLIENT_AZ2"] == Endpoint("127.0.0.1", 19501)
    assert planned.advertised_listeners["PLAIN"] == Endpoint("kafka-1.example.com", 9092)
    assert keys["remote.wal.agent.client.listener"] == "PLAIN"


def test_where_answers_are_held_clients_of_the_own_zone_come_by_the_agent_as_well() -> None:
    keys = plan(BROKERS, GATEWAYS, PlanRules(durable=True, security_protocol="SASL_SSL"))[2]
    broker = joined(keys)
    assert broker.listeners["CLIENT_AZ2"] == Endpoint("127.0.0.1", 19502)
    assert broker.advertised_listeners["CLIENT_AZ2"] == Endpoint("kafka-2.example.com", 9192)
    assert broker.security_protocols["CLIENT_AZ2"] == "SASL_PLAINTEXT"
    assert keys["remote.wal.gateway.durable.listener"] == "CLIENT_AZ2"
    assert keys["remote.wal.gateway.durable.port"] == "9192"


def test_answers_are_held_in_a_single_zone_too() -> None:
    keys = plan([BROKERS[0], BROKERS[3]], {"az1": GATEWAYS["az1"]}, PlanRules(durable=True))[4]
    assert keys["remote.wal.gateway.zone.listeners"] == ""
    assert "CLIENT_AZ1://127.0.0.1:19404" in keys["listeners"]


def test_one_address_for_all_zones_would_lead_past_where_answers_are_held() -> None:
    with pytest.raises(PlanError, match="leads past"):
        plan(BROKERS, GATEWAYS, PlanRules(durable=True, bootstrap=True))
