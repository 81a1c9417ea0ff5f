"""The archive's store: calls fail before their effect or after it, or hang, and what was given up may come late."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from kafka_log.topic_partition import TopicIdPartition
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteStorageTimeoutError,
)
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SealedCombinedSegment,
    decode_footer,
    locate_footer,
)
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, LONGEST_CALL_S, SLOW, TIMEOUT_S
from tests.simulation.virtual_time import Delays, VirtualTimeLoop

_FAILS = {HEALTHY: 0.02, FLAKY: 0.4, AWAY: 1.0, HANGING: 0.1, SLOW: 0.05}
_BEFORE, _AFTER, _LATE = "fails before effect", "fails after effect", "takes effect late"


class SeededArchiveStorage(ArchiveStorage):
    """The archive's store of all agents."""

    def __init__(
        self, loop: VirtualTimeLoop, rng: random.Random, hit: Callable[[str], None], wall_ms: Callable[[], int]
    ) -> None:
        self._loop, self._rng, self._hit, self._wall_ms = loop, rng, hit, wall_ms
        self.objects: dict[ArchiveObjectId, bytes] = {}
        self._written_ms: dict[ArchiveObjectId, int] = {}
        self.mode = HEALTHY
        self.never_fails = False
        self.on_write: Callable[[ArchiveObjectId, bytes], None]
        """Told of each write that is about to take effect."""
        self.on_delete: Callable[[ArchiveObjectId], None]
        """Told of each object before it is deleted."""

    def delays(self) -> Delays:
        rng = self._rng
        if self.mode == HANGING and rng.random() < 0.7:
            hangs_before = rng.random() < 0.5
            self._hit(f"archive hangs {'before' if hangs_before else 'after'} effect")
            hanging, short = rng.uniform(TIMEOUT_S, LONGEST_CALL_S), rng.uniform(0, 0.1)
            return (hanging, short) if hangs_before else (short, hanging)
        longest_s = 2.0 if self.mode == SLOW else 0.4
        return rng.uniform(0.001, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    async def write(self, object_id: ArchiveObjectId, sealed: SealedCombinedSegment) -> None:
        fault = self._fault("write", _BEFORE, _AFTER, _LATE)
        raw = b"".join(sealed.chunks)
        if fault == _LATE:
            self._loop.call_later(self._rng.uniform(0, 2 * LONGEST_CALL_S), self._put_late, object_id, raw)
        elif fault != _BEFORE:
            self._put(object_id, raw)
        if fault is not None:
            raise RemoteStorageTimeoutError("write", str(object_id), f"planted, it {fault}")

    def _put_late(self, object_id: ArchiveObjectId, raw: bytes) -> None:
        with suppress(RemoteSegmentConflictError):
            self._put(object_id, raw)

    def _put(self, object_id: ArchiveObjectId, raw: bytes) -> None:
        if self.objects.get(object_id, raw) != raw:
            raise RemoteSegmentConflictError("write", str(object_id), "the key is taken")
        self.on_write(object_id, raw)
        self.objects[object_id] = raw
        self._written_ms[object_id] = self._wall_ms()

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes:
        if object_id not in self.objects:
            raise RemoteResourceNotFoundError("fetch", str(object_id), "not there")
        return self.objects[object_id][start_position:end_position]

    async def fetch_runs(self, stored: StoredArchiveObject) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
        raw = self.objects[stored.object_id]
        location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
        return decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)[1]

    async def delete(self, object_id: ArchiveObjectId) -> None:
        fault = self._fault("deletion", _BEFORE, _AFTER)
        if fault != _BEFORE and object_id in self.objects:
            self.on_delete(object_id)
            del self.objects[object_id]
        if fault is not None:
            raise RemoteStorageTimeoutError("delete", str(object_id), f"planted, it {fault}")

    async def list(
        self, topic_id_partition: TopicIdPartition | None = None
    ) -> AsyncIterator[list[StoredArchiveObject]]:
        """By the store's clock; it may break off half-way."""
        fault = self._fault("listing", _BEFORE, _AFTER)
        found = [
            StoredArchiveObject(object_id, str(object_id), len(raw), self._written_ms[object_id])
            for object_id, raw in self.objects.items()
            if topic_id_partition in (None, object_id.topic_id_partition)
        ]
        yield found[: None if fault is None else 0 if fault == _BEFORE else len(found) // 2]
        if fault is not None:
            raise RemoteStorageTimeoutError("list", "-", f"planted, it {fault}")

    def close(self) -> None:
        pass

    def _fault(self, what: str, *faults: str) -> str | None:
        if self.never_fails or self._rng.random() >= _FAILS[self.mode]:
            return None
        fault = self._rng.choice(faults)
        self._hit(f"archive {what} {fault}")
        return fault
