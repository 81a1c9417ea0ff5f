"""Agents come to some brokers, go, and come to all, over the same data directories."""

from dataclasses import dataclass

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings, replica_host
from local_cluster.cluster import LocalCluster
from local_cluster.workload.replica_comparison import ReplicaComparison, compare_replicas
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script


def start_with_agents_at_1_and_2(cluster: LocalCluster) -> None:
    """Broker 3 has none: it dials the others' agents as it would dial brokers, and is dialled directly."""
    layout = cluster.layout
    peers = {broker_id: f"127.0.2.{broker_id}:{layout.replica_port(broker_id)}" for broker_id in layout.broker_ids}
    listed = ",".join(f"{broker_id}@{address}" for broker_id, address in peers.items())
    cluster.settings = ClusterSettings(
        overrides=IMPATIENT,
        broker_overrides={
            broker_id: {"remote.wal.agent.peer.listener": address, "remote.wal.agent.peers": listed}
            for broker_id, address in peers.items()
        },
    )
    cluster.configure(AgentsMode())
    dials = {
        1: {1: "127.0.0.1", 2: layout.agent_replica_host(1), 3: "127.0.0.1"},
        2: {1: layout.agent_replica_host(2), 2: "127.0.0.1", 3: "127.0.0.1"},
        3: {1: "127.0.2.1", 2: "127.0.2.2", 3: "127.0.0.1"},
    }
    for broker_id, addresses in dials.items():
        hosts = layout.hosts_file(broker_id)
        kept = [line for line in hosts.read_text().splitlines() if "replica-" not in line]
        kept += [f"{address} {replica_host(other)}" for other, address in addresses.items()]
        hosts.write_text("\n".join(kept) + "\n")
    cluster.format()
    for broker_id in (1, 2):
        cluster.start_agent(broker_id, wait=False)
    for broker_id in layout.broker_ids:
        cluster.start_broker(broker_id, wait=False)
    cluster.wait_for_brokers(layout.broker_ids)
    for broker_id in (1, 2):
        cluster.wait_for_agent(broker_id)


@dataclass(frozen=True, slots=True)
class Story:
    topic: str
    records: int
    replicas: ReplicaComparison


def expect_unchanged(cluster: LocalCluster, *stories: Story) -> None:
    """The topics hold what they held when their scripts ended, on every replica, and it can be read."""
    for story in stories:
        cluster.admin.wait_for_full_isr(story.topic)
        now = compare_replicas(cluster, story.topic)
        assert [found.sha256 for found in now.partitions] == [found.sha256 for found in story.replicas.partitions]
        assert cluster.tools.consume(story.topic, records=story.records) >= story.records


def play(cluster: LocalCluster, topic: str, *, inline_too: bool = False) -> Story:
    """Three partitions, one led by each broker; links wherever two agents meet, and some bytes that are not linked."""
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 1, 3], [3, 1, 2]])
        script.produce(PLAIN, ZSTD, TRANSACTIONS)
        script.expect_links_to_be_used()
        if inline_too:
            script.expect_inline_bytes()
        script.expect_records_to_flow()
        report = script.expect_promises()
        return Story(topic, report.consumed, compare_replicas(cluster, topic))


@pytest.mark.thorough  # the rollout goes in and out under load
def test_agents_come_and_go_and_the_data_stay(make_cluster: ClusterFactory, topic: str) -> None:
    # 1 and 2 link to each other, 3 gets all bytes as they are
    cluster = make_cluster(start=False)
    start_with_agents_at_1_and_2(cluster)
    mixed = play(cluster, f"{topic}-mixed", inline_too=True)

    # agents away, listeners put back: stock Kafka
    cluster.stop()
    cluster.configure(None)
    cluster.start()
    expect_unchanged(cluster, mixed)
    stock = play(cluster, f"{topic}-stock")

    # agents at every broker
    cluster.stop()
    cluster.settings = ClusterSettings(overrides=IMPATIENT)
    cluster.configure(AgentsMode())
    cluster.start()
    expect_unchanged(cluster, mixed, stock)
    play(cluster, f"{topic}-agents")
