"""`remote-wal report` over a real cluster: what agents counted is what the report says."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.main import build_app
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.records.usage_record import decode_usage, is_usage_key
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import WORDS
from tests.cluster.script import PATIENCE_S, PLAIN, Script
from tests.spark import spark

__all__ = ["spark"]
MARKER = WORDS.encode()
AGENTS = quick(usage_interval_ms=1000, orphans_interval_s=3600)


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory, topic: str) -> Iterator[Script]:
    directory = tmp_path_factory.mktemp("report") / "cluster"
    with LocalCluster.create(directory, settings=ClusterSettings(QuickAgents(overrides=AGENTS))) as cluster:
        cluster.start()
        with Script(cluster, topic) as script:
            yield script


def report(cluster: LocalCluster, output: Path, *options: str) -> Result:
    broker_config = cluster.layout.server_properties(1)
    return CliRunner().invoke(
        build_app(),
        ["report", "--bootstrap-server", cluster.bootstrap_servers, "--broker-config", str(broker_config),
         "--output", str(output), "--json",
         "--textfile", str(output.parent / "remote_wal.prom"), *options],
    )  # fmt: skip


def produce_words(cluster: LocalCluster, topic: str) -> None:
    """As key, value and header of many records."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(2000):
        producer.produce(topic, MARKER * 10, MARKER, headers={WORDS: MARKER})
    assert producer.flush(PATIENCE_S) == 0


def told(found: Result) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def given_to_followers(script: Script) -> tuple[int, int]:
    """Record bytes of the topic, linked and inline, as the agents describe themselves."""
    partitions = script.partitions_of_agents()
    linked, inline = (
        sum(int(str(partition[way])) for partition in partitions) for way in ("linked_bytes", "inline_bytes")
    )
    return linked, inline


def expect_usage_since(cluster: LocalCluster, since_ms: int) -> None:
    """Each agent has written down what it did until then."""
    told: dict[int, int] = {}

    def take(records: Sequence[TopicRecord]) -> None:
        for record in records:
            if record.key is not None and is_usage_key(record.key):
                usage = decode_usage(record.key, record.value)
                told[usage.broker_id] = max(told.get(usage.broker_id, 0), usage.event_timestamp_ms)

    quick = FollowSettings(fetch_min_bytes=1, fetch_wait_ms=100, batch_wait_ms=100)
    follower = TopicFollower(KafkaClientConfig(cluster.bootstrap_servers), METADATA_TOPIC, take, quick)
    follower.start()
    try:
        wait_until(
            lambda: len(told) == 3 and min(told.values()) >= since_ms, "each agent writes down its usage", PATIENCE_S
        )
    finally:
        follower.close()


@pytest.mark.thorough
def test_costs_are_of_what_agents_counted_and_a_half_written_report_is_replaced(
    script: Script, spark: SparkSession, tmp_path: Path
) -> None:
    cluster, output = script.cluster, tmp_path / "output"
    script.create_topic()
    with Script(cluster, f"{script.topic}-words") as words:
        words.create_topic()
        produce_words(cluster, words.topic)
    script.produce(PLAIN)
    script.expect_records_to_flow()
    script.expect_promises()
    linked, inline = given_to_followers(script)
    expect_usage_since(cluster, round(time.time() * 1000))

    # All that the agents counted, and the objects that are in the store.
    found = report(cluster, output)
    assert found.exit_code == 0, found.output
    first = told(found)
    [topic] = [row for row in first["costs"]["topics"] if row["topic"] == script.topic]
    assert (topic["linked_bytes"], topic["inline_bytes"]) == (linked, inline)
    assert topic["unknown_days"] == 0
    sizes = [path.stat().st_size for path in cluster.layout.object_store_directory.rglob("*.rwal")]
    assert sum(bar["count"] for bar in first["objects"]["sizes"]) <= len(sizes)
    assert first["costs"]["stock_usd"] >= (linked + inline) * 0.02 / 1e9
    assert first["costs"]["parts"]["put_usd"] >= len(sizes) * 0.00113 / 1000
    assert script.topic in (output / "report.html").read_text()
    families = text_string_to_metric_families((tmp_path / "remote_wal.prom").read_text())
    assert "remote_wal_report_cost_dollars" in {family.name for family in families}

    # Killed before its commit, that run is none; the next one removes it, and goes on from the one before.
    spark.range(1).write.parquet(str(output / "findings" / "run=killed"))
    found = report(cluster, output)
    assert found.exit_code == 0, found.output
    assert told(found)["is_incremental"]
    assert told(found)["costs"]["stock_usd"] >= first["costs"]["stock_usd"]
    assert not (output / "findings" / "run=killed").exists()
    assert len(list((output / "cost_daily").glob("run=*"))) == 1, "which has the days of both"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(f"{script.topic}-words".encode() in one for one in written)
    assert not any(MARKER in one for one in (*written, found.output.encode()))
