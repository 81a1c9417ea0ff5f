"""The object store: calls fail before their effect or after it, or end long after who asked has given up."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from metadata_topic.records.states import FINISHED
from plugin.adopted_records import RecordsList
from plugin.errors import RemoteStorageTimeoutError
from plugin.format.combined_segment import HEADER_BYTES, TRAILER_BYTES, decode_footer, locate_footer
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask
from tests.rlm.memory_storage import FAIL_AFTER, FAIL_BEFORE, MemoryStorage
from tests.simulation.virtual_time import Delays, SeededExecutor

T = TypeVar("T")

HEALTHY, FLAKY, AWAY, HANGING, SLOW = "healthy", "flaky", "away", "hanging", "slow"
_FAILS = {HEALTHY: 0.02, FLAKY: 0.4, AWAY: 1.0, HANGING: 0.1, SLOW: 0.05}
TIMEOUT_S = 5.0
"""An upload is given up after so long."""
LONGEST_CALL_S = 3 * TIMEOUT_S
LATEST_S = 4 * LONGEST_CALL_S
_LATE = 0.2


class SeededStorage(MemoryStorage):
    def __init__(self, rng: random.Random, hit: Callable[[str], None], wall_ms: Callable[[], int]) -> None:
        super().__init__()
        self._wall_ms = wall_ms
        self.created_ms: dict[CombinedSegmentId, int] = {}
        """When a writer began with its object, by the object itself."""
        self._written_ms: dict[CombinedSegmentId, int] = {}
        self._rng = rng
        self._hit = hit
        self.mode = HEALTHY
        self.never_fails = False
        self.puts: Counter[CombinedSegmentId] = Counter()
        self.on_put: Callable[[RemoteWalCombinedLogSegmentMetadata, RecordsList], None]
        """Told of each write that takes effect."""
        self.on_delete: Callable[[CombinedSegmentId], None]
        """Told of each object before it is deleted."""
        self.caller: object = None
        """Whose call it is, where that counts."""
        self.later: Callable[[float, Callable[[], object]], object] | None = None
        """Makes a call so many seconds later; None: what was given up never takes effect."""

    def delays(self, what: str = "upload") -> Delays:
        rng = self._rng
        if self.mode == HANGING and rng.random() < 0.7:
            if rng.random() < 0.5:
                self._hit(f"{what} hangs before effect")
                return rng.uniform(TIMEOUT_S, LONGEST_CALL_S), rng.uniform(0, 0.1)
            self._hit(f"{what} hangs after effect")
            return rng.uniform(0, 0.1), rng.uniform(TIMEOUT_S, LONGEST_CALL_S)
        longest_s = 1.0 if self.mode == SLOW else 0.06
        return rng.uniform(0.001, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        fault = self._fault("upload")
        if fault == FAIL_BEFORE and self.later is not None and self._rng.random() < _LATE:
            self._hit("upload takes effect late")
            self.later(self._rng.uniform(0, LATEST_S), lambda: ask(self._copy(metadata, records_list, None)))
        return await self._copy(metadata, records_list, fault)

    async def _copy(
        self,
        metadata: RemoteWalCombinedLogSegmentMetadata,
        records_list: RecordsList,
        fault: str | None,
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        self.copy_faults = [fault]
        try:
            return await super().copy_log_segment_data(metadata, records_list)
        finally:
            if metadata.combined_segment_id in self.objects:
                self.puts[metadata.combined_segment_id] += 1
                self.created_ms[metadata.combined_segment_id] = metadata.event_timestamp_ms
                self._written_ms[metadata.combined_segment_id] = self._wall_ms()
                self.on_put(metadata, records_list)

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        fault = self._fault("deletion")
        self.delete_faults = [fault]
        if fault != FAIL_BEFORE and combined_segment_id in self.objects:
            self.on_delete(combined_segment_id)
        await super().delete_log_segment_data(combined_segment_id, custom_metadata)

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[list[StoredSegment]]:
        """By the store's clock; it may break off half-way."""
        fault = self._fault("listing")
        if fault == FAIL_BEFORE:
            raise RemoteStorageTimeoutError("list", "-", "planted")
        found = [
            StoredSegment(segment_id, str(segment_id), len(stored), self._written_ms[segment_id])
            for segment_id, stored in self.objects.items()
            if broker_id in (None, segment_id.broker_id)
        ]
        yield found[: len(found) // 2]
        if fault == FAIL_AFTER:
            raise RemoteStorageTimeoutError("list", "-", "planted, half-way")
        yield found[len(found) // 2 :]

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        raw = self.objects[stored.combined_segment_id]
        location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
        header, entries = decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)
        return RemoteWalCombinedLogSegmentMetadata(
            header.combined_segment_id, entries, FINISHED, header.created_ms, stored.size_bytes
        )

    def _fault(self, what: str) -> str | None:
        if self.never_fails or self._rng.random() >= _FAILS[self.mode]:
            return None
        fault = self._rng.choice((FAIL_BEFORE, FAIL_AFTER))
        self._hit(f"{what} fails {fault} effect")
        return fault


class PooledStorage(MemoryStorage):
    """One agent's way to a store: copies and reads take their time in a seeded pool, and may outlive who asked."""

    def __init__(self, storage: RemoteWalStorageManager, pool: SeededExecutor) -> None:
        super().__init__()
        self._storage, self._pool = storage, pool

    @property
    def adopts(self) -> bool:
        return self._storage.adopts

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        return await self._later(self._storage.copy_log_segment_data, metadata, records_list)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        where = start_position, end_position, custom_metadata
        return await self._later(self._storage.fetch_log_segment, combined_segment_id, *where)

    async def _later(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        return await self._pool.loop.run_in_executor(self._pool, lambda: ask(call(*arguments)))
