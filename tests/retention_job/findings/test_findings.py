"""The job finds every planted defect and nothing else, though records come twice and are read in two runs."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from metadata_topic.records import archive_records
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.serde import decode_or_keep_out
from plugin.archive_storage import StoredArchiveObject
from plugin.format.object_keys import ObjectKeyFactory
from plugin.loading import DEFAULT_CLASS_NAME, StorageSpec
from plugin.segment_metadata import CombinedSegmentId
from retention_job.findings.object_rules import object_findings
from retention_job.run import RunResult, RunSettings, run
from retention_job.schemas import ENTRIES, FINDINGS, QUARANTINE, SEGMENT_KEY, SEGMENTS
from retention_job.settings import KafkaSource, LifeTimes, Sources, StoreListing
from retention_job.tables.objects import MAX_LAYERS
from tests.retention_job.recorded.history import CLUSTER_ID, DAY_MS, HOUR_MS, Finding, HistorySpec, Record, StoredObject
from tests.retention_job.recorded.world import World, small_world, write_store

# Two whole runs are the set-up of most tests here; on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

NOW_MS = 1_800_000_000_000
TIMES = LifeTimes(delete_grace_ms=60_000, uncommitted_ttl_ms=600_000, slack_ms=HOUR_MS)
SPEC = HistorySpec(segments=400, now_ms=NOW_MS, brokers=2, entries_per_segment=4, partitions_per_broker=12, defects=2)


BUCKETS = ("even", "odd")


def write_buckets(directory: Path, objects: Sequence[StoredObject], archived: Sequence[StoredArchiveObject]) -> None:
    """The objects are in two buckets, and those of the archive in the second."""
    for left, name in enumerate(BUCKETS):
        mine = [one for one in objects if one.segment_id.broker_id % 2 == left]
        write_store(directory / name, mine, archived if left else ())


def as_they_were(world: World) -> tuple[list[StoredObject], list[StoredArchiveObject]]:
    """The stores at an earlier time: without what came since, and with objects that are lost or deleted by now."""
    lost = {str(name) for kind, *_, name in world.planted.expected if kind == "metadata_without_object"}
    parts = (name.split("-") for name in lost)
    gone = [CombinedSegmentId(int(broker), int(started, 16), int(at, 16)) for broker, started, at in parts]
    gone += [CombinedSegmentId(broker, 99, 1) for broker in SPEC.broker_ids]  # of which no record tells
    objects = [replace(one, size_bytes=900 if one.size_bytes == 901 else one.size_bytes) for one in world.objects[1::2]]
    objects += [StoredObject(one, 900, NOW_MS - DAY_MS) for one in gone]
    archived = world.archive_objects[0]
    deleted = archived.object_id._replace(writer_id=gone[-1])
    key = ObjectKeyFactory.of("", CLUSTER_ID).archive_key_of(deleted)
    return objects, [*world.archive_objects[1::2], replace(archived, object_id=deleted, key=key)]


def with_repetitions(world: World, rng: Random) -> World:
    """With some records once more, later, as agents publish them again."""
    records: dict[int, list[Record]] = {}
    for partition, log in world.records.items():
        repeated = [(rng.uniform(place, len(log)), record) for place, record in enumerate(log) if rng.random() < 0.05]
        placed = [*((float(place), record) for place, record in enumerate(log)), *repeated]
        records[partition] = [record for _, record in sorted(placed, key=lambda one: one[0])]
    return replace(world, records=records)


@dataclass(frozen=True)
class ReadInHalves:
    """A history, read up to its middle, and then to its end, when a broker and some objects are gone."""

    world: World
    first_half: Mapping[int, Sequence[Record]]
    first: RunResult
    second: RunResult
    directory: Path


def settings(directory: Path, run_id: str, incremental: bool = False) -> RunSettings:
    places = {name: str(directory / name) for name in BUCKETS}
    store = StoreListing(StorageSpec(DEFAULT_CLASS_NAME, None, {}, buckets=places), CLUSTER_ID)
    archive = StoreListing(StorageSpec(DEFAULT_CLASS_NAME, None, {"directory": places["odd"]}), CLUSTER_ID)
    sources = Sources(KafkaSource("nowhere:1"), str(directory / "state"), store, incremental, TIMES, archive)
    return RunSettings(sources, NOW_MS, run_id)


@pytest.fixture(scope="module", params=[MAX_LAYERS, pytest.param(1, marks=pytest.mark.thorough)])
def halves(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> ReadInHalves:
    directory = tmp_path_factory.mktemp("report")
    world = with_repetitions(small_world(SPEC), Random(11))
    first_half = {number: log[: len(log) * 2 // 3] for number, log in world.records.items()}
    half = replace(world, records=first_half)
    (directory / "state" / "runs" / "killed" / "staged").mkdir(parents=True)
    write_buckets(directory, *as_they_were(world))
    first = run(settings(directory, "first"), spark, half.kafka())
    first.finish()
    write_buckets(directory, world.objects, world.archive_objects)
    kafka = world.kafka()
    kafka = replace(kafka, seen=replace(kafka.seen, brokers=frozenset({1})))
    with patch("retention_job.tables.history.MAX_LAYERS", request.param):
        second = run(settings(directory, "second", incremental=True), spark, kafka)
    second.finish()
    assert bool(second.history.layers) == (request.param == MAX_LAYERS)
    return ReadInHalves(world, first_half, first, second, directory)


def found_by(result: RunResult) -> set[Finding]:
    return {(row.kind, row.topic, row.partition, row.segment) for row in result.findings.collect()}


@pytest.mark.gate
def test_every_planted_defect_is_found_and_nothing_else(halves: ReadInHalves) -> None:
    assert halves.second.history.read.is_incremental
    assert found_by(halves.second) == halves.world.planted.expected


def test_an_incremental_run_remembers_whose_records_were_refused(halves: ReadInHalves) -> None:
    refused = "detail LIKE '%records are refused%'"
    first = {row.segment for row in halves.first.findings.filter(refused).collect()}
    second = {row.segment for row in halves.second.findings.filter(refused).collect()}
    assert {name.startswith("archive:") for name in second} == {True, False}
    assert first <= second


def test_an_incremental_run_reads_the_new_records_alone(halves: ReadInHalves) -> None:
    everything = sum(len(log) for log in halves.world.records.values())
    before = sum(len(log) for log in halves.first_half.values())
    assert halves.second.history.read.records == everything - before
    assert halves.second.history.entries.count() < halves.first.history.entries.count()


def test_objects_that_are_as_they_were_are_not_put_together_again(halves: ReadInHalves) -> None:
    history = halves.second.history
    written, before = history.table("segments"), history.table("segments", run_id="first")
    columns = [name for name in written.columns if name not in ("is_new", "finished_records", "first_record")]
    of_repeated_records = before.count() / 10
    again = written.select(columns).intersect(before.select(columns)).count()
    assert (again < of_repeated_records) == bool(history.layers)


@pytest.mark.gate
def test_every_record_is_either_read_or_kept_aside_with_its_offset(halves: ReadInHalves) -> None:
    kept_aside = {(row.partition, row.offset) for row in halves.first.history.quarantine.collect()}
    unknown = {
        (partition, offset)
        for partition, log in halves.first_half.items()
        for offset, record in enumerate(log)
        if not archive_records.is_archive_key(record[0]) and isinstance(decode_or_keep_out(*record), UnknownRecord)
    }
    assert kept_aside == unknown != set()


def test_after_a_topics_retention_changed_an_incremental_run_says_what_a_full_one_says(
    halves: ReadInHalves, spark: SparkSession, tmp_path: Path
) -> None:
    kafka = halves.world.kafka()
    topics = [one for one in kafka.seen.topics if one.settings.enable]
    gone, other = topics[0], topics[1]
    changed = replace(other, settings=replace(other.settings, wal_retention_ms=7000))
    left = tuple(changed if one is other else one for one in kafka.seen.topics if one is not gone)
    kafka = replace(kafka, seen=replace(kafka.seen, topics=left))
    given = settings(halves.directory, "third", incremental=True)
    state = shutil.copytree(halves.directory / "state", tmp_path / "again")
    found = run(replace(given, sources=replace(given.sources, state_path=str(state))), spark, kafka)
    assert found.history.read.is_incremental
    assert len(found.history.read.changed_topics) == 2
    assert found.history.layers
    full_sources = replace(given.sources, state_path=str(tmp_path / "state"), is_incremental=False)
    full = run(replace(given, sources=full_sources, run_id="full"), spark, kafka)

    def kept(result: RunResult) -> dict[tuple[object, ...], object]:
        rows = result.history.segments.select(*SEGMENT_KEY, "retention_ms").collect()
        return {tuple(row[:3]): row[3] for row in rows}

    assert kept(found).items() <= kept(full).items()
    read_again = {one for one in found_by(full) if one[0] == "records_quarantined"}
    assert found_by(found) == found_by(full) - read_again, "what was kept aside is told by the run that read it"


def test_a_killed_runs_directory_is_gone(halves: ReadInHalves) -> None:
    assert sorted(found.name for found in (halves.directory / "state" / "runs").iterdir()) == ["first", "second"]


def test_tables_have_the_columns_that_are_documented(halves: ReadInHalves) -> None:
    history = halves.second.history
    assert history.segments.columns == SEGMENTS.fieldNames()
    assert set(ENTRIES.fieldNames()) <= set(history.entries.columns)
    assert history.quarantine.columns == QUARANTINE.fieldNames()
    assert halves.second.findings.columns == FINDINGS.fieldNames()
    row = halves.second.findings.filter("kind = 'object_of_other_size'").first()
    assert row is not None
    assert (row.severity, row.size_bytes) == ("critical", 901)
    assert "901 bytes, its metadata says 900" in row.detail


def test_what_may_wait_for_a_replica_is_not_kept_too_long(halves: ReadInHalves) -> None:
    """A replica of a topic that is kept for a week is behind."""
    history = halves.second.history
    topics = tuple(replace(topic, has_lagging_replica=topic.name == "kept") for topic in history.cluster.topics)
    lagging = replace(history, cluster=replace(history.cluster, topics=topics))
    expired = "kind = 'expired_not_deleted'"
    waiting_ms = [row.age_ms for row in object_findings(lagging, NOW_MS, TIMES).filter(expired).collect()]
    assert len(waiting_ms) < halves.second.findings.filter(expired).count()
    assert all(age_ms > 7 * DAY_MS for age_ms in waiting_ms)


@pytest.mark.gate
def test_what_records_that_cannot_be_read_may_tell_of_is_withheld(halves: ReadInHalves) -> None:
    wanted = halves.second.findings.filter("kind IN ('upload_unfinished', 'object_without_metadata')")
    assert halves.second.handover.is_dry
    handover = halves.second.handover
    # Records that cannot be read may tell of them.
    assert (handover.segments, handover.withheld) == (0, wanted.count())
    assert handover.withheld
