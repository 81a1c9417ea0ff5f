"""In, up and out: each step leaves a cluster in which every broker reaches every other."""

from dataclasses import replace

import pytest

from rollout.facts import AgentState
from rollout.judgement import next_step
from rollout.listeners import AgentListener
from rollout.steps import RolloutError, State, Step, Target, Wish, plan
from tests.rollout.model_cluster import LISTENER, NEW, OLD, STOCK, ModelCluster

MANY = {
    "defaults": {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"},
    "protocol alone": {
        "listeners": "PLAINTEXT://:9092,SSL://:9093",
        "security.inter.broker.protocol": "SSL",
    },
    "a listener of their own": {
        **STOCK,
        "listeners": "CLIENT://0.0.0.0:9092,REPLICAS://10.0.0.{id}:9094,CONTROLLER://0.0.0.0:9093",
        "advertised.listeners": "CLIENT://kafka-{id}:9092,REPLICAS://10.0.0.{id}:9094",
        "listener.security.protocol.map": "CLIENT:SASL_SSL,REPLICAS:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "REPLICAS",
    },
    "as documented": STOCK,
}


def wish(target: Target, back_to: str | None = None) -> Wish:
    return Wish(target, NEW, LISTENER, back_to)


def follow(cluster: ModelCluster, wanted: Wish) -> list[str]:
    """As an operator does, one step at a time; the steps that were taken."""
    taken: list[str] = []
    while True:
        told = next_step(cluster.facts, plan(cluster.facts, wanted), wanted.listener)
        assert not told.obstacles
        if told.step is None:
            return taken
        cluster.take(told.step)
        taken.append(told.step.id)
        assert not cluster.unreached(), f"after {told.step.id}"
        assert len(taken) < 100, "it leads in circles"


@pytest.mark.parametrize("lines", MANY.values(), ids=MANY)
@pytest.mark.parametrize("brokers", [1, 3, 5])
def test_in_and_out_leave_the_lines_as_they_were_and_all_reach_all_in_between(
    lines: dict[str, str], brokers: int
) -> None:
    cluster = ModelCluster.stock(brokers, lines)
    before = cluster.brokers
    assert not cluster.unreached()
    back_to = before[1].inter_broker_listener_name

    taken = follow(cluster, wish(Target.ENABLED))
    assert taken == [f"{name}:{one}" for name in ("advertise", "agent", "switch") for one in range(1, brokers + 1)]
    assert {one.inter_broker_listener_name for one in cluster.brokers.values()} == {"WAL"}
    assert {one.security_protocols["WAL"] for one in cluster.brokers.values()} == {
        before[1].security_protocols[back_to]
    }

    cluster.topics = ("orders",)
    taken = follow(cluster, wish(Target.REMOVED, back_to))
    names = ("switch-back", "stop-agent", "withdraw")
    assert taken == ["topics", *(f"{name}:{one}" for name in names for one in range(1, brokers + 1))]
    for one, broker in cluster.brokers.items():
        assert broker.listeners == before[one].listeners
        assert broker.advertised_listeners == before[one].advertised_listeners
        assert broker.security_protocols == before[one].security_protocols
        assert broker.inter_broker_listener_name == back_to
        assert not [key for key in broker.raw if key.startswith(("remote.wal.", "remote.log.wal."))]


def test_agents_are_upgraded_one_after_the_other() -> None:
    cluster = ModelCluster.stock()
    follow(cluster, wish(Target.ENABLED))
    assert {one.release for one in cluster.agents.values()} == {OLD}
    steps = plan(cluster.facts, wish(Target.UPGRADED))
    assert OLD in steps[0].undo
    assert follow(cluster, wish(Target.UPGRADED)) == ["upgrade:1", "upgrade:2", "upgrade:3"]
    assert {one.release for one in cluster.agents.values()} == {NEW}


def test_an_upgraded_agent_that_is_not_ready_is_not_done() -> None:
    cluster = ModelCluster.stock()
    follow(cluster, wish(Target.ENABLED))
    cluster.set_agent(1, AgentState.NOT_READY, NEW, "starting")
    assert plan(cluster.facts, wish(Target.UPGRADED))[0].state is State.LEFT


def test_half_way_in_the_way_out_is_the_shorter_one() -> None:
    cluster = ModelCluster.stock()
    for _ in range(7):  # one broker is switched
        told = next_step(cluster.facts, plan(cluster.facts, wish(Target.ENABLED)), LISTENER)
        assert told.step is not None
        cluster.take(told.step)
    assert follow(cluster, wish(Target.REMOVED))[:2] == ["switch-back:1", "stop-agent:1"]


def test_a_listener_of_that_name_elsewhere_is_put_right_in_its_place() -> None:
    cluster = ModelCluster.stock()
    follow(cluster, wish(Target.ENABLED))
    elsewhere = AgentListener(port_base=20000, advertised_host="replica-{id}.internal")
    step = plan(cluster.facts, replace(wish(Target.ENABLED), listener=elsewhere))[0]
    assert (step.id, step.state) == ("advertise:1", State.LEFT)
    assert step.lines["listeners"] == "CLIENT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093,WAL://127.0.0.1:20001"
    assert step.lines["advertised.listeners"] == "CLIENT://kafka-1:9092,WAL://replica-1.internal:20001"


def test_a_protocol_that_is_asked_for_is_the_listeners() -> None:
    listener = AgentListener(protocol="PLAINTEXT")
    step = plan(ModelCluster.stock().facts, replace(wish(Target.ENABLED), listener=listener))[0]
    assert step.lines["listener.security.protocol.map"] == "CLIENT:SASL_SSL,CONTROLLER:SASL_SSL,WAL:PLAINTEXT"


def test_by_which_listener_to_go_back_is_asked_where_several_would_do() -> None:
    cluster = ModelCluster.stock(3, MANY["a listener of their own"])
    with pytest.raises(RolloutError, match=r"--back-to \(CLIENT, REPLICAS\)"):
        plan(cluster.facts, wish(Target.REMOVED))
    with pytest.raises(RolloutError, match="CONTROLLER: not advertised by all"):
        plan(cluster.facts, wish(Target.REMOVED, "CONTROLLER"))


def remarks(lines: dict[str, str], listener: AgentListener = LISTENER) -> str:
    return " ".join(plan(ModelCluster.stock(3, lines).facts, replace(wish(Target.ENABLED), listener=listener))[0].do)


def test_what_the_listener_needs_beside_its_lines_is_told() -> None:
    assert "listener.name.client.* it needs under listener.name.wal.* too" in remarks(STOCK)
    plain = AgentListener(protocol="PLAINTEXT")
    assert "ANONYMOUS" not in remarks(STOCK, plain)
    assert "ANONYMOUS" in remarks({**STOCK, "authorizer.class.name": "StandardAuthorizer"}, plain)


def test_without_agents_there_is_nothing_to_upgrade() -> None:
    with pytest.raises(RolloutError, match="no agent is registered"):
        plan(ModelCluster.stock().facts, wish(Target.UPGRADED))


def states(steps: list[Step], name: str) -> list[State]:
    return [step.state for step in steps if step.name == name]


def test_a_broker_that_restarts_keeps_its_steps() -> None:
    cluster = ModelCluster.stock()
    steps = [step.id for step in plan(cluster.facts, wish(Target.ENABLED))]
    cluster.away = {1}
    found = plan(cluster.facts, wish(Target.ENABLED))
    assert [step.id for step in found] == steps
    assert states(found, "advertise") == [State.UNKNOWN, State.LEFT, State.LEFT]


def test_what_cannot_be_asked_is_neither_done_nor_left() -> None:
    cluster = ModelCluster.stock()
    cluster.mute = {2}
    cluster.set_agent(3, AgentState.UNKNOWN)
    steps = plan(cluster.facts, wish(Target.ENABLED))
    assert states(steps, "advertise") == [State.LEFT, State.UNKNOWN, State.LEFT]
    assert states(steps, "agent") == [State.LEFT, State.LEFT, State.UNKNOWN]
    assert states(plan(cluster.facts, wish(Target.REMOVED)), "stop-agent") == [State.DONE, State.DONE, State.UNKNOWN]
