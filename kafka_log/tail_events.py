"""The events of a SegmentTail, beside the records that it reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truncated:
    """Event: delivered records from this offset on are no longer in the log; reading continues from here."""

    at_offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Event: the offsets [from_offset, to_offset) left the log before they were read, or can no longer be read.

    If a truncated log gets these offsets again, they are read only if Truncated reaches back to them.
    """

    from_offset: int
    to_offset: int
    is_unreadable: bool = False
    """They are behind a damaged batch of a closed segment; otherwise the log does not have them any more."""
    is_compacted: bool = False
    """Compaction removed them; a SegmentTail does not report this."""


@dataclass(frozen=True, slots=True)
class LogDeleted:
    """Event: the partition directory is gone, or is another topic's. The tail delivers nothing more."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """Event: the next batch is incomplete, or its checksum is wrong; the tail waits. Reported once per position."""


TailEvent = Truncated | Gap | LogDeleted | TornTail
