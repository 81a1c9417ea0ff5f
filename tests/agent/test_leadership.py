"""Which partitions an agent takes care of, and where their upload goes on."""

from pathlib import Path

from agent.leadership import assignments, resume_offset
from kafka_log.log_directory import PartitionDirectory
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.archive_records import ArchiveObjectCommitted, ArchiveObjectDeleted
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.topic_settings import LinkPolicy, TopicSettings
from plugin.archive_object import ArchiveObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.kafka_log.log_writer import LogWriter

OLD_ID, NEW_ID, OTHER_ID = (TopicId(letter * 16) for letter in (b"o", b"n", b"x"))
PARTITION = TopicIdPartition(NEW_ID, 0)


def directory(topic: str, number: int, topic_id: TopicId = NEW_ID) -> PartitionDirectory:
    return PartitionDirectory(topic, number, topic_id, Path(f"/logs/{topic}-{number}"))


def test_only_led_partitions_of_enabled_topics_with_a_directory_are_taken_on() -> None:
    led = {"on": frozenset({0, 2, 7}), "off": frozenset({0}), "unknown": frozenset({0}), "idle": frozenset[int]()}
    topics = {"on": TopicSettings(True, LinkPolicy.ALWAYS, 5), "off": TopicSettings(False), "idle": TopicSettings(True)}
    directories = [directory("on", n) for n in (0, 1, 2)]
    directories += [directory(topic, 0, OTHER_ID) for topic in ("off", "unknown", "idle", "gone from metadata")]
    found = assignments(led, topics, directories, 20)
    assert [(a.topic, a.topic_id_partition) for a in found] == [
        ("on", TopicIdPartition(NEW_ID, 0)),
        ("on", TopicIdPartition(NEW_ID, 2)),
    ]
    assert {(a.link_policy, a.latency_bound_ms) for a in found} == {(LinkPolicy.ALWAYS, 5)}
    assert found[1].directory == Path("/logs/on-2")


def test_the_id_comes_from_the_directory_so_that_a_topic_made_anew_is_another_one() -> None:
    led, topics = {"t": frozenset({0})}, {"t": TopicSettings(True)}
    before = assignments(led, topics, [directory("t", 0, OLD_ID)], 20)
    after = assignments(led, topics, [directory("t", 0, NEW_ID)], 20)
    assert before[0].topic_id_partition != after[0].topic_id_partition


def test_a_topic_without_a_latency_bound_takes_the_agents() -> None:
    found = assignments({"t": frozenset({0})}, {"t": TopicSettings(True, LinkPolicy.LATENCY)}, [directory("t", 0)], 33)
    assert found[0].latency_bound_ms == 33


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
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) is None
    uploaded(store, 0, epoch=1, first=0, last=9)
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) == 10
    uploaded(store, 1, epoch=3, first=10, last=14)
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) == 15


def test_what_a_deposed_leader_uploaded_beyond_its_epochs_end_does_not_count(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (3, 5))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=29)
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) == 10


def test_without_a_readable_checkpoint_the_upload_begins_with_the_active_segment(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10))
    store = RemoteWalMetadataStore()
    uploaded(store, 0, epoch=1, first=0, last=9)
    (log.path / "leader-epoch-checkpoint").write_text("nonsense")
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) is None
    (log.path / "leader-epoch-checkpoint").unlink()
    assert resume_offset(store, ArchiveStore(), PARTITION, log.path) is None


def declared_dead(
    store: RemoteWalMetadataStore, sequence: int, epoch: int, first: int, last: int, by_epoch: int
) -> None:
    entry = RemoteLogSegmentMetadataEntry(PARTITION, epoch, first, last, 112, 200, 0)
    store.apply(RemoteWalLogSegmentMetadataUpdate(CombinedSegmentId(1, 1, sequence), (entry,), 1, by_epoch, 1))


def archived(sequence: int, *runs: tuple[int, int, int]) -> ArchiveObjectCommitted:
    """The record of an object with these runs: leader epoch, first and last offset."""
    entries = tuple(RemoteLogSegmentMetadataEntry(PARTITION, *run, 112, 200, 0) for run in runs)
    named = ArchiveObjectId(PARTITION, runs[0][1], runs[-1][2], CombinedSegmentId(1, 1, sequence))
    return ArchiveObjectCommitted(named, 1, entries, 300, (), 0)


def test_the_upload_goes_on_behind_what_archive_objects_alone_still_hold(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (3, 10))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 4)))
    assert resume_offset(store, archive, PARTITION, log.path) == 5
    archive.apply(archived(1, (1, 7, 9), (3, 10, 11)))  # what retention removed before it was archived lies between
    assert resume_offset(store, archive, PARTITION, log.path) == 12
    uploaded(store, 0, epoch=3, first=10, last=14)  # not archived yet
    assert resume_offset(store, archive, PARTITION, log.path) == 15


def test_archive_objects_of_what_the_log_has_lost_or_that_are_deleted_do_not_count(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (3, 5))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 29)))
    assert resume_offset(store, archive, PARTITION, log.path) == 10
    going = archived(1, (3, 10, 14))
    archive.apply(going)
    archive.apply(ArchiveObjectDeleted(going.object_id, 1, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1))
    assert resume_offset(store, archive, PARTITION, log.path) == 10


def test_what_was_declared_dead_and_is_the_logs_again_is_uploaded_anew_though_it_is_archived(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (4, 5))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 9)))
    uploaded(store, 0, epoch=1, first=0, last=11)
    declared_dead(store, 0, epoch=1, first=5, last=11, by_epoch=3)
    assert resume_offset(store, archive, PARTITION, log.path) == 5
    uploaded(store, 1, epoch=1, first=5, last=9)
    assert resume_offset(store, archive, PARTITION, log.path) == 10


def test_what_was_declared_dead_and_is_not_the_logs_does_not_hold_the_upload_back(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, 10), (4, 5))
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    archive.apply(archived(0, (1, 0, 9), (4, 10, 12)))
    uploaded(store, 0, epoch=1, first=8, last=11)
    declared_dead(store, 0, epoch=1, first=10, last=11, by_epoch=4)
    uploaded(store, 1, epoch=2, first=9, last=11)
    declared_dead(store, 1, epoch=2, first=9, last=11, by_epoch=4)
    assert resume_offset(store, archive, PARTITION, log.path) == 13
