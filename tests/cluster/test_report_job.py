"""The Spark job over a real cluster: real agents fill the topic, Spark's connector reads it, agents delete."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.format.object_keys import ObjectKeyFactory
from plugin.loading import DEFAULT_CLASS_NAME, StorageSpec
from plugin.segment_metadata import CombinedSegmentId
from retention_job.run import RunResult, RunSettings, run
from retention_job.settings import KafkaSource, LifeTimes, Sources, StoreListing
from tests.cluster.agent_views import describe
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import PATIENCE_S, PLAIN, Script
from tests.spark import spark

pytestmark = pytest.mark.whole_machine

__all__ = ["spark"]
AGENTS = {
    **quick(expiration_interval_s=0.2, delete_grace_times=0.03),
    # The job is to find what agents would find in time.
    **quick(orphans_interval_s=3600),
}
LIFE_TIMES = LifeTimes(delete_grace_ms=1000, uncommitted_ttl_ms=1000)


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory, topic: str) -> Iterator[Script]:
    directory = tmp_path_factory.mktemp("report") / "cluster"
    with LocalCluster.create(directory, settings=ClusterSettings(QuickAgents(overrides=AGENTS))) as cluster:
        cluster.start()
        with Script(cluster, topic) as script:
            yield script


def sources(cluster: LocalCluster, state: Path) -> Sources:
    where = {"directory": str(cluster.layout.object_store_directory)}
    store = StoreListing(StorageSpec(DEFAULT_CLASS_NAME, None, where), cluster.layout.cluster_id)
    return Sources(KafkaSource(cluster.bootstrap_servers), str(state), store, life_times=LIFE_TIMES)


def kinds(result: RunResult) -> dict[str, str | None]:
    return {row.kind: row.segment for row in result.findings.filter("severity <> 'info'").collect()}


def object_of(cluster: LocalCluster, segment_id: CombinedSegmentId) -> Path:
    keys = ObjectKeyFactory.of("", cluster.layout.cluster_id)
    return cluster.layout.object_store_directory / keys.key_of(segment_id)


def test_what_agents_wrote_is_judged_and_what_nobody_wants_is_deleted_by_them(
    script: Script, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = script.cluster
    script.create_topic()
    script.produce(PLAIN)
    script.expect_records_to_flow()
    script.expect_promises()

    # All is well: every offset is in an object, and there is nothing to tell.
    job = RunSettings(sources(cluster, tmp_path / "state"), now_ms(), "first")
    sound = run(job, spark)
    sound.finish()
    assert kinds(sound) == {}
    assert sound.history.segments.filter("state = 1 AND is_stored AND stored_bytes = size_bytes").count() > 10
    assert uploaded(sound, script.topic) == {
        number: offsets.log_end_offset for number, offsets in log_ends(sound, script.topic).items()
    }

    # An object that no record tells of, and one that is gone.
    objects = [path for path in cluster.layout.object_store_directory.rglob("*.rwal") if "archive" not in path.parts]
    unknown = CombinedSegmentId(1, int(describe(cluster, 1)["incarnation"]), 7 << 32)  # of a writer that is known
    orphan = object_of(cluster, unknown)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(objects[0], orphan)
    os.utime(orphan, (time.time() - 60, time.time() - 60))
    objects[1].unlink()

    # An incremental run reads what is new, and hands the object over to the agents.
    later = replace(job.sources, is_incremental=True)
    found = run(replace(job, sources=later, now_ms=now_ms(), run_id="second", apply=True), spark)
    found.finish()
    assert found.history.read.is_incremental
    assert found.history.read.records < sound.history.read.records
    told = kinds(found)
    assert set(told) == {"object_without_metadata", "metadata_without_object"}
    assert told["object_without_metadata"] == str(unknown)
    assert (found.handover.segments, found.handover.is_dry) == (1, False)
    wait_until(lambda: not orphan.exists(), "an agent deletes the object", PATIENCE_S)

    # A second handover finds nothing left to hand over, and records that are not ours.
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(METADATA_TOPIC, b"no metadata", b"foreign", 0)
    producer.produce(METADATA_TOPIC, b"\1\1", unknown.to_bytes(), 0)
    producer.flush()
    again = run(replace(job, sources=later, now_ms=now_ms(), run_id="third", apply=True), spark)
    assert again.handover.segments == 0
    assert set(kinds(again)) == {"metadata_without_object", "records_quarantined"}
    assert again.history.quarantine.count() == 2


def now_ms() -> int:
    return round(time.time() * 1000)


def log_ends(result: RunResult, topic: str) -> dict[int, Any]:
    history = result.history
    rows = history.with_topic_names(history.partitions).filter(f"topic = '{topic}'").collect()
    return {row.partition: row for row in rows}


def uploaded(result: RunResult, topic: str) -> dict[int, int]:
    rows = (
        result.history.with_topic_names(result.history.entries)
        .filter(f"topic = '{topic}'")
        .groupBy("partition")
        .agg({"last_offset": "max"})
        .collect()
    )
    return {row[0]: row[1] + 1 for row in rows}
