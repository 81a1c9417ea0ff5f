"""Stands in for a storage manager that may not be there yet.

An agent must relay its broker's replication from its first moment, whether object storage answers or not. Until the
real storage manager is configured, every call fails as if the store were down, and all bytes go inline. Any error of
the real one is a failure of that call only: no caller may end because of its defect. A call beyond the ceiling of
requests fails the same way.

The ceiling limits spending: how many requests of a kind may be sent in a minute. In normal use the upload interval and
the link policy stay far below it. A defect that makes tiny objects, or reads the same range over and over, would
otherwise cost without limit and show only on the bill.
"""

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

import structlog

from plugin.adopted_records import RecordsList
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteStorageError, defect_as_storage_error
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
    blobs_of,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

log = structlog.get_logger(__name__)

_WINDOW_S = 60.0


class RequestCeiling:
    """The ceiling on requests of one kind per minute. Thread-safe."""

    def __init__(self, kind: str, per_minute: int, setting: str, clock: Callable[[], float]) -> None:
        """`setting` is the key that sets the ceiling, for messages."""
        self.refused = 0
        self._kind = kind
        self._per_minute = per_minute
        self._setting = setting
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = float("-inf")
        self._sent_before = 0
        self._calls = 0
        self._is_reached = False

    def admits(self, sent: int) -> bool:
        """Whether one more call may be made; `sent` is the number of requests since the start, retries included."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._since_s >= _WINDOW_S:
                self._since_s, self._sent_before, self._calls, self._is_reached = now_s, sent, 0, False
            if max(sent - self._sent_before, self._calls) < self._per_minute:
                self._calls += 1
                return True
            self.refused += 1
            is_news, self._is_reached = not self._is_reached, True
        if is_news:
            log.error(
                "store_request_ceiling_reached", kind=self._kind, per_minute=self._per_minute, consequence="inline"
            )
        return False

    @property
    def alarm(self) -> str | None:
        """The text of the alarm while the ceiling is reached; else None."""
        if not self._is_reached or self._clock() - self._since_s >= _WINDOW_S:
            return None
        return f"object storage was sent {self._per_minute} {self._kind} requests within a minute ({self._setting})"


_UNTIMED: Final = nullcontext()
_PUTS = frozenset({"copy", "put", "list"})
_GETS = frozenset({"fetch", "fetch metadata", "get"})
_KINDS = {"copy": "put", "fetch": "get", "fetch metadata": "get"}


class GuardedStorageManager(RemoteWalStorageManager):
    """Stands in for a storage manager until `arrived` brings it; limits and times its requests."""

    def __init__(
        self,
        puts: RequestCeiling | None = None,
        gets: RequestCeiling | None = None,
        timed: Callable[[str], AbstractContextManager[None]] = lambda _kind: _UNTIMED,
    ) -> None:
        """`puts` and `gets` are ceilings for requests priced as a PUT (including LIST), and as a GET; deletions are
        free.

        `timed` wraps each call that reaches the real one, by `put`, `get`, `delete` or `list`.
        """
        self.puts, self.gets = puts, gets
        self._timed = timed
        self._manager: RemoteWalStorageManager | None = None
        self._there_since = threading.Event()
        self._away_because = "object storage has not answered since the agent started"

    def arrived(self, manager: RemoteWalStorageManager) -> None:
        """Use this configured storage manager from now on."""
        self._manager = manager
        self._there_since.set()

    def did_not_answer(self, reason: str) -> None:
        """Give callers this reason until the storage manager has arrived."""
        self._away_because = reason

    @property
    def adopts(self) -> bool:
        return self._manager is not None and self._manager.adopts

    @property
    def is_there(self) -> bool:
        """Whether the storage manager has arrived."""
        return self._manager is not None

    def wait_until_there(self, timeout_s: float) -> bool:
        """Block until `arrived`; False on a timeout. Not for the event loop."""
        return self._there_since.wait(timeout_s)

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Do nothing: the storage manager that arrives is already configured."""

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        with self.call_real("copy", metadata.combined_segment_id) as manager:
            return await manager.copy_log_segment_data(metadata, records_list)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        with self.call_real("fetch", combined_segment_id) as manager:
            return await manager.fetch_log_segment(combined_segment_id, start_position, end_position, custom_metadata)

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        with self.call_real("fetch metadata", stored.key) as manager:
            return await manager.fetch_segment_metadata(stored)

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        with self.call_real("delete", combined_segment_id) as manager:
            await manager.delete_log_segment_data(combined_segment_id, custom_metadata)

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[Sequence[StoredSegment]]:
        with self.call_real("list", "") as manager:
            async for part in manager.list_log_segments(broker_id):
                yield part

    def place_of(self, custom_metadata: bytes) -> str | None:
        """Return the part of the store that has such objects; None before the storage manager has arrived."""
        return super().place_of(custom_metadata) if self._manager is None else self._manager.place_of(custom_metadata)

    @property
    def blobs(self) -> BlobStorage:
        """The storage manager's blobs; before it has arrived, each call fails."""
        return _GuardedBlobs(self.call_real)

    @property
    def request_counts(self) -> RequestCounts:
        return self._manager.request_counts if self._manager is not None else RequestCounts()

    def close(self) -> None:
        """Close the storage manager, if it has arrived."""
        if self._manager is not None:
            self._manager.close()

    def call_real(self, operation: str, key: object) -> "_Call":
        """Return a context manager that gives the storage manager for one call, and times that. Raises
        RemoteStorageError if it has not arrived, or a ceiling of requests is reached."""
        if self._manager is None:
            raise RemoteStorageError(operation, str(key), self._away_because)
        self._check_ceiling(operation, key, self._manager.request_counts)
        return _Call(self._manager, operation, key, self._timed(_KINDS.get(operation, operation)))

    def _check_ceiling(self, operation: str, key: object, counts: RequestCounts) -> None:
        if operation in _PUTS:
            ceiling, sent = self.puts, counts.put + counts.list
        elif operation in _GETS:
            ceiling, sent = self.gets, counts.get + counts.head
        else:
            return
        if ceiling is not None and not ceiling.admits(sent):
            reason = "the ceiling of requests in a minute is reached"
            raise RemoteStorageError(operation, str(key), reason, label="request_ceiling")


