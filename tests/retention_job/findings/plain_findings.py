"""What the job must find, computed without Spark, numpy or Arrow: record by record, in dictionaries.

It shares the rules with the job and nothing else: no code of `retention_job`, and no batch decoding. Times of the rules
are those of `tests.retention_job.recorded.history`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

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
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    UnknownRecord,
)
from plugin.archive_storage import StoredArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.retention_job.recorded.defects import archive_name
from tests.retention_job.recorded.history import Finding, StoredObject

Range = tuple[int, int]
Decoded = MetadataRecord | ArchiveRecord
Archived = Mapping[TopicIdPartition, Mapping[int, set[int]]]

FOR_EVER_MS = 2**62


@dataclass(frozen=True)
class Facts:
    """What is known beside records and objects."""

    now_ms: int
    inventory_ms: int
    archive_inventory_ms: int
    grace_ms: int
    ttl_ms: int
    slack_ms: int
    archive_grace_ms: int
    topics: Mapping[bytes, tuple[str, int]]
    """Name and local retention by id."""
    log_starts: Mapping[tuple[str, int], int]


@dataclass
class Segment:
    times: dict[int, int] = field(default_factory=dict)
    entries: tuple[RemoteLogSegmentMetadataEntry, ...] = ()
    size_bytes: int = -1
    dead_from: dict[tuple[TopicIdPartition, int], int] = field(default_factory=dict)

    @property
    def state(self) -> int:
        return max(self.times, default=-1)


@dataclass
class ArchiveObject:
    times: dict[int, int] = field(default_factory=dict)
    expires_ms: int = 0
    size_bytes: int = -1
    runs: tuple[RemoteLogSegmentMetadataEntry, ...] = ()

    @property
    def state(self) -> int:
        return max(self.times, default=-1)

    def take(self, record: ArchiveRecord) -> None:
        state = int(record.state)
        self.times[state] = min(record.event_timestamp_ms, self.times.get(state, record.event_timestamp_ms))
        if isinstance(record, ArchiveObjectPrepared):
            self.expires_ms = max(self.expires_ms, record.event_timestamp_ms + record.ttl_ms)
        if isinstance(record, ArchiveObjectCommitted):
            self.size_bytes, self.runs = record.size_bytes, record.runs


Archive = Mapping[ArchiveObjectId, ArchiveObject]


@dataclass
class Known:
    segments: dict[CombinedSegmentId, Segment] = field(default_factory=lambda: defaultdict(Segment))
    archive: dict[ArchiveObjectId, ArchiveObject] = field(default_factory=lambda: defaultdict(ArchiveObject))
    dead: list[RemoteWalLogSegmentMetadataUpdate] = field(default_factory=list)
    not_wanted: dict[TopicIdPartition, list[DeclaredGap]] = field(default_factory=lambda: defaultdict(list))
    newest: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The incarnation that is registered for each broker so far. All records about its objects are in one partition."""

    def take(self, record: Decoded) -> None:
        if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            self.dead.append(record)
        elif isinstance(record, RemoteWalGapDeclaration):
            for gap in record.gaps:
                if gap.reason is GapReason.NOT_WANTED:
                    self.not_wanted[gap.topic_id_partition].append(gap)
        elif isinstance(record, RemoteWalNodeRegistration):
            self.newest[record.broker_id] = max(self.newest[record.broker_id], record.incarnation)
        elif isinstance(record, PublishedSegment):
            writer = record.combined_segment_id
            if record.state > 1 or writer.incarnation >= self.newest[writer.broker_id]:
                _take(self.segments[writer], record)
        elif isinstance(record, ArchiveObjectPrepared | ArchiveObjectCommitted | ArchiveObjectDeleted):
            is_fenced = record.incarnation < self.newest[record.object_id.writer_id.broker_id]
            if not is_fenced:
                self.archive[record.object_id].take(record)


def decoded(key: bytes, value: bytes) -> Decoded:
    if archive_records.is_archive_key(key):
        return archive_records.decode_or_keep_out(key, value)
    return serde.decode_or_keep_out(key, value)


