"""The lines that put an agent in front of each broker: clients keep their addresses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from cli.fleet import gateway
from cli.main import build_app
from gateway.planning.front import FrontPlan, FrontRules, front_plans
from gateway.planning.planned_ports import PlanError
from kafka_cluster.responses import DescribedBroker
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint, parse_broker_properties


def keys_of(broker_id: int, protocol: str = "SASL_SSL", **keys: str) -> dict[str, str]:
    return {
        "node.id": str(broker_id),
        "process.roles": "broker",
        "broker.rack": f"az{broker_id}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "REPLICATION",
        "listeners": f"EXTERNAL://:9092,REPLICATION://127.0.0.1:{9190 + broker_id}",
        "advertised.listeners": f"EXTERNAL://kafka-{broker_id}.example.com:9092,"
        f"REPLICATION://127.0.0.1:{9190 + broker_id}",
        "listener.security.protocol.map": f"EXTERNAL:{protocol},REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
        **{key.replace("_", "."): value for key, value in keys.items()},
    }


def broker_of(keys: dict[str, str]) -> BrokerProperties:
    return parse_broker_properties(keys, Path("server.properties"))


def asked(brokers: dict[int, BrokerProperties]) -> dict[int, Endpoint]:
    return {one: broker.advertised_listeners["EXTERNAL"] for one, broker in brokers.items()}


def plans_of(*keys: dict[str, str], rules: FrontRules | None = None) -> dict[int, FrontPlan]:
    brokers = {int(one["node.id"]): broker_of(one) for one in keys}
    return front_plans(asked(brokers), brokers, rules or FrontRules())


@pytest.mark.parametrize(
    ("protocol", "on_loopback"),
    [("PLAINTEXT", "PLAINTEXT"), ("SASL_PLAINTEXT", "SASL_PLAINTEXT"), ("SASL_SSL", "SASL_PLAINTEXT")],
)
def test_each_round_is_what_kafka_takes_and_clients_keep_their_address(protocol: str, on_loopback: str) -> None:
    before = keys_of(1, protocol)
    plan = plans_of(before, keys_of(2, protocol))[1]
    first = broker_of({**before, **plan.first})
    assert first.listeners["EXTERNAL"] == Endpoint("", 9092)
    assert first.advertised_listeners["AGENTS"] == Endpoint("kafka-1.example.com", 19097)
    assert first.security_protocols["AGENTS"] == protocol

    then = broker_of({**before, **plan.first, **plan.then})
    assert then.listeners["EXTERNAL"] == Endpoint("127.0.0.1", 19401)
    assert then.advertised_listeners["EXTERNAL"] == Endpoint("kafka-1.example.com", 9092)
    assert then.security_protocols["EXTERNAL"] == on_loopback
    assert then.listeners["REPLICATION"] == Endpoint("127.0.0.1", 9191)
    assert plan.then["remote.wal.agent.bootstrap.servers"] == "kafka-1.example.com:19097,kafka-2.example.com:19097"
    assert ("remote.wal.gateway.plaintext.accepted" in plan.then) is not protocol.endswith("SSL")


def test_the_agent_takes_its_lines() -> None:
    plan = plans_of(keys_of(1, "SASL_PLAINTEXT"))[1]
    agent = {
        "log.dirs": "/data/kafka",
        "remote.log.wal.storage.system.enable": "true",
        "remote.log.wal.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
        "rsm.wal.config.directory": "/data/objects",
        "remote.wal.agent.state.directory": "/data/agent",
        "inter.broker.listener.name": "REPLICATION",
        "remote.wal.agent.replica.port.base": "9190",
        "remote.wal.agent.peers": "1@10.0.0.1:19090,2@10.0.0.2:19090",
        "remote.wal.agent.plaintext.enable": "true",
    }
    broker = broker_of(
        {
            **keys_of(1, "SASL_PLAINTEXT"),
            **agent,
            **plan.first,
            **plan.then,
        }
    )
    assert agent_settings(broker, Path("server.properties")).gateway.by_agents == {"EXTERNAL"}


def test_the_way_back_leads_to_what_the_agent_takes_while_clients_and_brokers_share_a_listener() -> None:
    before = keys_of(1, "PLAINTEXT") | {"remote.wal.agent.plaintext.enable": "true", "log.dirs": "/data/kafka"}
    plan = plans_of(before)[1]
    inter_broker = {"inter.broker.listener.name": "EXTERNAL"}
    moved = {**before, **plan.first, **plan.then, "remote.log.wal.storage.system.enable": "true"}
    back = {**moved, **plan.first}
    with pytest.raises(AgentSettingsError, match=r"take the remote\.wal\.gateway\.\* lines out"):
        agent_settings(broker_of({**back, **inter_broker}), Path("server.properties"))
    out = {key: value for key, value in back.items() if not key.startswith("remote.wal.gateway.")}
    for keys in (out, {**out, **inter_broker}):
        assert not agent_settings(broker_of(keys), Path("server.properties")).gateway.enable


def test_a_broker_behind_its_agent_is_left_as_it_is_and_the_back_line_is_that_of_the_first_round() -> None:
    before = keys_of(1)
    plan = plans_of(before)[1]
    moved = {**before, **plan.first, **plan.then}
    assert plans_of(moved) == {1: FrontPlan()}
    back = {**moved, **plan.first}
    again = plans_of(back)[1]
    assert again.first == {}
    assert {key: set(value.split(",")) for key, value in again.then.items()} == {
        key: set(value.split(",")) for key, value in plan.then.items()
    }


def test_brokers_that_share_a_host_get_a_port_for_agents_each() -> None:
    at_one_host = [
        keys_of(one, advertised_listeners=f"EXTERNAL://kafka:909{one},REPLICATION://127.0.0.1:919{one}")
        | {"listeners": f"EXTERNAL://:909{one},REPLICATION://127.0.0.1:919{one}"}
        for one in (1, 2)
    ]
    plans = plans_of(*at_one_host, keys_of(3))
    found = {one: broker_of({**keys_of(one), **plan.first}) for one, plan in plans.items()}
    advertised = {one: broker.advertised_listeners["AGENTS"] for one, broker in found.items()}
    assert advertised == {
        1: Endpoint("kafka", 19098),
        2: Endpoint("kafka", 19099),
        3: Endpoint("kafka-3.example.com", 19097),
    }
    assert {one: broker.listeners["AGENTS"].port for one, broker in found.items()} == {1: 19098, 2: 19099, 3: 19097}
    assert plans[1].then["remote.wal.agent.bootstrap.servers"] == "kafka:19098,kafka:19099,kafka-3.example.com:19097"


def test_agents_may_have_a_listener_already() -> None:
    keys = keys_of(
        1,
        listeners="EXTERNAL://:9092,INTERNAL://:9093,REPLICATION://127.0.0.1:9191",
        advertised_listeners="EXTERNAL://kafka-1:9092,INTERNAL://inside-1:9093,REPLICATION://127.0.0.1:9191",
        listener_security_protocol_map="EXTERNAL:SSL,INTERNAL:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    plan = plans_of(keys, rules=FrontRules(agents_listener="internal"))[1]
    assert plan.first == {}
    assert plan.then["remote.wal.agent.bootstrap.servers"] == "inside-1:9093"


@pytest.mark.parametrize(
    ("keys", "rules", "told"),
    [
        (keys_of(1, inter_broker_listener_name="EXTERNAL"), FrontRules(), "also the listener among brokers"),
        (keys_of(1), FrontRules("NOSUCH"), "no listener NOSUCH"),
        (keys_of(1), FrontRules(agents_listener="EXTERNAL"), "another listener"),
        (keys_of(1), FrontRules(loopback_port_base=9190), "port 9191 would be used twice"),
        (keys_of(1), FrontRules(loopback_port_base=65535), "above 65535"),
    ],
)
def test_what_no_plan_is_made_of_is_named(keys: dict[str, str], rules: FrontRules, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        plans_of(keys, rules=rules)


def test_a_listener_must_be_named_if_the_asked_address_is_none_of_the_brokers() -> None:
    with pytest.raises(PlanError, match="--listener"):
        front_plans({1: Endpoint("balancer", 9092)}, {1: broker_of(keys_of(1))}, FrontRules())


def test_each_round_is_headed_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [DescribedBroker(1, "az1", "kafka-1.example.com", 9092)]
    monkeypatch.setattr(gateway, "_asked", lambda _sites: (told, {1: broker_of(keys_of(1))}))
    printed = CliRunner().invoke(
        build_app(), ["gateway", "plan", "--front", "--bootstrap-server", "kafka-1.example.com:9092"]
    )
    heads = [line.split(":")[0] for line in printed.output.splitlines() if "round:" in line]
    assert heads == ["# first round", "# second round"]
    assert "Finish it on all brokers before the second" in printed.output
    assert "Take the\n# remote.wal.gateway.* lines out" in printed.output


def test_where_clients_come_by_agents_already_nothing_is_to_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, told = plans_of(keys_of(1))[1], [DescribedBroker(1, "az1", "kafka-1.example.com", 9092)]
    moved = broker_of({**keys_of(1), **plan.first, **plan.then})
    monkeypatch.setattr(gateway, "_asked", lambda _sites: (told, {1: moved}))
    printed = CliRunner().invoke(build_app(), ["gateway", "plan", "--front", "--bootstrap-server", "kafka-1:9092"])
    assert printed.output.startswith("# all clients come by agents already: nothing to change\n")
    assert "Replace" not in printed.output
