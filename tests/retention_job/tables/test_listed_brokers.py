"""A broker's objects are listed if anything tells of it: also if it is gone, and its registration with it."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicId
from metadata_topic.records import serde
from metadata_topic.records.records import RemoteWalTopicRebuilt
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.loading import StorageSpec
from retention_job.findings.apply import is_doubtful
from retention_job.settings import KafkaSource, LifeTimes, Sources, StoreListing
from retention_job.sources.kafka import Offsets
from retention_job.tables.history import load
from tests.retention_job.recorded.history import CLUSTER_ID, HistorySpec, Planted, cluster_of
from tests.retention_job.recorded.world import RecordedKafka
from tests.retention_job.tables.test_declared_gaps import NOW_MS, WHOLE, history_of, uploaded


@pytest.mark.timeout(300)
def test_a_metadata_topic_that_lost_its_end_and_grew_is_read_anew_and_lacks_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [uploaded(number, WHOLE, 0, 10 * number, 10 * number + 9) for number in range(4)]
    first = history_of(stored[:2], spark, tmp_path, "first")
    first.commit()
    monkeypatch.setattr(RecordedKafka, "epoch_ends", lambda *_: {(0, 3): 1})
    rebuilt_before = RemoteWalTopicRebuilt(TopicId(first.cluster.metadata_topic.topic_id), NOW_MS)
    second = history_of([stored[0], *stored[2:], rebuilt_before], spark, tmp_path, "second", now_ms=NOW_MS + 1)
    assert sorted(row.sequence for row in second.segments.collect()) == [0, 2, 3]
    assert (second.read.is_incremental, second.lacks_records) == (False, True)
    assert is_doubtful(second, LifeTimes())
    second.commit()
    assert (last := second.state.last()) is not None
    assert last.whole_ms == NOW_MS


@pytest.mark.timeout(300)
def test_objects_of_a_broker_that_only_records_tell_of_are_not_missing(spark: SparkSession, tmp_path: Path) -> None:
    log = []
    for number in range(2):
        record = uploaded(number, WHOLE, 0, 10 * number, 10 * number + 9)
        log.append((serde.key_of(record), serde.encode(record)))
        place = tmp_path / "store" / CLUSTER_ID / "1" / f"{1:012x}" / f"{number:012x}.rwal"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(900))
    spec = HistorySpec(segments=0, now_ms=NOW_MS, brokers=1, partitions_per_broker=1)
    cluster = replace(cluster_of(spec, Planted(log_starts={}), Offsets({}, {0: 0})), brokers=frozenset())
    store = StorageSpec("plugin.local_directory.LocalWalStorageManager", None, {"directory": str(tmp_path / "store")})
    listing = StoreListing(store, CLUSTER_ID)
    for run_id, known in (("first", log), ("second", log)):  # the second has no new record, and knows the first's
        sources = Sources(KafkaSource("nowhere:1"), str(tmp_path / "state"), listing, is_incremental=True)
        history = load(spark, sources, NOW_MS, run_id, RecordedKafka({METADATA_TOPIC: {0: known}}, cluster))
        assert [(row.is_stored, row.stored_bytes) for row in history.segments.collect()] == [(True, 900)] * 2
        history.commit()
