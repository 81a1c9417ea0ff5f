"""Which combined segments may go, and which may be deleted now. Sans-IO: the shell is `rlm.lifecycle.expiration_task`.

Theory. An object lives as long as one of its entries is wanted. An entry is released when

- a failover killed it, or a person gave it up,
- its topic is gone from the cluster, for longer than a grace time,
- its last offset is below the partition's log start offset,
- the long-term tier holds it: KIP-405's remote storage, or the archive where the topic has one,
- or the object is older than the WAL's retention for the topic (`metadata_topic.settings.wal_retention`), or the longer
  one of partitions with a replica that is not in sync, unless the topic's archive still waits for it.

What a log lost without an election is wanted until its topic is gone or it is given up, whatever else would release it
(`metadata_topic.store.held_records`). What is not known (a topic's retention, a log start offset, the tier) never
releases anything.

Deletion has two phases, both of them in the metadata topic. DELETE_SEGMENT_STARTED: from there on nobody looks for the
object and no link to it is given. After a grace time, in which links that were given before are used up, and not before
the topic was read to tell of it (a record in the publisher's queue dies with the agent), the object is deleted, then
DELETE_SEGMENT_FINISHED is published. What is due follows from the store and the time alone, so an agent
that died at any step is continued by its next incarnation, or by a caretaker; each step may be done twice.

The guard. Right before the deletion an object's entries are judged again by what is known then. An entry that is wanted
after all (a retention was raised, a COPY_SEGMENT_FINISHED came late) holds the object back until it is released; it is
never deleted on the ground of what was once true.

An object that is still COPY_SEGMENT_STARTED after a time that no upload takes is of unknown outcome, and goes the same
way. So a writer must be asked what it has under way.

Cost. The store may hold millions of objects. They are gone through in the order of their writing, so many at a time,
and the oldest ones, which expire first, are looked at in each run. For one thread at a time.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from random import Random
from typing import Protocol

from kafka_log.topic_partition import TopicId
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.held_records import LocalLosses
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState
from rlm.lifecycle.release import ClusterView, LongTermTier, Release
from rlm.lifecycle.release_columns import DeadTails, ReleaseJudge

NO_AGE_IS_HIGHER_MS = 2**63

_SEGMENTS_PER_SCAN = 2000
_ENTRIES_PER_SCAN = 500_000
"""As many as a busy agent uploads between two scans, so that what may go is found as fast as it comes to be."""
_OLDEST_PER_SCAN = 16
"""So many that cannot go yet end the look at the oldest."""


class LifecycleStore(Protocol):
    """What is asked of the metadata store."""

    def state_of(self, combined_segment_id: CombinedSegmentId, /) -> RemoteLogSegmentState | None: ...

    def published_segment(self, combined_segment_id: CombinedSegmentId, /) -> PublishedSegment | None: ...

    def published_segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[PublishedSegment]: ...

    def local_losses(self) -> LocalLosses: ...

    def dead_tails(self, combined_segment_id: CombinedSegmentId, /) -> DeadTails: ...


class Verdict(Enum):
    """What the guard says."""

    DELETE = "delete"
    HOLD = "hold"
    AGE_NEEDED = "age_needed"
    """It depends on when the object was written, which the metadata does not say any more."""


@dataclass(frozen=True, slots=True)
class ExpirationLimits:
    """Times of the life cycle."""

    delete_grace_ms: int
    uncommitted_ttl_ms: int
    retry_ms: int = 1000
    retry_max_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Planned:
    """A segment whose deletion is to be started."""

    segment: PublishedSegment
    reason: Release


@dataclass(slots=True)
class _Deletion:
    """A segment in DELETE_SEGMENT_STARTED."""

    due_ms: int
    written_ms: int | None
    """When the object was written; None when the deletion was started by an agent before this one."""
    failures: int = 0
    is_finished: bool = False
    """DELETE_SEGMENT_FINISHED was published; the store has not read it yet."""


class ExpirationPlanner:
    """Holds what is being deleted, and how far the scan is. See the module's theory."""

    def __init__(self, store: LifecycleStore, tier: LongTermTier, limits: ExpirationLimits, rng: Random) -> None:
        self._store = store
        self._tier = tier
        self._limits = limits
        self._rng = rng
        self._view = ClusterView()
        self._judge = ReleaseJudge(self._view, tier)
        self._scans: dict[int, Iterator[PublishedSegment]] = {}
        self._deletions: dict[CombinedSegmentId, _Deletion] = {}
        self.topics_asked: set[TopicId] = set()
        """Topics whose records were judged: a view should know of them."""

    def cluster_seen(self, view: ClusterView) -> None:
        """Judge by this from now on."""
        self._view = view
        self._judge_anew()

    def _judge_anew(self) -> None:
        """By what the tier holds, and what logs have lost, as is known now."""
        self._judge = ReleaseJudge(replace(self._view, held=self._store.local_losses()), self._tier)

    # Which deletions to start.

    def scan(
        self,
        brokers: Collection[int],
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
        limit: int,
    ) -> list[Planned]:
        """At most `limit` deletions to start of these brokers' objects; `under_way` says which uploads still run."""
        self._judge_anew()
        found: dict[CombinedSegmentId, Planned] = {}
        for broker_id in sorted(brokers):
            misses = 0
            for metadata in self._store.published_segments(broker_id=broker_id):
                misses += not self._look_at(metadata, under_way, now_ms, found)
                if misses >= _OLDEST_PER_SCAN or len(found) >= limit:
                    break
            for metadata in self._scan_on(broker_id):
                if len(found) >= limit:
                    break
                self._look_at(metadata, under_way, now_ms, found)
        for broker_id in [known for known in self._scans if known not in brokers]:
            del self._scans[broker_id]
        return list(found.values())

    def _scan_on(self, broker_id: int) -> Iterator[PublishedSegment]:
        """The next of the broker's segments; all of them in turn, over several calls."""
        scan = self._scans.get(broker_id)
        if scan is None:
            scan = self._scans[broker_id] = iter(self._store.published_segments(broker_id=broker_id))
        entries, segments = 0, 0
        for metadata in islice(scan, _SEGMENTS_PER_SCAN):
            yield metadata
            segments += 1
            entries += metadata.entry_count
            if entries >= _ENTRIES_PER_SCAN:
                return
        if segments < _SEGMENTS_PER_SCAN:
            self._scans.pop(broker_id, None)

    def _look_at(
        self,
        metadata: PublishedSegment,
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
        found: dict[CombinedSegmentId, Planned],
    ) -> bool:
        """Whether it goes, or is going."""
        segment_id = metadata.combined_segment_id
        if segment_id in self._deletions or segment_id in found:
            return True
        if metadata.state is DELETING:
            self._deletions[segment_id] = _Deletion(metadata.event_timestamp_ms + self._limits.delete_grace_ms, None)
            return True
        reason = self._reason(metadata, under_way, now_ms)
        if reason is not None:
            found[segment_id] = Planned(metadata, reason)
        return reason is not None

    def _reason(
        self,
        metadata: PublishedSegment,
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
    ) -> Release | None:
        if metadata.state is STARTED:
            is_late = now_ms - metadata.event_timestamp_ms >= self._limits.uncommitted_ttl_ms
            return Release.UNCOMMITTED if is_late and not under_way(metadata.combined_segment_id) else None
        if metadata.state is not FINISHED:
            return None
        return self._release(metadata, self._view.age_ms(metadata.event_timestamp_ms, now_ms))

    # When an object is released.

    def _release(self, metadata: PublishedSegment, age_ms: int) -> Release | None:
        """Why all entries are released; None when one is wanted, and for a segment without entries."""
        dead = self._store.dead_tails(metadata.combined_segment_id)
        reason = self._judge.release(metadata.entry_block, age_ms, dead)
        self.topics_asked |= self._judge.topics_asked
        return reason

    # The deletions that were started.

    def started(self, metadata: PublishedSegment, now_ms: int) -> None:
        """DELETE_SEGMENT_STARTED was published; `metadata` is the segment as it was before."""
        due_ms = now_ms + self._limits.delete_grace_ms
        self._deletions[metadata.combined_segment_id] = _Deletion(due_ms, metadata.event_timestamp_ms)

    def due(self, now_ms: int, limit: int) -> list[CombinedSegmentId]:
        """At most `limit` objects whose grace time, or back-off, is over; the longest due first.

        Left out are those of which the topic does not tell yet that their deletion was started, and those that another
        agent has deleted meanwhile.
        """
        self._judge_anew()
        ripe = sorted(
            (deletion.due_ms, segment_id)
            for segment_id, deletion in self._deletions.items()
            if deletion.is_finished or deletion.due_ms <= now_ms
        )
        found: list[CombinedSegmentId] = []
        for _, segment_id in ripe:
            state = self._store.state_of(segment_id)
            if state is DELETED:
                del self._deletions[segment_id]
            elif state is DELETING and len(found) < limit and not self._deletions[segment_id].is_finished:
                found.append(segment_id)
        return found

    def verdict(self, segment_id: CombinedSegmentId, now_ms: int) -> Verdict:
        """The guard, for the moment before the deletion: whether an entry that is known of it is wanted."""
        metadata = self._store.published_segment(segment_id)
        if metadata is None or not metadata.entry_count:
            return Verdict.DELETE  # deleted already, or never finished as far as anybody knows
        written_ms = self._deletions[segment_id].written_ms
        if self._release(metadata, self._view.age_ms(written_ms, now_ms) if written_ms is not None else 0) is not None:
            return Verdict.DELETE
        if written_ms is None and self._release(metadata, NO_AGE_IS_HIGHER_MS) is not None:
            return Verdict.AGE_NEEDED
        return Verdict.HOLD

    def written(self, segment_id: CombinedSegmentId, written_ms: int) -> None:
        """The object says when it was written."""
        self._deletions[segment_id].written_ms = written_ms

    def put_off(self, segment_id: CombinedSegmentId, now_ms: int) -> None:
        """The deletion failed, or was held back: try again after a back-off that doubles, with jitter."""
        deletion = self._deletions[segment_id]
        limits = self._limits
        pause_ms = min(limits.retry_ms * 2 ** min(deletion.failures, 30), limits.retry_max_ms)
        deletion.failures += 1
        deletion.due_ms = now_ms + round(pause_ms * self._rng.uniform(0.5, 1.0))

    def finished(self, segment_id: CombinedSegmentId) -> None:
        """DELETE_SEGMENT_FINISHED was published. It is remembered until the store knows, which reads with a delay."""
        if segment_id in self._deletions:
            self._deletions[segment_id].is_finished = True

    def is_being_deleted(self, segment_id: CombinedSegmentId) -> bool:
        """Whether its deletion was started here, whatever the store knows of it. On any thread."""
        return segment_id in self._deletions


class DeletionQuota:
    """So many deletions a second, with one second's worth at once."""

    def __init__(self, per_second: float, now_s: float) -> None:
        self._per_second = per_second
        self._tokens = max(1.0, per_second)
        self._as_of_s = now_s

    def available(self, now_s: float) -> int:
        """How many may begin now."""
        gained = max(0.0, now_s - self._as_of_s) * self._per_second
        self._tokens = min(max(1.0, self._per_second), self._tokens + gained)
        self._as_of_s = now_s
        return int(self._tokens)

    def taken(self, deletions: int) -> None:
        """So many began."""
        self._tokens -= deletions
