"""What an entry's release depends on: the cluster's topics and logs, and the long-term tiers. Sans-IO."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.held_records import LocalLosses, is_held
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

NEVER = -1
"""A retention that does not end (Kafka's own value)."""


class Release(StrEnum):
    """Why an object may go."""

    DEAD = "dead"
    TOPIC_DELETED = "topic_deleted"
    BELOW_LOG_START = "below_log_start"
    TIERED = "tiered"
    EXPIRED = "expired"
    UNCOMMITTED = "uncommitted"


@dataclass(frozen=True, slots=True)
class HeldRange:
    """Offsets of one leader epoch of a partition, inclusive, without a gap."""

    leader_epoch: int
    first_offset: int
    last_offset: int


class LongTermTier(Protocol):
    """What of the partitions is copied to where records stay."""

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry is on the tier; False when that is not known."""

    def held_range(self, partition: TopicIdPartition, /) -> HeldRange | None:
        """A range of which `holds` says yes to every entry within, the largest that is quickly known; or None."""

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether the tier is made from these objects, so that neither time nor another tier must release them."""


class Tiers:
    """Several tiers as one; none at all, too."""

    def __init__(self, tiers: Iterable[LongTermTier] = ()) -> None:
        self._tiers = tuple(tiers)

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether one of them does, or each that waits for the partition."""
        waiting = [tier for tier in self._tiers if tier.waits_for(entry.topic_id_partition.topic_id)]
        if waiting:
            return all(tier.holds(entry) for tier in waiting)
        return any(tier.holds(entry) for tier in self._tiers)

    def held_range(self, partition: TopicIdPartition, /) -> HeldRange | None:
        """Of the one that waits for the partition; where none does, of the first that has any."""
        waiting = [tier for tier in self._tiers if tier.waits_for(partition.topic_id)]
        if len(waiting) > 1:
            return None
        found = (tier.held_range(partition) for tier in waiting or self._tiers)
        return next((held for held in found if held is not None), None)

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether any of them waits."""
        return any(tier.waits_for(topic_id) for tier in self._tiers)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the cluster told of topics and logs at one time. The default view knows nothing."""

    living: frozenset[TopicId] = frozenset()
    gone_before: frozenset[TopicId] = frozenset()
    """Topics that were there once, and have been missing for longer than the grace time."""
    strangers_are_gone: bool = False
    """Whether topics that were never seen, nor asked for by id, have been missing for that long, too."""
    missing: frozenset[TopicId] = frozenset()
    """Topics that were there once, or were asked for by id, and have been missing for a shorter time."""
    retention_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long entries are kept, of topics that are there; NEVER; missing when it is not known."""
    lagging: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)
    """Partitions that have a replica which is not in sync."""
    lagging_retention_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long entries of these are kept; as all others, where it is missing."""
    log_start: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    held: LocalLosses = field(default_factory=dict)
    """What logs lost, and objects may be the only ones to have: its topic's end releases it, or a person."""
    as_of_ms: int | None = None
    """When the cluster was asked. No object comes of age after that, since a replica may have fallen behind meanwhile,
    and the answers of a cluster that has lost a broker take long. None: the view holds at any time."""

    def age_ms(self, written_ms: int, now_ms: int) -> int:
        """Of an object, as far as the view can judge it."""
        return (now_ms if self.as_of_ms is None else min(now_ms, self.as_of_ms)) - written_ms

    def is_gone(self, topic_id: TopicId) -> bool:
        """Whether the topic has been missing from the cluster for longer than the grace time."""
        if topic_id in self.living or topic_id in self.missing:
            return False
        return topic_id in self.gone_before or self.strangers_are_gone

    def retention_of(self, partition: TopicIdPartition) -> int:
        """How long its entries are kept, in ms; NEVER, also when it is not known."""
        topic_id = partition.topic_id
        if partition.partition in self.lagging.get(topic_id, ()):
            return self.lagging_retention(topic_id)
        return self.retention_ms.get(topic_id, NEVER)

    def lagging_retention(self, topic_id: TopicId) -> int:
        """The same of a partition with a replica that is not in sync."""
        kept_ms = self.retention_ms.get(topic_id, NEVER)
        return NEVER if kept_ms == NEVER else self.lagging_retention_ms.get(topic_id, kept_ms)


@dataclass(frozen=True, slots=True)
class HiddenTopics:
    """Topics of which the cluster does not say whether they are there."""

    known: frozenset[TopicId] = frozenset()
    """Those whose ids are known."""
    others: bool = False
    """Whether there may be any whose ids are not."""


NOTHING_HIDDEN = HiddenTopics()


class TopicWatch:
    """Tells topics that were deleted from those that are out of sight, for a moment or by access rights. Sans-IO.

    The grace time begins with the first answer that lacks a topic: while there is none at all, as the whole cluster is
    down, nobody has seen it missing, and what a broker knows that comes back first may not be all.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._since_ms: int | None = None
        self._missing_since_ms: dict[TopicId, int | None] = {}
        """Of topics that were there once, or were asked for by id; None: it is there, as far as is known."""
        self._gone: set[TopicId] = set()

    def seen_by_id(self, living: frozenset[TopicId], absent: frozenset[TopicId], now_ms: int) -> ClusterView:
        """All topics that the client may describe, with those that are there though it may not, and those not there.

        `absent` was asked for by id. What was not asked for is not concluded upon: nobody is gone as a stranger.
        """
        for topic_id in absent - self._gone:
            self._missing_since_ms.setdefault(topic_id, now_ms)
        return replace(self.seen(living, now_ms), strangers_are_gone=False)

    def seen(self, living: frozenset[TopicId], now_ms: int, hidden: HiddenTopics = NOTHING_HIDDEN) -> ClusterView:
        """All topics of the cluster, in an answer that is complete; the view knows of topics alone.

        What is hidden counts as seen, so its grace time begins once the cluster tells of it.
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
    """Why the entry of an object of that age is wanted no more, whether or not it is dead; None when it is wanted."""
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
