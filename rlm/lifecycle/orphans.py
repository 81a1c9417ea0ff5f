"""Finds where object storage and metadata disagree: unknown objects, and known objects that are missing. Sans-IO.

The metadata decides, and the listing is compared with it. To be sure that a difference is real and not just work under
way,

- the segments that must be there are noted before the listing begins,
- the listing is judged only by metadata that was read to the end which the topic had after the listing was complete: an
  object whose metadata is not read yet looks just like an orphan,
- objects younger than the time-to-live (by the store's clock) are left alone, because a running writer publishes later
  than it uploads. This agent's own uploads are left alone whatever their age.

While the metadata cannot be read to its end, nothing is concluded at all. Nor is anything concluded about a bucket that
did not answer or is not known here: a segment there is not lost because it was not listed.

- An object without metadata (a crash between upload and publication, or a fenced writer): its deletion is started in
  the metadata, and it goes through `rlm.lifecycle.expiration` like any other. Its records are in the leader's log,
  which uploads them again; so it is never adopted.
- An object that the metadata says was deleted (a write that took effect late): deleted at once.
- A segment that the metadata says is finished, whose object is missing: somebody else deletes objects.
  DELETE_SEGMENT_FINISHED alone is published, so that nobody looks for it, and an error is logged. Its records are not
  released, as no DELETE_SEGMENT_STARTED says that they are not wanted. So they are missing when the leader's agent
  resumes the log, and it uploads them again (`rlm.write_path.reading.resume_point`).

An object may be the only way back to its records, so little is healed without confirmation:

- An object without metadata only if the metadata knows its writer's incarnation. The registration stands in the topic
  before everything that the incarnation published, so the rest was read: what is missing was never published. If the
  registration is unknown as well, the metadata was lost, or refused.
- Nothing while the topic is doubted (`metadata_topic.store.topic_continuity`), or while more than a small share of all
  objects would be deleted or forgotten (`HealingLimits`). Then a person has to state the number of objects and bytes.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import MetadataPublisher, Publishable
from metadata_topic.records.records import PublishableRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.errors import IncompleteListingError, RemoteResourceNotFoundError, RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.remote_wal_storage_manager import WHOLE_STORE, RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask, ask_each
from rlm.write_path.metrics import OrphanMetrics

log = structlog.get_logger(__name__)


class Kind(StrEnum):
    """How object and metadata disagree."""

    UNKNOWN = "unknown"
    """An object without metadata."""
    FENCED = "fenced"
    """An object without metadata, of an incarnation that was fenced."""
    DELETED = "deleted"
    """An object that the metadata says was deleted."""
    LOST = "lost"
    """A finished segment without its object."""


class MetadataBehindError(Exception):
    """The metadata could not be read to its end after the listing, so nothing follows from the listing."""


def skipped_because(error: Exception) -> str:
    """Return the label under which a comparison that ended with `error` is counted."""
    if isinstance(error, MetadataBehindError):
        return "metadata_behind"
    return "store" if isinstance(error, RemoteStorageError) else "metadata_unpublished"


Id = TypeVar("Id", CombinedSegmentId, ArchiveObjectId)


@dataclass(frozen=True, slots=True)
class Disagreement(Generic[Id]):
    """One object about which object storage and metadata disagree: a segment, or one of the archive."""

    object_id: Id
    kind: Kind
    size_bytes: int
    age_ms: int
    """Time since the object was written, by the store's clock; for a lost one, since its metadata was."""
    writer_is_known: bool = True
    """Whether the metadata knows the incarnation that wrote it."""
    custom_metadata: bytes = b""
    """The custom metadata by which the storage manager finds the object."""

    @property
    def heals_by_itself(self) -> bool:
        """Whether this disagreement may be healed without an operator's confirmation."""
        return self.writer_is_known or self.kind in (Kind.DELETED, Kind.LOST)


@dataclass(frozen=True, slots=True)
class HealingLimits:
    """How much may be deleted or forgotten without an operator's confirmation (guessed)."""

    max_percent: float = 5.0
    min_objects: int = 100
    """How many are allowed whatever their share is."""

    def allows(self, objects: int, of: int) -> bool:
        """Whether this many objects, out of `of`, may be healed without confirmation."""
        return objects <= max(self.min_objects, of * self.max_percent / 100)


DEFAULT_LIMITS: Final = HealingLimits()

ORPHANS_S = 6 * 3600.0
"""How often the store's listing is compared with the metadata (guessed)."""
_RETRY_S = 60.0


def pause_s(searched: bool, interval_s: float) -> float:
    """Return the seconds until the next search for orphans; few if this one could not be carried out."""
    return interval_s if searched else min(interval_s, _RETRY_S)


