"""A durable topic whose producers may come past the agent is found."""

from dataclasses import replace
from typing import Any

import pytest

from agent.found_peers import gateway_parts
from agent.settings.agent_settings import AgentSettings
from agent.settings_file import agent_settings
from doctor.diagnosis import diagnose
from doctor.facts import EnabledTopic
from doctor.findings import Finding, Level
from gateway.planning.plan import plan
from gateway.planning.planned_ports import PlanRules
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from metadata_topic.settings.topic_settings import AgentRegistration, GatewayPart
from tests.doctor.test_doctor import FILE, PROPERTIES, facts_of
from tests.doctor.test_gateway_checks import KEY, REPLICATION, SEVERAL, SITES

PLANNED = plan(SITES, {zone: f"gateway-{zone}" for zone in ("az1", "az2", "az3")}, PlanRules(durable=True))[1]
DURABLE = {"orders": EnabledTopic(1000, has_long_term_tier=False, is_durable=True)}


PAST_THE_AGENT = {
    "listeners": f"{PLANNED['listeners']},{REPLICATION['listeners']},OTHER://:9999",
    "advertised.listeners": f"{PLANNED['advertised.listeners']},WAL://127.0.0.1:19901,OTHER://kafka-1:9999",
    "listener.security.protocol.map": f"{PLANNED['listener.security.protocol.map']},WAL:PLAINTEXT,"
    "BYPASS:SSL,OTHER:PLAINTEXT",
}


def beside_agent(changes: dict[str, str] | None = None) -> tuple[BrokerProperties, AgentSettings]:
    raw = {**PROPERTIES, **PLANNED, **{key: f"{PLANNED[key]},{value}" for key, value in REPLICATION.items()}}
    broker = parse_broker_properties({**raw, **(changes or {})}, FILE)
    return broker, agent_settings(broker, FILE)


def planned(changes: dict[str, str] | None = None, topics: Any = None, **facts: Any) -> dict[str, Finding]:
    """What is found where the plan's lines stand, but for these keys."""
    broker, settings = beside_agent(changes)
    judged = replace(
        facts_of(),
        broker=broker,
        settings=settings,
        zones={1: "az1", 2: "az2", 3: "az3"},
        names={"gateway-az2": SEVERAL, "gateway-az3": SEVERAL},
        topics=DURABLE if topics is None else topics,
        **facts,
    )
    return {finding.check: finding for finding in diagnose(judged)}


def test_what_is_planned_for_durable_topics_serves_them_and_is_told_its_limits() -> None:
    found = planned()
    assert found["gateway-listeners"].level is Level.OK
    assert found["gateway-security"].level is Level.OK
    assert found["durable-topics"].level is Level.INFORMATION
    assert "acks=0" in found["durable-topics"].found
    assert "CLIENT_AGENTS leads past the agent, too" in found["durable-topics"].found
    assert planned(topics={})["durable-topics"].level is Level.OK


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({f"{KEY}.durable.listener": ""}, "holds no answers"),
        (PAST_THE_AGENT, "OTHER leads past the agent"),
    ],
)
def test_producers_that_are_answered_too_soon_are_found(changes: dict[str, str], told: str) -> None:
    finding = planned(changes)["durable-topics"]
    assert finding.level is Level.ERROR
    assert told in finding.found


def test_an_agent_registers_that_it_holds_all_answers_only_where_no_listener_leads_past_it() -> None:
    pipelined = {f"{KEY}.acks.pipelined.enable": "true"}
    assert GatewayPart.PIPELINED not in gateway_parts(*beside_agent())
    assert GatewayPart.PIPELINED in gateway_parts(*beside_agent(pipelined))
    assert GatewayPart.PIPELINED not in gateway_parts(*beside_agent(pipelined | PAST_THE_AGENT))


def test_the_listener_of_the_own_zone_advertises_the_agents_port() -> None:
    finding = planned({f"{KEY}.durable.port": "9999"})["gateway-listeners"]
    assert finding.level is Level.ERROR
    assert "durable.port" in (finding.change or "")


def test_an_agent_elsewhere_that_holds_no_answers_is_found() -> None:
    holding = AgentRegistration(2, 1, "", "", 0, gateway=("clients", "durable"))
    assert planned(registered={2: holding})["durable-topics"].level is Level.INFORMATION
    finding = planned(registered={2: holding, 3: replace(holding, broker_id=3, gateway=("clients",))})["durable-topics"]
    assert finding.level is Level.ERROR
    assert "answers are not held beside broker 3" in finding.found


def test_an_agent_in_front_of_its_broker_alone_needs_no_zones() -> None:
    finding = planned({f"{KEY}.zone.listeners": ""})["gateway-listeners"]
    assert finding.level is Level.OK
    assert "all zones" in finding.found
