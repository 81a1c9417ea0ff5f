"""How long the topics that replicate through object storage keep records on the brokers' disks."""

from collections.abc import Iterable

from rlm.lifecycle.release import NEVER


def longest_retention_ms(retentions_ms: Iterable[int]) -> int | None:
    """NEVER when one of them is; None of none at all."""
    known = list(retentions_ms)
    return NEVER if NEVER in known else max(known, default=None)
