"""No further step while something is not as it should be, and the reason is told."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cli.rollout import exit_code
from rollout.facts import AgentState
from rollout.judgement import Obstacle, Standing, next_step, obstacles, standings
from rollout.steps import Target, Wish, plan
from tests.rollout.model_cluster import LISTENER, OLD, ModelCluster

WISH = Wish(Target.ENABLED, OLD, LISTENER)


def led_in(steps: int = 9) -> ModelCluster:
    cluster = ModelCluster.stock()
    for step in plan(cluster.facts, WISH)[:steps]:
        cluster.take(step)
    return cluster


def found(cluster: ModelCluster) -> list[Obstacle]:
    return list(obstacles(cluster.facts, LISTENER))


def lose_a_broker(cluster: ModelCluster) -> None:
    cluster.away = {2}


def lose_a_replica(cluster: ModelCluster) -> None:
    cluster.not_in_sync = tuple(f"orders-{one}" for one in range(7))


def lose_an_agent(cluster: ModelCluster) -> None:
    cluster.set_agent(2, AgentState.SILENT, told="refused")


def forget_an_agent(cluster: ModelCluster) -> None:
    del cluster.agents[2]


def break_an_agent(cluster: ModelCluster) -> None:
    cluster.set_agent(2, AgentState.NOT_READY, told="settings not read")


def move_a_listener(cluster: ModelCluster) -> None:
    lines = cluster.files[2]
    lines["advertised.listeners"] = lines["advertised.listeners"].replace("19902", "19909")


def hide_an_agent(cluster: ModelCluster) -> None:
    cluster.set_agent(2, AgentState.UNKNOWN, told="loopback alone")


def hide_a_broker(cluster: ModelCluster) -> None:
    cluster.mute = {2}


TROUBLES: dict[Callable[[ModelCluster], None], tuple[int | None, str, int]] = {
    lose_a_broker: (2, "the broker is not there", 1),
    lose_a_replica: (None, "7 partitions are under-replicated or without a leader (orders-0, ", 1),
    lose_an_agent: (2, "(does not answer: refused); start it", 1),
    forget_an_agent: (2, "no agent is registered for it", 1),
    break_an_agent: (2, "(not ready: settings not read)", 1),
    move_a_listener: (2, "which it does not advertise at 127.0.0.1:19902", 1),
    hide_an_agent: (2, "cannot be asked: loopback alone", 3),
    hide_a_broker: (2, "does not tell its settings: it says nothing", 3),
}


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_what_is_wrong_is_told_and_holds_the_next_step_back(trouble: Callable[[ModelCluster], None]) -> None:
    cluster = led_in(8)
    for one in (1, 2):
        assert cluster.brokers[one].inter_broker_listener_name == "WAL"
    assert not found(cluster)
    trouble(cluster)
    broker_id, told, code = TROUBLES[trouble]
    [obstacle] = found(cluster)
    assert (obstacle.broker_id, told in obstacle.what) == (broker_id, True), obstacle.what
    assert exit_code((obstacle,)) == code
    assert next_step(cluster.facts, plan(cluster.facts, WISH), LISTENER).obstacles == (obstacle,)


def test_an_agent_that_nobody_depends_on_yet_holds_nothing_back_but_its_own_step() -> None:
    cluster = led_in(6)
    cluster.set_agent(2, AgentState.SILENT)
    told = next_step(cluster.facts, plan(cluster.facts, WISH), LISTENER)
    assert told.step is not None
    assert (told.step.id, told.obstacles) == ("agent:2", ())


def test_a_step_that_cannot_be_looked_at_is_not_given_again() -> None:
    cluster = led_in(6)
    cluster.set_agent(2, AgentState.UNKNOWN, told="loopback alone")
    told = next_step(cluster.facts, plan(cluster.facts, WISH), LISTENER)
    [one] = told.obstacles
    assert one.is_unknown
    assert "loopback alone" in one.what


def test_what_is_wrong_counts_more_than_what_is_not_known() -> None:
    assert exit_code(()) == 0
    assert exit_code((Obstacle("?", is_unknown=True), Obstacle("!"))) == 1


def test_where_each_broker_stands_is_told() -> None:
    cluster = led_in(7)
    cluster.away = {3}
    cluster.set_agent(2, AgentState.READY, told="degraded: the store is slow")
    assert standings(cluster.facts, LISTENER) == {
        1: Standing("replicates through its agent", "ready", OLD, ""),
        2: Standing("advertises WAL", "ready", OLD, "degraded: the store is slow"),
        3: Standing("not there", "ready", OLD, ""),
    }
    assert standings(ModelCluster.stock().facts, LISTENER)[1] == Standing("stock", "none", "", "")


def test_a_listener_of_another_name_is_not_taken_for_stock_where_agents_stand_beside_the_brokers() -> None:
    cluster = led_in()
    where = standings(cluster.facts, replace(LISTENER, name="INTERNAL"))[1].where
    assert where == "replicates by WAL at 127.0.0.1:19901: name it by --listener, if it is the agents'"
