"""The reasons why a record byte goes to a follower inline, and not as a link."""

from enum import StrEnum
from typing import Final


class InlineReason(StrEnum):
    """Why a record byte goes inline; the label `reason` of remote_wal_inline_bytes_total."""

    NOT_ENABLED = "not_enabled"
    """The topic is without remote.wal.storage.enable, or not known as led here yet."""
    OWN_ZONE = "own_zone"
    """The follower is in the leader's zone, where bytes cost nothing."""
    NO_FOLLOWER_ELSEWHERE = "no_follower_elsewhere"
    NEVER_PAYS = "never_pays"
    """At the configured prices, no object of the partition would pay, whatever its size."""
    LOAD = "load"
    """Too little comes for an object."""
    LOOK = "look"
    """For a moment, to see whether links hold records back at producers."""
    HELD_UP = "held_up"
    """Links held records back at producers for too long, and pause for a while."""
    LATENCY_BOUND = "latency_bound"
    """The topic sets a bound, and upload and read take longer."""
    WAIT_TIMEOUT = "wait_timeout"
    """The follower waited too long for its link: remote.wal.link.wait.max.ms."""
    NOT_STORED = "not_stored"
    """Links are in use, but no upload will soon store it: it is far behind, or uploads fail or are slow."""
    HYDRATION_FAILED = "hydration_failed"
    """A link was sent, but the follower's agent could not read its bytes in time, and asked for them."""
    NO_AGENT = "no_agent"
    """The other end is no agent, or one that does not understand links."""
    PAUSED = "paused_by_follower"
    """The follower's agent cannot read objects now, or an operator paused links there."""
    DEFECT = "defect"
    """Links of this connection pause after a defect, or its frames are not understood."""
    PAUSED_BY_OPERATOR = "paused_by_operator"
    """Somebody paused links: `remote-wal pause`."""
    UPLOADS_STOPPED = "uploads_stopped"
    """The write path does not run, or the metadata topic takes no records."""


RIGHTLY_INLINE: Final = frozenset(
    {
        InlineReason.NOT_ENABLED,
        InlineReason.OWN_ZONE,
        InlineReason.NO_FOLLOWER_ELSEWHERE,
        InlineReason.NEVER_PAYS,
        InlineReason.LOAD,
        InlineReason.LOOK,
    }
)
"""Reasons for which links would save nothing. All other inline bytes could have been saved."""
