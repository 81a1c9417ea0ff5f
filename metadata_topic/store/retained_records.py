"""Records that a newer agent wrote, kept until this one is upgraded.

They are kept as they came, in the order of arrival, up to a bound; beyond it the oldest go, as they are the
likeliest to be over. A snapshot carries them, and whoever loads it decodes what it knows by then.
"""

from collections import deque
from typing import NamedTuple

from metadata_topic.store.fencing import Source

MAX_RECORDS = 100_000
MAX_BYTES = 64 * 1024 * 1024


class RetainedRecord(NamedTuple):
    """A record's bytes, and where it stood."""

    key: bytes
    value: bytes
    source: Source | None


class RetainedRecords:
    """A bounded queue. Not thread-safe."""

    def __init__(self, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self._records: deque[RetainedRecord] = deque()
        self._known: set[RetainedRecord] = set()
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._bytes = 0

    def add(self, record: RetainedRecord) -> int:
        """How many older ones had to go; the same record at the same place is kept once."""
        if record in self._known:
            return 0
        self._records.append(record)
        self._known.add(record)
        self._bytes += len(record.key) + len(record.value)
        dropped = 0
        while len(self._records) > self._max_records or self._bytes > self._max_bytes:
            oldest = self._records.popleft()
            self._known.discard(oldest)
            self._bytes -= len(oldest.key) + len(oldest.value)
            dropped += 1
        return dropped

    def __len__(self) -> int:
        return len(self._records)

    def all(self) -> list[RetainedRecord]:
        """Oldest first."""
        return list(self._records)
