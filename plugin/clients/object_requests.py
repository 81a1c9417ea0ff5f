"""Requests to an object store with retries, deadlines and counters; whole objects are never overwritten.

An object is written only if its key is free. So when a write's outcome is unknown (a 500, a time-out, a lost answer),
the same write is sent again. If the store then says that the key is taken, size and checksum tell whose bytes these
are. If they are ours, the write has succeeded; if not, the caller must use a new key. Nothing is ever deleted on an
unknown outcome.

Safe for many threads; the shared parts are the store, which is safe itself, and the counters, which have a lock.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
import uvloop
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from kafka_log.crc32c import crc32c
from plugin.clients.object_store import ListedObject, ListPage, LoopStore, ObjectHead, ObjectStore
from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteSegmentCorruptError,
    RemoteStorageConfigError,
    RemoteStorageError,
)
from plugin.remote_wal_storage_manager import RequestCounts

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times in seconds."""

    attempt_timeout: float
    total_timeout: float
    first_wait: float = 0.02
    longest_wait: float = 1.0


@dataclass(frozen=True, slots=True)
class Retrier:
    """Runs calls under one policy, by tenacity; `on_failure` is called with every failed attempt. For many threads.

    A call has a total deadline; each attempt has one of its own, which the store keeps. No attempt is started that
    could end after the total deadline, so a call never takes longer. Waits are exponential with full jitter (Brooker,
    "Exponential Backoff And Jitter"), so that agents which failed together do not come back together.
    """

    policy: RetryPolicy
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], None]
    on_failure: Callable[[RemoteStorageError], None]

    def deadline(self) -> float:
        """Return the end, on `clock`, of a call that starts now. Requests that serve one call share it."""
        return self.clock() + self.policy.total_timeout

    def call(self, attempt: Callable[[], T], deadline: float, failed: RemoteStorageError | None = None) -> T:
        """Return what `attempt` returns, retried while its errors allow and the deadline leaves time.

        `failed` is the error of an attempt that was made elsewhere. Raises the last attempt's RemoteStorageError, and
        keeps no other: its traceback holds the request's body.
        """
        if failed is None:
            try:
                return attempt()  # most succeed at once, and need none of what follows
            except RemoteStorageError as error:
                failed = error.with_traceback(None)
        made = [failed]
        del failed
        try:
            return self._retrying(deadline)(lambda: _first_raise(made, attempt))
        except RemoteStorageError as error:
            raise error.with_traceback(None)  # noqa: B904 - the same one, without the bodies of earlier attempts

    def _retrying(self, deadline: float) -> Retrying:
        failures: Counter[type[BaseException]] = Counter()

        def may_succeed(error: BaseException) -> bool:
            if not isinstance(error, RemoteStorageError):
                return False
            self.on_failure(error)
            failures[type(error)] += 1
            return error.retriable and (error.retry_limit is None or failures[type(error)] <= error.retry_limit)

        def is_late(state: RetryCallState) -> bool:
            return self.clock() + state.upcoming_sleep + self.policy.attempt_timeout > deadline

        wait = wait_random_exponential(2 * self.policy.first_wait, self.policy.longest_wait)
        return Retrying(retry=retry_if_exception(may_succeed), stop=is_late, wait=wait, sleep=self.sleep, reraise=True)


def _first_raise(made: list[RemoteStorageError], attempt: Callable[[], T]) -> T:
    """Raise the error of an attempt that was already made, once; then attempt."""
    if made:
        raise made.pop()
    return attempt()


class LoopThread:
    """Runs coroutines on a loop in its own thread for callers that block, as commands that read many small ranges.

    The thread starts with the first call; close it after use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what it returns, or raise what it raises. Blocks."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="store-loop", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    def close(self) -> None:
        """End the loop; nothing may be under way."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop = None


