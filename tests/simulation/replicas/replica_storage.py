"""The object store as followers' agents read it: late, in vain, too little, or other bytes."""

import random
from collections.abc import Callable

from plugin.errors import RemoteStorageTimeoutError
from plugin.segment_metadata import CombinedSegmentId
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW, SeededStorage
from tests.simulation.virtual_time import Delays

LYING = "lying"
"""What is read is often not what was stored."""
READ_MODES = (HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY, LYING)
_FAILS = {HEALTHY: 0.02, FLAKY: 0.3, AWAY: 1.0, HANGING: 0.05, SLOW: 0.02, LYING: 0.02}
_LIES = {LYING: 0.5, FLAKY: 0.05}


class ReplicaStorage(SeededStorage):
    def __init__(
        self, rng: random.Random, reads: random.Random, hit: Callable[[str], None], wall_ms: Callable[[], int]
    ) -> None:
        super().__init__(rng, hit, wall_ms)
        self._reads, self._read_hit = reads, hit
        self.read_mode = HEALTHY
        self.on_get: Callable[[CombinedSegmentId, int, int], None] = lambda _id, _start, _end: None
        """Told of each read."""

    def get_delays(self) -> Delays:
        rng = self._reads
        if self.read_mode == HANGING and not self.never_fails and rng.random() < 0.5:
            self._read_hit("read hangs")
            return rng.uniform(1, 4), 0.0
        longest_s = 0.5 if self.read_mode == SLOW else 0.02
        return rng.uniform(0.001, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        self.on_get(combined_segment_id, start_position, end_position)
        rng, share = self._reads, 0.0 if self.never_fails else _FAILS[self.read_mode]
        fails_before, fails_after = rng.random() < share / 2, rng.random() < share / 2
        if fails_before or (self.read_mode == AWAY and not self.never_fails):
            self._read_hit("read fails before effect")
            raise RemoteStorageTimeoutError("get", str(combined_segment_id), "planted")
        data = await super().fetch_log_segment(combined_segment_id, start_position, end_position, custom_metadata)
        if fails_after:
            self._read_hit("read fails after effect")
            raise RemoteStorageTimeoutError("get", str(combined_segment_id), "planted, after the effect")
        if not self.never_fails and rng.random() < _LIES.get(self.read_mode, 0.0):
            return self._lie(combined_segment_id, start_position, data)
        return data

    def _lie(self, segment_id: CombinedSegmentId, start: int, data: bytes) -> bytes:
        rng, stored = self._reads, self.objects[segment_id]
        kind = rng.choice(("too little", "other bytes", "other bytes", "of another place", "of another object"))
        self._read_hit(f"read gives {kind}")
        if kind == "too little":
            return data[: rng.randrange(len(data))]
        if kind == "of another place":
            at = max(start - rng.randint(1, 200), 0)
            return stored[at : at + len(data)]
        if kind == "of another object":
            other = self.objects[rng.choice(sorted(self.objects))]
            return other[start : start + len(data)].ljust(len(data), b"\0")
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
