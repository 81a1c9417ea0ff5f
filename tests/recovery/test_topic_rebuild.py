"""A metadata topic that was lost is written anew, by snapshots and by what objects say of themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectDeleted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import MetadataTopicError, PublicationBacklogFullError
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import RemoteWalNodeRegistration, RemoteWalTopicRebuilt
from metadata_topic.records.states import DELETING, FINISHED, STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.topic_continuity import NEVER_REBUILT_MS, RememberedTopic, TopicContinuity
from metadata_topic.topic.topic_session import TopicSession
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext, blobs_of
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask, ask_each
from recovery.metadata.topic_rebuild import Known, Rebuild, read_snapshots, unpublished_gaps
from rlm.lifecycle.orphans import OrphanSearch
from rlm.lifecycle.release import ClusterView, ReleaseJudge, Tiers
from tests.kafka_log.batches import batches
from tests.recovery.stored_objects import records
from tests.recovery.test_inventory import CLASS, Leader
from tests.rlm.archive_rig import MemoryArchive

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
CLUSTER = "cluster-1"
LOST, ANEW = TopicId(b"lost".ljust(16)), TopicId(b"anew".ljust(16))
NOW_MS = 1_800_000_000_000


@dataclass
class TopicInMemory(TopicSession):
    """The topic that began anew: what is published is read back, by a reader that knows nothing else."""

    store: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    archive: ArchiveStore = field(default_factory=ArchiveStore)
    records: int = 0
    refuses: int = 0
    loses: int = 0

    def __post_init__(self) -> None:
        self.store.topic.remember(RememberedTopic(LOST, {}))
        self.store.topic.reads(ANEW, {})

    def publish(self, record: Publishable) -> None:
        if self.refuses:
            self.refuses -= 1
            raise PublicationBacklogFullError("publish", "topic", "full")
        if self.loses:
            self.loses -= 1
            return
        self.records += 1
        if isinstance(record, ArchiveObjectCommitted | ArchiveObjectDeleted):
            key = archive_records.encode_key(record.object_id)
            self.archive.apply(archive_records.decode(key, archive_records.encode(record)))
            return
        decoded = serde.decode(serde.key_of(record), serde.encode(record))  # type: ignore[arg-type]
        self.store.apply(decoded, (0, self.records))
        if isinstance(decoded, RemoteWalNodeRegistration):
            self.archive.registered(decoded.broker_id, decoded.incarnation)

    def published(self) -> None: ...

    def read_to_end(self) -> bool:
        return True

    @property
    def known(self) -> Known:
        return Known(self.store, self.archive)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteWalStorageManager]:
    manager = load_storage_manager(StorageSpec(CLASS, None, {"directory": str(tmp_path)}), StorageContext(CLUSTER, 1))
    yield manager
    manager.close()


@dataclass
class Lost:
    """What there was before the topic was lost."""

    storage: RemoteWalStorageManager
    store: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    archive: ArchiveStore = field(default_factory=ArchiveStore)
    archive_storage: MemoryArchive = field(default_factory=MemoryArchive)
    rebuilt_ms: int = -1
    retention_ms: int = 0
    log_start: int = 0

    def __post_init__(self) -> None:
        self.leader = Leader(self.storage, 1)
        self.store.apply(RemoteWalNodeRegistration(1, 1, 1, 0), (0, 0))
        self.next_offset = 0

    def upload(self) -> RemoteWalCombinedLogSegmentMetadata:
        first = self.next_offset
        self.next_offset += 5
        uploaded = self.leader.upload(records(ORDERS, 0, first, first + 4))
        self.store.apply(uploaded, (0, self.next_offset))
        return uploaded

    def archive_object(self, sequence: int) -> ArchiveObjectCommitted:
        object_id = ArchiveObjectId(ORDERS, 12 * sequence, 12 * sequence + 11, CombinedSegmentId(1, 1, sequence))
        raw = batches(6, 12 * sequence, 2, 0)
        made = OpenArchiveObject(CLUSTER, object_id, NOW_MS, 10_000)
        made.append(0, 12 * sequence + 11, memoryview(raw), scan_batches(raw, 0, len(raw)))
        sealed = made.seal()
        ask(self.archive_storage.write(object_id, sealed))
        record = ArchiveObjectCommitted(object_id, 1, sealed.entries, sealed.size_bytes, 7)
        self.archive.apply(record)
        return record

    def save_snapshot(self, broker_id: int = 1) -> None:
        image = with_archive(self.store.image(), self.archive)
        image = replace(image, topic_id=LOST, rebuilt_ms=self.rebuilt_ms)
        SnapshotKeeper(blobs_of(self.storage, "put", "-"), CLUSTER, broker_id, 1).save(image, NOW_MS)

    def rebuild(self) -> Rebuild:
        starts, kept_ms = {ORDERS: self.log_start}, {ORDERS.topic_id: self.retention_ms}
        view = ClusterView(frozenset(kept_ms), retention_ms=kept_ms, log_start=starts)
        remembered = read_snapshots(self.storage, CLUSTER)
        judges = [ReleaseJudge(view, Tiers())]
        return Rebuild(self.storage, self.archive_storage, remembered, lambda: NOW_MS, lambda *_: judges)


def test_all_is_known_again_by_snapshots_and_footers_though_newer_incarnations_are_registered(
    storage: RemoteWalStorageManager,
) -> None:
    lost = Lost(storage)
    kept, going = lost.upload(), lost.upload()
    archived = lost.archive_object(0)
    lost.store.apply(RemoteWalCombinedLogSegmentMetadata(going.combined_segment_id, (), DELETING, 9), (0, 90))
    lost.save_snapshot()
    young, archived_later = lost.upload(), lost.archive_object(1)
    topic = TopicInMemory()
    topic.publish(RemoteWalNodeRegistration(1, 99, 1, 5))

    rebuild = lost.rebuild()
    plan = rebuild.plan(topic.known)
    assert (plan.objects, plan.known, plan.from_footers) == (5, 0, 2)
    rebuild.write(topic, plan)

    kept_id = kept.combined_segment_id
    assert topic.store.published_segment(kept_id) == lost.store.published_segment(kept_id)
    told = topic.store.published_segment(young.combined_segment_id)
    assert told is not None
    assert (told.metadata.entries, told.state, told.size_bytes) == (young.entries, FINISHED, young.size_bytes)
    assert topic.store.state_of(going.combined_segment_id) is DELETING
    for record in (archived, archived_later):
        known = topic.archive.committed(record.object_id)
        assert known is not None
        assert known.runs == record.runs
    assert not topic.store.topic.doubts
    search = OrphanSearch(topic.store, 1, 0)
    search.listed(ask_each(storage.list_log_segments(1)))
    assert search.judged(NOW_MS + 10**9).disagreements == ()


def test_what_the_topic_tells_is_left_as_it_is_and_an_upload_without_an_end_is_given_one(
    storage: RemoteWalStorageManager,
) -> None:
    lost = Lost(storage)
    told, begun = lost.upload(), lost.upload()
    topic = TopicInMemory()
    topic.store.apply(told, (0, 1))
    topic.store.apply(RemoteWalCombinedLogSegmentMetadata(begun.combined_segment_id, (), STARTED, 3), (0, 2))
    rebuild = lost.rebuild()
    plan = rebuild.plan(topic.known)
    assert (plan.known, [one.combined_segment_id for one in plan.segments]) == (1, [begun.combined_segment_id])
    rebuild.write(topic, plan)
    assert topic.store.state_of(begun.combined_segment_id) is FINISHED


def test_a_registration_is_told_of_only_where_the_topic_has_none(storage: RemoteWalStorageManager) -> None:
    lost = Lost(storage)
    lost.store.apply(RemoteWalNodeRegistration(2, 50, 2, 0), (0, 80))
    lost.store.apply(RemoteWalNodeRegistration(3, 60, 1, 0), (0, 81))
    lost.save_snapshot()
    topic = TopicInMemory()
    topic.publish(RemoteWalNodeRegistration(2, 40, 2, 9))  # its agent lives, and its clock was ahead before
    rebuild = lost.rebuild()
    rebuild.write(topic, rebuild.plan(topic.known))
    registered = {known.broker_id: known for known in topic.store.newest_registrations()}
    assert {broker: known.incarnation for broker, known in registered.items()} == {1: 1, 2: 40, 3: 60}
    assert topic.store.caretaker_of(3) == 1


def test_an_object_that_does_not_tell_what_is_in_it_is_named_and_the_others_are_told_of(
    storage: RemoteWalStorageManager, tmp_path: Path
) -> None:
    lost = Lost(storage)
    broken, whole = lost.upload(), lost.upload()
    [path] = [
        path for path in tmp_path.rglob("*.rwal") if path.name.startswith(f"{broken.combined_segment_id.sequence:012x}")
    ]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    topic = TopicInMemory()
    rebuild = lost.rebuild()
    plan = rebuild.plan(topic.known)
    assert len(plan.unreadable) == 1
    rebuild.write(topic, plan)
    assert topic.store.state_of(whole.combined_segment_id) is FINISHED
    assert topic.store.state_of(broken.combined_segment_id) is None
    assert topic.store.topic.rebuilt_ms == NEVER_REBUILT_MS  # else agents would delete it as an orphan
    path.unlink()
    rebuild.write(topic, rebuild.plan(topic.known))
    assert topic.store.topic.rebuilt_ms == NOW_MS


@pytest.mark.parametrize(("other", "readable"), [("newer", True), ("none", False), ("older", False)])
def test_a_topic_of_which_the_newest_snapshot_cannot_be_read_stays_in_doubt(
    storage: RemoteWalStorageManager, tmp_path: Path, other: str, readable: bool
) -> None:
    lost = Lost(storage)
    lost.upload()
    if other == "older":
        lost.save_snapshot(broker_id=2)
    lost.save_snapshot()
    for path in (tmp_path / CLUSTER / "metadata-snapshots" / "1").rglob("*-of-*"):
        path.write_bytes(b"?" + path.read_bytes()[1:])
    if other == "newer":
        lost.save_snapshot(broker_id=2)
    topic = TopicInMemory()
    rebuild = lost.rebuild()
    plan = rebuild.plan(topic.known)
    rebuild.write(topic, plan)
    assert (plan.is_whole, not topic.store.topic.doubts) == (readable, readable)


@pytest.mark.parametrize(("log_start", "lost_archived"), [(0, 2), (12, 1), (24, 0)])
def test_an_absent_archive_object_is_lost_whatever_its_age_unless_the_log_begins_behind_it(
    storage: RemoteWalStorageManager, log_start: int, lost_archived: int
) -> None:
    lost = Lost(storage, log_start=log_start)
    archived = [lost.archive_object(0), lost.archive_object(1)]
    lost.save_snapshot()
    lost.archive_storage = MemoryArchive()
    plan = lost.rebuild().plan(TopicInMemory().known)
    assert (plan.gone, plan.lost) == (2 - lost_archived, [one.object_id for one in archived[2 - lost_archived :]])


def test_what_the_topic_lost_on_the_way_is_written_again_and_a_full_publisher_is_waited_for(
    storage: RemoteWalStorageManager,
) -> None:
    lost = Lost(storage)
    uploads = [lost.upload() for _ in range(3)]
    topic = TopicInMemory(refuses=1, loses=2)
    rebuild = lost.rebuild()
    rebuild.write(topic, rebuild.plan(topic.known))
    assert [topic.store.state_of(one.combined_segment_id) for one in uploads] == [FINISHED] * 3


def test_a_rebuild_ends_doubts_although_one_before_it_was_made_by_a_clock_that_was_ahead(
    storage: RemoteWalStorageManager,
) -> None:
    lost = Lost(storage, rebuilt_ms=NOW_MS + 10**9)
    lost.save_snapshot()
    topic = TopicInMemory()
    rebuild = lost.rebuild()
    rebuild.write(topic, rebuild.plan(topic.known))
    agent = TopicContinuity()
    agent.remember(RememberedTopic(LOST, {}, lost.rebuilt_ms))
    agent.reads(ANEW, {})
    agent.rebuilt(RemoteWalTopicRebuilt(ANEW, topic.store.topic.rebuilt_ms))
    assert not agent.doubts


def test_the_topic_is_not_said_to_be_whole_before_all_was_read_back(storage: RemoteWalStorageManager) -> None:
    lost = Lost(storage)
    lost.upload()
    topic = TopicInMemory(loses=1000)
    rebuild = lost.rebuild()
    with pytest.raises(MetadataTopicError, match="1 records are missing"):
        rebuild.write(topic, rebuild.plan(topic.known))
    assert topic.store.topic.doubts


@pytest.mark.parametrize("reason", sorted(GapReason), ids=lambda reason: reason.name)
@pytest.mark.parametrize("meanwhile", [None, (1000, 1200)], ids=["alone", "continued by its agent"])
def test_a_declaration_of_any_reason_counts_as_told_once_it_was_read_back(
    storage: RemoteWalStorageManager, reason: GapReason, meanwhile: tuple[int, int] | None
) -> None:
    lost = Lost(storage)
    lost.upload()
    lost.store.apply(RemoteWalGapDeclaration(1, 1, 0, (DeclaredGap(ORDERS, 5, 1000, 2, reason),), 0), (0, 50))
    lost.save_snapshot()
    topic = TopicInMemory()
    if meanwhile is not None:
        topic.publish(RemoteWalGapDeclaration(1, 1, 1, (DeclaredGap(ORDERS, *meanwhile, 2, reason),), 0))
    rebuild = lost.rebuild()
    rebuild.write(topic, rebuild.plan(topic.known))
    assert not topic.store.topic.doubts
    told = rebuild.plan(topic.known)
    assert (told.records, told.gaps) == (0, [])


def test_unwanted_records_are_told_of_until_a_told_range_of_their_epoch_contains_them() -> None:
    told = RemoteWalMetadataStore()
    pieces = ((10, 20), (20, 30), (40, 50))
    declared = tuple(DeclaredGap(ORDERS, begin, end, 2, GapReason.NOT_WANTED) for begin, end in pieces)
    told.apply(RemoteWalGapDeclaration(1, 1, 0, declared, 0), (0, 1))
    contained = [(10, 30), (12, 20), (15, 25), (40, 50)]
    untold = [(5, 20), (25, 31), (28, 45), (30, 40), (50, 60), (0, 5)]
    gaps = [DeclaredGap(ORDERS, begin, end, 2, GapReason.NOT_WANTED) for begin, end in contained + untold]
    of_another_epoch = DeclaredGap(ORDERS, 10, 20, 3, GapReason.NOT_WANTED)
    left = unpublished_gaps([*gaps, of_another_epoch], told)
    assert [(gap.from_offset, gap.to_offset, gap.leader_epoch) for gap in left] == [
        *((begin, end, 2) for begin, end in untold),
        (10, 20, 3),
    ]
