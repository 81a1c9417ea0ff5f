"""recover --if-empty, as the step of a broker's service before each start."""

import shutil
from collections.abc import Iterator

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from metadata_topic.settings.topic_settings import TopicSettings
from tests.cluster.agent_views import describe
from tests.cluster.recovery_commands import refused_recovery, run_command
from tests.cluster.script import PATIENCE_S

RECORDS = 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("step")
    # The controllers' logs stand apart, as on machines of their own.
    metadata = {number: {"metadata.log.dir": str(directory / f"controller-{number}")} for number in (1, 2, 3)}
    settings = ClusterSettings(
        AgentsMode(overrides={"remote.wal.archive.interval.ms": "500"}), {"min.insync.replicas": "1"}, metadata
    )
    with LocalCluster.create(directory / "cluster", settings=settings) as made:
        made.start(300)
        yield made


def stored_offset(cluster: LocalCluster, topic: str) -> int:
    views = [one for one in describe(cluster, 3)["partitions"] if one["topic"] == topic]
    return min((one["uploaded_offset"] for one in views), default=0)


def test_an_erased_broker_is_filled_before_it_starts(cluster: LocalCluster, topic: str) -> None:
    # Its only replica is on broker 3.
    cluster.admin.create_topic(topic, assignment=[[3]])
    set_topics(cluster.bootstrap_servers, [topic], TopicSettings(enable=True))
    cluster.tools.produce(topic, records=RECORDS, config={"acks": "all"})
    wait_until(lambda: stored_offset(cluster, topic) >= RECORDS, "all is stored", PATIENCE_S)
    cluster.agent(3).kill()
    cluster.broker(3).kill()
    (log_dir,) = cluster.layout.log_directories(3)
    shutil.rmtree(log_dir)
    refused_recovery(cluster, 3, "it is not there", "--if-empty")
    log_dir.mkdir()
    told = run_command(cluster, "recover", 3, "--if-empty")
    assert [(log["log"], log["end_offset"]) for log in told["logs"] if log["log"] == f"{topic}-0"] == [
        (f"{topic}-0", RECORDS)
    ]
    cluster.start_broker(3)
    cluster.start_agent(3)
    cluster.admin.wait_for_leader(topic, expected=3)
    assert cluster.tools.consume(topic, records=RECORDS) >= RECORDS
