"""Decides for all entries of an object at once:

`rlm.lifecycle.release.release_of` by columns, for thousands of entries.

Nearly every decision is the same for the whole topic (gone, expired) or is one comparison with a number of the
partition (where the log starts, what the tier holds of one leader epoch). Those numbers are gathered once, as an array
for each topic indexed by partition, so an object costs some array operations whatever the number of its entries. Only
entries that these do not release are looked at one by one, and the first wanted one ends the look. The fast answers are
never more generous than `release_of`. Array operations have a price of their own, so the few entries of a small object
are looked at one by one from the beginning.

The gathered numbers are as old as the judge: make a new one for each round. For one thread.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format import entry_columns
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.release import NEVER, ClusterView, LongTermTier, Release, release_of

Ints = NDArray[np.int64]
DeadTails = Mapping[tuple[TopicIdPartition, int], int]
"""By partition and leader epoch, the offset from which on an object's entries are dead."""

_FEW_ENTRIES = 12
"""So many entries take about as long one by one as by columns."""
_PARTITIONS_MAX = 100_000
"""Topics with higher partition numbers are looked at entry by entry, so that a damaged number allocates nothing."""
_NO_EPOCH = -2
"""A value that no entry has, not even one of an unknown epoch."""


class ReleaseJudge:
    """Judges objects by what is known now."""

    def __init__(self, view: ClusterView, tier: LongTermTier, few_entries: int = _FEW_ENTRIES) -> None:
        """Objects of up to `few_entries` entries are judged entry by entry."""
        self._view = view
        self._tier = tier
        self._few_entries = few_entries
        self._partitions: dict[TopicId, _Partitions] = {}
        self.topics_asked: set[TopicId] = set()
        """Topics whose records were judged."""

    def release(self, entry_block: bytes, age_ms: int, dead: DeadTails) -> Release | None:
        """Return why all entries are released: the last one's reason; None when one is wanted.

        None also for a block without entries, about which nothing is known.
        """
        count = entry_columns.entry_count(entry_block) if entry_block else 0
        if not count:
            return None
        if count <= self._few_entries:
            return self._one_by_one(entry_columns.decode(entry_block), age_ms, dead)
        entries = _Entries(entry_block, count)
        self.topics_asked.update(entries.topics)
        released = self._by_topic(entries, age_ms)
        if not released.all() and entries.highest_partition < _PARTITIONS_MAX:
            released |= self._by_partition(entries)
        if any(partition.topic_id in entries.topics for partition in self._view.held):
            released[:] = False
        for index in np.flatnonzero(~released).tolist():
            if self._release_of(entries.entry(index), age_ms, dead) is None:
                return None
        return self._release_of(entries.entry(entries.count - 1), age_ms, dead)

    def _one_by_one(
        self, entries: tuple[RemoteLogSegmentMetadataEntry, ...], age_ms: int, dead: DeadTails
    ) -> Release | None:
        reason = None
        for entry in entries:
            self.topics_asked.add(entry.topic_id_partition.topic_id)
            reason = self._release_of(entry, age_ms, dead)
            if reason is None:
                return None
        return reason

    def _release_of(self, entry: RemoteLogSegmentMetadataEntry, age_ms: int, dead: DeadTails) -> Release | None:
        reason = release_of(entry, age_ms, self._view, self._tier)
        dead_from = dead.get((entry.topic_id_partition, entry.leader_epoch))
        if reason is not None or dead_from is None or dead_from > entry.last_offset:
            return reason
        if dead_from <= entry.first_offset:
            return Release.DEAD
        return release_of(replace(entry, last_offset=dead_from - 1), age_ms, self._view, self._tier)

    def _by_topic(self, entries: "_Entries", age_ms: int) -> NDArray[np.bool_]:
        view = self._view
        released = []
        for topic in entries.topics:
            is_gone, waits = view.is_gone(topic), self._tier.waits_for(topic)
            kept_ms = (view.retention_ms.get(topic, NEVER), view.lagging_retention(topic))
            released.append([is_gone or (ms != NEVER and age_ms >= ms and not waits) for ms in kept_ms])
        by_topic: NDArray[np.bool_] = np.array(released, dtype=np.bool_)[entries.topic_index]
        if (by_topic[:, 0] == by_topic[:, 1]).all():
            return by_topic[:, 0]
        return np.where(self._is_lagging(entries), by_topic[:, 1], by_topic[:, 0])

    def _is_lagging(self, entries: "_Entries") -> NDArray[np.bool_]:
        """Whether the entry's partition has a replica that is not in sync."""
        found = np.zeros(entries.count, dtype=np.bool_)
        for index, topic in enumerate(entries.topics):
            numbers = self._view.lagging.get(topic)
            if numbers:
                found |= (entries.topic_index == index) & np.isin(entries.partition, list(numbers))
        return found

    def _by_partition(self, entries: "_Entries") -> NDArray[np.bool_]:
        tables = [self._partitions_of(topic, entries) for topic in entries.topics]
        sizes = np.array([table.count for table in tables], dtype=np.int64)
        rows = (np.cumsum(sizes) - sizes)[entries.topic_index] + entries.partition
        starts, epochs, firsts, lasts = (np.concatenate(columns)[rows] for columns in zip(*tables, strict=True))
        held = (entries.leader_epoch == epochs) & (entries.first_offset >= firsts) & (entries.last_offset <= lasts)
        below: NDArray[np.bool_] = entries.last_offset < starts
        released: NDArray[np.bool_] = below | held
        return released

    def _partitions_of(self, topic: TopicId, entries: "_Entries") -> "_Partitions":
        known = self._partitions.get(topic)
        if known is None or known.count <= entries.highest_partition:
            known = self._partitions[topic] = _Partitions(topic, entries.highest_partition + 1, self._view, self._tier)
        return known


