"""Offsets that agents declared as no loss are no gap, in the run that reads the declaration and in all that follow."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import PublishableRecord
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from retention_job.page.summaries import summarise_objects
from retention_job.settings import KafkaSource, Sources
from retention_job.sources.kafka import Offsets
from retention_job.tables.coverage import chains_of, not_wanted_offsets
from retention_job.tables.history import History, load
from tests.retention_job.recorded.history import HistorySpec, Planted, cluster_of, topic_id
from tests.retention_job.recorded.world import RecordedKafka

NOW_MS = 1_800_000_000_000
LOG_STARTS = {("kept", 0): 15}

# These reach over the hole between what is stored of each partition.
WHOLE, LOST, PARTS, CUT_OFF, TWO_BEGINS, UNDER_WAY, RELEASED, DECLARED_LATER = range(8)


def uploaded(number: int, partition: int, epoch: int, first: int, last: int) -> PublishableRecord:
    entry = RemoteLogSegmentMetadataEntry(
        TopicIdPartition(topic_id("kept"), partition), epoch, first, last, 112, 612, 7
    )
    segment_id = CombinedSegmentId(1, 1, number)
    return RemoteWalCombinedLogSegmentMetadata(
        segment_id, (entry,), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, NOW_MS, 900
    )


def declared(
    number: int, partition: int, begin: int, end: int, epoch: int = 0, reason: GapReason = GapReason.NOT_WANTED
) -> PublishableRecord:
    gap = DeclaredGap(TopicIdPartition(topic_id("kept"), partition), begin, end, epoch, reason)
    return RemoteWalGapDeclaration(1, 1, number, (gap,), NOW_MS)


def history_of(
    records: Sequence[PublishableRecord],
    spark: SparkSession,
    state: Path,
    run_id: str,
    log_ends: Mapping[int, int] | None = None,
    now_ms: int = NOW_MS,
) -> History:
    log = [(serde.key_of(record), serde.encode(record)) for record in records]
    spec = HistorySpec(segments=0, now_ms=NOW_MS, brokers=1, partitions_per_broker=1)
    cluster = cluster_of(spec, Planted(log_starts=LOG_STARTS), Offsets({}, {0: 0}))
    cluster = replace(cluster, metadata_epochs={0: 3})
    if log_ends is not None:
        only_these = Offsets({partition: LOG_STARTS.get(("kept", partition), 0) for partition in log_ends}, log_ends)
        none_written = {topic.name: Offsets(*[dict.fromkeys(topic.partitions, 0)] * 2) for topic in cluster.topics}
        cluster = replace(
            cluster, offsets={**none_written, "kept": only_these, METADATA_TOPIC: cluster.offsets[METADATA_TOPIC]}
        )
    sources = Sources(KafkaSource("nowhere:1"), state_path=str(state), is_incremental=True)
    return load(spark, sources, now_ms, run_id, RecordedKafka({METADATA_TOPIC: {0: log}}, cluster))


def gaps_of(history: History) -> dict[int, list[tuple[int, int]]]:
    """First and last offset, by partition."""
    found = defaultdict(list)
    for row in chains_of(history).gaps.collect():
        found[row.partition].append((row.first_offset, row.last_offset))
    return {partition: sorted(gaps) for partition, gaps in found.items()}


@pytest.mark.timeout(300)
def test_what_was_declared_as_no_loss_is_no_gap_in_any_later_run(spark: SparkSession, tmp_path: Path) -> None:
    numbers = count()
    stored = [
        uploaded(next(numbers), partition, 0, first, last)
        for partition in (WHOLE, LOST, PARTS, TWO_BEGINS, RELEASED, DECLARED_LATER)
        for first, last in ((0, 9), (20, 29))
    ]
    stored += [
        uploaded(next(numbers), CUT_OFF, epoch, first, last)
        for epoch, first, last in ((0, 0, 9), (1, 10, 14), (1, 20, 29))
    ]
    stored += [uploaded(next(numbers), UNDER_WAY, 0, 0, 19)]
    told = [
        declared(next(numbers), WHOLE, 10, 20, epoch=3),
        declared(next(numbers), LOST, 10, 20, reason=GapReason.RETENTION),
        declared(next(numbers), PARTS, 12, 15),
        declared(next(numbers), PARTS, 15, 18),
        declared(next(numbers), CUT_OFF, 5, 20),
        declared(next(numbers), TWO_BEGINS, 0, 25, epoch=1, reason=GapReason.BEFORE_UPLOAD),
        declared(next(numbers), TWO_BEGINS, 0, 15, reason=GapReason.BEFORE_UPLOAD),
        declared(next(numbers), UNDER_WAY, 25, 40),
        declared(next(numbers), RELEASED, 0, 25, reason=GapReason.RELEASED),
    ]
    remaining = {LOST: [(10, 19)], PARTS: [(10, 11), (18, 19)], CUT_OFF: [(15, 19)], TWO_BEGINS: [(15, 19)]}
    first = history_of([*stored, *told], spark, tmp_path, "first")
    assert gaps_of(first) == {**remaining, DECLARED_LATER: [(10, 19)]}
    assert not_wanted_offsets(first) == 5 + 6 + 15 + 15, "of those that the log still has"
    first.commit()
    later = [uploaded(next(numbers), WHOLE, 4, 30, 39), declared(next(numbers), DECLARED_LATER, 10, 20)]
    second = history_of([*stored, *told, *later], spark, tmp_path, "second")
    assert second.read.is_incremental
    assert gaps_of(second) == remaining
    assert summarise_objects(second).not_wanted_offsets == 5 + 6 + 15 + 15 + 10


@pytest.mark.timeout(300)
def test_an_upload_is_not_behind_by_what_nobody_wants_stored(spark: SparkSession, tmp_path: Path) -> None:
    """Each partition has offsets 0 to 9 stored, but for the last two, and its log ends at 40."""
    to_end, grows, behind, hole, cut_off, nothing_stored, all_left_out, nothing_known = range(8)
    numbers = count()
    stored = [uploaded(next(numbers), partition, 0, 0, 9) for partition in (to_end, grows, behind, hole, cut_off)]
    told = [
        declared(next(numbers), to_end, 10, 40),
        declared(next(numbers), grows, 10, 25),
        declared(next(numbers), grows, 25, 35),
        declared(next(numbers), hole, 5, 12),
        declared(next(numbers), hole, 20, 60),
        uploaded(next(numbers), cut_off, 1, 10, 14),
        declared(next(numbers), cut_off, 5, 40),
        declared(next(numbers), nothing_stored, 0, 30, reason=GapReason.BEFORE_UPLOAD),
        declared(next(numbers), all_left_out, 0, 40),
        declared(next(numbers), behind, 10, 40, reason=GapReason.RETENTION),
    ]
    log_ends = dict.fromkeys(range(8), 40)
    first = history_of([*stored, *told], spark, tmp_path, "first", log_ends)
    chains_of(first)
    expected = {
        grows: (10, 25, 5),
        behind: (10, 0, 30),
        hole: (10, 22, 8),
        cut_off: (15, 0, 25),
        nothing_stored: (None, 30, 10),
        nothing_known: (None, 0, None),
    }
    assert lags_of(first) == expected
    first.commit()
    later = [declared(next(numbers), behind, 10, 38)]
    second = history_of([*stored, *told, *later], spark, tmp_path, "second", log_ends)
    assert second.read.is_incremental
    chains_of(second)
    assert lags_of(second) == {**expected, behind: (10, 28, 2)}


def lags_of(history: History) -> dict[int, tuple[int | None, int, int | None]]:
    """By partition of `kept`: stored up to, left out since then, records behind."""
    lags = summarise_objects(history).lags
    return {lag.partition: (lag.stored_up_to, lag.left_out, lag.records) for lag in lags if lag.topic == "kept"}
