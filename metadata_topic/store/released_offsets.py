"""Up to which offset each log's records were stored once, and then released with their objects.

An object goes when nobody wants any of its records: they are below the log's start, on the long-term tier, or older
than the retention. All three go along the log, so what lies below a released record is not wanted either, whether it
was ever stored or not. An object that was found missing releases nothing: its records are a hole, which the leader's
agent uploads again. One number for each partition and leader epoch keeps that, which the store would otherwise
forget with the object. So a hole in what is stored can be distinguished from records that were released.

Beside it stands how far the living records of objects reached that are gone without a release: they contradict a
declaration that the epoch ends below (`recovery.metadata.epoch_ends`).

Entries wait as blocks, and are decoded many at a time, as in `metadata_topic.store.run_index`. The number of
partitions and epochs is bounded: beyond it the oldest are forgotten. Then old records may be uploaded once more, and
nothing else happens.

Not thread-safe; lookups change it too.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format import entry_columns
from plugin.format.entry_column_batches import decode_runs

WAITING_ROWS: Final = 1 << 19
"""A log's number is written once for so many released entries of all logs, unless somebody asks before."""
_KEPT_MAX: Final = 500_000


class ReleasedUpTo(NamedTuple):
    """Up to which offset (exclusive) a partition's records of one epoch were released."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int
    offset: int
    reached: int = 0
    """The end of what was stored once and is gone without a release."""


class ReleasedOffsets:
    """How far the records of each partition and epoch were released."""

    def __init__(self, known: Iterable[ReleasedUpTo] = (), kept_max: int = _KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._known: dict[tuple[TopicIdPartition, int], tuple[int, int]] = {}
        self._waiting: list[bytes] = []
        self._waiting_rows = 0
        self._changed: set[tuple[TopicIdPartition, int]] = set()
        self.know(known)

    def know(self, known: Iterable[ReleasedUpTo]) -> None:
        """Add known released offsets; the highest of each partition and epoch counts."""
        for partition, epoch, offset, reached in known:
            self._know((partition, epoch), offset, reached)

    def _know(self, key: tuple[TopicIdPartition, int], offset: int, reached: int) -> None:
        self._changed.add(key)
        known_offset, known_reached = self._known.pop(key, (0, 0))
        self._known[key] = max(offset, known_offset), max(reached, known_reached)

    def add(self, entry_block: bytes) -> None:
        """Record that the records of a finished object are no longer needed; `entry_block` has its encoded entries."""
        if not entry_block:
            return
        self._waiting.append(entry_block)
        self._waiting_rows += entry_columns.entry_count(entry_block)
        if self._waiting_rows >= WAITING_ROWS:
            self._fold()

    def up_to(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int:
        """Return the offset behind the last released one; 0 when nothing of that epoch was released."""
        self._fold()
        return self._known.get((topic_id_partition, leader_epoch), (0, 0))[0]

    def all(self) -> list[ReleasedUpTo]:
        """Return all released offsets, the longest unchanged first."""
        self._fold()
        return [ReleasedUpTo(*key, *known) for key, known in self._known.items()]

    def take_changed(self) -> list[ReleasedUpTo]:
        """Return the released offsets that changed since the last call, without those forgotten since."""
        self._fold()
        changed, self._changed = self._changed, set()
        return [ReleasedUpTo(*key, *self._known[key]) for key in changed if key in self._known]

    def _fold(self) -> None:
        if not self._waiting:
            return
        runs = decode_runs(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        numbers: dict[bytes, int] = {}
        topics = np.array([numbers.setdefault(topic_id, len(numbers)) for topic_id in runs.topic_ids])[runs.topic]
        order = np.lexsort((runs.leader_epoch, runs.partition, topics))
        keys = np.stack((topics, runs.partition, runs.leader_epoch))[:, order]
        begins = np.flatnonzero(np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))))
        furthest = np.maximum.reduceat(runs.last_offset[order], begins)
        topic_ids = [TopicId(topic_id) for topic_id in numbers]
        for topic, partition, epoch, last in zip(*keys[:, begins].tolist(), furthest.tolist(), strict=True):
            self._know((TopicIdPartition(topic_ids[topic], partition), epoch), last + 1, 0)
        while len(self._known) > self._kept_max:
            del self._known[next(iter(self._known))]
