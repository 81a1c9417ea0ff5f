"""Writes an object to several buckets at once, and reports which of them took it.

The rules follow Kafka's in-sync replicas. An object is finished when all in-sync buckets took it, and these are at
least the configured number (min.insync.replicas). A bucket falls out of sync when it fails, or when it is not done
within `PATIENCE_S` after enough others were: so an absent or slow bucket costs that once, and not for each object.
Every `REST_S` one object is tried there, for which nobody waits, and if that succeeds the bucket is in sync again. If
too few buckets are in sync, all are tried and waited for.

Below the configured number the upload fails, like one to a single bucket, and what was written is left to the clean-up
of uploads without an end: nothing is deleted here, because no outcome is certain. A conflict in one bucket is a
conflict of the object, whatever the others say: another writer used the key.

Thread-safe. Each bucket has its own threads, so that hanging writes in one do not affect the others.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Final

import structlog

from plugin.adopted_records import RecordsList
from plugin.errors import RemoteSegmentConflictError, failure_label
from plugin.format.bucket_copies import NamedCopies
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import (
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 0.5
"""Patience with an in-sync bucket, once the configured number of others took an object."""
REST_S: Final = 10.0
"""Time between two tries of a bucket that is out of sync."""
_THREADS: Final = 16
"""Threads for each bucket; beyond it, a bucket that need not be waited for is skipped."""

Update = RemoteWalCombinedLogSegmentMetadataUpdate


class _Target:
    """One bucket."""

    def __init__(
        self, bucket_id: bytes, name: str, manager: RemoteWalStorageManager, clock: Callable[[], float]
    ) -> None:
        self.bucket_id, self.name = bucket_id, name
        self._manager = manager
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._rests_until_s = float("-inf")
        self.in_step = True
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket-copy")

    def is_to_be_tried(self) -> bool:
        """Whether to write an object there although it could be left out."""
        with self._lock:
            if self.in_step:
                return self._under_way < _THREADS
            return not self._under_way and self._clock() >= self._rests_until_s

    def write(self, metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList) -> Future[Update]:
        """Begin a write."""
        with self._lock:
            self._under_way += 1
        return self.pool.submit(self._write, metadata, records)

    def _write(self, metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList) -> Update:
        started_s = self._clock()
        try:
            update = self._manager.copy_log_segment_data(metadata, records)
        except Exception as error:
            self.fell_behind(failure_label(error))
            raise
        else:
            self._took_one(started_s)
            return update
        finally:
            with self._lock:
                self._under_way -= 1

    def fell_behind(self, reason: str) -> None:
        """Record that it failed, or that others were done long ago."""
        with self._lock:
            was_in_step, self.in_step = self.in_step, False
            self._rests_until_s = self._clock() + REST_S
        if was_in_step:
            log.warning("bucket_out_of_step", bucket=self.name, reason=reason, consequence="objects without its copy")

    def _took_one(self, started_s: float) -> None:
        """Record a success. Writes from before the end of its pause only show that it was too slow for them."""
        with self._lock:
            is_back = not self.in_step and started_s >= self._rests_until_s
            self.in_step |= is_back
        if is_back:
            log.warning("bucket_in_step", bucket=self.name)


class CopyWriter:
    """The writer to all buckets. See the module's theory."""

    def __init__(
        self,
        buckets: Sequence[tuple[bytes, str, RemoteWalStorageManager]],
        acknowledged: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The buckets are by id, name and storage manager, that of the own zone first."""
        self._targets = [_Target(*one, clock) for one in buckets]
        self._acknowledged = acknowledged
        self._lock = threading.Lock()
        self.missed: Counter[str] = Counter()
        """By bucket, objects that were finished without it."""

    @property
    def out_of_step(self) -> list[str]:
        return [target.name for target in self._targets if not target.in_step]

    def write(self, metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList) -> Update:
        """Write one combined segment; the custom metadata names all buckets."""
        tried = [target for target in self._targets if target.is_to_be_tried()]
        if sum(target.in_step for target in tried) < self._acknowledged:
            tried = self._targets
        awaited = {target for target in tried if target.in_step}
        taken = self._taken({target.write(metadata, records): target for target in tried}, awaited)
        with self._lock:
            self.missed.update(target.name for target in self._targets if target not in taken)
        named = {target: target.bucket_id + taken[target].custom_metadata for target in taken}
        copies = NamedCopies(
            tuple(named[target] for target in self._targets if target in named),
            tuple(target.bucket_id for target in tried if target not in named),
        )
        return replace(next(iter(taken.values())), custom_metadata=copies.encode())

    def _taken(self, pending: dict[Future[Update], _Target], awaited: set[_Target]) -> dict[_Target, Update]:
        """Return the buckets that took it. Raises a storage manager's error if these are too few."""
        taken: dict[_Target, Update] = {}
        failures: list[BaseException] = []
        while pending:
            is_enough = len(taken) >= self._acknowledged
            if is_enough and awaited.isdisjoint(pending.values()):
                break
            done, _ = wait(pending, PATIENCE_S if is_enough else None, FIRST_COMPLETED)
            if not done:
                for target in pending.values():
                    target.fell_behind("slow")
                break
            for write in done:
                target, error = pending.pop(write), write.exception()
                if isinstance(error, RemoteSegmentConflictError):
                    raise error
                if error is None:
                    taken[target] = write.result()
                else:
                    failures.append(error)
            if len(taken) + len(pending) < self._acknowledged:
                raise failures[0]
        return taken

    def close(self) -> None:
        """Shut down; writes under way may or may not finish."""
        for target in self._targets:
            target.pool.shutdown(wait=False, cancel_futures=True)
