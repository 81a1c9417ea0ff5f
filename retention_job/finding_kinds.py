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
    }
)


@dataclass(frozen=True, slots=True)
class SmallFinding:
    """A finding that is no row of a large table."""

    kind: Kind
    detail: str
    heal: str
    topic: str | None = None
