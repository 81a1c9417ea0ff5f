"""Where object storage and metadata disagree: objects that nobody knows, and known ones that are not there. Sans-IO.

Theory. The metadata is what counts, and the listing is held against it. To be sure that a difference is one, and not
something under way,

- the segments that must be there are noted before the listing begins,
- the listing is judged only by metadata that was read to the end which the topic had after the listing was complete: an
  object whose metadata is not read yet looks just like an orphan,
- objects younger than the time-to-live are left alone (by the store's clock), as a running writer publishes later than
  it uploads. What this very agent has under way is left alone whatever its age.

While the metadata cannot be read to its end nothing is concluded at all. Nor is anything of a bucket that did not
answer, or is not known here: a segment there is not lost because it was not listed. An object with copies in several
buckets is one: it is listed where any of them is, and healed in all of them.

- An object without metadata, after a crash between the upload and its publication, or of a writer that was fenced:
  its deletion is started in the metadata, which takes it through `rlm.lifecycle.expiration` like any other. Its records
  are in the leader's log, which uploads them anew; so it is never adopted.
- An object that was deleted according to the metadata, and is there (a write whose late effect nobody awaited): deleted
  at once.
- A segment that is finished according to the metadata, and is not there: somebody else deletes objects. Both deletion
  records are published, so that nobody looks for it, and it is told loudly.

An object may be the only way back to its records, so little is healed without a word from somebody:

- An object without metadata only where the metadata knows its writer's incarnation. The registration stands in the
  topic before all that the incarnation published, so the rest of it was read: what is not told was never told. Where
  the registration is unknown as well, it is the metadata that was lost, or refused.
- Nothing, while the topic is doubted (`metadata_topic.store.topic_continuity`), or where what would be deleted or
  forgotten is more than a small share of what there is (`HealingLimits`). Then a person has to say how many objects and
  bytes these are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from metadata_topic.records.states import DELETED, DELETING, FINISHED
from plugin.errors import RemoteStorageError
from plugin.format.bucket_copies import joined_with
from plugin.remote_wal_storage_manager import WHOLE_STORE, StoredCopy, StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.expiration import LifecycleStore


class Kind(StrEnum):
    """How object and metadata disagree."""

    UNKNOWN = "unknown"
    """An object without metadata."""
    FENCED = "fenced"
    """The same, of an incarnation that was fenced."""
    DELETED = "deleted"
    """An object that the metadata says was deleted."""
    LOST = "lost"
    """A finished segment without its object."""


class OrphanStore(LifecycleStore, Protocol):
    """What is asked of the metadata store."""

    def is_fenced(self, combined_segment_id: CombinedSegmentId, /) -> bool:
        """Whether the segment was refused, as a newer incarnation of its writer had been registered."""

    def knows_incarnation(self, broker_id: int, incarnation: int, /) -> bool:
        """Whether its registration is known: all that it published stands behind it in the topic."""


class MetadataBehindError(Exception):
    """The metadata could not be read to its end after the listing: nothing follows from the listing."""


def skipped_because(error: Exception) -> str:
    """The label under which a comparison that ended with `error` is counted."""
    if isinstance(error, MetadataBehindError):
        return "metadata_behind"
    return "store" if isinstance(error, RemoteStorageError) else "metadata_unpublished"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One segment."""

    combined_segment_id: CombinedSegmentId
    kind: Kind
    size_bytes: int
    age_ms: int
    """Since the object was written, by the store's clock; of a lost one since its metadata was."""
    writer_is_known: bool = True
    """Whether the metadata knows of the incarnation that wrote it."""
    custom_metadata: bytes = b""
    """By which the storage manager finds the object."""

    @property
    def heals_by_itself(self) -> bool:
        """Whether nobody has to be asked."""
        return self.writer_is_known or self.kind in (Kind.DELETED, Kind.LOST)


@dataclass(frozen=True, slots=True)
class HealingLimits:
    """How much may be deleted or forgotten without a word from somebody."""

    max_percent: float = 5.0
    min_objects: int = 100
    """So many may be whatever their share is."""

    def allows(self, objects: int, of: int) -> bool:
        """Whether that is few enough."""
        return objects <= max(self.min_objects, of * self.max_percent / 100)


DEFAULT_LIMITS: Final = HealingLimits()

_RETRY_S = 60.0


