"""The job finds every planted defect, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from recorded_kafka import World, small_world
from store_inventory import write_inventory

from perf.report_history import CLUSTER_ID, HOUR_MS, HistorySpec
from retention_job.run import RunResult, RunSettings, run
from retention_job.settings import InventoryFile, KafkaSource, LifeTimes, Sources

NOW_MS = 1_800_000_000_000
SPEC = HistorySpec(
    segments=600, now_ms=NOW_MS, brokers=2, entries_per_segment=4, partitions_per_broker=12, defects=2, hot_entries=1
)


@dataclass(frozen=True)
class Run:
    world: World
    result: RunResult


@pytest.fixture(scope="module")
def whole_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("run")
    world = small_world(SPEC)
    yield Run(world, run(settings(directory, world), spark, world.kafka()))


def settings(directory: Path, world: World, run_id: str = "first", incremental: bool = False) -> RunSettings:
    inventory = InventoryFile(write_inventory(directory / f"inventory-{run_id}", world.objects), CLUSTER_ID)
    kafka = KafkaSource("nowhere:1")
    times = LifeTimes(delete_grace_ms=60_000, uncommitted_ttl_ms=600_000, slack_ms=HOUR_MS)
    return RunSettings(
        Sources(kafka, inventory, str(directory / "state"), incremental, times), world.spec.now_ms, run_id
    )


def test_every_planted_defect_is_found_and_nothing_else(whole_run: Run) -> None:
    found = {(row.kind, row.topic, row.partition, row.segment) for row in whole_run.result.findings.collect()}
    assert found == whole_run.world.planted.expected