def plain_findings(
    records: Mapping[int, Sequence[tuple[bytes, bytes]]],
    objects: Iterable[StoredObject],
    archive_objects: Iterable[StoredArchiveObject],
    facts: Facts,
) -> set[Finding]:
    """The findings about objects and partitions."""
    known = Known()
    found: set[Finding] = set()
    for partition, log in records.items():
        for key, value in log:
            record = decoded(key, value)
            if isinstance(record, UnknownRecord):
                found.add(("records_quarantined", "__remote_wal_log_metadata", partition, None))
            known.take(record)
    segments = known.segments
    for update in known.dead:
        for entry in update.entries:
            told = segments[update.combined_segment_id].dead_from
            place = (entry.topic_id_partition, entry.leader_epoch)
            told[place] = min(entry.first_offset, told.get(place, entry.first_offset))
            if segments[update.combined_segment_id].state < 3:
                topic = facts.topics[entry.topic_id_partition.topic_id][0]
                found.add(("dead_entries", topic, entry.topic_id_partition.partition, None))
    stored = {one.segment_id: one for one in objects}
    for segment_id in segments.keys() | stored.keys():
        found |= {
            (kind, None, None, str(segment_id))
            for kind in _of_segment(segments.get(segment_id), stored.get(segment_id), facts)
        }
    archived = {one.object_id: one for one in archive_objects}
    found |= {
        (kind, facts.topics[where.topic_id][0], where.partition, archive_name(named))
        for named in known.archive.keys() | archived.keys()
        for where in (named.topic_id_partition,)
        for kind in _of_archive_object(known.archive.get(named, ArchiveObject()), archived.get(named), facts)
    }
    return found | _of_partitions(known, _archived_offsets(known.archive), facts)


def _take(segment: Segment, record: PublishedSegment) -> None:
    state = int(record.state)
    segment.times[state] = min(record.event_timestamp_ms, segment.times.get(state, record.event_timestamp_ms))
    if state == 1:
        segment.entries, segment.size_bytes = record.metadata.entries, record.size_bytes


def _kept_ms(entry: RemoteLogSegmentMetadataEntry, facts: Facts) -> int:
    known = facts.topics.get(entry.topic_id_partition.topic_id)
    if known is None:
        return 0
    name, retention_ms = known
    is_gone = entry.last_offset < facts.log_starts.get((name, entry.topic_id_partition.partition), 0)
    return 0 if is_gone else retention_ms


def _of_segment(segment: Segment | None, stored: StoredObject | None, facts: Facts) -> Iterable[str]:
    old_ms = facts.inventory_ms - facts.ttl_ms
    if segment is None or segment.state < 0:
        if stored is not None and stored.last_modified_ms < old_ms:
            yield "object_without_metadata"
        return
    times = segment.times
    if segment.state == 0 and times[0] < facts.now_ms - facts.ttl_ms - facts.slack_ms:
        yield "upload_unfinished"
    if segment.state == 2 and stored and times[2] < facts.now_ms - facts.grace_ms - facts.slack_ms:
        yield "deletion_unfinished"
    if segment.state == 3 and stored and times[3] < old_ms:
        yield "deleted_but_there"
    if segment.state == 1:
        yield from _of_finished(segment, stored, facts)


def _of_finished(segment: Segment, stored: StoredObject | None, facts: Facts) -> Iterable[str]:
    times = segment.times
    kept_ms = max((_kept_ms(entry, facts) for entry in segment.entries), default=None)
    if stored is None:
        if times[1] < facts.inventory_ms - facts.ttl_ms:
            yield "metadata_without_object"
        return
    if stored.size_bytes != segment.size_bytes:
        yield "object_of_other_size"
    if kept_ms is not None and times[1] < facts.now_ms - facts.slack_ms - kept_ms:
        yield "expired_not_deleted"


def _of_archive_object(known: ArchiveObject, stored: StoredArchiveObject | None, facts: Facts) -> Iterator[str]:
    times, old_ms = known.times, facts.archive_inventory_ms - facts.ttl_ms
    if known.state == -1 and stored is not None and stored.last_modified_ms < old_ms:
        yield "archive_object_without_metadata"
    if known.state == 0 and (known.expires_ms or times[0]) < facts.now_ms - facts.slack_ms:
        yield "archive_upload_unfinished"
    if known.state == 1 and stored is None and times[1] < old_ms:
        yield "archive_metadata_without_object"
    if known.state == 1 and stored is not None and stored.size_bytes != known.size_bytes:
        yield "archive_object_of_other_size"
    if known.state == 2 and stored is not None and times[2] < facts.now_ms - facts.archive_grace_ms - facts.slack_ms:
        yield "archive_deletion_unfinished"
    if known.state == 3 and stored is not None and times[3] < old_ms:
        yield "archive_deleted_but_there"


