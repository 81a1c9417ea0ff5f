"""Finds a led log's older batches in object storage: the metadata store's entries, proved by the log itself.

The link index knows what this agent has uploaded since it started, and forgets the oldest. Uploads of an earlier
incarnation or leader are known from the metadata topic only. An entry says its offsets, where its bytes lie in the
object, and the CRC32C over all of them, but not where each batch begins. So these offsets are read from the leader's
own log. If the bytes have the entry's length and CRC32C, they are the object's, and the positions of all batches
follow. A response may then begin and end at any batch inside of an entry.

An archived topic's combined segments are deleted; then the archive's runs say where the same offsets are. They are
asked second: the archive object is committed before its sources are released, so a reader that finds no source finds
the archive object. A run is proved like an entry, by its length and CRC32C. (One that begins in a hole of a compacted
log cannot be proved: its metadata has an offset with which no batch begins.)

Entries whose bytes the log no longer has (compacted, below the log's start, dead since an election) prove nothing and
are left out: such bytes go inline. They do up to the end of the refused entry, so that it is not read again for each of
its batches; an overlapping entry that begins inside of it is skipped as well. Bytes of entries without a finished
object go inline, too; objects whose deletion was started are not in the store's index.

Runs in a thread: it reads files and takes the store's lock for some microseconds an entry.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kafka_log.batch_digests import batch_digests
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.crc32c import crc32c
from kafka_log.errors import LogDirectoryError
from kafka_log.open_files import OpenFiles
from kafka_log.record_batch import scan_batches
from kafka_log.segment_tail import SegmentTail
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import (
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
)
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog

_EMPTY_READS = 3
"""A read that only reports a roll is followed by one that has records."""
_OPEN_FILES = 4


def _size_of(entry: RemoteLogSegmentMetadataEntry) -> int:
    return entry.end_file_position - entry.start_file_position


def _first_proved(
    found: Iterable[tuple[StoredObjectId, RemoteLogSegmentMetadataEntry, bytes]], log: "_Log"
) -> tuple[ProvedRun | None, int]:
    """Return the first entry that the log proves; or None and the offset behind those that it does not prove."""
    refused_to = 0
    for object_id, entry, custom_metadata in found:
        size = _size_of(entry)
        records = log.read(entry.first_offset, size)
        if len(records) == size and crc32c(records) == entry.crc32c:
            batches = tuple(scan_batches(records, 0, size))
            return ProvedRun(object_id, entry, memoryview(records), batches, custom_metadata), 0
        refused_to = max(refused_to, entry.last_offset + 1)
    return None, refused_to


class _Log:
    """Reads runs of the log, continuing behind the last one if possible."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = OpenFiles(_OPEN_FILES)
        self._tail: SegmentTail | None = None

    def read(self, first_offset: int, size: int) -> bytes:
        """Read `size` bytes of whole batches from the batch at `first_offset`; fewer if batches do not end there."""
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


@dataclass(frozen=True, slots=True)
class ArchiveLinks:
    """The archive's index and store, from which links to archive objects are made."""

    store: ArchiveStore
    min_run_bytes: int
    """The smallest run worth a read, by the prices of the archive's store."""


class LedLogs:
    """Finds batches of led logs in object storage, by the metadata and checked against the log."""

    def __init__(
        self,
        store: RemoteWalMetadataStore,
        stored_log: Callable[[TopicIdPartition], StoredLog | None],
        min_entry_bytes: int,
        archive: ArchiveLinks | None = None,
        *,
        takes_digests: bool = False,
    ) -> None:
        """`stored_log` returns a led log and how far it is stored (`RemoteWalLogManager.stored_log`).

        A read of fewer than `min_entry_bytes` costs more than these bytes across zones; topics with the policy `always`
        have them linked all the same.
        """
        self._store = store
        self._min_entry_bytes = min_entry_bytes
        self._archive = archive
        self._takes_digests = takes_digests
        self.stored_log = stored_log

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool = True) -> FoundRuns:
        """Return the log's batches from `offset` on that are in finished objects, without a gap, up to `max_bytes`.

        The first run holds `offset`, and may begin before it. The result ends where the objects end, at one that the
        log does not prove, and at one that is not worth a read. Without `archive`, only combined segments are used.
        Raises LogDirectoryError or MalformedFileError.
        """
        try:
            epochs = read_leader_epochs(log.directory)
        except OSError as error:
            raise LogDirectoryError(log.directory, str(error)) from error
        batches = _Log(log.directory)
        runs: list[ProvedRun] = []
        size = refused_to = 0
        try:
            while size < max_bytes:
                run, refused_to = _first_proved(self._places(log, offset, epochs, archive), batches)
                if run is None:
                    break
                runs.append(run)
                size += len(run.records)
                offset = run.entry.last_offset + 1
        finally:
            batches.close()
        if self._takes_digests:
            runs = [replace(run, digests=batch_digests(run.records, run.batches)) for run in runs]
        epoch_end = epochs.end_offset_for(epochs.epoch_for(offset))  # another epoch's entries begin there
        return FoundRuns(runs, refused_to if epoch_end is None else min(refused_to, epoch_end))

    def _places(
        self, log: StoredLog, offset: int, epochs: LeaderEpochs, archive: bool
    ) -> Iterator[tuple[StoredObjectId, RemoteLogSegmentMetadataEntry, bytes]]:
        """Yield entries that hold `offset` and are worth a read, with custom metadata; then archive runs.

        Runs are only looked up when no entry is usable.
        """
        is_always = log.link_policy is LinkPolicy.ALWAYS
        for found in self._store.entries_covering(log.topic_id_partition, offset, epochs):
            if is_always or _size_of(found.entry) >= self._min_entry_bytes:
                yield found.combined_segment_id, found.entry, found.custom_metadata
        if self._archive is None or not archive:
            return
        for archived in self._archive.store.runs_covering(log.topic_id_partition, offset, epochs):
            if is_always or _size_of(archived.run) >= self._archive.min_run_bytes:
                yield archived.object_id, archived.run, b""

    def is_living(self, object_id: StoredObjectId) -> bool:
        """Whether the object is finished and not being deleted, according to the metadata."""
        if isinstance(object_id, ArchiveObjectId):
            state = self._archive.store.state_of(object_id) if self._archive is not None else None
        else:
            state = self._store.state_of(object_id)
        return state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