class _Partitions:
    """What is known of a topic's partitions: log start, and one leader epoch's held offsets."""

    def __init__(self, topic: TopicId, count: int, view: ClusterView, tier: LongTermTier) -> None:
        self.count = count
        numbers = range(count)
        keys = [TopicIdPartition(topic, number) for number in numbers]
        held = [tier.held_range(key) for key in keys]
        self._columns: tuple[Ints, ...] = (
            np.fromiter((view.log_start.get(key, 0) for key in keys), np.int64, count),
            np.fromiter((_NO_EPOCH if one is None else one.leader_epoch for one in held), np.int64, count),
            np.fromiter((0 if one is None else one.first_offset for one in held), np.int64, count),
            np.fromiter((-1 if one is None else one.last_offset for one in held), np.int64, count),
        )

    def __iter__(self) -> Iterator[Ints]:
        return iter(self._columns)


class _Entries:
    """A block's entries as columns."""

    def __init__(self, entry_block: bytes, count: int) -> None:
        self.count = count
        self._columns = cast(Mapping[str, Ints], entry_columns.decode_columns(entry_block))
        self.topics = [TopicId(bytes(topic)) for topic in self._columns["topic_ids"]]
        self.topic_index: Ints = self._columns["topic_index"]
        self.partition: Ints = self._columns["partition"]
        self.leader_epoch: Ints = self._columns["leader_epoch"]
        self.first_offset: Ints = self._columns["first_offset"]
        self.last_offset: Ints = self._columns["last_offset"]

    @cached_property
    def highest_partition(self) -> int:
        return int(self.partition.max())

    def entry(self, index: int) -> RemoteLogSegmentMetadataEntry:
        topic, partition, leader_epoch, first, last, start, end, crc = (
            int(self._columns[name][index])
            for name in (
                "topic_index", "partition", "leader_epoch", "first_offset", "last_offset", "start_file_position",
                "end_file_position", "crc32c",
            )
        )  # fmt: skip
        topic_id_partition = TopicIdPartition(self.topics[topic], partition)
        return RemoteLogSegmentMetadataEntry(topic_id_partition, leader_epoch, first, last, start, end, crc)
