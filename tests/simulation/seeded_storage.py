"""The object store: writes fail before their effect or after it, or end long after who asked has given up."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from tests.rlm.memory_storage import FAIL_AFTER, FAIL_BEFORE, MemoryStorage
from tests.simulation.virtual_time import Delays

HEALTHY, FLAKY, AWAY, HANGING, SLOW = "healthy", "flaky", "away", "hanging", "slow"
MODES = (HEALTHY, FLAKY, AWAY, HANGING, SLOW)
_FAILS = {HEALTHY: 0.02, FLAKY: 0.4, AWAY: 1.0, HANGING: 0.1, SLOW: 0.05}
TIMEOUT_S = 5.0
"""An upload is given up after so long."""


class SeededStorage(MemoryStorage):
    """Shared by all agents."""

    def __init__(self, rng: random.Random, hit: Callable[[str], None]) -> None:
        super().__init__()
        self._rng = rng
        self._hit = hit
        self.mode = HEALTHY
        self.never_fails = False
        self.puts: Counter[CombinedSegmentId] = Counter()
        self.on_put: Callable[[RemoteWalCombinedLogSegmentMetadata, Sequence[bytes | memoryview]], None]
        """Told of each write that takes effect."""

    def delays(self) -> Delays:
        """Of the next write."""
        rng = self._rng
        if self.mode == HANGING and rng.random() < 0.7:
            if rng.random() < 0.5:
                self._hit("upload hangs before effect")
                return rng.uniform(1, 3) * TIMEOUT_S, rng.uniform(0, 0.1)
            self._hit("upload hangs after effect")
            return rng.uniform(0, 0.1), rng.uniform(1, 3) * TIMEOUT_S
        longest_s = 1.0 if self.mode == SLOW else 0.06
        return rng.uniform(0.001, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: Sequence[bytes | memoryview]
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        fault: str | None = None
        if not self.never_fails and self._rng.random() < _FAILS[self.mode]:
            fault = self._rng.choice((FAIL_BEFORE, FAIL_AFTER))
            self._hit(f"upload fails {fault} effect")
        self.copy_faults = [fault]
        try:
            return super().copy_log_segment_data(metadata, records_list)
        finally:
            if metadata.combined_segment_id in self.objects:
                self.puts[metadata.combined_segment_id] += 1
                self.on_put(metadata, records_list)
