"""What can be found, and how bad it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Severity(StrEnum):
    """How bad a finding is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Kind(StrEnum):
    """What was found."""

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
    ARCHIVE_UNFINISHED = "archive_upload_unfinished"
    ARCHIVE_DELETION_STUCK = "archive_deletion_unfinished"
    ARCHIVE_DELETED_BUT_THERE = "archive_deleted_but_there"
    ARCHIVE_NO_METADATA = "archive_object_without_metadata"
    ARCHIVE_NO_OBJECT = "archive_metadata_without_object"
    ARCHIVE_OTHER_SIZE = "archive_object_of_other_size"


SEVERITIES: Final[Mapping[Kind, Severity]] = MappingProxyType(
    {
        Kind.EXPIRED: Severity.WARNING,
        Kind.DELETION_STUCK: Severity.WARNING,
        Kind.DELETED_BUT_THERE: Severity.WARNING,
        Kind.DELETED_EARLY: Severity.CRITICAL,
        Kind.NO_METADATA: Severity.WARNING,
        Kind.NO_OBJECT: Severity.CRITICAL,
        Kind.OTHER_SIZE: Severity.CRITICAL,
        Kind.UPLOAD_UNFINISHED: Severity.WARNING,
        Kind.GAP: Severity.WARNING,
        Kind.OVERLAP: Severity.INFO,
        Kind.DEAD: Severity.INFO,
        Kind.DEAD_UNTOLD: Severity.WARNING,
        Kind.CONTRADICTION: Severity.WARNING,
        Kind.METADATA_RETENTION: Severity.CRITICAL,
        Kind.METADATA_LOST: Severity.CRITICAL,
        Kind.QUARANTINED: Severity.WARNING,
        Kind.ARCHIVE_UNFINISHED: Severity.WARNING,
        Kind.ARCHIVE_DELETION_STUCK: Severity.WARNING,
        Kind.ARCHIVE_DELETED_BUT_THERE: Severity.WARNING,
        Kind.ARCHIVE_NO_METADATA: Severity.WARNING,
        Kind.ARCHIVE_NO_OBJECT: Severity.CRITICAL,
        Kind.ARCHIVE_OTHER_SIZE: Severity.CRITICAL,
    }
)


@dataclass(frozen=True, slots=True)
class SmallFinding:
    """A finding that is no row of a large table."""

    kind: Kind
    detail: str
    heal: str
    topic: str | None = None
