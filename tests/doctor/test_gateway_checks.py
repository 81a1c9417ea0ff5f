"""The listeners that keep clients in their zone are judged, each fault by a plain finding."""

from dataclasses import replace
from typing import Any

import pytest

from agent.settings_file import agent_settings
from doctor.diagnosis import diagnose
from doctor.facts import Facts, Unknown
from doctor.findings import Finding, Level
from gateway.planning.plan import plan
from gateway.planning.planned_ports import BrokerSite, PlanRules
from kafka_log.broker_files.server_properties import Endpoint, parse_broker_properties
from metadata_topic.settings.topic_settings import AgentRegistration
from tests.doctor.test_doctor import FILE, PROPERTIES, facts_of

SITES = [BrokerSite(1, "az1", "kafka-1"), BrokerSite(2, "az2", "kafka-2"), BrokerSite(3, "az3", "kafka-3")]
PLANNED = plan(SITES, {zone: f"gateway-{zone}" for zone in ("az1", "az2", "az3")}, PlanRules())[1]
REPLICATION = {
    "listeners": "WAL://127.0.0.1:19901,BYPASS://10.0.0.1:19096",
    "advertised.listeners": "WAL://127.0.0.1:19901",
    "listener.security.protocol.map": "WAL:PLAINTEXT,BYPASS:SSL",
}
SEVERAL = ("10.0.0.1", "10.0.0.2")
KEY = "remote.wal.gateway"
NOT_THERE = "not there"
PLAIN_AGENTS = {f"remote.wal.agent.ssl.{one}.file": NOT_THERE for one in ("certificate", "key", "ca")}


def planned(changes: dict[str, str] | None = None, **facts: Any) -> dict[str, Finding]:
    """What is found where the plan's lines stand, but for these whole keys, in which one text may replace another."""
    raw = {**PROPERTIES, **PLANNED, **{key: f"{PLANNED[key]},{value}" for key, value in REPLICATION.items()}}
    for key, value in (changes or {}).items():
        old, arrow, new = value.partition(" -> ")
        if arrow:
            assert old in raw[key]
        raw[key] = raw[key].replace(old, new) if arrow else value
    raw = {key: value for key, value in raw.items() if value != NOT_THERE}
    broker = parse_broker_properties(raw, FILE)
    known = Facts.__dataclass_fields__
    assert facts.keys() <= known.keys()
    all_well = {
        "zones": {1: "az1", 2: "az2", 3: "az3"},
        "ways": {"kafka-1:19097": {one: Endpoint(f"kafka-{one}", 19097) for one in (1, 2, 3)}},
        "names": {"gateway-az2": SEVERAL, "gateway-az3": SEVERAL},
    }
    judged = replace(facts_of(), broker=broker, settings=agent_settings(broker, FILE), **{**all_well, **facts})
    return {finding.check: finding for finding in diagnose(judged)}


def test_in_what_is_planned_no_gateway_check_finds_anything() -> None:
    found = planned()
    gateway = {name: finding.level for name, finding in found.items() if name.startswith("gateway-")}
    names = (
        "gateway-listeners",
        "gateway-agents",
        "gateway-sides",
        "gateway-names",
        "gateway-security",
    )
    assert gateway == dict.fromkeys(names, Level.OK)


