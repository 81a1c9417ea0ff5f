"""What Prometheus gets of the agent's state."""

import math
from collections import Counter

import pytest
from prometheus_client.registry import Collector

from agent.metrics.agent_metrics import ImbalanceCollector, StateCollector
from agent.metrics.metrics_doc import no_run
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.settings.settings_records import Balancer
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.prices import NEVER_PAYS
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry


def test_how_far_loads_are_apart_is_a_metric_for_an_hour() -> None:
    now_ms = 5_000_000
    collector = ImbalanceCollector(lambda: Balancer("a", 1, (0.1, 0.2, 0.3), 5_000_000), lambda: now_ms)
    assert _value(collector, "remote_wal_imbalance_ratio", {"load": "out"}) == 0.2
    now_ms += 3_600_000
    [metric] = collector.collect()
    assert metric.samples == []


@pytest.mark.parametrize(
    ("counter", "sample", "labels"),
    [
        ("gaps", "remote_wal_metadata_gaps_total", {}),
        ("started_over", "remote_wal_metadata_started_over_total", {}),
        ("fenced", "remote_wal_metadata_fenced_total", {}),
        ("files_unreadable", "remote_wal_metadata_files_unreadable_total", {}),
        ("snapshots_saved", "remote_wal_metadata_snapshots_total", {"outcome": "saved"}),
    ],
)
def test_counters_of_the_metadata_topic_are_metrics(counter: str, sample: str, labels: dict[str, str]) -> None:
    counters: Counter[str] = Counter()
    collector = _collector(counters, ArchiveStore())
    assert _value(collector, sample, labels) == 0
    counters[counter] += 3
    assert _value(collector, sample, labels) == 3


def test_archive_objects_and_their_bytes_are_metrics() -> None:
    archive = ArchiveStore()
    collector = _collector(Counter(), archive)
    finished = {"state": "COPY_SEGMENT_FINISHED"}
    assert _value(collector, "remote_wal_archived_objects", finished) == 0
    partition = TopicIdPartition(TopicId(b"o" * 16), 0)
    for number in range(2):
        named = ArchiveObjectId(partition, 10 * number, 10 * number + 9, CombinedSegmentId(1, 1, number))
        run = RemoteLogSegmentMetadataEntry(partition, 0, 10 * number, 10 * number + 9, 112, 200, 1)
        archive.apply(ArchiveObjectCommitted(named, 1, (run,), 400, 1))
    assert _value(collector, "remote_wal_archived_objects", finished) == 2
    assert _value(collector, "remote_wal_archived_objects_bytes", finished) == 800


@pytest.mark.parametrize(("size", "told"), [(33_700, 33_700.0), (NEVER_PAYS, math.inf)])
def test_the_size_from_which_links_pay_is_a_metric(size: int, told: float) -> None:
    collector = _collector(Counter(), ArchiveStore(), break_even_bytes=size)
    assert _value(collector, "remote_wal_link_break_even_bytes", {}) == told


def _collector(counters: Counter[str], archive: ArchiveStore, break_even_bytes: int | None = None) -> StateCollector:
    around, kafka, write_path, gaps = no_run(break_even_bytes)
    kafka.metadata.counters, kafka.metadata.archive = counters, archive
    gaps.offsets, gaps.held_offsets = 17, 3
    return StateCollector(around, kafka, write_path, gaps)


def _value(collector: Collector, sample: str, labels: dict[str, str]) -> float:
    samples = [found for metric in collector.collect() for found in metric.samples]
    return next(found.value for found in samples if found.name == sample and found.labels == labels)


def test_offsets_that_no_object_will_hold_are_a_gauge_to_be_woken_by() -> None:
    assert _value(_collector(Counter(), ArchiveStore()), "remote_wal_missing_offsets", {}) == 17
    assert _value(_collector(Counter(), ArchiveStore()), "remote_wal_held_offsets", {}) == 3
