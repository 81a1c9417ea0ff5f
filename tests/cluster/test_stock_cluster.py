"""The control: what the tests with agents measure themselves against, and that the instruments work."""

from pathlib import Path

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import LedgerWorkload, ProducerPlan, TransactionPlan
from tests.cluster.conftest import ClusterFactory

PLANS = [
    ProducerPlan("plain", records_per_s=300),
    ProducerPlan("zstd", codec="zstd", records_per_s=300),
    ProducerPlan("transactions", codec="lz4", records_per_s=300, transaction=TransactionPlan(20, 3)),
]


def test_kafkas_own_tools_run_and_are_understood(stock_cluster: LocalCluster, topic: str) -> None:
    stock_cluster.admin.create_topic(topic, partitions=1)
    tools = stock_cluster.tools
    assert tools.produce(topic, records=2000, record_bytes=100, config={"acks": "all"}).records == 2000
    assert tools.consume(topic, records=2000) >= 2000
    directory = stock_cluster.layout.partition_directory(1, topic, 0)
    assert directory is not None
    batches = tools.dump_log(*sorted(directory.glob("*.log")), deep=True)
    assert sum(batch.count for batch in batches) == 2000
    assert all(batch.is_valid for batch in batches)
    assert tools.end_to_end_latency(topic, records=50, record_bytes=100).p50_ms >= 0


def test_the_brokers_share_an_archive_of_their_classes(stock_cluster: LocalCluster) -> None:
    archive = stock_cluster.runtime.kafka.class_archive
    assert archive is not None
    for broker_id in stock_cluster.broker_ids:
        assert str(archive) in Path(f"/proc/{stock_cluster.broker(broker_id).pid}/maps").read_text()


def test_a_cluster_keeps_its_data_and_is_found_again_after_it_was_stopped(
    make_cluster: ClusterFactory, topic: str
) -> None:
    cluster = make_cluster(ClusterSettings(overrides={"num.io.threads": "3"}))
    cluster.admin.create_topic(topic, partitions=2)
    with LedgerWorkload(cluster.bootstrap_servers, topic, PLANS[:1]) as workload:
        wait_until(lambda: workload.report().acknowledged > 100, "records flow", 60)
        written = workload.finish()
    cluster.stop()
    assert not any(cluster.broker(one).pid for one in cluster.broker_ids)

    with LocalCluster.open(cluster.layout.directory) as again:
        again.start()
        again.admin.wait_for_full_isr(topic)
        assert again.tools.consume(topic, records=written.acknowledged) == written.acknowledged
        again.broker(2).pause()
        assert again.broker(2).is_alive()
        again.broker(2).resume()
