"""Looks for orphans of the archive and heals them. `rlm.archive.archive_care` defines what they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from plugin.errors import RemoteStorageError
from rlm.archive.archive_care import ArchiveCare
from rlm.lifecycle.orphans import HealingLimits, MetadataBehindError, skipped_because
from rlm.write_path.metrics import ArchiveMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveOrphanRounds:
    """One search for orphans of the archive. Blocks."""

    care: ArchiveCare
    incarnations: Callable[[], Mapping[int, int]]
    """See `rlm.archive.archived_topics.CareDuties`."""
    read_to_end: Callable[[], bool]
    topic_doubt: Callable[[], str]
    limits: HealingLimits
    heals: bool
    metrics: ArchiveMetrics
    wall_ms: Callable[[], int]

    def run_once(self) -> bool:
        """Find orphans, and heal them if that is on. False if the search must be repeated soon."""
        incarnations, now_ms = self.incarnations(), self.wall_ms()
        if not incarnations:
            return False
        try:
            found = self.care.find_orphans(now_ms, incarnations, self.read_to_end)
            doubt = found.doubt(self.topic_doubt(), self.limits)
            if found.objects or found.metadata or found.of_unknown_writers:
                log.warning("archive_disagrees", objects=len(found.objects), metadata=len(found.metadata))
            if doubt or found.of_unknown_writers:
                log.error(
                    "archive_orphans_not_healed",
                    objects=len(found.objects) + len(found.of_unknown_writers),
                    metadata=len(found.metadata),
                    reason=doubt or "their writers' registrations are not known either",
                    hint="remote-wal metadata rebuild",
                )
            if not doubt and self.heals:
                self.care.heal(found, now_ms, incarnations)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            self.metrics.orphan_rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("archive_orphans_not_searched", error=str(error))
            return False
        return True
