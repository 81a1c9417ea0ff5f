"""The report on a Spark cluster says what it says on one machine: two executors that share no local directory.

Three brokers with agents, two Spark workers and the store's clients have addresses of their own; the store is an S3
server. All that executors see of this machine is `--output`, which stands for HDFS or a bucket.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jvm.java import QUICK_JVM_OPTIONS
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from plugin.format.object_keys import ObjectKeyFactory
from plugin.segment_metadata import CombinedSegmentId
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import PLAIN, ZSTD, Script
from tests.cluster.spark_cluster import CHECKOUT, PYTHON_HOME, SparkCluster, alone
from tests.cluster.test_daily_report import expect_usage_since
from tests.faulty_store import DEFAULT_BUCKET, FaultyFront, FaultyServer, Request

pytestmark = [pytest.mark.thorough, pytest.mark.whole_machine, pytest.mark.timeout(900)]

WORKERS = (11, 12)
HOSTS = ZoneHosts("10.231", (1, 2, 3, *WORKERS))
UNCOMMITTED_S = 5
AGENTS = {
    **quick(usage_interval_ms=1000, orphans_interval_s=3600),
    "remote.wal.uncommitted.ttl.ms": str(UNCOMMITTED_S * 1000),
}
_OF_TOPICS = ("topic", "upload_bytes", "linked_bytes", "inline_bytes", "stock_usd")
UNKNOWN = CombinedSegmentId(1, 1, 7)


@pytest.fixture
def hosts() -> Iterator[ZoneHosts]:
    with hosts_where_allowed(HOSTS) as are_there:
        if not are_there or subprocess.run(alone(["true"], [Path("/")]), check=False, capture_output=True).returncode:
            pytest.skip("this machine allows no namespaces")
        yield HOSTS


@pytest.fixture
def front() -> FaultyFront:
    return FaultyFront()


@pytest.fixture
def store(hosts: ZoneHosts, front: FaultyFront) -> Iterator[S3Store]:
    with FaultyServer(front, [DEFAULT_BUCKET], host=hosts.here) as server:
        yield S3Store(server.endpoint_url, DEFAULT_BUCKET)


@pytest.fixture
def script(hosts: ZoneHosts, store: S3Store, tmp_path: Path, topic: str) -> Iterator[Script]:
    settings = ClusterSettings(QuickAgents(store, AGENTS), hosts=hosts, heap_mb=384)
    with LocalCluster.create(tmp_path / "cluster", settings=settings) as cluster:
        cluster.start()
        with Script(cluster, topic) as script:
            yield script


READS = """
import json, sys
import remote_wal
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(remote_wal.RemoteWalDataSource)
options, out = json.loads(sys.argv[1]), sys.argv[2]
stream = spark.readStream.format("remote_wal").options(**options, startingOffsets="earliest", settledMs="0").load()
writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{out}-checkpoint")
writer.trigger(availableNow=True).start(out).awaitTermination()
batch = spark.read.format("remote_wal").options(**options).load()
assert batch.exceptAll(spark.read.parquet(out)).isEmpty()
print("READ", batch.groupBy("partition").count().orderBy("partition").collect())
"""


def report(cluster: LocalCluster, output: Path) -> list[str]:
    return [
        "report", "--bootstrap-server", cluster.bootstrap_servers,
        "--broker-config", str(cluster.layout.server_properties(1)), "--output", output.as_uri(), "--json",
    ]  # fmt: skip


def document(output: str) -> dict[str, Any]:
    """The command's answer, among what Spark says."""
    found: dict[str, Any] = json.loads(next(line for line in output.splitlines() if line.startswith('{"exit_code"')))
    return found


def lose_an_object_and_leave_another(front: FaultyFront, cluster: LocalCluster) -> None:
    """One that records tell of is gone; one is there that no record tells of, and is old enough for a finding."""
    listed = front.answer(Request("GET", f"/{DEFAULT_BUCKET}", "list-type=2")).body.decode()
    first = next(key for key in re.findall(r"<Key>(.*?)</Key>", listed) if key.endswith(".rwal"))
    body = front.answer(Request("GET", f"/{DEFAULT_BUCKET}/{first}")).body
    unknown = ObjectKeyFactory.of("", cluster.layout.cluster_id).key_of(UNKNOWN)
    assert front.answer(Request("PUT", f"/{DEFAULT_BUCKET}/{unknown}", body=body)).status == 200
    assert front.answer(Request("DELETE", f"/{DEFAULT_BUCKET}/{first}")).status == 204
    time.sleep(UNCOMMITTED_S + 2)  # S3 alone says how old an object is, in seconds


