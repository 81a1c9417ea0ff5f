"""What a SegmentTail tells beside the records that it reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rolled:
    """The tail went on to the segment that begins with this offset."""

    new_base_offset: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """What was handed on from this offset on is no longer in the log; reading goes on from here."""

    at_offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets [from_offset, to_offset) left the log before they were read, or cannot be read any more.

    Should a truncated log be filled up with them again, they are only read if Truncated reaches back to them.
    """

    from_offset: int
    to_offset: int
    is_unreadable: bool = False
    """They stand behind a damaged batch of a closed segment; else the log does not have them any more."""
    is_compacted: bool = False
    """Compaction took them, which a SegmentTail does not tell."""


@dataclass(frozen=True, slots=True)
class LogDeleted:
    """The partition directory is gone, or is another one now. Nothing more will come of this tail."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """The next batch is incomplete, or its checksum is wrong. The tail waits. Reported once per position."""


TailEvent = Rolled | Truncated | Gap | LogDeleted | TornTail
