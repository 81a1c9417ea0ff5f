"""A transaction in a durable topic ends for its producer once its markers are stored, so its only replica may be lost.

Zones az1 to az3 with a broker each, all of which coordinate transactions. Broker 2 has the only replicas.
"""

import threading
from itertools import count

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import BY_OBJECTS, with_gateways
from tests.cluster.replica_moves import elect_preferred_leaders
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.test_gateway_durable import (
    DURABLE,
    GATEWAYS,
    LEADER,
    ONE_REPLICA,
    SELDOM,
    begin,
    read,
    recover_from_an_empty_disk,
)

TRANSACTIONS = "remote_wal_gateway_durable_transactions_total"
BROKERS = {1, 2, 3}
RECORDS = 20
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED

pytestmark = pytest.mark.timeout(600)


cluster = with_gateways(GATEWAYS, BY_OBJECTS | SELDOM, ONE_REPLICA, controllers_apart=True)


class Transactions:
    """Of one producer, each with some records; all values that it produced, by whether they were committed."""

    def __init__(self, cluster: LocalCluster, topic: str, name: str) -> None:
        own = GATEWAYS.own_zone_address(cluster.layout, LEADER)
        self._producer = Producer({"bootstrap.servers": own, "transactional.id": name, "log_level": 0})
        self._producer.init_transactions(PATIENCE_S)
        self._topic, self._name = topic, name
        self._numbers = count()
        self.committed: list[str] = []

    def begin(self) -> list[str]:
        """Its records are stored, and it is open."""
        self._producer.begin_transaction()
        values = [f"{self._name}-{next(self._numbers)}" for _ in range(RECORDS)]
        for value in values:
            self._producer.produce(self._topic, value)
        assert not self._producer.flush(PATIENCE_S)
        return values

    def commit(self, values: list[str], timeout_s: float = PATIENCE_S) -> None:
        """Raises KafkaException when the time is over."""
        self._producer.commit_transaction(timeout_s)
        self.committed += values

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)


def coordinator_of(cluster: LocalCluster, name: str) -> int:
    """As Kafka finds it: by the hash of the transactional id, as Java has it."""
    partitions = cluster.admin.partitions("__transaction_state")
    number = 0
    for character in name:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    return partitions[(number & 0x7FFFFFFF) % len(partitions)].leader


def coordinate_everywhere(cluster: LocalCluster) -> bool:
    """A broker that was away does so again once it is elected: asked for here, as Kafka takes minutes."""
    elect_preferred_leaders(cluster.admin)
    return {state.leader for state in cluster.admin.partitions("__transaction_state")} == BROKERS


def by_coordinators(cluster: LocalCluster, topic: str) -> list[Transactions]:
    """A producer for each broker, which coordinates its transactions."""
    first = Transactions(cluster, topic, f"{topic}-0")  # there are coordinators from now on
    wait_until(lambda: coordinate_everywhere(cluster), "all brokers coordinate", PATIENCE_S)
    found = {coordinator_of(cluster, f"{topic}-0"): first}
    for number in range(1, 50):
        coordinator = coordinator_of(cluster, name := f"{topic}-{number}")
        if coordinator not in found:
            found[coordinator] = Transactions(cluster, topic, name)
    assert found.keys() == BROKERS
    return list(found.values())


def log_end(cluster: LocalCluster, topic: str, level: IsolationLevel) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.layout.bootstrap_servers})
    asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
    [future] = admin.list_offsets(asked, isolation_level=level, request_timeout=PATIENCE_S).values()
    return int(future.result().offset)


def lose_the_disk(cluster: LocalCluster, topic: str) -> None:
    """Of the broker with the only replicas, which is filled again then."""
    cluster.agent(LEADER).kill()
    cluster.broker(LEADER).kill()
    recover_from_an_empty_disk(cluster, topic)


def test_no_transaction_hangs_that_ended_before_its_only_replicas_disk_was_lost(
    cluster: LocalCluster, topic: str
) -> None:
    begin(cluster, {topic: DURABLE})
    counters = AgentCounters(cluster)
    producers = by_coordinators(cluster, topic)
    for one in producers:
        one.commit(one.begin())
        one.begin()
        one.abort()
    assert counters.growth(TRANSACTIONS, outcome="stored") == 2 * len(BROKERS)
    last = [(one, one.begin()) for one in producers]
    with Script(cluster, topic) as script:
        script.switch(LEADER, "put-defect")
        for one, values in last:
            with pytest.raises(KafkaException) as raised:
                one.commit(values, timeout_s=3.0)
            assert raised.value.args[0].retriable()
        script.clear_switches()
        for one, values in last:
            one.commit(values)
    lose_the_disk(cluster, topic)
    kept = read(cluster, topic)
    for one in producers:
        assert [value for value in kept if value in set(one.committed)] == one.committed
    assert len(kept) == 2 * RECORDS * len(BROKERS)
    ends = [
        log_end(cluster, topic, level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    assert ends[0] == ends[1], "nothing is open"


def test_a_commit_that_is_not_stored_in_time_is_tried_again_until_it_is_whatever_else_is_offline(
    cluster: LocalCluster, topic: str
) -> None:
    # A coordinator forgets what a transaction had, and another durable topic is offline: broker 3 has its only replica.
    begin(cluster, {topic: DURABLE})
    offline, dead = f"{topic}-offline", 3
    cluster.admin.create_topic(offline, assignment=[[dead]])
    set_topics(cluster.bootstrap_servers, [offline], DURABLE)
    counters = AgentCounters(cluster)
    Transactions(cluster, topic, f"{topic}-first")  # there are coordinators from now on
    name = next(found for number in count() if coordinator_of(cluster, found := f"{topic}-{number}") != dead)
    one = Transactions(cluster, topic, name)
    values = one.begin()
    cluster.broker(dead).kill()
    with Script(cluster, topic) as script:
        script.switch(LEADER, "put-defect")
        commit = threading.Thread(target=one.commit, args=(values, 100.0))
        commit.start()
        wait_until(lambda: counters.growth(TRANSACTIONS, outcome="timed_out") == 1, "it is told", PATIENCE_S)
        assert not one.committed
        script.clear_switches()
        commit.join()
    assert one.committed == values
    assert counters.growth(TRANSACTIONS, outcome="stored") == 1
    cluster.start_broker(dead)
    one.commit(one.begin())
    assert read(cluster, topic) == one.committed
