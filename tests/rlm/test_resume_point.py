"""Where the upload of a log goes on, and what of it is missing before."""

from pathlib import Path

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.resume_point import ResumePoint, ResumeUnknownError, end_of_log, resume_point
from tests.kafka_log.log_writer import LogWriter

PARTITION = TopicIdPartition(TopicId(b"n" * 16), 0)


def resumed(
    store: RemoteWalMetadataStore, archive: ArchiveStore, log: LogWriter, *, is_archived: bool = False
) -> ResumePoint:
    return resume_point(store, archive, Assignment(PARTITION, "t", log.path, LinkPolicy.COST, 20, is_archived))


def next_offset(store: RemoteWalMetadataStore, archive: ArchiveStore, log: LogWriter) -> int | None:
    """Where the upload goes on, with nothing missing before."""
    found = resumed(store, archive, log)
    assert found.missing == ()
    return found.next_offset


def log_of(tmp_path: Path, *epochs: tuple[int, int]) -> LogWriter:
    """A log with a batch of each leader epoch: (epoch, records)."""
    log = LogWriter(tmp_path / "t-0")
    for epoch, records in epochs:
        log.append(records, leader_epoch=epoch)
    return log


def uploaded(store: RemoteWalMetadataStore, sequence: int, epoch: int, first: int, last: int) -> None:
    entry = RemoteLogSegmentMetadataEntry(PARTITION, epoch, first, last, 112, 200, 0)
    segment = CombinedSegmentId(1, 1, sequence)
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment, (entry,), finished, 0, 300))


def test_the_upload_goes_on_behind_the_last_offset_of_the_logs_own_epochs(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (3, 10))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=9)
    assert next_offset(store, ArchiveStore(), log) == 10
    uploaded(store, 1, epoch=3, first=10, last=14)
    assert next_offset(store, ArchiveStore(), log) == 15


def test_what_a_deposed_leader_uploaded_beyond_its_epochs_end_does_not_count(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (3, 5))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=29)
    assert next_offset(store, ArchiveStore(), log) == 10


def test_without_leader_epochs_it_is_not_known_where_to_go_on_and_nothing_is_left_out(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=9)
    checkpoint = log.path / "leader-epoch-checkpoint"
    checkpoint.write_text("nonsense")
    with pytest.raises(ResumeUnknownError, match="nonsense"):
        resumed(store, ArchiveStore(), log)
    checkpoint.unlink()
    with pytest.raises(ResumeUnknownError, match="no leader epochs yet"):
        resumed(store, ArchiveStore(), log)


def test_a_log_of_which_nothing_is_known_begins_with_the_active_segment(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10))
    log.roll()
    log.append(5, leader_epoch=1)
    assert resumed(RemoteWalMetadataStore(), ArchiveStore(), log) == ResumePoint(
        10, (), LeaderEpochs([(1, 0)]), is_first=True
    )


def declared(store: RemoteWalMetadataStore, from_offset: int, to_offset: int, epoch: int, reason: GapReason) -> None:
    gap = DeclaredGap(PARTITION, from_offset, to_offset, epoch, reason)
    store.apply(RemoteWalGapDeclaration(1, 1, from_offset, (gap,), 0))


def test_what_was_rolled_before_anything_was_stored_is_not_left_out(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10))
    store = RemoteWalMetadataStore()
    declared(store, 0, 0, 1, GapReason.BEFORE_UPLOAD)  # an agent took it on, and the store was away
    log.roll()
    log.append(5, leader_epoch=1)
    assert next_offset(store, ArchiveStore(), log) == 0
    declared(store, 0, 10, 1, GapReason.BEFORE_UPLOAD)  # of two the lower counts
    assert next_offset(store, ArchiveStore(), log) == 0


@pytest.mark.parametrize("is_archived", [True, False])
def test_what_was_never_stored_is_missing_though_retention_took_it_with_its_epoch(
    tmp_path: Path, is_archived: bool
) -> None:
    log, store = LogWriter(tmp_path / "t-0"), RemoteWalMetadataStore()
    for epoch in (1, 2, 3):
        log.append(10, leader_epoch=epoch)
        log.roll()
    uploaded(store, 0, epoch=1, first=0, last=9)
    uploaded(store, 1, epoch=3, first=20, last=29)
    log.remove_oldest()
    log.remove_oldest()
    found = resumed(store, ArchiveStore(), log, is_archived=is_archived)
    assert found == ResumePoint(30, ((10, 20),), LeaderEpochs([(3, 20)]))


def test_what_was_not_wanted_is_not_missing_and_the_upload_goes_on_behind_it(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 40))
    store = RemoteWalMetadataStore()
    declared(store, 0, 0, 1, GapReason.BEFORE_UPLOAD)
    declared(store, 10, 25, 1, GapReason.NOT_WANTED)
    assert resumed(store, ArchiveStore(), log) == ResumePoint(25, ((0, 10),), LeaderEpochs([(1, 0)]))


def test_of_a_log_whose_begin_was_never_declared_only_the_segment_of_the_first_known_offset_is_wanted(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, (1, 10))
    log.roll()
    log.append(10, leader_epoch=1)
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=15, last=19)
    assert resumed(store, ArchiveStore(), log).missing == ((10, 15),)
    declared(store, 0, 0, 1, GapReason.BEFORE_UPLOAD)
    assert resumed(store, ArchiveStore(), log).missing == ((0, 15),)


def deletion_started(store: RemoteWalMetadataStore, sequence: int) -> None:
    segment, state = CombinedSegmentId(1, 1, sequence), RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment, (), state, 1, 300))