def _archived_offsets(archive: Archive) -> dict[TopicIdPartition, dict[int, set[int]]]:
    """By partition and leader epoch, what committed objects hold."""
    found: dict[TopicIdPartition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for known in archive.values():
        for run in known.runs if known.state == 1 else ():
            found[run.topic_id_partition][run.leader_epoch] |= set(range(run.first_offset, run.last_offset + 1))
    return found


def _of_partitions(known: Known, archived: Archived, facts: Facts) -> set[Finding]:
    segments = known.segments
    places: dict[TopicIdPartition, list[tuple[CombinedSegmentId, RemoteLogSegmentMetadataEntry]]] = defaultdict(list)
    for segment_id, segment in segments.items():
        for entry in segment.entries:
            places[entry.topic_id_partition].append((segment_id, entry))
    found: set[Finding] = set()
    for partition in places.keys() | archived.keys():
        entries = places.get(partition, [])
        topic = facts.topics[partition.topic_id][0]
        where = (topic, partition.partition)
        by_epoch: dict[int, list[Range]] = defaultdict(list)
        for _, entry in entries:
            by_epoch[entry.leader_epoch].append((entry.first_offset, entry.last_offset))
        if any(_overlap(ranges) for ranges in by_epoch.values()):
            found.add(("offset_overlap", *where, None))
        ends = {
            epoch: min((first for later in by_epoch if later > epoch for first, _ in by_epoch[later]), default=2**62)
            for epoch in by_epoch
        }
        in_archive = archived.get(partition, {})
        if _has_gap(by_epoch, in_archive, known.not_wanted[partition], facts.log_starts.get(where, 0)):
            found.add(("offset_gap", *where, None))
        for segment_id, entry in entries:
            kind = _of_entry(segments[segment_id], entry, ends[entry.leader_epoch], in_archive, facts)
            if kind is not None:
                found.add((kind, *where, str(segment_id)))
    return found


def _has_gap(
    by_epoch: Mapping[int, list[Range]],
    archived: Mapping[int, set[int]],
    not_wanted: Sequence[DeclaredGap],
    log_start: int,
) -> bool:
    """Whether offsets that the log still has are in neither kind of object, though they were wanted there."""
    held = {epoch: list(by_epoch.get(epoch, [])) for epoch in by_epoch.keys() | archived.keys()}
    for epoch, offsets in archived.items():
        held[epoch] += [(offset, offset) for offset in offsets]
    ends = {
        epoch: min((first for later in held if later > epoch for first, _ in held[later]), default=2**62)
        for epoch in held
    }
    alive = [(first, min(last, ends[epoch] - 1)) for epoch, ranges in held.items() for first, last in ranges]
    missing = {offset for first, last in _holes(alive) for offset in range(max(first, log_start), last + 1)}
    for gap in not_wanted:
        newer = [first for epoch in held if epoch > gap.leader_epoch for first, _ in held[epoch]]
        missing.difference_update(range(gap.from_offset, min([gap.to_offset, *newer])))
    return bool(missing)


def _of_entry(
    segment: Segment, entry: RemoteLogSegmentMetadataEntry, end: int, archived: Mapping[int, set[int]], facts: Facts
) -> str | None:
    """An entry that the archive holds may be deleted at any time, and be dead as any other."""
    where = entry.topic_id_partition
    told = segment.dead_from.get((where, entry.leader_epoch), 2**62)
    if segment.state == 1 and entry.last_offset >= end and told > max(end, entry.first_offset):
        return "dead_entries_untold"
    if segment.state < 2 or entry.first_offset >= min(end, told):
        return None
    log_start = facts.log_starts.get((facts.topics[where.topic_id][0], where.partition), 0)
    wanted = range(max(entry.first_offset, log_start), min(entry.last_offset, end - 1) + 1)
    deleting_ms = segment.times.get(2, segment.times.get(3, 0))
    is_early = deleting_ms - segment.times[1] < _kept_ms(entry, facts)
    is_archived = archived.get(entry.leader_epoch, set()).issuperset(wanted)
    return "deleted_too_early" if is_early and not is_archived else None


def _overlap(ranges: list[Range]) -> bool:
    ordered = sorted(ranges)
    return any(after[0] <= before[1] for before, after in pairwise(ordered))


def _holes(ranges: list[Range]) -> list[Range]:
    found, reached = [], None
    for first, last in sorted(one for one in ranges if one[0] <= one[1]):
        if reached is not None and first > reached + 1:
            found.append((reached + 1, first - 1))
        reached = last if reached is None else max(reached, last)
    return found
