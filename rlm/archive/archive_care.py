"""Takes care of archive objects: deletes them in two phases, keeps their metadata alive, finds orphans.

Care belongs to the agent of the broker that wrote an object, or to its caretaker. Only that agent publishes about the
broker's objects, under the registered incarnation, so what it reads of its predecessor is complete.

Deletion: an object that no log needs, or that was not committed in time, is published as DELETE_SEGMENT_STARTED and
leaves the index. Once the store has read that, and a grace time for readers is over, the object is deleted and
published as DELETE_SEGMENT_FINISHED. Each step may be repeated. An object that was published as being deleted never
comes back, so a late commit cannot revive a deleted object.

An object may live longer than the topic's retention, so commits are published again from time to time.

Orphans: an object without metadata (its records died with the agent) is published as being deleted and goes the same
way; so is metadata whose object is gone. A listing is judged as in `rlm.lifecycle.orphans`: only by metadata that was
read to its end afterwards, only for writers whose registration is known, and not while the topic is in doubt or most
objects would go. An object does not count as uncommitted then either.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from metadata_topic.records.archive_records import ArchiveObjectDeleted
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.settings.wal_retention import ARCHIVE_DELETE_GRACE_MS
from metadata_topic.topic.topic import MetadataTopicSettings
from plugin.archive_storage import ArchiveStorage
from plugin.errors import RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.store_loop import ask, ask_each
from rlm.archive.archive_plan import PREPARED_TTL_MS
from rlm.archive.archive_task import ArchiveSources
from rlm.lifecycle.orphans import Comparison, Disagreement, HealingLimits, Kind, MetadataBehindError, skipped_because
from rlm.lifecycle.release import ClusterView
from rlm.write_path.metrics import ArchiveMetrics

log = structlog.get_logger(__name__)


_KINDS = {None: Kind.UNKNOWN, DELETED: Kind.DELETED}
"""What an object is of which the metadata has this state; nothing for others."""
_HEALING = HealingLimits(min_objects=10)
"""Stricter than for combined segments, as archive objects are large and few (guessed)."""


@dataclass(frozen=True, slots=True)
class CareLimits:
    """Times that the care of archive objects waits for, in milliseconds."""

    delete_grace_ms: int = ARCHIVE_DELETE_GRACE_MS
    """Time from the mark until the object is deleted; longer than any read."""
    publish_again_ms: int = MetadataTopicSettings().retention_ms // 3
    """How old a commit's record becomes before it is published again; below half of the topic's retention."""
    orphan_age_ms: int = PREPARED_TTL_MS
    """How old an object without metadata must be, by the store's clock."""
    healing: HealingLimits = _HEALING


@dataclass(frozen=True, slots=True)
class CareDuties:
    """The brokers whose archive objects this agent owns, and what it knows of the logs."""

    incarnations: Mapping[int, int]
    """By broker id, the incarnation registered for its objects, where this agent is the caretaker. Empty until the
    metadata topic was read beyond that registration."""
    view: ClusterView
    """For a partition whose log's start it lacks, every object is needed, unless Kafka says that its topic is gone."""


