"""Defects for a history (`history`), and what must be found of them. The agents' own serde makes the records."""

from itertools import count

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import (
    ArchiveObjectCommitted,
    ArchiveObjectDeleted,
    ArchiveObjectPrepared,
    ArchiveRecord,
)
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    PublishableRecord,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
)
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.archive_storage import StoredArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.object_keys import ObjectKeyFactory
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.retention_job.recorded.history import (
    ARCHIVED,
    CLUSTER_ID,
    DAY_MS,
    HOUR_MS,
    INCARNATION,
    HistorySpec,
    Planted,
    StoredObject,
    bulk_entries,
    topic_id,
)

_PLANTED_INCARNATION = 2
_UNKNOWN_INCARNATION = 3
_FENCED_INCARNATION = 4
_SUCCEEDING_INCARNATION = 5
_HEADER_BYTES = 112
_ARCHIVE_BYTES = 5_000
_FENCED_BROKER = 900

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


def archive_name(object_id: ArchiveObjectId) -> str:
    """As findings name an archive object, beside its topic and partition."""
    return f"archive:{object_id.first_offset}-{object_id.last_offset}:{object_id.writer_id}"


class _Planter:
    def __init__(self, spec: HistorySpec) -> None:
        self._spec = spec
        self.planted = Planted()
        self._sequences = count(1)
        self._partitions = count()

    def ago(self, ms: int) -> int:
        return self._spec.now_ms - ms

    def new_id(self) -> CombinedSegmentId:
        return CombinedSegmentId(1, _PLANTED_INCARNATION, next(self._sequences))

    def new_partition(self, topic: str = "kept") -> tuple[str, int]:
        return topic, next(self._partitions)

    def entry(self, where: tuple[str, int], first: int, last: int, epoch: int = 0) -> RemoteLogSegmentMetadataEntry:
        partition = TopicIdPartition(topic_id(where[0]), where[1])
        return RemoteLogSegmentMetadataEntry(partition, epoch, first, last, _HEADER_BYTES, _HEADER_BYTES + 500, 7)

    def publish(self, record: PublishableRecord, broker_id: int = 1) -> None:
        self.planted.records.append((broker_id, (serde.key_of(record), serde.encode(record))))

    def state(
        self,
        segment_id: CombinedSegmentId,
        state: RemoteLogSegmentState,
        at_ms: int,
        *entries: RemoteLogSegmentMetadataEntry,
    ) -> None:
        self.publish(RemoteWalCombinedLogSegmentMetadata(segment_id, entries, state, at_ms, 900))

    def upload(
        self,
        at_ms: int,
        *entries: RemoteLogSegmentMetadataEntry,
        stored_bytes: int | None = 900,
        segment_id: CombinedSegmentId | None = None,
    ) -> CombinedSegmentId:
        segment_id = segment_id or self.new_id()
        self.state(segment_id, STARTED, at_ms - 5)
        self.state(segment_id, FINISHED, at_ms, *entries)
        if stored_bytes is not None:
            self.planted.objects.append(StoredObject(segment_id, stored_bytes, at_ms))
        return segment_id

    def declare(self, where: tuple[str, int], begin: int, end: int, reason: GapReason) -> None:
        gap = DeclaredGap(TopicIdPartition(topic_id(where[0]), where[1]), begin, end, 0, reason)
        sequence = next(self._sequences)
        self.publish(RemoteWalGapDeclaration(1, _PLANTED_INCARNATION, sequence, (gap,), self.ago(DAY_MS)))

    def expect(
        self, kind: str, where: tuple[str, int] | None = None, segment_id: CombinedSegmentId | None = None
    ) -> None:
        topic, partition = where or (None, None)
        self.planted.expected.add((kind, topic, partition, None if segment_id is None else str(segment_id)))

    # Each plants one defect, and what must not be taken for one.

    def life_cycle(self) -> None:
        where = self.new_partition("short")
        self.expect("expired_not_deleted", None, self.upload(self.ago(6 * HOUR_MS), self.entry(where, 0, 9)))
        self.upload(self.ago(HOUR_MS // 2), self.entry(where, 10, 19))  # its time has not come
        unfinished = self.new_id()
        self.state(unfinished, STARTED, self.ago(6 * HOUR_MS))
        self.expect("upload_unfinished", None, unfinished)
        self.state(self.new_id(), STARTED, self.ago(1000))
        for state, kind in ((DELETING, "deletion_unfinished"), (DELETED, "deleted_but_there")):
            segment_id = self.upload(self.ago(9 * HOUR_MS), self.entry(self.new_partition("short"), 0, 9))
            self.state(segment_id, DELETING, self.ago(7 * HOUR_MS))
            if state is DELETED:
                self.state(segment_id, DELETED, self.ago(6 * HOUR_MS))
            self.expect(kind, None, segment_id)

    def early_deletion(self) -> None:
        """Of what is wanted, and of what is not: before the log's start, beyond its epoch's end, declared dead."""
        for why_unwanted in ("", "start", "epoch", "dead"):
            where, uploaded_ms = self.new_partition(), self.ago(3 * DAY_MS)
            gone = self.new_partition()
            self.planted.log_starts[gone] = 10
            entries = self.entry(where, 0, 9), self.entry(gone, 0, 9)
            segment_id = self.upload(uploaded_ms, *entries, stored_bytes=None)
            newer = self.entry(where, 0, 19, epoch=1) if why_unwanted == "epoch" else self.entry(where, 10, 19)
            self.upload(uploaded_ms, newer)
            if why_unwanted == "start":
                self.planted.log_starts[where] = 10
            elif why_unwanted == "dead":
                dead = (self.entry(where, 0, 9),)
                self.publish(RemoteWalLogSegmentMetadataUpdate(segment_id, dead, 2, 1, uploaded_ms))
            self.state(segment_id, DELETING, self.ago(2 * DAY_MS))
            self.state(segment_id, DELETED, self.ago(2 * DAY_MS - 1000))
            if not why_unwanted:
                self.expect("deleted_too_early", where, segment_id)

    def store(self, index: int) -> None:
        unknown = CombinedSegmentId(1, _UNKNOWN_INCARNATION, index)
        self.planted.objects.append(StoredObject(unknown, 4000, self.ago(6 * HOUR_MS)))
        self.expect("object_without_metadata", None, unknown)
        young = CombinedSegmentId(1, _UNKNOWN_INCARNATION, 2**30 + index)
        self.planted.objects.append(StoredObject(young, 4000, self.ago(1000)))
        other = self.upload(self.ago(6 * HOUR_MS), self.entry(self.new_partition(), 0, 9), stored_bytes=901)
        self.expect("object_of_other_size", None, other)
        lost = self.upload(self.ago(6 * HOUR_MS), self.entry(self.new_partition(), 0, 9), stored_bytes=None)
        self.expect("metadata_without_object", None, lost)

    def chain(self) -> None:
        hole = self.new_partition()
        self.upload(self.ago(DAY_MS), self.entry(hole, 0, 9))
        self.upload(self.ago(DAY_MS), self.entry(hole, 20, 29))
        self.expect("offset_gap", hole)
        for reason in (GapReason.NOT_WANTED, GapReason.RETENTION):
            where = self.new_partition()
            self.declare(where, 10, 20, reason)
            self.upload(self.ago(DAY_MS), self.entry(where, 0, 9))
            self.upload(self.ago(DAY_MS), self.entry(where, 20, 29))
            if reason.is_loss:
                self.expect("offset_gap", where)
        old_hole = self.new_partition()
        self.upload(self.ago(DAY_MS), self.entry(old_hole, 0, 9), self.entry(old_hole, 20, 29))
        self.planted.log_starts[old_hole] = 20
        twice = self.new_partition()
        self.upload(self.ago(DAY_MS), self.entry(twice, 0, 19))
        self.upload(self.ago(DAY_MS), self.entry(twice, 10, 29))
        self.expect("offset_overlap", twice)
        again = self.new_partition()
        self.upload(self.ago(DAY_MS), self.entry(again, 0, 9))
        self.planted.records.append(self.planted.records[-1])  # published twice

    def failover(self) -> None:
        for is_published, kind in ((True, "dead_entries"), (False, "dead_entries_untold")):
            where = self.new_partition()
            old = self.upload(self.ago(DAY_MS), self.entry(where, 0, 29))
            self.upload(self.ago(DAY_MS), self.entry(where, 20, 39, epoch=1))
            if is_published:
                dead = (self.entry(where, 20, 29),)
                self.publish(RemoteWalLogSegmentMetadataUpdate(old, dead, 2, 1, self.ago(DAY_MS)))
            self.expect(kind, where, None if is_published else old)

    def bad_records(self) -> None:
        segment_id = self.new_id()
        entries = tuple(self.entry(self.new_partition(), first, first + 9) for first in (0, 10))
        record = RemoteWalCombinedLogSegmentMetadata(segment_id, entries, FINISHED, self.ago(DAY_MS), 900)
        self.planted.records.append((1, (serde.key_of(record), serde.encode(record)[:-9])))
        self.planted.records.append((1, (b"foreign", b'{"not": "ours"}')))

    # What fenced agents leave, and the archive.

    def fenced_writer(self, index: int) -> None:
        """Of a broker of its own, as a registration fences all that comes after it."""
        broker_id = _FENCED_BROKER + index

        def old() -> CombinedSegmentId:
            return CombinedSegmentId(broker_id, _FENCED_INCARNATION, next(self._sequences))

        where, begun, leaving = self.new_partition(), old(), old()
        self.upload(self.ago(DAY_MS), self.entry(where, 0, 9), segment_id=old())
        self.state(begun, STARTED, self.ago(6 * HOUR_MS))
        self.upload(self.ago(9 * HOUR_MS), self.entry(self.new_partition("short"), 0, 9), segment_id=leaving)
        self.publish(RemoteWalNodeRegistration(broker_id, _SUCCEEDING_INCARNATION, broker_id, self.ago(DAY_MS)))
        in_vain = self.upload(self.ago(6 * HOUR_MS), self.entry(where, 10, 19), segment_id=old())
        self.expect("object_without_metadata", None, in_vain)
        successor = CombinedSegmentId(broker_id, _SUCCEEDING_INCARNATION, 1)
        self.upload(self.ago(6 * HOUR_MS), self.entry(where, 10, 19), segment_id=successor)
        self.state(begun, FINISHED, self.ago(6 * HOUR_MS), self.entry(where, 20, 29))
        self.planted.objects.append(StoredObject(begun, 900, self.ago(6 * HOUR_MS)))
        self.expect("upload_unfinished", None, begun)
        self.state(leaving, DELETING, self.ago(7 * HOUR_MS))  # of deletions a fenced agent may tell
        self.expect("deletion_unfinished", None, leaving)
        for publisher, is_taken in ((_FENCED_INCARNATION, False), (_SUCCEEDING_INCARNATION, True)):
            committed = self.archive(self.new_partition(ARCHIVED), (0, 9), writer=old(), publisher=publisher)
            if not is_taken:
                self.expect_archive("archive_object_without_metadata", committed)

    def archived_log(self) -> None:
        """Archived whole, archived in part, and archives with holes: of what local retention kept, and of the rest."""
        for archived_to, is_whole in ((19, True), (14, False)):
            where = self.new_partition(ARCHIVED)
            sources = [
                self.upload(self.ago(3 * DAY_MS), self.entry(where, first, first + 9), stored_bytes=None)
                for first in (0, 10)
            ]
            self.archive(where, (0, 5), (6, archived_to))
            for source in sources:
                self.state(source, DELETING, self.ago(2 * DAY_MS))
                self.state(source, DELETED, self.ago(2 * DAY_MS - 1000))
            self.upload(self.ago(HOUR_MS), self.entry(where, 20, 29))
            if not is_whole:
                self.expect("deleted_too_early", where, sources[1])
        for log_start in (0, 20):
            where = self.new_partition(ARCHIVED)
            self.archive(where, (0, 9))
            self.archive(where, (20, 29))
            self.upload(self.ago(HOUR_MS), self.entry(where, 30, 39))
            self.planted.log_starts[where] = log_start
            if not log_start:
                self.expect("offset_gap", where)

    def archive_store(self) -> None:
        old_ms = self.ago(6 * HOUR_MS)
        prepared = self.archive(self.new_partition(ARCHIVED), (0, 9), state=STARTED)
        self.expect_archive("archive_upload_unfinished", prepared)
        young = self.archive_id(self.new_partition(ARCHIVED), 0, 9)
        self.publish_archive(ArchiveObjectPrepared(young, _PLANTED_INCARNATION, HOUR_MS, self.ago(1000)))
        self.store_archive(young, self.ago(1000))
        for state, kind in ((DELETING, "archive_deletion_unfinished"), (DELETED, "archive_deleted_but_there")):
            leaving = self.archive(self.new_partition(ARCHIVED), (0, 9))
            for step in (DELETING, DELETED)[: 1 + (state is DELETED)]:
                self.publish_archive(ArchiveObjectDeleted(leaving, _PLANTED_INCARNATION, step, old_ms))
            self.expect_archive(kind, leaving)
        unknown = self.archive_id(self.new_partition(ARCHIVED), 0, 9)
        self.store_archive(unknown, old_ms)
        self.expect_archive("archive_object_without_metadata", unknown)
        lost = self.archive(self.new_partition(ARCHIVED), (0, 9), stored_bytes=None)
        self.expect_archive("archive_metadata_without_object", lost)
        other = self.archive(self.new_partition(ARCHIVED), (0, 9), stored_bytes=_ARCHIVE_BYTES + 1)
        self.expect_archive("archive_object_of_other_size", other)

    def archive_id(
        self, where: tuple[str, int], first: int, last: int, writer: CombinedSegmentId | None = None
    ) -> ArchiveObjectId:
        partition = TopicIdPartition(topic_id(where[0]), where[1])
        return ArchiveObjectId(partition, first, last, writer or self.new_id())

    def archive(
        self,
        where: tuple[str, int],
        *runs: tuple[int, int],
        state: RemoteLogSegmentState = FINISHED,
        stored_bytes: int | None = _ARCHIVE_BYTES,
        writer: CombinedSegmentId | None = None,
        publisher: int = _PLANTED_INCARNATION,
    ) -> ArchiveObjectId:
        """An object of these runs, prepared and, unless `state` says otherwise, committed."""
        object_id = self.archive_id(where, runs[0][0], runs[-1][1], writer)
        at_ms = self.ago(6 * HOUR_MS)
        self.publish_archive(ArchiveObjectPrepared(object_id, publisher, HOUR_MS, at_ms - 10))
        if state is FINISHED:
            entries = tuple(self.entry(where, first, last) for first, last in runs)
            self.publish_archive(ArchiveObjectCommitted(object_id, publisher, entries, _ARCHIVE_BYTES, at_ms))
        if stored_bytes is not None:
            self.store_archive(object_id, at_ms - 5, stored_bytes)
        return object_id

    def publish_archive(self, record: ArchiveRecord) -> None:
        self.planted.records.append((1, (archive_records.encode_key(record.object_id), archive_records.encode(record))))

    def store_archive(self, object_id: ArchiveObjectId, at_ms: int, size_bytes: int = _ARCHIVE_BYTES) -> None:
        key = ObjectKeyFactory.of("", CLUSTER_ID).archive_key_of(object_id)
        self.planted.archive_objects.append(StoredArchiveObject(object_id, key, size_bytes, at_ms))

    def expect_archive(self, kind: str, object_id: ArchiveObjectId) -> None:
        partition = object_id.topic_id_partition.partition
        self.planted.expected.add((kind, ARCHIVED, partition, archive_name(object_id)))

    def bulk_losses(self, index: int) -> None:
        """Two segments of the bulk, far from each other and from the ends."""
        step = self._spec.per_broker // (2 * self._spec.defects + 2)
        lost, unpublished = ((1, (2 * index + number) * step) for number in (1, 2))
        self.planted.lost.add(lost)
        self.planted.unpublished.add(unpublished)
        self.expect("metadata_without_object", None, CombinedSegmentId(1, INCARNATION, lost[1]))
        self.expect("object_without_metadata", None, CombinedSegmentId(1, INCARNATION, unpublished[1]))
        for topic, partition, _ in bulk_entries(self._spec, *unpublished):
            self.expect("offset_gap", (topic, partition))


def planted(spec: HistorySpec) -> Planted:
    planter = _Planter(spec)
    for index in range(spec.defects):
        planter.life_cycle()
        planter.early_deletion()
        planter.store(index)
        planter.chain()
        planter.failover()
        planter.bad_records()
        planter.fenced_writer(index)
        planter.archived_log()
        planter.archive_store()
        planter.bulk_losses(index)
    found = planter.planted
    found.expected |= {
        ("records_quarantined", METADATA_TOPIC, 1, None),
        ("retention_contradiction", "short", None, None),
    }
    return found
