"""Decides whether an entry is released, by the cluster's topics and logs and the long-term tiers. Sans-IO."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.held_records import LocalLosses, is_held
from plugin.format import entry_columns
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

NEVER = -1
"""A retention that does not end (Kafka's own value)."""


class Release(StrEnum):
    """The reason why an entry may be released."""

    DEAD = "dead"
    TOPIC_DELETED = "topic_deleted"
    BELOW_LOG_START = "below_log_start"
    TIERED = "tiered"
    EXPIRED = "expired"
    UNCOMMITTED = "uncommitted"


class LongTermTier(Protocol):
    """A place to which records are copied, and where they stay when their combined segments are deleted."""

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry is on the tier; False when that is not known."""

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether the tier is made from the topic's objects, so that neither age nor another tier may release them."""


class Tiers:
    """Several long-term tiers as one; there may be none."""

    def __init__(self, tiers: Iterable[LongTermTier] = ()) -> None:
        self._tiers = tuple(tiers)

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether one tier holds the entry; if tiers wait for the partition, whether each of those does."""
        waiting = [tier for tier in self._tiers if tier.waits_for(entry.topic_id_partition.topic_id)]
        if waiting:
            return all(tier.holds(entry) for tier in waiting)
        return any(tier.holds(entry) for tier in self._tiers)

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether any tier waits for the topic."""
        return any(tier.waits_for(topic_id) for tier in self._tiers)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The topics and logs of the cluster as known at one time. The default view knows nothing."""

    living: frozenset[TopicId] = frozenset()
    gone_before: frozenset[TopicId] = frozenset()
    """Topics that existed once, and have been missing for longer than the grace time."""
    strangers_are_gone: bool = False
    """Whether topics that were never seen, nor asked for by id, have been missing for that long, too."""
    missing: frozenset[TopicId] = frozenset()
    """Topics that existed once or were asked for by id, and have been missing for a shorter time."""
    retention_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long entries of existing topics are kept; NEVER; absent if unknown."""
    lagging: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)
    """Partitions that have a replica which is not in sync."""
    lagging_retention_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long entries of these partitions are kept; if absent, like all others."""
    log_start: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    held: LocalLosses = field(default_factory=dict)
    """What logs lost and maybe only objects have: only the end of the topic or a person releases it."""
    as_of_ms: int | None = None
    """When the cluster was asked. No object expires later than that, because a replica may have fallen behind
    meanwhile, and the answers of a cluster that has lost a broker take long. None: the view is valid at any time."""

    def age_ms(self, written_ms: int, now_ms: int) -> int:
        """Return the age of an object in ms, at the time of the view."""
        return (now_ms if self.as_of_ms is None else min(now_ms, self.as_of_ms)) - written_ms

    def is_gone(self, topic_id: TopicId) -> bool:
        """Whether the topic has been missing from the cluster for longer than the grace time."""
        if topic_id in self.living or topic_id in self.missing:
            return False
        return topic_id in self.gone_before or self.strangers_are_gone

    def retention_of(self, partition: TopicIdPartition) -> int:
        """Return how long the partition's entries are kept, in ms; NEVER: no age releases them, or it is unknown."""
        topic_id = partition.topic_id
        if partition.partition in self.lagging.get(topic_id, ()):
            return self.lagging_retention(topic_id)
        return self.retention_ms.get(topic_id, NEVER)

    def lagging_retention(self, topic_id: TopicId) -> int:
        """Return how long entries are kept for a partition with a replica that is not in sync."""
        kept_ms = self.retention_ms.get(topic_id, NEVER)
        return NEVER if kept_ms == NEVER else self.lagging_retention_ms.get(topic_id, kept_ms)


@dataclass(frozen=True, slots=True)
class HiddenTopics:
    """Topics of which the cluster does not say whether they exist, because this client may not describe them."""

    known: frozenset[TopicId] = frozenset()
    """Hidden topics whose ids are known."""
    others: bool = False
    """Whether there may be hidden topics whose ids are unknown."""


NOTHING_HIDDEN = HiddenTopics()


TOPIC_GONE_MS: Final = 300_000
"""How long a topic must be missing from the cluster before its records may go (guessed)."""


