"""After a rebuild of the metadata topic an agent that knows nothing else takes a log on as one that knew all."""

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import DELETED, DELETING
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask
from recovery.metadata.topic_rebuild import RebuildPlan
from rlm.lifecycle.release import NEVER
from rlm.write_path.reading.resume_point import LedLog, ResumePoint, resume_of
from tests.recovery.test_topic_rebuild import ORDERS, Lost, TopicInMemory, storage

__all__ = ["storage"]

LOST_RECORDS = DeclaredGap(ORDERS, 15, 20, 0, GapReason.RETENTION)
BEGIN = DeclaredGap(ORDERS, 0, 0, 0, GapReason.BEFORE_UPLOAD)

EPOCHS = LeaderEpochs([(0, 0)])


def declare(lost: Lost, *gaps: DeclaredGap) -> None:
    lost.store.apply(RemoteWalGapDeclaration(1, 1, 0, gaps, 0), (0, 70))


def end(lost: Lost, uploaded: RemoteWalCombinedLogSegmentMetadata, *told: RemoteLogSegmentState) -> None:
    """Its records expired, and the topic told so before it was lost."""
    ask(lost.storage.delete_log_segment_data(uploaded.combined_segment_id, uploaded.custom_metadata))
    for state in told:
        lost.store.apply(RemoteWalCombinedLogSegmentMetadata(uploaded.combined_segment_id, (), state, 9), (0, 80))


def rebuilt(lost: Lost, topic: TopicInMemory) -> RebuildPlan:
    rebuild = lost.rebuild()
    plan = rebuild.plan(topic.known)
    rebuild.write(topic, plan)
    return plan


def resumed(topic: TopicInMemory, *segments: int) -> ResumePoint:
    """Of a log with these segments, by an agent that read the rebuilt topic and nothing else."""
    return resume_of(topic.store, topic.archive, LedLog(ORDERS, EPOCHS, segments))


@pytest.mark.parametrize("segments", [(0,), (25,)], ids=["the log still has it", "the log begins behind it"])
def test_nothing_that_expired_or_was_declared_is_missing_after_a_rebuild(
    storage: RemoteWalStorageManager, segments: tuple[int, ...]
) -> None:
    lost = Lost(storage)
    declare(lost, BEGIN, LOST_RECORDS)
    long_gone, gone_later, gone_behind_the_snapshot = (lost.upload() for _ in range(3))
    lost.next_offset = 20
    lost.upload()
    end(lost, long_gone, DELETING, DELETED)
    end(lost, gone_later, DELETING, DELETED)
    lost.save_snapshot()
    end(lost, gone_behind_the_snapshot)
    lost.upload()
    topic = TopicInMemory()
    plan = rebuilt(lost, topic)
    assert resumed(topic, *segments) == ResumePoint(30, (), EPOCHS)
    assert topic.store.declared_gaps(ORDERS) == [BEGIN, LOST_RECORDS]
    assert (plan.declared_gaps, plan.bounds, plan.gone) == (1, 2, 1)


@pytest.mark.parametrize(("log_start", "is_lost"), [(0, True), (4, True), (5, False)])
def test_an_absent_object_whose_records_are_wanted_is_lost_and_its_records_stay_missing(
    storage: RemoteWalStorageManager, log_start: int, *, is_lost: bool
) -> None:
    lost = Lost(storage, retention_ms=NEVER, log_start=log_start)
    declare(lost, BEGIN)
    absent, _ = lost.upload(), lost.upload()
    lost.save_snapshot()
    end(lost, absent)
    topic = TopicInMemory()
    plan = rebuilt(lost, topic)
    assert (plan.gone, plan.lost) == ((0, [absent.combined_segment_id]) if is_lost else (1, []))
    assert resumed(topic, 0).missing == (((0, 5),) if is_lost else ())


def test_an_absent_object_that_the_topic_tells_to_be_deleted_is_not_lost(storage: RemoteWalStorageManager) -> None:
    lost, topic = Lost(storage, retention_ms=NEVER), TopicInMemory()
    absent = lost.upload()
    lost.save_snapshot()
    end(lost, absent)
    topic.store.apply(RemoteWalCombinedLogSegmentMetadata(absent.combined_segment_id, (), DELETING, 9), (0, 80))
    assert lost.rebuild().plan(topic.known).lost == []