@dataclass(frozen=True, slots=True)
class Comparison(Generic[Id]):
    """The result of comparing object storage and metadata for one broker's objects."""

    objects: int
    young: int
    """Objects without metadata that may still be under way."""
    disagreements: tuple[Disagreement[Id], ...] = field(default=())
    not_looked_for: int = 0
    """Finished segments about which nothing is said, because their bucket did not answer or is not known here."""
    unanswered: frozenset[str] = frozenset()
    """Buckets that did not answer."""
    doubt: str = ""
    """Why nothing is healed without confirmation; empty if there is no reason."""

    @property
    def heals_by_itself(self) -> tuple[Disagreement[Id], ...]:
        """The disagreements that may be healed without confirmation."""
        return () if self.doubt else tuple(found for found in self.disagreements if found.heals_by_itself)

    @property
    def waiting(self) -> tuple[Disagreement[Id], ...]:
        """The disagreements that wait for an operator's confirmation."""
        healing = set(self.heals_by_itself)
        return tuple(found for found in self.disagreements if found not in healing)

    @property
    def amount(self) -> str:
        """The amount of everything found, as the operator types it to confirm."""
        size_bytes = sum(max(found.size_bytes, 0) for found in self.disagreements)
        return f"{len(self.disagreements)}-objects-{size_bytes}-bytes"

    def doubted(self, topic_doubt: str, limits: HealingLimits) -> "Comparison[Id]":
        """Return the comparison with a reason not to heal: `topic_doubt`, or that too many objects disagree."""
        there = self.objects + self.count(Kind.LOST)
        if topic_doubt or limits.allows(len(self.disagreements), there):
            return replace(self, doubt=topic_doubt)
        share = f"{len(self.disagreements)} of {there} objects are more than {limits.max_percent:g} %"
        return replace(self, doubt=f"{share}, so it seems to be the metadata, or the listing, that lost them")

    @property
    def waits_because(self) -> str:
        """Why disagreements wait for an operator's confirmation."""
        return self.doubt or "their writers' registrations are not known either"

    def count(self, kind: Kind) -> int:
        """Count the disagreements of this kind."""
        return sum(found.kind is kind for found in self.disagreements)


class OrphanSearch:
    """One comparison for one broker's objects: create it before the listing, then call `listed`, then `judged`."""

    def __init__(self, store: RemoteWalMetadataStore, broker_id: int, ttl_ms: int) -> None:
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
        """Take a complete listing of the broker's objects. An object whose record is known already is never an orphan.

        `is_under_way` is called here, before the topic is read to its end: the records of uploads that have ended are
        read then.
        """
        for stored in listing:
            segment_id = stored.combined_segment_id
            self._objects.add(segment_id)
            self._awaited.pop(segment_id, None)
            if self._kind(segment_id) is not None:
                self._doubtful[segment_id] = stored
                if is_under_way(segment_id):
                    self._under_way.add(segment_id)

    def not_answered(self, places: frozenset[str]) -> None:
        """Record the parts of the object store that did not respond; their objects are missing in the listing."""
        self._unanswered = places

    def judged(
        self,
        now_ms: int,
        place_of: Callable[[bytes], str | None] = lambda _named: WHOLE_STORE,
    ) -> Comparison[CombinedSegmentId]:
        """Return the disagreements; the metadata must have been read to its end after the listing.

        `place_of` returns the part of the object store that has an object, as the storage manager names it.
        """
        young = 0
        found: list[Disagreement[CombinedSegmentId]] = []
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
            if place_of(metadata.custom_metadata) in (None, *self._unanswered):
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


def records_that_heal(found: Disagreement[CombinedSegmentId], now_ms: int) -> list[RemoteWalCombinedLogSegmentMetadata]:
    """Return the records to publish; none for an object whose deletion is in the metadata: it is simply deleted
    again."""

    def record(state: RemoteLogSegmentState) -> RemoteWalCombinedLogSegmentMetadata:
        return RemoteWalCombinedLogSegmentMetadata(
            found.object_id, (), state, now_ms, found.size_bytes, found.custom_metadata
        )

    if found.kind is Kind.LOST:
        return [record(DELETED)]
    return [] if found.kind is Kind.DELETED else [record(DELETING)]


