"""Reads runs from object storage: ahead of their use, in parallel, checked, and delivered in order.

A problem of one run (its object is gone or damaged) is delivered as an error in its place, for a caller that knows
other copies. A problem of the store is waited for (`recovery.patience`); if that does not help, or the store refuses,
the reading ends.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kafka_log.batch_digests import batch_digests, run_digest
from kafka_log.crc32c import crc32c
from kafka_log.record_batch import BatchSpan, CorruptBatchError, RecordBatchHeader, scan_batches
from plugin.archive_storage import ArchiveStorage
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.store_loop import ask
from recovery.errors import GoneRunError, OvertakenRunError, UnusableRunError
from recovery.logs.log_plan import Extent
from recovery.logs.object_reads import LogExtent, ObjectRead
from recovery.logs.stored_run import StoredObject, StoredRun
from recovery.patience import IMPATIENT, Patience

DEFAULT_THREADS = 8
DEFAULT_WINDOW_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadExtent:
    """An extent's batches, complete and checked against the run's checksum, offsets and leader epoch."""

    log: int
    extent: Extent
    records: memoryview
    batches: tuple[BatchSpan, ...]
    """Batches with offsets of the extent; positions in `records`. The first may begin before it."""


@dataclass(frozen=True, slots=True)
class FailedExtent:
    """An extent whose bytes could not be read from this copy of its run, and why."""

    log: int
    extent: Extent
    error: UnusableRunError


class RunReader:
    """Reads runs from the stores of combined segments and of archive objects, and checks them. Thread-safe."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        archive: ArchiveStorage | None = None,
        patience: Patience = IMPATIENT,
    ) -> None:
        self._storage = storage
        self._archive = archive
        self._patience = patience

    def fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of an object, unchecked. Raises RemoteStorageError, UnusableRunError."""
        return self._patience.call(lambda: self._fetch(stored, start, end))

    def _fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        object_id = stored.object_id
        if not isinstance(object_id, ArchiveObjectId):
            return ask(self._storage.fetch_log_segment(object_id, start, end, stored.custom_metadata))
        if self._archive is None:
            raise UnusableRunError("read run", str(object_id), "it is in the archive, whose store is not configured")
        return ask(self._archive.fetch(object_id, start, end))

    def read(self, log: int, extent: Extent) -> ReadExtent:
        """Read one extent. Raises UnusableRunError, and RemoteStorageError when the store fails."""
        run = extent.run
        [found] = self.read_all(
            ObjectRead(run.stored_in, run.start_position, run.end_position, (LogExtent(log, extent),))
        )
        if isinstance(found, FailedExtent):
            raise found.error
        return found

    def newest_timestamp_ms(self, extent: Extent) -> int:
        """Return the largest timestamp of the run's records; 0 where they cannot be read. Raises RemoteStorageError."""
        try:
            read = self.read(0, extent)
        except UnusableRunError:
            return 0
        headers = (RecordBatchHeader.parse(read.records, batch.start) for batch in read.batches)
        return max((header.max_timestamp_ms for header in headers), default=0)

    def read_all(self, read: ObjectRead) -> list[ReadExtent | FailedExtent]:
        """Read all extents of one request; each succeeds or fails by itself. Raises RemoteStorageError when the
        store fails."""
        try:
            data = memoryview(self.fetch(read.stored_in, read.start, read.end))
        except (RemoteResourceNotFoundError, RemoteSegmentCorruptError, UnusableRunError) as error:
            kind = GoneRunError if isinstance(error, RemoteResourceNotFoundError) else UnusableRunError
            unusable = kind("read run", str(read.stored_in.object_id), str(error))
            return [FailedExtent(log, extent, unusable) for log, extent in read.extents]
        return [_checked(log, extent, data, read.start) for log, extent in read.extents]

    def read_ahead(
        self, reads: Iterable[ObjectRead], threads: int = DEFAULT_THREADS, window_bytes: int = DEFAULT_WINDOW_BYTES
    ) -> Iterator[list[ReadExtent | FailedExtent]]:
        """Yield the reads' results in their order, at most `window_bytes` ahead (at least one read).

        Raises RemoteStorageError; earlier requests are waited for.
        """
        pending: deque[tuple[int, Future[list[ReadExtent | FailedExtent]]]] = deque()
        held_bytes = 0
        with ThreadPoolExecutor(threads, thread_name_prefix="recovery-read") as pool:
            try:
                for read in reads:
                    while pending and (held_bytes + read.size_bytes > window_bytes or len(pending) >= 4 * threads):
                        size, first = pending.popleft()
                        yield first.result()
                        held_bytes -= size
                    pending.append((read.size_bytes, pool.submit(self.read_all, read)))
                    held_bytes += read.size_bytes
                while pending:
                    yield pending.popleft()[1].result()
            finally:
                pool.shutdown(cancel_futures=True)


def _checked(log: int, extent: Extent, data: memoryview, data_start: int) -> ReadExtent | FailedExtent:
    run = extent.run
    records = data[run.start_position - data_start : run.end_position - data_start]
    try:
        batches = check_run(run, records)
    except UnusableRunError as error:
        return FailedExtent(log, extent, error)
    wanted = tuple(
        batch
        for batch in batches
        if batch.last_offset >= extent.first_offset and batch.base_offset <= extent.last_offset
    )
    if wanted and wanted[-1].last_offset > extent.last_offset:
        overtaken = OvertakenRunError(str(run.stored_in.object_id), wanted[-1].base_offset, extent.last_offset)
        return FailedExtent(log, extent, overtaken)
    return ReadExtent(log, extent, records, wanted)


def check_run(run: StoredRun, records: memoryview) -> list[BatchSpan]:
    """Return the batches in a run's bytes. Raises UnusableRunError when they do not match its entry.

    The entry's checksum covers all the bytes, and was taken when each batch's own had been verified; so those are not
    computed again here.
    """
    key = f"{run.stored_in.object_id} [{run.start_position}, {run.end_position})"
    if len(records) != run.size_bytes or crc32c(records) != run.crc32c:
        raise UnusableRunError("read run", key, "the bytes do not have the entry's checksum")
    try:
        batches = scan_batches(records, 0, len(records))
    except CorruptBatchError as error:
        raise UnusableRunError("read run", key, str(error)) from error
    if run.sha256 and run_digest(batch_digests(records, batches)) != run.sha256:
        raise UnusableRunError("read run", key, "the bytes do not have the entry's SHA-256: they are forged")
    if not batches or batches[-1].end != len(records):
        raise UnusableRunError("read run", key, "the bytes do not end with a whole batch")
    if batches[0].base_offset < run.first_offset or batches[-1].last_offset > run.last_offset:
        raise UnusableRunError(
            "read run",
            key,
            f"batches {batches[0].base_offset} to {batches[-1].last_offset} in a run {run.first_offset} to "
            f"{run.last_offset}",
        )
    if any(batch.leader_epoch != run.leader_epoch for batch in batches):
        raise UnusableRunError("read run", key, f"a batch of another leader epoch than {run.leader_epoch}")
    return batches
