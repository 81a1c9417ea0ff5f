"""Kafka's own remote storage releases what is on it, of the logs that are known here."""

from pathlib import Path

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.kip405 import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.records.states import FINISHED, STARTED
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.release import ClusterView, Release, Tiers, release_of
from rlm.lifecycle.tiered_storage import LogEpochs, TieredStorageTier

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)


def _tiered(first: int, last: int) -> TieredOffsets:
    offsets = TieredOffsets()
    segment_id = RemoteLogSegmentId(ORDERS, bytes(16))
    begun = RemoteLogSegmentMetadata(segment_id, "orders", first, last, 1, 0, 0, ((4, first),), 100, None, STARTED)
    ended = RemoteLogSegmentMetadataUpdate(segment_id, "orders", 1, 0, None, FINISHED)
    offsets.apply_all([begun, ended])
    return offsets


def _entry(first: int, last: int, epoch: int = 4) -> RemoteLogSegmentMetadataEntry:
    return RemoteLogSegmentMetadataEntry(ORDERS, epoch, first, last, 0, 10, 0)


def _checkpoint(directory: Path, *entries: tuple[int, int]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    (directory / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(_entry(0, 9), True), (_entry(2, 5), True), (_entry(5, 10), False), (_entry(0, 9, epoch=3), False)],
)
def test_an_entry_goes_when_all_of_it_is_on_the_tier(
    tmp_path: Path, entry: RemoteLogSegmentMetadataEntry, expected: bool
) -> None:
    _checkpoint(tmp_path, (4, 0))
    tier = Tiers([TieredStorageTier(_tiered(0, 9), LogEpochs(lambda _: tmp_path, lambda: 0.0))])
    assert tier.holds(entry) is expected
    assert release_of(entry, 0, ClusterView(), tier) is (Release.TIERED if expected else None)
    assert not tier.waits_for(ORDERS.topic_id)


def test_nothing_is_known_before_the_topic_was_read(tmp_path: Path) -> None:
    _checkpoint(tmp_path, (4, 0))
    is_read: list[bool] = []
    tier = TieredStorageTier(_tiered(0, 9), LogEpochs(lambda _: tmp_path, lambda: 0.0), lambda: bool(is_read))
    assert not tier.holds(_entry(0, 9))
    is_read.append(True)
    assert tier.holds(_entry(0, 9))


@pytest.mark.parametrize("checkpoint", ["", "no number\n", None])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [(_entry(0, 9), True), (_entry(2, 5), True), (_entry(5, 10), False), (_entry(0, 9, epoch=3), False)],
)
def test_the_tiers_own_epochs_count_for_a_log_that_is_not_here_or_cannot_be_read(
    tmp_path: Path, checkpoint: str | None, entry: RemoteLogSegmentMetadataEntry, expected: bool
) -> None:
    if checkpoint is not None:
        (tmp_path / "leader-epoch-checkpoint").write_text(checkpoint)
    epochs = LogEpochs(lambda _: None if checkpoint is None else tmp_path, lambda: 0.0)
    is_read = [True]
    tier = TieredStorageTier(_tiered(0, 9), epochs, lambda: bool(is_read))
    assert tier.holds(entry) is expected
    is_read.clear()
    assert not tier.holds(entry)


def test_leader_epochs_are_read_again_after_their_time(tmp_path: Path) -> None:
    now = 0.0
    epochs = LogEpochs(lambda _: tmp_path, lambda: now, max_age_s=10.0)
    _checkpoint(tmp_path, (4, 0))
    assert _entries(epochs.of(ORDERS)) == ((4, 0),)
    _checkpoint(tmp_path, (4, 0), (5, 7))
    now = 9.0
    assert _entries(epochs.of(ORDERS)) == ((4, 0),)
    now = 10.0
    assert _entries(epochs.of(ORDERS)) == ((4, 0), (5, 7))


def _entries(epochs: LeaderEpochs | None) -> tuple[tuple[int, int], ...] | None:
    return None if epochs is None else epochs.entries