def pause_s(searched: bool, interval_s: float) -> float:
    """Until the next search: where this one could not be made, it is tried again soon."""
    return interval_s if searched else min(interval_s, _RETRY_S)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found."""

    objects: int
    young: int
    """Objects without metadata that may still be under way."""
    disagreements: tuple[Disagreement, ...] = field(default=())
    not_looked_for: int = 0
    """Finished segments of which nothing is said, as their bucket did not answer, or is not known here."""
    unanswered: frozenset[str] = frozenset()
    """Buckets that did not answer."""
    doubt: str = ""
    """Why nothing of it is healed without a word from somebody; empty where nothing speaks against it."""

    @property
    def heals_by_itself(self) -> tuple[Disagreement, ...]:
        """What may be healed without a word from somebody."""
        return () if self.doubt else tuple(found for found in self.disagreements if found.heals_by_itself)

    @property
    def waiting(self) -> tuple[Disagreement, ...]:
        """What waits for it."""
        healing = set(self.heals_by_itself)
        return tuple(found for found in self.disagreements if found not in healing)

    @property
    def amount(self) -> str:
        """All of it, in the words that confirm its healing."""
        size_bytes = sum(max(found.size_bytes, 0) for found in self.disagreements)
        return f"{len(self.disagreements)}-objects-{size_bytes}-bytes"

    def doubted(self, topic_doubt: str, limits: HealingLimits) -> "Comparison":
        """With what speaks against healing: `topic_doubt`, or else the share."""
        there = self.objects + self.count(Kind.LOST)
        if topic_doubt or limits.allows(len(self.disagreements), there):
            return replace(self, doubt=topic_doubt)
        share = f"{len(self.disagreements)} of {there} objects are more than {limits.max_percent:g} %"
        return replace(self, doubt=f"{share}, so it seems to be the metadata, or the listing, that lost them")

    def count(self, kind: Kind) -> int:
        """How many are of this kind."""
        return sum(found.kind is kind for found in self.disagreements)


class OrphanSearch:
    """One comparison for one broker's objects: made before the listing, then `listed`, then `judged`."""

    def __init__(self, store: OrphanStore, broker_id: int, ttl_ms: int) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._awaited = {known.combined_segment_id: known for known in store.published_segments(FINISHED, broker_id)}
        self._objects: set[CombinedSegmentId] = set()
        self._doubtful: dict[CombinedSegmentId, StoredSegment] = {}
        self._under_way: set[CombinedSegmentId] = set()
        self._unanswered: frozenset[str] = frozenset()

    def listed(
        self,
        listing: Iterable[StoredSegment],
        is_under_way: Callable[[CombinedSegmentId], bool] = lambda _segment_id: False,
    ) -> None:
        """Take in a whole listing of the broker's objects. What is known to live by now is no orphan, ever.

        `is_under_way` is asked now, before the topic is read to its end: what has ended by now is read then.
        """
        for stored in listing:
            segment_id = stored.combined_segment_id
            self._objects.add(segment_id)
            self._awaited.pop(segment_id, None)
            if self._kind(segment_id) is not None:
                known = self._doubtful.get(segment_id)
                self._doubtful[segment_id] = stored if known is None else joined_with(known, stored)
                if is_under_way(segment_id):
                    self._under_way.add(segment_id)

    def not_answered(self, places: frozenset[str]) -> None:
        """What is in these parts of the store is missing in the listing."""
        self._unanswered = places

    def judged(
        self,
        now_ms: int,
        copies_of: Callable[[bytes], Sequence[StoredCopy]] = lambda named: (StoredCopy(WHOLE_STORE, named),),
    ) -> Comparison:
        """What disagrees, by a store that was read to its end after the listing. See the module's theory.

        `copies_of` is the storage manager's.
        """
        young = 0
        found: list[Disagreement] = []
        for segment_id, stored in self._doubtful.items():
            kind = self._kind(segment_id)
            if kind is None:
                continue
            age_ms = now_ms - stored.last_modified_ms
            if age_ms < self._ttl_ms or segment_id in self._under_way:
                young += 1
                continue
            is_known = self._store.knows_incarnation(segment_id.broker_id, segment_id.incarnation)
            found.append(Disagreement(segment_id, kind, stored.size_bytes, age_ms, is_known, stored.custom_metadata))
        not_looked_for = 0
        for segment_id, metadata in self._awaited.items():
            if self._store.state_of(segment_id) is not FINISHED:  # deleted during the listing
                continue
            places = {copy.place for copy in copies_of(metadata.custom_metadata)}
            if places & {None, *self._unanswered}:
                not_looked_for += 1
                continue
            age_ms = now_ms - metadata.event_timestamp_ms
            found.append(
                Disagreement(
                    segment_id, Kind.LOST, metadata.size_bytes, age_ms, custom_metadata=metadata.custom_metadata
                )
            )
        return Comparison(
            len(self._objects), young, tuple(found), not_looked_for=not_looked_for, unanswered=self._unanswered
        )

    def _kind(self, segment_id: CombinedSegmentId) -> Kind | None:
        state = self._store.state_of(segment_id)
        if state is DELETED:
            return Kind.DELETED
        if state is not None:
            return None
        return Kind.FENCED if self._store.is_fenced(segment_id) else Kind.UNKNOWN


def records_that_heal(found: Disagreement, now_ms: int) -> list[RemoteWalCombinedLogSegmentMetadata]:
    """What to publish; nothing for an object that was deleted before, which is just deleted again."""

    def record(state: RemoteLogSegmentState) -> RemoteWalCombinedLogSegmentMetadata:
        return RemoteWalCombinedLogSegmentMetadata(
            found.combined_segment_id, (), state, now_ms, found.size_bytes, found.custom_metadata
        )

    if found.kind is Kind.LOST:
        return [record(DELETING), record(DELETED)]
    return [] if found.kind is Kind.DELETED else [record(DELETING)]
