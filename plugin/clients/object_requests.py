"""Requests to an object store with retries, deadlines and counters; whole objects are never overwritten.

An object is written only if its key is free. So when a write's outcome is unknown (a 500, a time-out, a lost answer),
the same write is sent again. If the store then says that the key is taken, size and checksum tell whose bytes these
are. If they are ours, the write has succeeded; if not, the caller must use a new key. Nothing is ever deleted on an
unknown outcome.

Belongs to the event loop that `plugin.store_loop` names; the counters may be read on any thread.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from kafka_log.crc32c import crc32c
from plugin.clients.object_store import ListedObject, ListPage, ObjectHead, ObjectStore
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
    """How long and how often requests are retried, in seconds."""

    attempt_timeout: float
    total_timeout: float
    first_wait: float = 0.02
    longest_wait: float = 1.0


@dataclass(frozen=True, slots=True)
class Retrier:
    """Runs calls under one policy, by tenacity; `on_failure` is called with every failed attempt.

    A call has a total deadline; each attempt has one of its own, which the store keeps. No attempt is started that
    could end after the total deadline, so a call never takes longer. Waits are exponential with full jitter (Brooker,
    "Exponential Backoff And Jitter"), so that agents which failed together do not come back together.
    """

    policy: RetryPolicy
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], Awaitable[None]]
    on_failure: Callable[[RemoteStorageError], None]

    def deadline(self) -> float:
        """Return the time on `clock` at which a call that starts now must end. Requests that serve one call share
        it."""
        return self.clock() + self.policy.total_timeout

    async def call(self, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Return what `attempt` returns, retried while its errors allow and the deadline leaves time.

        Raises the last attempt's RemoteStorageError, and keeps no other: its traceback holds the request's body.
        """
        made = list[RemoteStorageError]()
        try:
            return await attempt()  # most succeed at once, and need none of what follows
        except RemoteStorageError as error:
            made.append(error.with_traceback(None))

        async def counted() -> T:
            if made:
                raise made.pop()
            return await attempt()

        try:
            return await self._retrying(deadline)(counted)
        except RemoteStorageError as error:
            raise error.with_traceback(None)  # noqa: B904 - the same one, without the bodies of earlier attempts

    def _retrying(self, deadline: float) -> AsyncRetrying:
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
        return AsyncRetrying(
            retry=retry_if_exception(may_succeed), stop=is_late, wait=wait, sleep=self.sleep, reraise=True
        )


class ObjectRequests:
    """Sends requests to one object store, with retries, deadlines and counters. Raises RemoteStorageError and its
    kinds."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        counts: RequestCounts,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.store = store
        """For rare requests that only some stores support."""
        self.counts = counts
        self._retrier = Retrier(policy, clock, sleep, self._count_failure)

    async def put(self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Write a whole object; durable and readable when this returns. Idempotent.

        Raises RemoteSegmentConflictError when there are other bytes under the key.
        """
        deadline = self._retrier.deadline()
        try:
            await self._put_if_absent(key, chunks, size_bytes, deadline)
        except ObjectExistsError:
            await self._check_that_it_is_ours(key, chunks, size_bytes, deadline)

    async def _put_if_absent(
        self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int, deadline: float
    ) -> None:
        def attempt() -> Awaitable[None]:
            self.counts.put += 1
            self.counts.put_bytes += size_bytes
            return self.store.put_if_absent(key, chunks)

        await self._retrier.call(attempt, deadline)

    async def _check_that_it_is_ours(
        self, key: str, chunks: Sequence[bytes | memoryview], size_bytes: int, deadline: float
    ) -> None:
        """Check a taken key: an earlier attempt of ours means success, other bytes a conflict."""

        def attempt() -> Awaitable[ObjectHead]:
            self.counts.head += 1
            return self.store.head(key)

        head = await self._retrier.call(attempt, deadline)
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

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of an object."""
        if not 0 <= start < end:
            raise ValueError(f"[{start}, {end}) is no range of {key}")

        async def attempt() -> bytes:
            self.counts.get += 1
            data = await self.store.get_range(key, start, end)
            self.counts.get_bytes += len(data)
            if len(data) != end - start:
                raise RemoteSegmentCorruptError("get", key, f"bytes {start} to {end} were asked for, {len(data)} came")
            return data

        return await self._retrier.call(attempt, self._retrier.deadline())

    async def delete(self, key: str) -> None:
        """Delete an object. Idempotent: deleting a missing object succeeds."""

        def attempt() -> Awaitable[None]:
            self.counts.delete += 1
            return self.store.delete(key)

        await self._retrier.call(attempt, self._retrier.deadline())

    async def list(self, prefix: str) -> AsyncIterator[Sequence[ListedObject]]:
        """List all objects whose key starts with `prefix`, which ends in "/"; in parts, in any order."""
        page: str | None = None
        asked = set[str]()
        while True:
            listed = await self._list_page(prefix, page)
            yield listed.objects
            page = listed.next_page
            if page is None:
                return
            if page in asked:
                raise RemoteStorageError(
                    "list", prefix, "the store gives a continuation token twice: it would never end"
                )
            asked.add(page)

    async def _list_page(self, prefix: str, page: str | None) -> ListPage:
        def attempt() -> Awaitable[ListPage]:
            self.counts.list += 1
            return self.store.list_page(prefix, page)

        return await self._retrier.call(attempt, self._retrier.deadline())

    def _count_failure(self, error: RemoteStorageError) -> None:
        if not isinstance(error, ObjectExistsError | RemoteResourceNotFoundError):
            log.warning("storage_attempt_failed", operation=error.operation, key=error.key, kind=error.label)
        self.counts.failures[error.label] = self.counts.failures.get(error.label, 0) + 1

    async def check_conditional_writes(self, key: str) -> None:
        """Write the same probe twice; only a store that refuses the second keeps our objects immutable.

        Old S3 look-alikes ignore If-None-Match and overwrite.
        """
        body = b"remote-wal start-up self-test"
        await self.put(key, [body], len(body))
        try:
            await self._put_if_absent(key, [body], len(body), self._retrier.deadline())
        except ObjectExistsError:
            return
        finally:
            await self.delete(key)
        raise RemoteStorageConfigError(
            "configure",
            key,
            "the store let a conditional PUT (If-None-Match: *) overwrite an object",
            "use a store that honours conditional writes",
        )