@pytest.mark.parametrize(
    ("changes", "level", "told"),
    [
        ({f"{KEY}.zone.listeners": "az2=CLIENT_AZ2"}, Level.ERROR, "no listener for clients of az3"),
        (
            {"listeners": "CLIENT_AZ2://127.0.0.1 -> CLIENT_AZ2://"},
            Level.ERROR,
            "CLIENT_AZ2 listens at all interfaces",
        ),
        ({"listeners": "CLIENT_AZ2://127.0.0.1 -> CLIENT_AZ2://10.0.0.1"}, Level.ERROR, "listens at 10.0.0.1"),
        (
            {"listener.security.protocol.map": "CLIENT_AZ2:PLAINTEXT -> CLIENT_AZ2:SASL_SSL"},
            Level.ERROR,
            "CLIENT_AZ2 speaks SASL_SSL",
        ),
        ({"advertised.listeners": "CLIENT_AZ2://gateway-az2:19301, -> "}, Level.ERROR, "advertises no gateway of az2"),
        ({"advertised.listeners": "gateway-az2:19301 -> gateway-az2:19300"}, Level.ERROR, "at port 19300"),
        (
            {"listeners": "CLIENT_AZ1://:9092, -> ", "advertised.listeners": "CLIENT_AZ1://kafka-1:9092, -> "},
            Level.ERROR,
            "no listener for clients of this zone",
        ),
    ],
)  # fmt: skip
def test_a_listener_that_leads_clients_elsewhere_is_found(changes: dict[str, str], level: Level, told: str) -> None:
    finding = planned(changes)["gateway-listeners"]
    assert finding.level is level
    assert told in finding.found
    assert finding.change


BY_GATEWAYS = {1: Endpoint("kafka-1", 9092), 2: Endpoint("gateway-az1", 19302), 3: Endpoint("gateway-az1", 19303)}
BY_AGENTS = {one: Endpoint(f"kafka-{one}", 9092) for one in (1, 2, 3)}
OWN_BOOTSTRAP = "remote.wal.agent.bootstrap.servers"
HELD = {
    f"{KEY}.durable.listener": "CLIENT_AZ1",
    f"{KEY}.durable.port": "9092",
    "listeners": "CLIENT_AZ1://:9092 -> CLIENT_AZ1://127.0.0.1:19400",
}


@pytest.mark.parametrize(
    ("changes", "facts", "level", "told"),
    [
        (
            {
                OWN_BOOTSTRAP: NOT_THERE,
                "remote.wal.agent.client.listener": NOT_THERE,
                "listeners": "CLIENT_AGENTS://:19097, -> ",
            },
            {"ways": {"kafka-1:9092": BY_GATEWAYS}},
            Level.WARNING,
            "the agent reaches Kafka by CLIENT_AZ1",
        ),
        ({OWN_BOOTSTRAP: "kafka-1:19097,kafka-2:9092"}, {}, Level.WARNING, "kafka-2:9092: at this port brokers answer"),
        ({}, {"ways": {"kafka-2:19097": BY_GATEWAYS}}, Level.WARNING, "names agents in the place of brokers 2, 3"),
        (HELD, {"ways": {"kafka-2:19097": BY_AGENTS}}, Level.WARNING, "in the place of brokers 1, 2, 3"),
        ({}, {"ways": {"kafka-1:19097": Unknown("away")}}, Level.UNKNOWN, "away"),
        ({}, {"ways": {"kafka-1:19097": Unknown("away"), "kafka-2:19097": BY_AGENTS}}, Level.OK, "1 servers name"),
    ],
)  # fmt: skip
def test_an_agent_that_reaches_brokers_by_other_agents_is_found(
    changes: dict[str, str], facts: dict[str, Any], level: Level, told: str
) -> None:
    finding = planned(changes, **facts)["gateway-agents"]
    assert finding.level is level, finding
    assert told in finding.found


def registered(**parts: tuple[str, ...]) -> dict[str, Any]:
    """Agents 2 and 3 with these parts of the gateway."""
    told = {int(name[1:]): AgentRegistration(int(name[1:]), 1, "", "", 0, gateway=its) for name, its in parts.items()}
    return {"registered": told}


RACKS = {f"{KEY}.fetch.rack.enable": "true"}
PRODUCE = {f"{KEY}.produce.enable": "true"}
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


@pytest.mark.parametrize(
    ("changes", "facts", "level", "told"),
    [
        (RACKS, {}, Level.WARNING, "fetch.rack.enable without effect"),
        ({**RACKS, **SELECTOR}, {}, Level.OK, ""),
        (PRODUCE, registered(_2=("produce",), _3=("clients",)), Level.WARNING, "on here and off beside broker 3"),
        ({}, registered(_2=("links",), _3=("clients",)), Level.WARNING, "off here and on beside broker 2"),
        (PRODUCE, registered(_2=("clients", "produce")), Level.OK, ""),
    ],
)  # fmt: skip
def test_what_has_no_effect_because_another_side_has_it_off_is_found(
    changes: dict[str, str], facts: dict[str, Any], level: Level, told: str
) -> None:
    finding = planned(changes, **facts)["gateway-sides"]
    assert finding.level is level, finding
    assert told in finding.found


