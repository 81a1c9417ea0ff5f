"""How many objects each agent makes in a second, as the metadata topic tells of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from metadata_topic.records.records import MetadataRecord, PublishedSegment
from metadata_topic.records.states import FINISHED

WINDOW_S: Final = 5.0


class ObjectRates:
    """Counts in windows, of which the last whole one is told. One thread tells what it reads, any may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, window_s: float = WINDOW_S) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._window_s = window_s
        self._counting: Counter[int] = Counter()
        self._since_s = clock()
        self._per_second: Mapping[int, float] = {}

    def read(self, record: MetadataRecord) -> None:
        """A record came, and did not wait in the topic for this agent to begin."""
        if isinstance(record, PublishedSegment) and record.state is FINISHED and not record.is_rebuilt:
            with self._lock:
                self._roll()
                self._counting[record.combined_segment_id.broker_id] += 1

    def per_second(self) -> Mapping[int, float]:
        """By broker; those that made none are left out."""
        with self._lock:
            self._roll()
            return self._per_second

    def _roll(self) -> None:
        over_s = self._clock() - self._since_s
        if over_s < self._window_s:
            return
        counted, self._counting, self._since_s = self._counting, Counter(), self._since_s + over_s
        self._per_second = {broker_id: count / over_s for broker_id, count in counted.items()}