class ObjectRequests:
    """The requests to one store. Errors are RemoteStorageError and its kinds."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        counts: RequestCounts,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        own_loop: LoopThread | None = None,
    ) -> None:
        """`own_loop`: where small ranges are read for callers that block, as nobody awaits on a loop of their own."""
        self.store = store
        """For rare requests that only some stores support."""
        self._loop_store = store if isinstance(store, LoopStore) else None
        self._own_loop = own_loop
        self.counts = counts
        self._counts_lock = threading.Lock()
        self._retrier = Retrier(policy, clock, sleep, self._count_failure)

    def passed_over(self) -> None:
        """Count an object in a listing whose key is not ours."""
        with self._counts_lock:
            self.counts.foreign_objects += 1

    def close(self) -> None:
        """Release connections."""
        self.store.close()
        if self._own_loop is not None:
            self._own_loop.close()

    def put(self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Write a whole object; durable and readable on return. Idempotent.

        Raises RemoteSegmentConflictError when there are other bytes under the key.
        """
        self._put(key, chunks, size_bytes, self._retrier.deadline())

    def _put(
        self,
        key: str,
        chunks: Sequence[bytes | memoryview],
        size_bytes: int,
        deadline: float,
        failed: RemoteStorageError | None = None,
    ) -> None:
        try:
            self._retrier.call(lambda: self._put_once(key, chunks, size_bytes), deadline, failed)
        except ObjectExistsError:
            self._check_that_it_is_ours(key, chunks, size_bytes, deadline)

    def _put_once(self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        self._count_put(size_bytes)
        self.store.put_if_absent(key, chunks)

    def _count_put(self, size_bytes: int) -> None:
        with self._counts_lock:
            self.counts.put += 1
            self.counts.put_bytes += size_bytes

    def admits_on_loop(self, size_bytes: int) -> bool:
        """Whether a request of so many bytes may be awaited on the caller's event loop now."""
        return self._own_loop is None and self._loop_store is not None and self._loop_store.admits_on_loop(size_bytes)

    async def put_on_loop(
        self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int, threads: Executor
    ) -> None:
        """Write on the event loop, if it admits that; retries run in `threads`."""
        deadline = self._retrier.deadline()
        self._count_put(size_bytes)
        store = self._loop_store
        assert store is not None  # noqa: S101 - see `admits_on_loop`
        await self._first_on_loop(
            store.put_if_absent_on_loop(key, chunks),
            lambda failed: self._put(key, chunks, size_bytes, deadline, failed),
            threads,
        )

    async def _first_on_loop(
        self, attempt: Awaitable[T], others: Callable[[RemoteStorageError], T], threads: Executor
    ) -> T:
        try:
            return await attempt
        except RemoteStorageError as error:
            failed = error.with_traceback(None)  # the traceback holds the request's body
        return await asyncio.get_running_loop().run_in_executor(threads, others, failed)

    def _check_that_it_is_ours(
        self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int, deadline: float
    ) -> None:
        """Check a taken key: an earlier attempt of ours means success, other bytes a conflict."""

        def attempt() -> ObjectHead:
            with self._counts_lock:
                self.counts.head += 1
            return self.store.head(key)

        head = self._retrier.call(attempt, deadline)
        checksum = 0
        for chunk in chunks:
            checksum = crc32c(chunk, checksum)
        if (head.size_bytes, head.crc32c) != (size_bytes, checksum):
            raise RemoteSegmentConflictError(
                "put",
                key,
                f"the key holds {head.size_bytes} other bytes, ours would be {size_bytes}",
                "two agents may run for one broker, or an incarnation was used twice",
            )

    def get(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end)."""
        return self._get(key, start, end, self._retrier.deadline())

    def _get(self, key: str, start: int, end: int, deadline: float, failed: RemoteStorageError | None = None) -> bytes:
        _check_range(key, start, end)

        def attempt() -> bytes:
            with self._counts_lock:
                self.counts.get += 1
            return self._checked(self._get_range(key, start, end), key, start, end)

        return self._retrier.call(attempt, deadline, failed)

    def _get_range(self, key: str, start: int, end: int) -> bytes:
        store, own_loop = self._loop_store, self._own_loop
        if own_loop is not None and store is not None and store.admits_on_loop(end - start):
            return own_loop.call(store.get_range_on_loop(key, start, end))
        return self.store.get_range(key, start, end)

    async def get_on_loop(self, key: str, start: int, end: int, threads: Executor) -> bytes:
        """Read on the event loop, if it admits that; retries run in `threads`."""
        _check_range(key, start, end)
        deadline = self._retrier.deadline()
        store = self._loop_store
        assert store is not None  # noqa: S101 - see `admits_on_loop`

        async def attempt() -> bytes:
            with self._counts_lock:
                self.counts.get += 1
            return self._checked(await store.get_range_on_loop(key, start, end), key, start, end)

        return await self._first_on_loop(
            attempt(), lambda failed: self._get(key, start, end, deadline, failed), threads
        )

    def _checked(self, data: bytes, key: str, start: int, end: int) -> bytes:
        with self._counts_lock:
            self.counts.get_bytes += len(data)
        if len(data) != end - start:
            raise RemoteSegmentCorruptError("get", key, f"bytes {start} to {end} were asked for, {len(data)} came")
        return data

    def delete(self, key: str) -> None:
        """Delete an object. Idempotent: deleting a missing object succeeds."""

        def attempt() -> None:
            with self._counts_lock:
                self.counts.delete += 1
            self.store.delete(key)

        self._retrier.call(attempt, self._retrier.deadline())

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """List all objects whose key starts with `prefix`, which ends in "/"; in any order."""
        page: str | None = None
        asked = set[str]()
        while True:
            listed = self._list_page(prefix, page)
            yield from listed.objects
            page = listed.next_page
            if page is None:
                return
            if page in asked:
                raise RemoteStorageError(
                    "list", prefix, "the store gives a continuation token twice: it would never end"
                )
            asked.add(page)

    def _list_page(self, prefix: str, page: str | None) -> ListPage:
        def attempt() -> ListPage:
            with self._counts_lock:
                self.counts.list += 1
            return self.store.list_page(prefix, page)

        return self._retrier.call(attempt, self._retrier.deadline())

    def _count_failure(self, error: RemoteStorageError) -> None:
        if not isinstance(error, ObjectExistsError | RemoteResourceNotFoundError):
            log.warning("storage_attempt_failed", operation=error.operation, key=error.key, kind=error.label)
        with self._counts_lock:
            self.counts.failures[error.label] = self.counts.failures.get(error.label, 0) + 1

    def check_conditional_writes(self, key: str) -> None:
        """Write the same probe twice; only a store that refuses the second keeps our objects immutable.

        Old S3 look-alikes ignore If-None-Match and overwrite.
        """
        body = b"remote-wal start-up self-test"
        self.put(key, [body], len(body))
        try:
            self._retrier.call(lambda: self._put_once(key, [body], len(body)), self._retrier.deadline())
        except ObjectExistsError:
            return
        finally:
            self.delete(key)
        raise RemoteStorageConfigError(
            "configure",
            key,
            "the store let a conditional PUT (If-None-Match: *) overwrite an object",
            "use a store that honours conditional writes",
        )


def _check_range(key: str, start: int, end: int) -> None:
    if not 0 <= start < end:
        raise ValueError(f"[{start}, {end}) is no range of {key}")
