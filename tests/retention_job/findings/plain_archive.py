"""What the job must find of archive objects, computed without Spark: object by object."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectPrepared, ArchiveRecord
from plugin.archive_storage import StoredArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from tests.retention_job.recorded.defects import archive_name


@dataclass(frozen=True)
class ArchiveTimes:
    """Milliseconds."""

    now: int
    inventory: int
    ttl: int
    grace: int
    slack: int


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


def archive_findings(
    archive: Archive, objects: Iterable[StoredArchiveObject], topics: Mapping[bytes, tuple[str, int]], at: ArchiveTimes
) -> set[tuple[str, str | None, int | None, str | None]]:
    stored = {one.object_id: one for one in objects}
    return {
        (kind, topics[named.topic_id_partition.topic_id][0], named.topic_id_partition.partition, archive_name(named))
        for named in archive.keys() | stored.keys()
        for kind in _kinds(archive.get(named, ArchiveObject()), stored.get(named), at)
    }


def _kinds(known: ArchiveObject, stored: StoredArchiveObject | None, at: ArchiveTimes) -> Iterator[str]:
    times, old_ms = known.times, at.inventory - at.ttl
    if known.state == -1 and stored is not None and stored.last_modified_ms < old_ms:
        yield "archive_object_without_metadata"
    if known.state == 0 and (known.expires_ms or times[0]) < at.now - at.slack:
        yield "archive_upload_unfinished"
    if known.state == 1 and stored is None and times[1] < old_ms:
        yield "archive_metadata_without_object"
    if known.state == 1 and stored is not None and stored.size_bytes != known.size_bytes:
        yield "archive_object_of_other_size"
    if known.state == 2 and stored is not None and times[2] < at.now - at.grace - at.slack:
        yield "archive_deletion_unfinished"
    if known.state == 3 and stored is not None and times[3] < old_ms:
        yield "archive_deleted_but_there"


def archived_offsets(archive: Archive) -> dict[TopicIdPartition, dict[int, set[int]]]:
    """By partition and leader epoch, what committed objects hold."""
    found: dict[TopicIdPartition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for known in archive.values():
        for run in known.runs if known.state == 1 else ():
            found[run.topic_id_partition][run.leader_epoch] |= set(range(run.first_offset, run.last_offset + 1))
    return found
