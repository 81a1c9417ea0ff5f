"""acks=all by agents that hold the answers: what is acknowledged is replicated, and brokers do not stand still.

Zones az1 to az3 with a broker each. Producers of az1 come by their gateway, those of az2 by broker 2's own agent.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.topic_switch import set_topics
from local_cluster.zone_gateways import ZoneGateways
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from tests.cluster.agent_views import AgentCounters
from tests.cluster.conftest import IMPATIENT
from tests.cluster.gateway_cluster import THREE_ZONES, gateway_cluster
from tests.cluster.script import PATIENCE_S
from tests.cluster.test_gateway_durable import NumberedProducer, read

GATEWAYS = ZoneGateways(THREE_ZONES, durable=True, pipelined=True)
LEADER, FOLLOWERS = 2, (1, 3)
REQUESTS = "remote_wal_gateway_acks_all_requests_total"
ANSWERS = "remote_wal_gateway_durable_answers_total"
ENOUGH = 1000
ACKS_ALL = {"acks": "all", "enable.idempotence": True}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    brokers = {**IMPATIENT, "min.insync.replicas": "2"}
    with gateway_cluster(tmp_path_factory, GATEWAYS, {}, brokers) as made:
        yield made


def begin(cluster: LocalCluster, topic: str) -> list[NumberedProducer]:
    """A topic that LEADER leads, linked whole, and its producers: of the leader's own zone, and of another one."""
    cluster.admin.create_topic(topic, assignment=[[LEADER, *FOLLOWERS]])
    set_topics(cluster.bootstrap_servers, [topic], TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS))
    own = GATEWAYS.own_zone_address(cluster.layout, LEADER)
    other = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    return [
        NumberedProducer(own, topic, f"{topic}-own", **ACKS_ALL),
        NumberedProducer(other, topic, f"{topic}-other", **ACKS_ALL),
    ]


def more_acknowledged(producers: list[NumberedProducer], records: int = ENOUGH) -> None:
    """Wait until each of them has been told of so many more."""
    before = [len(one.acknowledged) for one in producers]
    wait_until(
        lambda: all(len(one.acknowledged) > was + records for one, was in zip(producers, before, strict=True)),
        "producers are answered",
        PATIENCE_S,
    )


def expect_kept(cluster: LocalCluster, topic: str, producers: list[NumberedProducer]) -> None:
    """Every acknowledged record is in the log, once, in the order of its producer."""
    values = read(cluster, topic)
    for one in producers:
        mine = [value for value in values if value.startswith(f"{one.name}-")]
        assert len(set(mine)) == len(mine)
        acknowledged = set(one.acknowledged)
        assert [value for value in mine if value in acknowledged] == one.acknowledged


@pytest.mark.gate
def test_nothing_acknowledged_is_lost_when_the_leader_and_agents_are_killed(cluster: LocalCluster, topic: str) -> None:
    # both are answered -> the leader's broker dies, others lead -> it is back and leads again -> its agent dies
    # -> it is back: each time they go on, and most requests went to the broker as acks=1
    producers, counters = begin(cluster, topic), AgentCounters(cluster)
    with ExitStack() as stack:
        for one in producers:
            stack.enter_context(one)
        more_acknowledged(producers)
        assert counters.growth(REQUESTS, way="pipelined") > 0
        cluster.broker(LEADER).kill()
        more_acknowledged(producers)
        cluster.start_broker(LEADER)
        cluster.admin.wait_for_full_isr(topic)
        cluster.admin.move_leader(topic, 0, LEADER)
        more_acknowledged(producers)
        cluster.agent(LEADER).kill()
        cluster.start_agent(LEADER)
        more_acknowledged(producers)
    assert counters.growth(ANSWERS, outcome="replicated") > 0
    expect_kept(cluster, topic, producers)


def test_below_the_minimum_isr_nothing_is_acknowledged_and_the_broker_itself_refuses(
    cluster: LocalCluster, topic: str
) -> None:
    # both followers' agents stand still -> held answers end by their time, then the broker itself says
    # NOT_ENOUGH_REPLICAS before it appends -> they go on: all goes on
    patient, _ = begin(cluster, topic)
    settings = {"acks": "all", "request.timeout.ms": 3000, "message.send.max.retries": 0}
    own = GATEWAYS.own_zone_address(cluster.layout, LEADER)
    impatient, counters = NumberedProducer(own, topic, f"{topic}-impatient", **settings), AgentCounters(cluster)
    with patient, impatient:
        more_acknowledged([patient, impatient])
        for follower in FOLLOWERS:
            cluster.agent(follower).pause()
        try:
            wait_until(lambda: KafkaError.NOT_ENOUGH_REPLICAS in impatient.errors, "the broker refuses", PATIENCE_S)
            told = len(patient.acknowledged), len(impatient.acknowledged)
            refused = impatient.errors.count(KafkaError.NOT_ENOUGH_REPLICAS)
            wait_until(
                lambda: impatient.errors.count(KafkaError.NOT_ENOUGH_REPLICAS) > refused + 5,
                "it goes on so",
                PATIENCE_S,
            )
            assert (len(patient.acknowledged), len(impatient.acknowledged)) == told
        finally:
            for follower in FOLLOWERS:
                cluster.agent(follower).resume()
        more_acknowledged([patient])
    assert counters.growth(REQUESTS, way="unchanged_isr_may_be_too_small") > 0
    expect_kept(cluster, topic, [patient])
