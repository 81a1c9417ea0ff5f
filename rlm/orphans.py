"""Where object storage and metadata disagree: objects that nobody knows, and known ones that are not there. Sans-IO.

Theory. The metadata is what counts, and the listing is held against it. To be sure that a difference is one, and not
something under way, the segments that must be there are noted before the listing begins, objects younger than the
time-to-live are left alone (by the store's clock), and the metadata must have been read to its end.

- An object without metadata, after a crash between the upload and its publication, or of a writer that was fenced:
  its deletion is started in the metadata, which takes it through `rlm.expiration` like any other. Its records are in
  the leader's log, which uploads them anew; so it is never adopted.
- An object that was deleted according to the metadata, and is there (a write whose late effect nobody awaited): deleted
  at once.
- A segment that is finished according to the metadata, and is not there: somebody else deletes objects. Both deletion
  records are published, so that nobody looks for it, and it is told loudly.

The brake. When objects without metadata are many, and most of what is there, it is the metadata that was lost, from
which the objects may be the only way back. Then nothing is healed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from metadata_topic.states import DELETED, DELETING, FINISHED
from plugin.remote_wal_storage_manager import StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.expiration import LifecycleStore

_FEW = 1000
"""So many objects without metadata are healed without doubting the metadata."""


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


class Fencing(Protocol):
    """Whose metadata was refused."""

    def is_fenced(self, combined_segment_id: CombinedSegmentId, /) -> bool:
        """Whether the segment was refused, as a newer incarnation of its writer had been registered."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One segment."""

    combined_segment_id: CombinedSegmentId
    kind: Kind
    size_bytes: int
    age_ms: int
    """Since the object was written, by the store's clock; of a lost one since its metadata was."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found."""

    objects: int
    young: int
    """Objects without metadata that may still be under way."""
    disagreements: tuple[Disagreement, ...] = field(default=())

    @property
    def metadata_is_doubtful(self) -> bool:
        """Whether healing would delete most of what is there."""
        unknown = self.count(Kind.UNKNOWN) + self.count(Kind.FENCED)
        return unknown > _FEW and unknown * 2 > self.objects

    def count(self, kind: Kind) -> int:
        """How many are of this kind."""
        return sum(found.kind is kind for found in self.disagreements)


class OrphanSearch:
    """One comparison for one broker's objects: make it before the listing begins."""

    def __init__(self, store: LifecycleStore, fencing: Fencing, broker_id: int, ttl_ms: int) -> None:
        self._store = store
        self._fencing = fencing
        self._ttl_ms = ttl_ms
        self._awaited = {metadata.combined_segment_id: metadata for metadata in store.segments(FINISHED, broker_id)}

    def compare(self, listed: Iterable[StoredSegment], now_ms: int) -> Comparison:
        """Hold a whole listing of the broker's objects against the metadata."""
        awaited = dict(self._awaited)
        objects, young = 0, 0
        found: list[Disagreement] = []
        for stored in listed:
            objects += 1
            segment_id = stored.combined_segment_id
            awaited.pop(segment_id, None)
            kind = self._kind(segment_id)
            if kind is None:
                continue
            age_ms = now_ms - stored.last_modified_ms
            if age_ms < self._ttl_ms:
                young += 1
                continue
            found.append(Disagreement(segment_id, kind, stored.size_bytes, age_ms))
        found += [
            Disagreement(segment_id, Kind.LOST, metadata.size_bytes, now_ms - metadata.event_timestamp_ms)
            for segment_id, metadata in awaited.items()
            if self._store.state_of(segment_id) is FINISHED  # still: not deleted during the listing
        ]
        return Comparison(objects, young, tuple(found))

    def _kind(self, segment_id: CombinedSegmentId) -> Kind | None:
        state = self._store.state_of(segment_id)
        if state is DELETED:
            return Kind.DELETED
        if state is not None:
            return None
        return Kind.FENCED if self._fencing.is_fenced(segment_id) else Kind.UNKNOWN


def records_that_heal(found: Disagreement, now_ms: int) -> list[RemoteWalCombinedLogSegmentMetadata]:
    """What to publish; nothing for an object that was deleted before, which is just deleted again."""

    def record(state: RemoteLogSegmentState) -> RemoteWalCombinedLogSegmentMetadata:
        return RemoteWalCombinedLogSegmentMetadata(found.combined_segment_id, (), state, now_ms, found.size_bytes)

    if found.kind is Kind.LOST:
        return [record(DELETING), record(DELETED)]
    return [] if found.kind is Kind.DELETED else [record(DELETING)]
