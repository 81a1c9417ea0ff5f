"""Writes an object to several buckets at once, and says which of them took it.

Theory, after Kafka's in-sync replicas. An object is finished when all buckets that are in step took it, and these are
at least the set number (min.insync.replicas). A bucket falls out of step when it fails, or when it is not done within
`PATIENCE_S` after so many others were: so a bucket that is away, or slow, costs that once, and not for each object. It
is tried again every `REST_S` by one object, for which nobody waits, and is in step again when it took that.
Where the buckets in step are too few, all are tried and waited for.

Below the set number the upload fails, as one to a single bucket does, and what was written is left to what clears up
after every upload without an end: nothing is deleted here, as no outcome is certain. A conflict in one bucket is one of
the object, whatever the others say: the key was used by another writer.

Thread-safe. Each bucket has threads of its own, so that writes that hang in one leave the others alone.
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
"""For a bucket that is in step, once the set number of others took an object."""
REST_S: Final = 10.0
"""Between two tries of a bucket that is out of step."""
_THREADS: Final = 16
"""For each bucket; beyond it a bucket that need not be waited for is passed over."""

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
        """Whether an object is to be written there though it could be left out."""
        with self._lock:
            if self.in_step:
                return self._under_way < _THREADS
            return not self._under_way and self._clock() >= self._rests_until_s

    def write(self, metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList) -> Future[Update]:
        """Begin."""
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
        """It failed, or others were done long ago."""
        with self._lock:
            was_in_step, self.in_step = self.in_step, False
            self._rests_until_s = self._clock() + REST_S
        if was_in_step:
            log.warning("bucket_out_of_step", bucket=self.name, reason=reason, consequence="objects without its copy")

    def _took_one(self, started_s: float) -> None:
        """What began before its rest was over is what it was too slow for."""
        with self._lock:
            is_back = not self.in_step and started_s >= self._rests_until_s
            self.in_step |= is_back
        if is_back:
            log.warning("bucket_in_step", bucket=self.name)


class CopyWriter:
    """See the module's theory."""

    def __init__(
        self,
        buckets: Sequence[tuple[bytes, str, RemoteWalStorageManager]],
        acknowledged: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The buckets by id, name and storage manager, that of the own zone first."""
        self._targets = [_Target(*one, clock) for one in buckets]
        self._acknowledged = acknowledged
        self._lock = threading.Lock()
        self.missed: Counter[str] = Counter()
        """By bucket, objects that were finished without it."""

    @property
    def out_of_step(self) -> list[str]:
        """Buckets that do not take objects now."""
        return [target.name for target in self._targets if not target.in_step]

    def write(self, metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList) -> Update:
        """As `RemoteWalStorageManager.copy_log_segment_data`; the custom metadata names all buckets."""
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
        """Who took it. Raises what a storage manager raised, where these are too few."""
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
        """Writes under way may finish or not."""
        for target in self._targets:
            target.pool.shutdown(wait=False, cancel_futures=True)