class _Call(AbstractContextManager[RemoteWalStorageManager]):
    """One timed call of the real one; its defects are failures of the store.

    A class and no chain of generators, because each object passes three of them.
    """

    __slots__ = ("_key", "_manager", "_operation", "_timed")

    def __init__(
        self, manager: RemoteWalStorageManager, operation: str, key: object, timed: AbstractContextManager[None]
    ) -> None:
        self._manager = manager
        self._operation = operation
        self._key = key
        self._timed = timed

    def __enter__(self) -> RemoteWalStorageManager:
        self._timed.__enter__()
        return self._manager

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, RemoteStorageError):
            told = defect_as_storage_error(self._operation, self._key, error)
            self._timed.__exit__(type(told), told, traceback)
            raise told from error
        self._timed.__exit__(kind, error, traceback)


_There = Callable[[str, object], AbstractContextManager[RemoteWalStorageManager]]


class _GuardedBlobs:
    """The real one's blobs, as `BlobStorage`."""

    def __init__(self, there: _There) -> None:
        self._there = there

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        with self._there("put", name) as manager:
            return await blobs_of(manager, "put", name).put_blob(name, *chunks)

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        with self._there("get", blob.name) as manager:
            return await blobs_of(manager, "get", blob.name).get_blob(blob, start, end)

    async def list_blobs(self, directory: str) -> AsyncIterator[Sequence[StoredBlob]]:
        with self._there("list", directory) as manager:
            async for part in blobs_of(manager, "list", directory).list_blobs(directory):
                yield part

    async def delete_blob(self, blob: StoredBlob) -> None:
        with self._there("delete", blob.name) as manager:
            await blobs_of(manager, "delete", blob.name).delete_blob(blob)
