"""Brokers of two Kafka versions in one cluster, as in the middle of a rolling upgrade, and the way to its end."""

from pathlib import Path

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_distribution import KAFKA_VERSION, KafkaDistributionError
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from tests.cluster.agent_views import MovedBytes, moved_bytes
from tests.cluster.conftest import IMPATIENT
from tests.cluster.replica_moves import move_leader
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script

pytestmark = [pytest.mark.thorough, pytest.mark.whole_machine]

LINKED_BYTES = 20_000


@pytest.mark.parametrize("older", ["4.1.2"])
def test_a_rolling_upgrade_of_kafka_keeps_links_in_both_directions_and_every_record(
    tmp_path: Path, topic: str, older: str
) -> None:
    # all of the older Kafka -> broker 3 is upgraded while records flow
    # -> links from old to new and from new to old, in partitions of one follower each: replicas are equal
    # -> broker 2 is upgraded -> broker 1 -> the newer metadata version: every record is there
    agents = AgentsMode(LocalDirectoryStore(3, 3))
    with LocalCluster.create(tmp_path / "cluster", settings=ClusterSettings(agents, IMPATIENT)) as cluster:
        try:
            cluster.use_kafka(older, *cluster.broker_ids)
        except KafkaDistributionError as error:
            pytest.skip(f"Kafka {older} is not here: {error}")
        cluster.start()
        with Script(cluster, topic) as script:
            script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
            script.produce(PLAIN, TRANSACTIONS)
            upgrade(script, 3)
            with Script(cluster, f"{topic}-pairs") as pairs:
                pairs.create_topic(assignment=[[1, 3], [3, 1], [2, 3], [3, 2]])
                pairs.produce(PLAIN, ZSTD)
                expect_links_of_each_partition(pairs)
                pairs.expect_promises()
            for broker_id in (2, 1):
                upgrade(script, broker_id)
                expect_links_of_each_partition(script)
            tool, release = "org.apache.kafka.tools.FeatureCommand", KAFKA_VERSION.rpartition(".")[0]
            cluster.tools.run(
                tool, ["--bootstrap-server", cluster.bootstrap_servers, "upgrade", "--release-version", release]
            )
            script.expect_records_to_flow()
            expect_links_of_each_partition(script)
            script.expect_promises()


def upgrade(script: Script, broker_id: int) -> None:
    """Its broker is ended as by a service manager, and the newest Kafka starts on its log directory."""
    cluster = script.cluster
    assert cluster.broker(broker_id).terminate(60)
    cluster.use_kafka(KAFKA_VERSION, broker_id)
    script.expect_records_to_flow()
    cluster.start_broker(broker_id)
    cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
    script.expect_records_to_flow()


def expect_links_of_each_partition(script: Script) -> None:
    """From the broker that comes first among its replicas, and next to nothing of it inline."""
    admin, topic = script.cluster.admin, script.topic
    for state in admin.partitions(topic):
        move_leader(admin, topic, state.partition, state.replicas[0])
    admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
    script.expect_records_to_flow()
    before = moved_bytes(script.cluster, topic)
    grown: dict[int, MovedBytes] = {}

    def all_are_linked() -> bool:
        now = moved_bytes(script.cluster, topic)
        grown.update({one: now[one].since(before[one]) for one in now})
        return all(one.linked > LINKED_BYTES for one in grown.values())

    wait_until(all_are_linked, "record bytes of each partition travel as links", PATIENCE_S)
    assert all(one.inline < one.linked / 10 for one in grown.values()), grown