class ArchiveCare:
    """Deletes archive objects, renews their metadata and heals orphans. Blocks; for one thread. Call it at any
    interval."""

    def __init__(
        self, sources: ArchiveSources, storage: ArchiveStorage, limits: CareLimits, metrics: ArchiveMetrics
    ) -> None:
        self._sources, self._archive, self._publisher = sources, sources.archive, sources.publisher
        self._storage = storage
        self._limits = limits
        self._metrics = metrics

    def run_once(self, now_ms: int, duties: CareDuties, unsettled: Collection[ArchiveObjectId] = ()) -> None:
        """Delete and publish again what is due, for archive objects of the brokers that this agent cares for.

        `unsettled` is RLMArchiveTask's, taken before the call. Call it only once the metadata topic was read beyond the
        brokers' registrations. A failure of the store or a full publisher ends the round; the next one continues.
        """
        view = duties.view
        try:
            for broker_id, incarnation in duties.incarnations.items():
                doomed = [named for named in self._archive.uncommitted(now_ms, broker_id) if named not in unsettled]
                if doomed and self._sources.metadata_is_whole():
                    still = set(self._archive.uncommitted(now_ms, broker_id))
                    self._mark(now_ms, [named for named in doomed if named in still], incarnation)
                unneeded = self._archive.find_unneeded(
                    view.log_start, view.is_gone, broker_id, self._sources.wal.is_run_held
                )
                self._mark(now_ms, unneeded, incarnation)
                self._delete_marked(now_ms, broker_id, incarnation)
                for record in self._archive.to_publish_again(now_ms - self._limits.publish_again_ms, broker_id):
                    self._publisher.publish(replace(record, incarnation=incarnation, event_timestamp_ms=now_ms))
        except (RemoteStorageError, PublicationBacklogFullError) as error:
            log.warning("archive_care_ends_early", error=str(error))

    def search_orphans(self, now_ms: int, cared_for: Mapping[int, int]) -> bool:
        """Find orphans and heal them. Returns False if the search failed and should be repeated soon."""
        if not cared_for:
            return False
        try:
            found = self.find_orphans(now_ms, cared_for)
            if waiting := len(found.waiting):
                log.error(
                    "archive_orphans_not_healed",
                    waiting=waiting,
                    objects=found.objects,
                    reason=found.waits_because,
                    hint="remote-wal metadata rebuild",
                )
            self.heal(found, now_ms, cared_for)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            self._metrics.orphan_rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("archive_orphans_not_searched", error=str(error))
            return False
        return True

    def find_orphans(self, now_ms: int, cared_for: Mapping[int, int]) -> Comparison[ArchiveObjectId]:
        """Compare the listing with the metadata; change nothing. Raises RemoteStorageError, MetadataBehindError.

        `now_ms` is taken before the call; later commits are ignored. `cared_for` maps a broker id to the registered
        incarnation.
        """
        since_ms = {
            object_id: committed_ms
            for object_id, committed_ms in self._archive.objects(FINISHED)
            if object_id.writer_id.broker_id in cared_for
        }
        stored = [item for item in ask_each(self._storage.list()) if item.object_id.writer_id.broker_id in cared_for]
        if not self._sources.read_to_end():
            raise MetadataBehindError("the metadata topic was not read to where it ended after the archive's listing")
        state_of, limit_ms = self._archive.state_of, self._limits.orphan_age_ms
        found = [
            Disagreement(item.object_id, kind, item.size_bytes, age_ms, self._writer_is_known(item.object_id))
            for item in stored
            if (age_ms := now_ms - item.last_modified_ms) >= limit_ms
            and (kind := _KINDS.get(state_of(item.object_id))) is not None
        ]
        for there in stored:
            since_ms.pop(there.object_id, None)
        found += [
            Disagreement(object_id, Kind.LOST, 0, age_ms)
            for object_id, committed_ms in since_ms.items()
            if (age_ms := now_ms - committed_ms) >= limit_ms and state_of(object_id) is FINISHED
        ]
        comparison = Comparison(len(stored), 0, tuple(found))
        return comparison.doubted(self._sources.topic_doubt(), self._limits.healing)

    def _writer_is_known(self, object_id: ArchiveObjectId) -> bool:
        writer = object_id.writer_id
        return self._sources.wal.knows_incarnation(writer.broker_id, writer.incarnation)

    def heal(self, found: Comparison[ArchiveObjectId], now_ms: int, cared_for: Mapping[int, int]) -> None:
        """Start the deletion of what needs no confirmation. Raises PublicationBacklogFullError, RemoteStorageError."""
        for one in found.heals_by_itself:
            if one.kind is Kind.DELETED:
                ask(self._storage.delete(one.object_id))  # a write that came after its deletion
                continue
            self._mark(now_ms, [one.object_id], cared_for[one.object_id.writer_id.broker_id])
            log.warning("archive_orphan", object=str(one.object_id), kind=one.kind)

    def _mark(self, now_ms: int, doomed: Iterable[ArchiveObjectId], incarnation: int) -> None:
        for object_id in doomed:
            self._publisher.publish(ArchiveObjectDeleted(object_id, incarnation, DELETING, now_ms))

    def _delete_marked(self, now_ms: int, broker_id: int, incarnation: int) -> None:
        for object_id, since_ms in self._archive.objects(DELETING, broker_id):
            if since_ms + self._limits.delete_grace_ms > now_ms:
                continue
            ask(self._storage.delete(object_id))
            self._metrics.deleted_objects.inc()
            self._publisher.publish(ArchiveObjectDeleted(object_id, incarnation, DELETED, now_ms))
