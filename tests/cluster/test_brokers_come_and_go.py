"""A fourth broker joins three that run, with its agent, and leaves; an agent moves. No other is started anew."""

import gc
from pathlib import Path

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import ClusterSettings, server_properties
from local_cluster.cluster import LocalCluster
from local_cluster.layout import ClusterLayout
from local_cluster.polling import wait_until
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import PartitionReplicas
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, describe, read_metrics
from tests.cluster.conftest import IMPATIENT
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import remote_wal
from tests.cluster.replica_moves import move_leader
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script

OLD, MOVES, NEW = (1, 2, 3), 3, 4
FOLLOW_IT = (2, 3)
BYPASS = "remote.wal.agent.bypass"
AGENTS = QuickAgents(bypass=True, overrides=quick(bypass_after_s=1, bypass_return_s=2))


def settings_of(layout: ClusterLayout, moved: dict[str, str]) -> ClusterSettings:
    """The three are the controllers, and list each other's agents and ways past them alone; the fourth lists all.

    `moved` are keys of the agent that moves.
    """
    three = {
        "remote.wal.agent.peers": ",".join(f"{one}@{layout.peer_address(one)}" for one in OLD),
        BYPASS: ",".join(f"{one}@{layout.bypass_address(one)}" for one in OLD),
    }
    voters = ",".join(f"{one}@{layout.controller_address(one)}" for one in OLD)
    listeners = server_properties(layout, NEW, ClusterSettings(AGENTS))["listeners"].split(",")
    alone = {
        "process.roles": "broker",
        "listeners": ",".join(one for one in listeners if not one.startswith("CONTROLLER")),
    }
    overrides = {**IMPATIENT, "controller.quorum.voters": voters}
    return ClusterSettings(AGENTS, overrides, {1: three, 2: three, MOVES: {**three, **moved}, NEW: alone})


def start(cluster: LocalCluster, *broker_ids: int) -> None:
    for one in broker_ids:
        cluster.start_agent(one, wait=False)
        cluster.start_broker(one, wait=False)
    cluster.wait_for_brokers(broker_ids)
    for one in broker_ids:
        cluster.wait_for_agent(one)


def expect_links_of(cluster: LocalCluster, leader: int) -> None:
    """Its record bytes reach followers as links."""
    counters = AgentCounters(cluster, [leader])
    wait_until(
        lambda: counters.growth(RECORD_BYTES, path="linked") > 50_000, f"broker {leader} gives links", PATIENCE_S
    )


def expect_links_to(cluster: LocalCluster, follower: int) -> None:
    count = ("remote_wal_stage_seconds_count", (("stage", "spliced"),))
    before = read_metrics(cluster, follower)[count]
    wait_until(
        lambda: read_metrics(cluster, follower)[count] > before + 20, f"broker {follower} gets links", PATIENCE_S
    )


def expect_bypassed(cluster: LocalCluster, followers: tuple[int, ...], dead: list[int]) -> None:
    def bypassed() -> bool:
        return all(describe(cluster, one)["bypassed_agents"] == dead for one in followers)

    wait_until(bypassed, f"agents of {dead} are bypassed by {followers}", PATIENCE_S)


def command(cluster: LocalCluster, *words: str) -> None:
    """Run `remote-wal`, which asks broker 1."""
    remote_wal(cluster, *words, "--bootstrap-server", cluster.layout.client_address(1))


def partitions_on(cluster: LocalCluster, broker_id: int) -> list[PartitionReplicas]:
    with ReassignmentAdmin(KafkaClientConfig(cluster.layout.client_address(1))) as admin:
        return [one for one in admin.cluster().partitions if broker_id in one.replicas]


def move_agent(cluster: LocalCluster) -> None:
    """Its broker is started anew with it. Others list the address that it leaves."""
    cluster.broker(MOVES).terminate()
    cluster.agent(MOVES).terminate()
    address = f"127.0.4.{MOVES}:{cluster.layout.peer_port(MOVES)}"
    own = {
        "remote.wal.agent.peer.listener": address,
        "remote.wal.agent.peers": f"{MOVES}@{address}",
        BYPASS: f"{MOVES}@{cluster.layout.bypass_address(MOVES)}",
    }
    cluster.settings = settings_of(cluster.layout, own)
    cluster.configure(cluster.settings.agents)
    start(cluster, MOVES)


def test_a_broker_joins_and_leaves_and_no_other_agent_is_restarted(tmp_path: Path, topic: str) -> None:
    play(tmp_path, topic)
    gc.collect()  # what is left of refused connections, while that is allowed


def play(tmp_path: Path, topic: str) -> None:
    with LocalCluster.create(tmp_path / "cluster", brokers=4) as cluster:
        cluster.settings = settings_of(cluster.layout, {})
        cluster.configure(cluster.settings.agents)
        cluster.format()
        start(cluster, *OLD)
        agents = {one: cluster.agent(one).pid for one in OLD}

        # partitions of three brokers, and records that flow from here to the end
        with Script(cluster, topic) as script:
            script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
            script.produce(PLAIN, ZSTD)
            script.expect_links_to_be_used()

            # the fourth comes, and gets its share: it follows, and then leads
            start(cluster, NEW)
            command(cluster, "reassign", "join", str(NEW), "--seconds", "5", "--json")
            [given, *_] = [one for one in partitions_on(cluster, NEW) if one.topic_partition.topic == topic]
            led = given.topic_partition.partition
            move_leader(cluster.admin, topic, led, next(one for one in given.replicas if one != NEW))
            expect_links_to(cluster, NEW)
            move_leader(cluster.admin, topic, led, NEW)
            expect_links_of(cluster, NEW)

            # its agent dies: those that follow it, and do not list it, get past it, until it is back
            cluster.agent(NEW).kill()
            expect_bypassed(cluster, FOLLOW_IT, [NEW])
            script.expect_records_to_flow()
            cluster.start_agent(NEW)
            expect_bypassed(cluster, FOLLOW_IT, [])
            expect_links_of(cluster, NEW)

            # and goes
            command(cluster, "reassign", "drain", str(NEW), "--json")
            assert partitions_on(cluster, NEW) == []
            cluster.broker(NEW).terminate()
            script.stop_agent(NEW)
            wait_until(lambda: NEW not in cluster.admin.registered_brokers(), "the fourth is gone", PATIENCE_S)
            config = str(cluster.layout.server_properties(1))
            remote_wal(cluster, "decommission", str(NEW), "--heir", "1", "--broker-config", config)
            logs = [cluster.agent(one).spec.log_path for one in OLD]
            wait_until(lambda: all("peer_left" in log.read_text() for log in logs), "all agents forget it", PATIENCE_S)
            script.expect_records_to_flow()
            assert {one: cluster.agent(one).pid for one in OLD} == agents

            # an agent moves; it found the others, of which its list has none, where they registered
            del agents[MOVES]
            move_agent(cluster)
            cluster.admin.wait_for_full_isr(topic)
            move_leader(cluster.admin, topic, 2, MOVES)
            expect_links_of(cluster, MOVES)
            report = script.expect_promises()
            assert report.sent == report.acknowledged, "no request was lost to the moves"

        assert {one: cluster.agent(one).pid for one in agents} == agents