def test_what_is_below_released_records_is_not_missing(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 60))
    store = RemoteWalMetadataStore()
    for sequence, first in enumerate((10, 20, 40)):
        uploaded(store, sequence, epoch=1, first=first, last=first + 9)
    assert resumed(store, ArchiveStore(), log).missing == ((0, 10), (30, 40))
    deletion_started(store, 1)  # 20 to 29
    assert resumed(store, ArchiveStore(), log).missing == ((30, 40),)
    # An archive may hold what is behind a hole, so release says nothing of the hole.
    assert resumed(store, ArchiveStore(), log, is_archived=True).missing == ((0, 10), (20, 40))
    deletion_started(store, 0)
    deletion_started(store, 2)
    assert next_offset(store, ArchiveStore(), log) == 50


@pytest.mark.parametrize(("dead_from", "goes_on_at"), [(25, 25), (20, 10)])
def test_of_an_object_that_was_declared_dead_only_what_lived_tells_of_release(
    tmp_path: Path, dead_from: int, goes_on_at: int
) -> None:
    log = log_of(tmp_path, (1, 60))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=9)
    uploaded(store, 1, epoch=1, first=20, last=29)
    declared_dead(store, 1, epoch=1, first=dead_from, last=29, by_epoch=2)
    deletion_started(store, 1)
    assert next_offset(store, ArchiveStore(), log) == goes_on_at


def test_declared_gaps_are_not_missing_but_where_a_newer_epoch_wrote_anew(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 20), (3, 30))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=9)
    declared(store, 10, 30, 1, GapReason.RETENTION)
    uploaded(store, 1, epoch=3, first=30, last=34)
    assert resumed(store, ArchiveStore(), log) == ResumePoint(35, ((20, 30),), LeaderEpochs([(1, 0), (3, 20)]))
    declared(store, 20, 30, 3, GapReason.UNREADABLE)
    assert next_offset(store, ArchiveStore(), log) == 35


def declared_dead(
    store: RemoteWalMetadataStore, sequence: int, epoch: int, first: int, last: int, by_epoch: int
) -> None:
    entry = RemoteLogSegmentMetadataEntry(PARTITION, epoch, first, last, 112, 200, 0)
    store.apply(RemoteWalLogSegmentMetadataUpdate(CombinedSegmentId(1, 1, sequence), (entry,), 1, by_epoch, 1))


def archived(sequence: int, *runs: tuple[int, int, int]) -> ArchiveObjectCommitted:
    """The record of an object with these runs: leader epoch, first and last offset."""
    entries = tuple(RemoteLogSegmentMetadataEntry(PARTITION, *run, 112, 200, 0) for run in runs)
    named = ArchiveObjectId(PARTITION, runs[0][1], runs[-1][2], CombinedSegmentId(1, 1, sequence))
    return ArchiveObjectCommitted(named, 1, entries, 300, 0)


def test_what_was_declared_dead_and_is_the_logs_again_is_uploaded_anew_though_it_is_archived(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (4, 5))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 9)))
    uploaded(store, 0, epoch=1, first=0, last=11)
    declared_dead(store, 0, epoch=1, first=5, last=11, by_epoch=3)
    assert next_offset(store, archive, log) == 5
    uploaded(store, 1, epoch=1, first=5, last=9)
    assert next_offset(store, archive, log) == 10


def test_what_was_declared_dead_and_is_not_the_logs_does_not_hold_the_upload_back(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (4, 5))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 9), (4, 10, 12)))
    uploaded(store, 0, epoch=1, first=8, last=11)
    declared_dead(store, 0, epoch=1, first=10, last=11, by_epoch=4)
    uploaded(store, 1, epoch=2, first=9, last=11)
    declared_dead(store, 1, epoch=2, first=9, last=11, by_epoch=4)
    assert next_offset(store, archive, log) == 13


def test_older_epochs_that_are_known_in_part_tell_of_nothing_that_the_logs_own_epochs_hold(tmp_path: Path) -> None:
    # Epoch 2 began at 15, and nothing tells of it any more: what is dead of epoch 1 seems to be the log's again.
    log, store, archive = LogWriter(tmp_path / "t-0"), RemoteWalMetadataStore(), ArchiveStore()
    for epoch, records in ((1, 15), (2, 5), (3, 10)):
        log.append(records, leader_epoch=epoch)
        log.roll()
    uploaded(store, 0, epoch=1, first=0, last=17)
    declared_dead(store, 0, epoch=1, first=15, last=17, by_epoch=2)
    archive.apply(archived(0, (3, 20, 29)))
    uploaded(store, 1, epoch=3, first=25, last=29)
    log.remove_oldest()
    log.remove_oldest()
    found = resumed(store, archive, log, is_archived=True)
    assert found == ResumePoint(30, ((15, 20),), LeaderEpochs([(3, 20)]))


@pytest.mark.parametrize("preallocate_bytes", [0, 1 << 16])
def test_in_shadow_only_what_comes_from_now_on_is_read(tmp_path: Path, preallocate_bytes: int) -> None:
    log = LogWriter(tmp_path / "t-0", preallocate_bytes=preallocate_bytes)
    assignment = Assignment(PARTITION, "t", log.path, LinkPolicy.COST, 20)
    assert end_of_log(assignment).next_offset == 0
    for _ in range(5):
        log.append(records=3, leader_epoch=4)
    log.roll()
    log.append(records=2, leader_epoch=4)
    if not preallocate_bytes:
        log.tear()
    found = end_of_log(assignment)
    assert (found.next_offset, found.missing, found.leader_epochs.newest_epoch) == (17, (), 4)
    with pytest.raises(ResumeUnknownError):
        end_of_log(Assignment(PARTITION, "t", tmp_path / "none", LinkPolicy.COST, 20))