class TopicWatch:
    """Distinguishes deleted topics from topics that a response lacks for a moment, or because of access rights.
    Sans-IO.

    The grace time begins with the first response that lacks a topic. While the whole cluster is down there is no
    response, and a broker that comes back first may not know all topics.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._since_ms: int | None = None
        self._missing_since_ms: dict[TopicId, int | None] = {}
        """By topic that existed once or was asked for by id, since when it is missing; None: it exists, as far as is
        known."""
        self._gone: set[TopicId] = set()

    def seen_by_id(self, living: frozenset[TopicId], absent: frozenset[TopicId], now_ms: int) -> ClusterView:
        """Record topics that exist, even if hidden (`living`), and topics that do not, by responses about single
        topics.

        `absent` were asked for by id and do not exist. Nothing changes for other topics.
        """
        for topic_id in absent - self._gone:
            self._missing_since_ms.setdefault(topic_id, now_ms)
        return replace(self.seen(living, now_ms), strangers_are_gone=False)

    def seen(self, living: frozenset[TopicId], now_ms: int, hidden: HiddenTopics = NOTHING_HIDDEN) -> ClusterView:
        """Record all topics of the cluster from a complete response. The returned view knows topics only.

        Hidden topics count as seen, so their grace time begins once the cluster says whether they exist.
        """
        if self._since_ms is None or hidden.others:
            self._since_ms = now_ms
        there = living | (hidden.known - self._gone)
        self._missing_since_ms |= dict.fromkeys(there)
        self._gone -= living
        for topic_id in self._missing_since_ms.keys() - there:
            known_ms = self._missing_since_ms[topic_id]
            since_ms = self._missing_since_ms[topic_id] = now_ms if known_ms is None else known_ms
            if now_ms - since_ms >= self._grace_ms:
                del self._missing_since_ms[topic_id]
                self._gone.add(topic_id)
        return ClusterView(
            living,
            frozenset(self._gone),
            not hidden.others and now_ms - self._since_ms >= self._grace_ms,
            frozenset(self._missing_since_ms) - living,
        )


def release_of(
    entry: RemoteLogSegmentMetadataEntry, age_ms: int, view: ClusterView, tier: LongTermTier
) -> Release | None:
    """Return why the entry is released, for an object of that age, dead entries included; None when it is needed."""
    partition = entry.topic_id_partition
    if view.is_gone(partition.topic_id):
        return Release.TOPIC_DELETED
    if is_held(entry, view.held):
        return None
    if entry.last_offset < view.log_start.get(partition, 0):
        return Release.BELOW_LOG_START
    if tier.holds(entry):
        return Release.TIERED
    retention_ms = view.retention_of(partition)
    if retention_ms != NEVER and age_ms >= retention_ms and not tier.waits_for(partition.topic_id):
        return Release.EXPIRED
    return None


Ints = NDArray[np.int64]
DeadTails = Mapping[tuple[TopicIdPartition, int], int]
"""By partition and leader epoch, the offset from which on an object's entries are dead."""

_FEW_ENTRIES = 12
"""So many entries take about as long one by one as by columns."""
_PARTITIONS_MAX = 100_000
"""Topics with higher partition numbers are looked at entry by entry, so that a damaged number allocates nothing."""


class ReleaseJudge:
    """Decides whether all entries of an object are released, by columns: `release_of` for thousands of entries at once.

    Nearly every decision is the same for the whole topic (gone, expired) or is one comparison with the log's start.
    Those are gathered once, as an array for each topic indexed by partition, so an object costs some array operations
    whatever the number of its entries. Only entries that these do not release are looked at one by one, and the first
    wanted one ends the look.
    The fast answers are never more generous than `release_of`. Array operations have a price of their own, so the few
    entries of a small object are looked at one by one from the beginning.

    The gathered numbers are as old as the judge: make a new one for each round. For one thread.
    """

    def __init__(self, view: ClusterView, tier: LongTermTier, few_entries: int = _FEW_ENTRIES) -> None:
        """Objects of up to `few_entries` entries are judged entry by entry."""
        self._view = view
        self._tier = tier
        self._few_entries = few_entries
        self._starts: dict[TopicId, Ints] = {}
        """By topic and partition, where logs start."""
        self.topics_asked: set[TopicId] = set()
        """Topics whose records were judged."""

    def release(self, entry_block: bytes, age_ms: int, dead: DeadTails) -> Release | None:
        """Return why all entries of an object are released: the last one's reason; None if any is needed.

        `entry_block` has the encoded entries; None also if it has none, so that nothing is known.
        """
        count = entry_columns.entry_count(entry_block) if entry_block else 0
        if not count:
            return None
        if count <= self._few_entries:
            return self._release_of_all(entry_columns.decode(entry_block), age_ms, dead)
        entries = _Entries(entry_block, count)
        self.topics_asked.update(entries.topics)
        released = self._by_topic(entries, age_ms)
        if not released.all() and entries.highest_partition < _PARTITIONS_MAX:
            released |= self._below_start(entries)
        if any(partition.topic_id in entries.topics for partition in self._view.held):
            released[:] = False
        for index in np.flatnonzero(~released).tolist():
            if self._release_of(entries.entry(index), age_ms, dead) is None:
                return None
        return self._release_of(entries.entry(entries.count - 1), age_ms, dead)

    def releases(self, entries: Sequence[RemoteLogSegmentMetadataEntry], age_ms: int, dead: DeadTails) -> bool:
        """Whether all these entries of an object are released."""
        return not entries or self._release_of_all(entries, age_ms, dead) is not None

    def _release_of_all(
        self, entries: Iterable[RemoteLogSegmentMetadataEntry], age_ms: int, dead: DeadTails
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

    def _below_start(self, entries: "_Entries") -> NDArray[np.bool_]:
        starts = [self._starts_of(topic, entries.highest_partition + 1) for topic in entries.topics]
        sizes = np.array([len(one) for one in starts], dtype=np.int64)
        rows = (np.cumsum(sizes) - sizes)[entries.topic_index] + entries.partition
        below: NDArray[np.bool_] = entries.last_offset < np.concatenate(starts)[rows]
        return below

    def _starts_of(self, topic: TopicId, count: int) -> Ints:
        known = self._starts.get(topic)
        if known is None or len(known) < count:
            starts = (self._view.log_start.get(TopicIdPartition(topic, number), 0) for number in range(count))
            known = self._starts[topic] = np.fromiter(starts, np.int64, count)
        return known


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