def judged(answer: dict[str, Any]) -> dict[str, Any]:
    """What of a report does not depend on when it was made: objects age, and pay for their storage meanwhile."""
    findings = [{name: value for name, value in row.items() if name != "age_ms"} for row in answer["findings"]]
    return {
        "findings": sorted(findings, key=json.dumps),
        "counts": sorted(answer["finding_counts"], key=json.dumps),
        "objects": answer["objects"]["sizes"],
        "topics": [
            {name: row[name] for name in _OF_TOPICS}
            for row in answer["costs"]["topics"]
            if not row["topic"].startswith("__")
        ],
    }


def test_a_spark_cluster_whose_executors_share_no_directory_says_what_one_machine_says(
    script: Script, front: FaultyFront, store: S3Store, tmp_path: Path
) -> None:
    cluster, shared = script.cluster, tmp_path / "shared"
    script.create_topic()
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow(3000)
    script.expect_promises()
    expect_usage_since(cluster, round(time.time() * 1000))
    for one in cluster.broker_ids:
        script.kill_agent(one)  # they would heal what is planted now, in one run's time or the other's
    lose_an_object_and_leave_another(front, cluster)

    # On this machine, as most do.
    local = report(cluster, tmp_path / "output")
    command = [sys.executable, "-m", "cli.main", *local, "--master", "local[2]", "--memory", "1g"]
    quick = f"spark.driver.extraJavaOptions {' '.join(QUICK_JVM_OPTIONS)}\nspark.sql.shuffle.partitions 4\n"
    (tmp_path / "spark-defaults.conf").write_text(quick)
    environment = {**os.environ, **store.environment(), "SPARK_CONF_DIR": str(tmp_path)}
    found = subprocess.run(command, env=environment, cwd=CHECKOUT, check=False, capture_output=True, text=True)
    assert found.returncode == 6, found.stdout + found.stderr
    expected = judged(document(found.stdout))
    assert {row["kind"] for row in expected["findings"]} >= {"metadata_without_object", "object_without_metadata"}

    # On the cluster. What is to be seen there, and what not, is so.
    shared.mkdir()
    spark_directory = tmp_path / "spark"
    spark_directory.mkdir()
    looks = alone(["ls", str(CHECKOUT), str(tmp_path)], (PYTHON_HOME, shared))
    seen = subprocess.run(looks, check=True, capture_output=True, text=True).stdout.split()
    assert shared.name in seen
    assert not {"cli", "cluster", "output"} & set(seen)
    workers = SparkCluster(spark_directory, HOSTS, WORKERS, shared)
    with workers.running(store.environment()):
        done = workers.submit(*report(cluster, shared / "output"), environment=store.environment())
        (tmp_path / "reads.py").write_text(READS)
        options = {
            "brokerConfig": str(cluster.layout.server_properties(1)), "subscribe": script.topic,
            "kafka.bootstrap.servers": cluster.bootstrap_servers, "failOnDataLoss": "false",
        }  # fmt: skip
        read = workers.submit(
            json.dumps(options), (shared / "read").as_uri(),
            environment=store.environment(), program=tmp_path / "reads.py",
        )  # fmt: skip
    assert done.exit_code == 6, done.output
    assert judged(document(done.output)) == expected
    assert (shared / "output" / "report.html").is_file()

    # Both executors had part in it, and each needed what the other had made.
    assert done.tasks.keys() == workers.addresses
    assert all(done.shuffled_between_hosts[one] for one in workers.addresses), done.shuffled_between_hosts

    # A topic is read there in a batch and as a stream; our code is nowhere but in the zip.
    assert read.exit_code == 0, read.output
    assert re.findall(r"READ \[(.+)\]", read.output), read.output
