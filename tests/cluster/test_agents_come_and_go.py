"""Agents are put into a cluster and taken out of it; the data do not notice."""

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.ledger import ProducerPlan, TransactionPlan
from local_cluster.ledger_workload import LedgerWorkload
from local_cluster.polling import wait_until
from local_cluster.replica_comparison import compare_replicas
from tests.cluster.conftest import ClusterFactory

PLANS = [
    ProducerPlan("plain", records_per_s=300),
    ProducerPlan("transactions", records_per_s=100, transaction=TransactionPlan(10, 3)),
]


def test_a_stock_cluster_remains_when_the_agents_are_taken_away(make_cluster: ClusterFactory, topic: str) -> None:
    # with agents: produce, transactions too -> stop, agents off -> all data there, replicas equal, ISR whole
    cluster = make_cluster(ClusterSettings(AgentsMode()))
    assert [agent.ready for agent in cluster.status().agents] == [True, True, True]
    cluster.create_topic(topic, partitions=3)
    with LedgerWorkload(cluster.bootstrap_servers, topic, PLANS) as workload:
        wait_until(
            lambda: all(producer.acknowledged >= 30 for producer in workload.report().producers),
            "both producers are acknowledged",
            90,
        )
        written = workload.finish()
    assert written.faults == 0, str(written)

    cluster.stop()
    cluster.configure(None)
    cluster.start()
    assert cluster.status().agents == ()
    cluster.admin.wait_for_full_isr(topic)
    comparison = compare_replicas(cluster, topic)
    assert comparison.identical, str(comparison)
    plain = written.producers[0]
    assert cluster.tools.consume(topic, records=plain.acknowledged).records >= plain.acknowledged
