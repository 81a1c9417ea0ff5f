"""The kinds of findings, and their severities."""

from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """The severities of findings, the gravest first."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


SEVERITIES: Final = tuple(severity.value for severity in Severity)


class Kind(StrEnum):
    EXPIRED = "expired_not_deleted"
    DELETION_STUCK = "deletion_unfinished"
    DELETED_BUT_THERE = "deleted_but_there"
    DELETED_EARLY = "deleted_too_early"
    NO_METADATA = "object_without_metadata"
    NO_OBJECT = "metadata_without_object"
    OTHER_SIZE = "object_of_other_size"
    UPLOAD_UNFINISHED = "upload_unfinished"
    GAP = "offset_gap"
    OVERLAP = "offset_overlap"
    DEAD = "dead_entries"
    DEAD_UNTOLD = "dead_entries_untold"
    CONTRADICTION = "retention_contradiction"
    METADATA_RETENTION = "metadata_retention_short"
    METADATA_LOST = "metadata_seems_lost"
    QUARANTINED = "records_quarantined"
    UNANSWERED = "partition_without_leader"
    HIDDEN = "topic_hidden"
    ARCHIVE_UNFINISHED = "archive_upload_unfinished"
    ARCHIVE_DELETION_STUCK = "archive_deletion_unfinished"
    ARCHIVE_DELETED_BUT_THERE = "archive_deleted_but_there"
    ARCHIVE_NO_METADATA = "archive_object_without_metadata"
    ARCHIVE_NO_OBJECT = "archive_metadata_without_object"
    ARCHIVE_OTHER_SIZE = "archive_object_of_other_size"

    @property
    def severity(self) -> Severity:
        if self in _CRITICAL:
            return Severity.CRITICAL
        return Severity.INFO if self in _INFO else Severity.WARNING


_CRITICAL: Final = frozenset(
    {
        Kind.DELETED_EARLY,
        Kind.NO_OBJECT,
        Kind.OTHER_SIZE,
        Kind.METADATA_RETENTION,
        Kind.METADATA_LOST,
        Kind.ARCHIVE_NO_OBJECT,
        Kind.ARCHIVE_OTHER_SIZE,
    }
)
_INFO: Final = frozenset({Kind.OVERLAP, Kind.DEAD})
