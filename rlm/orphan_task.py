"""Finds and heals what `rlm.orphans` tells of. Blocks: for a thread, or a command line.

A segment that is not in the listing is asked for by itself before it is called lost.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from plugin.errors import RemoteResourceNotFoundError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId
from rlm.expiration import LifecycleStore
from rlm.expiration_task import LifecyclePublisher
from rlm.orphans import Comparison, Disagreement, Fencing, Kind, OrphanSearch, records_that_heal

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OrphanTask:
    """Compares the objects of some brokers with the metadata."""

    storage: RemoteWalStorageManager
    store: LifecycleStore
    fencing: Fencing
    ttl_ms: int
    wall_ms: Callable[[], int]
    is_being_deleted: Callable[[CombinedSegmentId], bool] = lambda _segment_id: False
    """Whether this agent deletes a segment, which the store may not know yet: what is gone then is not lost."""

    def compare(self, broker_ids: Collection[int]) -> dict[int, Comparison]:
        """By broker. Raises RemoteStorageError."""
        found = {}
        for broker_id in sorted(broker_ids):
            search = OrphanSearch(self.store, self.fencing, broker_id, self.ttl_ms)
            comparison = search.compare(self.storage.list_log_segments(broker_id), self.wall_ms())
            confirmed = tuple(
                item
                for item in comparison.disagreements
                if item.kind is not Kind.LOST or self._is_lost(item.combined_segment_id)
            )
            found[broker_id] = replace(comparison, disagreements=confirmed)
        return found

    def heal(self, comparison: Comparison, publisher: LifecyclePublisher) -> list[Disagreement]:
        """What was healed, or is on its way: nothing when the comparison makes the metadata doubtful.

        Raises RemoteStorageError, and PublicationBacklogFullError; what was healed until then stays so.
        """
        if comparison.metadata_is_doubtful:
            log.error(
                "orphans_not_healed",
                objects=comparison.objects,
                without_metadata=comparison.count(Kind.UNKNOWN) + comparison.count(Kind.FENCED),
                reason="most objects have no metadata, so it is the metadata that seems to be lost",
            )
            return []
        for found in comparison.disagreements:
            for record in records_that_heal(found, self.wall_ms()):
                publisher.publish(record)
            if found.kind is Kind.DELETED:
                self.storage.delete_log_segment_data(found.combined_segment_id)
            tell = log.error if found.kind is Kind.LOST else log.warning
            tell("orphan_healed", segment=str(found.combined_segment_id), kind=found.kind, size=found.size_bytes)
        return list(comparison.disagreements)

    def _is_lost(self, segment_id: CombinedSegmentId) -> bool:
        if self.is_being_deleted(segment_id):
            return False
        try:
            self.storage.fetch_log_segment(segment_id, 0, 1)
        except RemoteResourceNotFoundError:
            return True
        return False