def _never(_segment_id: CombinedSegmentId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class OrphanTask:
    """Finds orphans and heals them. Blocks: for a thread, or for a command.

    A segment that is missing in the listing is asked for separately before it counts as lost.
    """

    storage: RemoteWalStorageManager
    store: RemoteWalMetadataStore
    read_to_end: Callable[[], bool]
    """Blocks until the store knows everything that was in the metadata topic at the time of the call; False if that
    fails."""
    ttl_ms: int
    wall_ms: Callable[[], int]
    is_being_deleted: Callable[[CombinedSegmentId], bool] = _never
    """Whether this agent deletes the segment; its object is not lost then."""
    is_under_way: Callable[[CombinedSegmentId], bool] = _never
    """Whether it is an upload whose end the topic has not acknowledged yet."""
    limits: HealingLimits = DEFAULT_LIMITS
    topic_doubt: Callable[[], str] = str
    """The reason not to draw conclusions from what the metadata topic lacks; empty if there is none."""

    def compare(self, broker_ids: Collection[int]) -> dict[int, Comparison[CombinedSegmentId]]:
        """Compare object storage and metadata, by broker. Raises RemoteStorageError, and MetadataBehindError if the
        topic was not read to its end."""
        searches = {}
        for broker_id in sorted(broker_ids):
            search = searches[broker_id] = OrphanSearch(self.store, broker_id, self.ttl_ms)
            try:
                search.listed(ask_each(self.storage.list_log_segments(broker_id)), self.is_under_way)
            except IncompleteListingError as error:
                search.not_answered(error.unanswered)
                log.warning("orphans_not_searched_in_all_buckets", broker=broker_id, error=str(error))
        if searches and not self.read_to_end():
            raise MetadataBehindError("the metadata topic was not read to where it ended after the listing")
        return {broker_id: self._confirmed(search) for broker_id, search in searches.items()}

    def _confirmed(self, search: OrphanSearch) -> Comparison[CombinedSegmentId]:
        comparison = search.judged(self.wall_ms(), self.storage.place_of)
        confirmed = tuple(
            item for item in comparison.disagreements if item.kind is not Kind.LOST or self._is_lost(item)
        )
        return replace(comparison, disagreements=confirmed).doubted(self.topic_doubt(), self.limits)

    def heal(
        self,
        comparison: Comparison[CombinedSegmentId],
        publisher: MetadataPublisher[PublishableRecord],
        confirmed: str | None = None,
    ) -> list[Disagreement[CombinedSegmentId]]:
        """Heal what needs no confirmation, or everything if its amount was `confirmed`. Returns what was healed.

        Raises RemoteStorageError and PublicationBacklogFullError; what was healed until then stays healed.
        """
        healing = comparison.disagreements if confirmed == comparison.amount else comparison.heals_by_itself
        if waiting := len(comparison.disagreements) - len(healing):
            log.error(
                "orphans_wait_for_confirmation",
                waiting=waiting,
                objects=comparison.objects,
                reason=comparison.waits_because,
                hint=f"remote-wal metadata rebuild; or, to delete them: orphans --heal --confirm {comparison.amount}",
            )
        for found in healing:
            for record in records_that_heal(found, self.wall_ms()):
                publisher.publish(record)
            if found.kind is Kind.DELETED:
                ask(self.storage.delete_log_segment_data(found.object_id, found.custom_metadata))
            tell = log.error if found.kind is Kind.LOST else log.warning
            tell("orphan_healed", segment=str(found.object_id), kind=found.kind, size=found.size_bytes)
        return list(healing)

    async def run_round(
        self,
        publisher: MetadataPublisher[Publishable],
        brokers_in_care: Callable[[], Collection[int]],
        metrics: OrphanMetrics,
        threads: Executor,
    ) -> bool:
        """Find and heal orphans of these brokers once. Returns False if that failed and should be repeated soon."""
        loop, brokers = asyncio.get_running_loop(), brokers_in_care()
        try:
            comparisons = await loop.run_in_executor(threads, self.compare, brokers)
            still = brokers_in_care()  # a listing takes time, so the care may have changed
            for comparison in (comparisons[broker_id] for broker_id in comparisons if broker_id in still):
                if comparison.disagreements:
                    await loop.run_in_executor(threads, self.heal, comparison, publisher)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            metrics.rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("orphans_not_searched", error=str(error))
            return False
        _show(comparisons.values(), metrics)
        return bool(brokers)

    def _is_lost(self, found: Disagreement[CombinedSegmentId]) -> bool:
        if self.is_being_deleted(found.object_id):
            return False
        try:
            ask(self.storage.fetch_log_segment(found.object_id, 0, 1, found.custom_metadata))
        except RemoteResourceNotFoundError:
            return True
        return False


def _show(comparisons: Collection[Comparison[CombinedSegmentId]], metrics: OrphanMetrics) -> None:
    for kind in Kind:
        count = sum(comparison.count(kind) for comparison in comparisons)
        waiting = sum(found.kind is kind for comparison in comparisons for found in comparison.waiting)
        metrics.waiting.labels(kind.value).set(waiting)
        metrics.found.labels(kind.value).set(count)
        if kind is Kind.LOST and count:
            metrics.lost_segments.inc(count)
            log.error("segments_lost", segments=count, reason="metadata knows them, the store does not have them")
