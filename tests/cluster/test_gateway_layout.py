"""Brokers have the lines of a plan and no other listener for clients; agents reach them as the plan says.

Zones az1 to az3 with a broker each. Answers are held, so that clients of every zone come by agents, and no record is
acknowledged before the leader's agent has published where it is: in a partition that another broker leads.
"""

from functools import partial

import pytest
from confluent_kafka import KafkaError, Message, Producer

from local_cluster.cluster import LocalCluster, agent_is_ready
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC, metadata_partition
from tests.cluster.agent_views import describe
from tests.cluster.gateway_cluster import THREE_ZONES, with_gateways
from tests.cluster.quick_agent import quick
from tests.cluster.replica_moves import move_leader
from tests.cluster.script import PATIENCE_S

GATEWAYS = ZoneGateways(THREE_ZONES, durable=True)
LEADER, DEAD, OTHER = 1, 2, 3
PARTITIONS = 12
IMPATIENT = {
    **quick(bypass_after_s=1, bypass_return_s=2),
}

pytestmark = pytest.mark.timeout(600)


# The broker beside the dead agent follows nobody; until it is out of sync, what is published waits for it.
cluster = with_gateways(GATEWAYS, IMPATIENT, {"replica.lag.time.max.ms": "8000"}, bypass=True)


def lead_durable_topic(cluster: LocalCluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER, OTHER]] * PARTITIONS)
    set_topics(cluster.bootstrap_servers, [topic], TopicSettings(enable=True, durable=True))
    wait_until_led(cluster, topic)


def wait_until_led(cluster: LocalCluster, topic: str) -> None:
    def led() -> int:
        return sum(one["topic"] == topic for one in describe(cluster, LEADER)["partitions"])

    wait_until(lambda: led() == PARTITIONS, "the agent leads the topic", PATIENCE_S)


def expect_acknowledged(cluster: LocalCluster, topic: str) -> None:
    """A record for each partition, once its agent has published where it is."""
    producer = Producer(
        {"bootstrap.servers": GATEWAYS.own_zone_address(cluster.layout, LEADER), "acks": "all", "log_level": 0}
    )
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    for partition in range(PARTITIONS):
        producer.produce(topic, b"held", partition=partition, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []


def test_while_another_agent_is_dead_an_agent_starts_and_stores_what_producers_wait_for(
    cluster: LocalCluster, topic: str
) -> None:
    lead_durable_topic(cluster, topic)
    # What the leader's agent publishes goes to the broker beside the dead one.
    partitions = len(cluster.admin.partitions(METADATA_TOPIC))
    move_leader(cluster.admin, METADATA_TOPIC, metadata_partition(LEADER, partitions), DEAD)
    expect_acknowledged(cluster, topic)
    cluster.agent(DEAD).kill()
    expect_acknowledged(cluster, topic)
    cluster.agent(LEADER).kill()
    cluster.start_agent(LEADER, timeout_s=PATIENCE_S)
    wait_until_led(cluster, topic)
    expect_acknowledged(cluster, topic)
    assert not cluster.agent(DEAD).is_alive()
    cluster.start_agent(DEAD)


def test_when_all_agents_were_dead_each_gets_ready_though_no_other_one_is(cluster: LocalCluster, topic: str) -> None:
    lead_durable_topic(cluster, topic)
    for broker_id in cluster.broker_ids:
        cluster.agent(broker_id).kill()
    cluster.start_agent(LEADER, wait=False)
    wait_until(partial(agent_is_ready, cluster.layout, LEADER), "it is ready alone", PATIENCE_S)
    for broker_id in cluster.broker_ids:
        cluster.start_agent(broker_id)
    wait_until_led(cluster, topic)
    expect_acknowledged(cluster, topic)
