"""Where a led log's older batches are in object storage: the metadata store's entries, proved by the log itself.

The link index knows what this agent uploaded since it runs, and forgets the oldest. What an earlier incarnation or an
earlier leader uploaded is known from the metadata topic alone: an entry says from which offset to which its batches
reach, where their bytes lie in the object, and the CRC32C over all of them; not where each batch begins. So the
entry's offsets are read from the leader's own log. If these bytes have the entry's length and CRC32C, they are the
object's, and the positions of all its batches follow. A response may then begin and end at any batch inside of an
entry.

Entries whose bytes the log does not have any more (compacted, cut off by the log's start, dead since an election) prove
nothing, and are left out: such bytes go inline. So do those of entries that no finished object holds; an object whose
deletion was started is not in the store's index.

For a thread: it reads files and takes the store's lock, for some microseconds an entry.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kafka_log.crc32c import crc32c
from kafka_log.errors import LogDirectoryError
from kafka_log.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.open_files import OpenFiles
from kafka_log.record_batch import BatchSpan, scan_batches
from kafka_log.segment_tail import SegmentTail
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.leader_epochs import LeaderEpochChain
from metadata_topic.topic_settings import LinkPolicy
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalLogSegmentMetadata,
)
from rlm.led_views import StoredLog

_EMPTY_READS = 3
"""A read that only tells of a roll is followed by one that has records."""
_OPEN_FILES = 4


class StoredEntries(Protocol):
    """What is asked of the metadata store."""

    def entries_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochChain | None = None
    ) -> list[RemoteWalLogSegmentMetadata]: ...


@dataclass(frozen=True, slots=True)
class StoredRun:
    """An entry whose bytes are those of the log."""

    combined_segment_id: CombinedSegmentId
    entry: RemoteLogSegmentMetadataEntry
    records: memoryview
    batches: tuple[BatchSpan, ...]
    """Positions are relative to `records`; in the object, they are that much behind `entry.start_file_position`."""


def stored_runs(
    store: StoredEntries,
    partition: TopicIdPartition,
    directory: Path,
    offset: int,
    max_bytes: int,
    min_entry_bytes: int,
) -> list[StoredRun]:
    """The log's batches from `offset` on that are in finished objects, without a gap, until they are `max_bytes`.

    The first run holds `offset`, and may begin before it. Ends where the objects do, at an entry that the log does not
    prove, and at one of less than `min_entry_bytes`. Raises LogDirectoryError or MalformedFileError.
    """
    try:
        epochs = read_leader_epochs(directory)
    except OSError as error:
        raise LogDirectoryError(directory, str(error)) from error
    log = _Log(directory)
    runs: list[StoredRun] = []
    size = 0
    try:
        while size < max_bytes:
            run = next(_proved(store.entries_covering(partition, offset, epochs), log, min_entry_bytes), None)
            if run is None:
                break
            runs.append(run)
            size += len(run.records)
            offset = run.entry.last_offset + 1
    finally:
        log.close()
    return runs


def _proved(found: list[RemoteWalLogSegmentMetadata], log: "_Log", min_entry_bytes: int) -> Iterator[StoredRun]:
    for candidate in found:
        entry = candidate.entry
        size = entry.end_file_position - entry.start_file_position
        if size < min_entry_bytes:
            continue
        records = log.read(entry.first_offset, size)
        if len(records) == size and crc32c(records) == entry.crc32c:
            batches = scan_batches(records, 0, size)
            yield StoredRun(candidate.combined_segment_id, entry, memoryview(records), tuple(batches))


class _Log:
    """Reads runs of the log, going on behind the last one where it can."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = OpenFiles(_OPEN_FILES)
        self._tail: SegmentTail | None = None

    def read(self, first_offset: int, size: int) -> bytes:
        """`size` bytes of whole batches that begin with the batch at `first_offset`; less where they end otherwise."""
        if self._tail is None or self._tail.next_offset != first_offset:
            self.close()
            self._tail = SegmentTail(self._directory, first_offset, self._files)
        records = b""
        empty_reads = 0
        while len(records) < size and empty_reads < _EMPTY_READS:
            read = self._tail.read(size - len(records))
            if read.spans and not records and read.spans[0].base_offset != first_offset:
                return b""
            empty_reads = 0 if read.spans else empty_reads + 1
            records = records + read.records if records else read.records
        return records

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


class MetadataStore(StoredEntries, Protocol):
    """What is asked of the metadata store, by object too."""

    def state_of(self, combined_segment_id: CombinedSegmentId, /) -> RemoteLogSegmentState | None: ...


class LedLogs:
    """The led partitions' logs beside what metadata tells of their objects."""

    def __init__(
        self, store: MetadataStore, stored_log: Callable[[TopicIdPartition], StoredLog | None], min_entry_bytes: int
    ) -> None:
        """`stored_log` is RemoteWalLogManager's. A read of fewer than `min_entry_bytes` costs more than these bytes at
        the border; topics with the policy `always` have them linked all the same.
        """
        self._store = store
        self._min_entry_bytes = min_entry_bytes
        self.stored_log = stored_log

    def runs(self, log: StoredLog, offset: int, max_bytes: int) -> list[StoredRun]:
        """See `stored_runs`."""
        min_bytes = 0 if log.link_policy is LinkPolicy.ALWAYS else self._min_entry_bytes
        return stored_runs(self._store, log.topic_id_partition, log.directory, offset, max_bytes, min_bytes)

    def is_living(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the object is finished and its deletion was not started, as far as metadata tells."""
        return self._store.state_of(segment_id) is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