def test_a_broker_of_the_own_zone_needs_no_gateway() -> None:
    zones = {1: "az1", 2: "az1", 3: "az3"}
    assert planned(zones=zones)["gateway-listeners"].level is Level.OK, "nobody comes by a port that is there for all"


def test_without_the_clusters_zones_it_is_not_known_whether_any_is_missing() -> None:
    assert planned(zones=Unknown("no answer"))["gateway-listeners"].level is Level.UNKNOWN


def test_a_name_that_leads_nowhere_or_to_one_gateway_alone_is_found() -> None:
    finding = planned(names={"gateway-az2": Unknown("no such name"), "gateway-az3": SEVERAL})["gateway-names"]
    assert finding.level is Level.ERROR
    assert "gateway-az2 does not resolve" in finding.found
    finding = planned(names={"gateway-az2": SEVERAL[:1], "gateway-az3": SEVERAL})["gateway-names"]
    assert finding.level is Level.WARNING
    assert "gateway-az2 is one address alone" in finding.found


def test_a_name_without_the_address_of_an_agent_that_may_be_a_proxy_is_found() -> None:
    told = registered(_2=("clients",), _4=("clients",))["registered"]
    of_az2 = {one: replace(agent, zone="az2") for one, agent in told.items()}

    def names(addresses: int) -> Finding:
        names = {"gateway-az2": SEVERAL[:addresses], "gateway-az3": SEVERAL}
        return planned(registered=of_az2, names=names)["gateway-names"]

    assert names(2).level is Level.OK
    assert names(1).level is Level.ERROR
    assert "gateway-az2 has 1 of the addresses of 2 agents in az2" in names(1).found


@pytest.mark.parametrize(
    ("changes", "level", "told"),
    [
        ({"listener.name.client_az1.ssl.client.auth": "required"}, Level.WARNING, "not known by its certificate"),
        ({"max.connections.per.ip": "100"}, Level.WARNING, "come from 127.0.0.1"),
        (
            {
                "listener.security.protocol.map": "CLIENT_AZ1:PLAINTEXT -> CLIENT_AZ1:SASL_SSL",
                "ssl.keystore.location": "/tls/keystore",
            },
            Level.ERROR,
            "CLIENT_AZ1 speaks TLS with clients of this zone, and the gateways here do not",
        ),
        (
            {
                **PLAIN_AGENTS,
                "remote.wal.agent.plaintext.enable": "true",
                "remote.wal.agent.bypass": NOT_THERE,
                f"{KEY}.ssl.certificate.file": "/tls/gateway.pem",
                f"{KEY}.ssl.key.file": "/tls/gateway.key",
            },
            Level.ERROR,
            "what clients send crosses zones in the clear",
        ),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256,GSSAPI"}, Level.WARNING, "GSSAPI: clients ask for a ticket"),
        ({"listener.name.client_az2.sasl.enabled.mechanisms": "GSSAPI"}, Level.WARNING, "GSSAPI"),
        ({"authorizer.class.name": "org.example.Authorizer"}, Level.INFORMATION, "ACLs by host see 127.0.0.1"),
    ],
)
def test_what_brokers_do_not_know_any_more_of_clients_is_told(changes: dict[str, str], level: Level, told: str) -> None:
    # The bypass's own listener asks agents for certificates, which is nothing of clients.
    finding = planned(changes)["gateway-security"]
    assert finding.level is level
    assert told in finding.found


def test_a_listener_that_the_protocol_map_lacks_keeps_the_file_from_being_read() -> None:
    with pytest.raises(Exception, match="listener CLIENT_AZ3 is missing"):
        planned({"listener.security.protocol.map": ",CLIENT_AZ3:PLAINTEXT -> "})
