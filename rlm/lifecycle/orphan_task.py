"""Finds and heals what `rlm.lifecycle.orphans` defines. Blocks: for a thread, or a command line.

A segment that is missing in the listing is asked for separately before it counts as lost.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.records import PublishableRecord
from plugin.errors import IncompleteListingError, RemoteResourceNotFoundError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle.orphans import (
    DEFAULT_LIMITS,
    Comparison,
    Disagreement,
    HealingLimits,
    Kind,
    MetadataBehindError,
    OrphanSearch,
    OrphanStore,
    records_that_heal,
)

log = structlog.get_logger(__name__)


def _never(_segment_id: CombinedSegmentId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class OwnWork:
    """What this agent is doing, which the store may not know yet."""

    is_being_deleted: Callable[[CombinedSegmentId], bool] = _never
    """Whether this agent deletes the segment; its object is not lost then."""
    is_under_way: Callable[[CombinedSegmentId], bool] = _never
    """Whether it is an upload whose end the topic has not acknowledged yet."""


@dataclass(frozen=True, slots=True)
class OrphanTask:
    """Compares the objects of some brokers with the metadata."""

    storage: RemoteWalStorageManager
    store: OrphanStore
    read_to_end: Callable[[], bool]
    """Blocks until the store knows everything that was in the metadata topic at the time of the call; False if that
    fails."""
    ttl_ms: int
    wall_ms: Callable[[], int]
    own: OwnWork = OwnWork()
    limits: HealingLimits = DEFAULT_LIMITS
    topic_doubt: Callable[[], str] = str
    """The reason not to draw conclusions from what the metadata topic lacks; empty if there is none."""

    def compare(self, broker_ids: Collection[int]) -> dict[int, Comparison]:
        """Compare, by broker. Raises RemoteStorageError, and MetadataBehindError when nothing can be said now."""
        searches = {}
        for broker_id in sorted(broker_ids):
            search = searches[broker_id] = OrphanSearch(self.store, broker_id, self.ttl_ms)
            try:
                search.listed(self.storage.list_log_segments(broker_id), self.own.is_under_way)
            except IncompleteListingError as error:
                search.not_answered(error.unanswered)
                log.warning("orphans_not_searched_in_all_buckets", broker=broker_id, error=str(error))
        if searches and not self.read_to_end():
            raise MetadataBehindError("the metadata topic was not read to where it ended after the listing")
        return {broker_id: self._confirmed(search) for broker_id, search in searches.items()}

    def _confirmed(self, search: OrphanSearch) -> Comparison:
        comparison = search.judged(self.wall_ms(), self.storage.copies_of)
        confirmed = tuple(
            item for item in comparison.disagreements if item.kind is not Kind.LOST or self._is_lost(item)
        )
        return replace(comparison, disagreements=confirmed).doubted(self.topic_doubt(), self.limits)

    def heal(
        self, comparison: Comparison, publisher: MetadataPublisher[PublishableRecord], confirmed: str | None = None
    ) -> list[Disagreement]:
        """Heal what needs no confirmation, or everything if its amount was `confirmed`. Returns what was healed.

        Raises RemoteStorageError and PublicationBacklogFullError; what was healed until then stays healed.
        """
        healing = comparison.disagreements if confirmed == comparison.amount else comparison.heals_by_itself
        if waiting := len(comparison.disagreements) - len(healing):
            log.error(
                "orphans_wait_for_confirmation",
                waiting=waiting,
                objects=comparison.objects,
                reason=comparison.doubt or "their writers' registrations are not known either",
                hint=f"remote-wal metadata rebuild; or, to delete them: orphans --heal --confirm {comparison.amount}",
            )
        for found in healing:
            for record in records_that_heal(found, self.wall_ms()):
                publisher.publish(record)
            if found.kind is Kind.DELETED:
                self.storage.delete_log_segment_data(found.combined_segment_id, found.custom_metadata)
            tell = log.error if found.kind is Kind.LOST else log.warning
            tell("orphan_healed", segment=str(found.combined_segment_id), kind=found.kind, size=found.size_bytes)
        return list(healing)

    def _is_lost(self, found: Disagreement) -> bool:
        if self.own.is_being_deleted(found.combined_segment_id):
            return False
        try:
            self.storage.fetch_log_segment(found.combined_segment_id, 0, 1, found.custom_metadata)
        except RemoteResourceNotFoundError:
            return True
        return False
