"""Decides which combined segments may go, and which may be deleted now. Sans-IO; the shell is `expiration_task`.

An object lives as long as one of its entries is wanted. An entry is released when

- a failover killed it, or a person gave it up,
- its topic is gone from the cluster, for longer than a grace time,
- its last offset is below the partition's log start offset,
- the long-term tier holds it: KIP-405's remote storage, or the archive where the topic has one,
- or the object is older than the WAL's retention for the topic (`metadata_topic.settings.wal_retention`), or than the
  longer one for partitions with a replica that is not in sync, unless the topic's archive still waits for it.

What a log lost without an election stays wanted until its topic is gone or somebody gives it up, whatever else would
release it (`metadata_topic.store.held_records`). Unknown facts (a topic's retention, a log start offset, the tier)
never release anything.

Deletion has two phases, both in the metadata topic. After DELETE_SEGMENT_STARTED nobody looks for the object and no
link to it is given. The object is deleted after a grace time in which earlier links are used up, and not before that
record was read back from the topic (a record in the publisher's queue dies with the agent). Then
DELETE_SEGMENT_FINISHED is published. What is due follows from the store and the time alone, so the next incarnation or
a caretaker continues for an agent that died at any step. Each step may be done twice.

The guard: right before the deletion an object's entries are judged again by what is known then. If an entry is wanted
after all (a retention was raised, a COPY_SEGMENT_FINISHED came late), the object stays until that entry is released.

An object that is still COPY_SEGMENT_STARTED after a time that no upload takes has an unknown outcome, and goes the same
way. So a writer must be asked what it has under way.

The store may hold millions of objects. A scan goes through them in the order of writing, a limited number at a time,
and each run looks at the oldest ones, which expire first. For one thread at a time.
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
"""As many entries a scan as a busy agent uploads between two scans, so releases are found as they occur."""
_OLDEST_PER_SCAN = 16
"""The look at the oldest ends after so many that cannot go yet."""


class LifecycleStore(Protocol):
    """The metadata store, as used here."""

    def state_of(self, combined_segment_id: CombinedSegmentId, /) -> RemoteLogSegmentState | None: ...

    def published_segment(self, combined_segment_id: CombinedSegmentId, /) -> PublishedSegment | None: ...

    def published_segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[PublishedSegment]: ...

    def local_losses(self) -> LocalLosses: ...

    def dead_tails(self, combined_segment_id: CombinedSegmentId, /) -> DeadTails: ...


class Verdict(Enum):
    """The guard's decision."""

    DELETE = "delete"
    HOLD = "hold"
    AGE_NEEDED = "age_needed"
    """It depends on when the object was written, which the metadata does not have any more."""


@dataclass(frozen=True, slots=True)
class ExpirationLimits:
    """Times of the life cycle."""

    delete_grace_ms: int
    uncommitted_ttl_ms: int
    retry_ms: int = 1000
    retry_max_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Planned:
    """A segment whose deletion should be started."""

    segment: PublishedSegment
    reason: Release


@dataclass(slots=True)
class _Deletion:
    """A segment in DELETE_SEGMENT_STARTED."""

    due_ms: int
    written_ms: int | None
    """When the object was written; None if an agent before this one started the deletion."""
    failures: int = 0
    is_finished: bool = False
    """DELETE_SEGMENT_FINISHED was published; the store has not read it yet."""


class ExpirationPlanner:
    """Knows what is being deleted, and how far the scan is. See the module's theory."""

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
        """Topics whose records were judged; a view should know them."""

    def cluster_seen(self, view: ClusterView) -> None:
        """Judge by this view from now on."""
        self._view = view
        self._judge_anew()

    def _judge_anew(self) -> None:
        """Take the tier's contents and the logs' losses as they are known now."""
        self._judge = ReleaseJudge(replace(self._view, held=self._store.local_losses()), self._tier)

    # Which deletions to start.

    def scan(
        self,
        brokers: Collection[int],
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
        limit: int,
    ) -> list[Planned]:
        """Return at most `limit` deletions to start for these brokers; `under_way` says which uploads still run."""
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
        """Yield the broker's next segments, going through all of them over several calls."""
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
        """Whether the segment goes now or is being deleted already."""
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
        """Return why all entries are released; None when one is wanted, or for a segment without entries."""
        dead = self._store.dead_tails(metadata.combined_segment_id)
        reason = self._judge.release(metadata.entry_block, age_ms, dead)
        self.topics_asked |= self._judge.topics_asked
        return reason

    # The deletions that were started.

    def started(self, metadata: PublishedSegment, now_ms: int) -> None:
        """Record that DELETE_SEGMENT_STARTED was published; `metadata` is the segment before that."""
        due_ms = now_ms + self._limits.delete_grace_ms
        self._deletions[metadata.combined_segment_id] = _Deletion(due_ms, metadata.event_timestamp_ms)

    def due(self, now_ms: int, limit: int) -> list[CombinedSegmentId]:
        """Return at most `limit` objects whose grace time or back-off is over, the longest due first.

        Objects whose deletion start was not read back from the topic are left out, and those that another agent has
        deleted meanwhile.
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
        """The guard, called right before the deletion: whether any known entry of the object is wanted."""
        metadata = self._store.published_segment(segment_id)
        if metadata is None or not metadata.entry_count:
            return Verdict.DELETE  # deleted already, or never finished as far as is known
        written_ms = self._deletions[segment_id].written_ms
        if self._release(metadata, self._view.age_ms(written_ms, now_ms) if written_ms is not None else 0) is not None:
            return Verdict.DELETE
        if written_ms is None and self._release(metadata, NO_AGE_IS_HIGHER_MS) is not None:
            return Verdict.AGE_NEEDED
        return Verdict.HOLD

    def written(self, segment_id: CombinedSegmentId, written_ms: int) -> None:
        """Set when the object was written, as the object itself says."""
        self._deletions[segment_id].written_ms = written_ms

    def put_off(self, segment_id: CombinedSegmentId, now_ms: int) -> None:
        """Postpone a deletion that failed or was held back, by a back-off that doubles, with jitter."""
        deletion = self._deletions[segment_id]
        limits = self._limits
        pause_ms = min(limits.retry_ms * 2 ** min(deletion.failures, 30), limits.retry_max_ms)
        deletion.failures += 1
        deletion.due_ms = now_ms + round(pause_ms * self._rng.uniform(0.5, 1.0))

    def finished(self, segment_id: CombinedSegmentId) -> None:
        """Record that DELETE_SEGMENT_FINISHED was published. It is kept until the store has read it."""
        if segment_id in self._deletions:
            self._deletions[segment_id].is_finished = True

    def is_being_deleted(self, segment_id: CombinedSegmentId) -> bool:
        """Whether its deletion was started here, whatever the store has read of it. On any thread."""
        return segment_id in self._deletions


class DeletionQuota:
    """Limits deletions per second, with one second's worth at once."""

    def __init__(self, per_second: float, now_s: float) -> None:
        self._per_second = per_second
        self._tokens = max(1.0, per_second)
        self._as_of_s = now_s

    def available(self, now_s: float) -> int:
        """Return how many may begin now."""
        gained = max(0.0, now_s - self._as_of_s) * self._per_second
        self._tokens = min(max(1.0, self._per_second), self._tokens + gained)
        self._as_of_s = now_s
        return int(self._tokens)

    def taken(self, deletions: int) -> None:
        """Count deletions that began."""
        self._tokens -= deletions
