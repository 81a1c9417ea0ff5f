"""Agents in shadow beside stock brokers: what they tell, what they store, and that nobody misses them."""

import json
import socket
from typing import Any

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import LATEST, KafkaCluster
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from metadata_topic.topic.topic import METADATA_TOPIC, MetadataTopicSettings
from tests.cluster.agent_views import describe
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PATIENCE_S, Script

LOAD = ProducerPlan("load", acks="1", payload_bytes=10_000, records_per_s=300)
LEADERS = (1, 2)
SHADOW = {
    "remote.wal.agent.mode": "shadow",
    **quick(cluster_interval_s=0.5),
}


def told(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [describe(cluster, one) for one in LEADERS]


def linked(cluster: LocalCluster) -> int:
    return sum(one["linked_bytes"] for page in told(cluster) for one in page["partitions"])


def expect_a_share(script: Script) -> None:
    """Some of the load would be linked, and the fleet's screen says so."""
    wait_until(lambda: linked(script.cluster) > 10_000_000, "10 MB would be linked", PATIENCE_S)
    shown = json.loads(ask_cluster(script.cluster, "status", "--json", exit_code=(0, 1, 3)))
    rows = {row["broker"]: row for row in shown["brokers"]}
    assert [rows[one]["agent"] for one in (1, 2, 3)] == ["ready"] * 3, rows
    for one in LEADERS:
        assert 0 < rows[one]["linked_share"]["hour"] <= 1
        assert rows[one]["shadow"]["producers_slowed"].startswith("unknown")
        assert rows[one]["shadow"]["dollars"]["stock"] > 0


def kill_agents(cluster: LocalCluster) -> None:
    for one in cluster.broker_ids:
        cluster.agent(one).kill()


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True


def metadata_records(cluster: LocalCluster) -> int:
    asked = KafkaCluster(KafkaClientConfig(cluster.bootstrap_servers), "test", 30.0)
    partitions = [(METADATA_TOPIC, number) for number in range(MetadataTopicSettings().num_partitions)]
    return sum(asked.offsets(partitions, LATEST).get_all().values())


@pytest.mark.thorough
def test_agents_in_shadow_tell_what_links_would_do_and_nobody_misses_them(
    make_cluster: ClusterFactory, topic: str
) -> None:
    # stock listeners, agents in shadow -> a share, nothing stored -> killed -> all records there, no replica was out of
    # sync
    cluster = make_cluster(ClusterSettings(QuickAgents(overrides=SHADOW), IMPATIENT))
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1]], linked=False)
        set_topics(cluster.bootstrap_servers, [topic])
        wait_until(lambda: len(script.partitions_of_agents()) == len(LEADERS), "the agents lead the topic", PATIENCE_S)
        script.produce(LOAD)
        with script.without_a_shrinking_isr():
            expect_a_share(script)
            assert not any(path.is_file() for path in cluster.layout.object_store_directory.rglob("*"))
            assert metadata_records(cluster) == 0
            layout = cluster.layout
            closed = [layout.peer_address(one) for one in layout.broker_ids]
            closed += [f"{layout.agent_replica_host(1)}:{layout.replica_port(other)}" for other in (2, 3)]
            assert not any(map(is_open, closed))

            kill_agents(cluster)
            script.expect_records_to_flow()
        script.expect_promises()