def test_a_hole_that_nobody_declared_is_still_missing_after_a_rebuild(storage: RemoteWalStorageManager) -> None:
    lost = Lost(storage)
    declare(lost, BEGIN)
    gone = lost.upload()
    lost.upload()
    lost.next_offset = 15
    lost.upload()
    lost.save_snapshot()
    end(lost, gone)
    topic = TopicInMemory()
    rebuilt(lost, topic)
    assert resumed(topic, 0) == ResumePoint(20, ((10, 15),), EPOCHS)


@pytest.mark.parametrize("in_another_snapshot", [(), (DELETING,), (DELETING, DELETED)])
def test_an_object_with_dead_entries_that_is_gone_tells_nothing_of_release(
    storage: RemoteWalStorageManager, in_another_snapshot: tuple[RemoteLogSegmentState, ...]
) -> None:
    lost = Lost(storage)
    declare(lost, BEGIN)
    lost.next_offset = 5
    dead = lost.upload()
    lost.store.apply(RemoteWalLogSegmentMetadataUpdate(dead.combined_segment_id, dead.entries, 2, 1, 1), (0, 60))
    lost.save_snapshot(1)
    end(lost, dead, *in_another_snapshot)
    lost.save_snapshot(2)
    lost.upload()
    topic = TopicInMemory()
    rebuilt(lost, topic)
    assert resumed(topic, 0) == ResumePoint(15, ((0, 10),), EPOCHS)


def test_what_the_topic_tells_of_gaps_is_not_written_again_and_what_it_lost_is(
    storage: RemoteWalStorageManager,
) -> None:
    lost = Lost(storage)
    declare(lost, BEGIN, LOST_RECORDS)
    end(lost, lost.upload(), DELETING, DELETED)
    lost.save_snapshot()
    topic = TopicInMemory(loses=2)
    assert rebuilt(lost, topic).records == 2
    assert topic.store.declared_gaps(ORDERS) == [BEGIN, LOST_RECORDS]
    again = lost.rebuild().plan(topic.known)
    assert (again.records, again.gaps) == (0, [])


def test_gaps_are_written_in_as_many_records_as_they_need(
    storage: RemoteWalStorageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.metadata.topic_rebuild.MAX_GAPS", 2)
    lost = Lost(storage)
    gaps = [DeclaredGap(ORDERS, at, at + 1, 0, GapReason.UNREADABLE) for at in range(0, 10, 2)]
    declare(lost, *gaps)
    lost.save_snapshot()
    topic = TopicInMemory()
    plan = rebuilt(lost, topic)
    assert plan.records == len(plan.registrations) + 3
    assert topic.store.declared_gaps(ORDERS) == gaps


def test_snapshots_of_several_agents_that_all_know_of_deletions_are_joined(storage: RemoteWalStorageManager) -> None:
    lost = Lost(storage)
    declare(lost, BEGIN)
    first, second, _ = lost.upload(), lost.upload(), lost.upload()
    end(lost, first, DELETING, DELETED)
    lost.save_snapshot(1)
    end(lost, second, DELETING, DELETED)
    lost.save_snapshot(2)
    lost.save_snapshot(3)
    topic = TopicInMemory()
    rebuilt(lost, topic)
    assert resumed(topic, 0) == ResumePoint(15, (), EPOCHS)


def test_where_logs_began_outlives_the_topic(storage: RemoteWalStorageManager) -> None:
    lost = Lost(storage)
    declare(
        lost,
        BEGIN,
        DeclaredGap(ORDERS, 0, 7, 0, GapReason.LOG_START),
        DeclaredGap(ORDERS, 0, 9, 0, GapReason.LOG_START),
    )
    lost.save_snapshot()
    topic = TopicInMemory()
    rebuilt(lost, topic)
    assert topic.store.image().log_starts == [ReleasedUpTo(ORDERS, 0, 9)]
    assert topic.store.declared_gaps(ORDERS) == [BEGIN], "it is no gap"
    assert lost.rebuild().plan(topic.known).gaps == [], "it is not told again"
