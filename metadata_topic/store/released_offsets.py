"""Up to which offset each log's records were stored once, and then released with their objects.

An object goes when nobody wants any of its records: they are below the log's start, on the long-term tier, or older
than the retention. All three go along the log, so what lies below a released record is not wanted either, whether it
was ever stored or not. An object that was found missing releases nothing: its records are a hole, which the leader's
agent uploads again. One number for each partition and leader epoch keeps that, which the store would otherwise
forget with the object. So a hole in what is stored can be distinguished from records that were released.

Beside it stands how far such uploads reached, and when: what was uploaded after a declaration that an epoch ends
contradicts it, also when the object is gone (`recovery.metadata.epoch_ends`).

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

WAITING_ROWS: Final = 1 << 16
_KEPT_MAX: Final = 500_000


Uploads = tuple[tuple[int, int], ...]
"""When objects that are gone were written, in ms since 1970, and their last offset, from the newest on: without those
for which a younger one reaches at least as far."""


class ReleasedUpTo(NamedTuple):
    """Says that a partition's records of an epoch were released below `offset`, and how far gone objects reached."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int
    offset: int
    uploads: Uploads = ()


class ReleasedOffsets:
    """How far the records of each partition and epoch were released."""

    def __init__(self, known: Iterable[ReleasedUpTo] = (), kept_max: int = _KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._known: dict[tuple[TopicIdPartition, int], tuple[int, Uploads]] = {}
        self._waiting: list[tuple[bytes, int]] = []
        self._waiting_rows = 0
        self._changed: set[tuple[TopicIdPartition, int]] = set()
        self.know(known)

    def know(self, known: Iterable[ReleasedUpTo]) -> None:
        """Add known released offsets; the highest of each partition and epoch counts."""
        for partition, epoch, offset, uploads in known:
            self._know((partition, epoch), offset, uploads)

    def _know(self, key: tuple[TopicIdPartition, int], offset: int, uploads: Iterable[tuple[int, int]]) -> None:
        self._changed.add(key)
        up_to, known = self._known.pop(key, (0, ()))
        newest: list[tuple[int, int]] = []
        for upload in sorted({*known, *uploads}, reverse=True):
            if not newest or upload[1] > newest[-1][1]:
                newest.append(upload)
        self._known[key] = max(offset, up_to), tuple(newest)

    def add(self, entry_block: bytes, written_ms: int) -> None:
        """Record that a finished object with these entries, none of them dead, is not wanted any more."""
        if not entry_block:
            return
        self._waiting.append((entry_block, written_ms))
        self._waiting_rows += entry_columns.entry_count(entry_block)
        if self._waiting_rows >= WAITING_ROWS:
            self._fold()

    def up_to(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int:
        """Return the offset behind the last released one; 0 when nothing of that epoch was released."""
        self._fold()
        return self._known.get((topic_id_partition, leader_epoch), (0, ()))[0]

    def all(self) -> list[ReleasedUpTo]:
        """Return all released offsets, the longest unchanged first."""
        self._fold()
        return [ReleasedUpTo(*key, *known) for key, known in self._known.items()]

    def take_changed(self) -> list[ReleasedUpTo]:
        """Return what changed since the last call, as far as it is still known."""
        self._fold()
        changed, self._changed = self._changed, set()
        return [ReleasedUpTo(*key, *self._known[key]) for key in changed if key in self._known]

    def _fold(self) -> None:
        if not self._waiting:
            return
        runs = decode_runs([block for block, _ in self._waiting])
        written_ms = np.array([ms for _, ms in self._waiting], dtype=np.int64)[runs.block]
        self._waiting, self._waiting_rows = [], 0
        numbers: dict[bytes, int] = {}
        topics = np.array([numbers.setdefault(topic_id, len(numbers)) for topic_id in runs.topic_ids])[runs.topic]
        order = np.lexsort((runs.last_offset, written_ms, runs.leader_epoch, runs.partition, topics))
        keys = np.stack((topics, runs.partition, runs.leader_epoch))[:, order]
        begins = np.flatnonzero(np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))))
        ends = np.append(begins[1:], len(order))
        lasts, written_ms = runs.last_offset[order], written_ms[order]
        furthest = np.maximum.reduceat(lasts, begins)
        # The youngest of an epoch's uploads reaches furthest, but for those that were made once more.
        begins = np.where(lasts[ends - 1] == furthest, ends - 1, begins)
        topic_ids = [TopicId(topic_id) for topic_id in numbers]
        columns = (*keys[:, begins], furthest, begins, ends)
        for topic, partition, epoch, last, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            uploads = zip(written_ms[begin:end].tolist(), lasts[begin:end].tolist(), strict=True)
            self._know((TopicIdPartition(topic_ids[topic], partition), epoch), last + 1, uploads)
        while len(self._known) > self._kept_max:
            del self._known[next(iter(self._known))]
