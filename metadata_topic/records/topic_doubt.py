"""Reasons to doubt that a topic is the one that was read before, and whole."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class TopicDoubt(StrEnum):
    """A reason to doubt that the topic is whole: nothing may then be concluded from what it lacks."""

    BEGAN_ANEW = "began_anew"
    SHORTER = "shorter"
    GAP = "gap"
    UNREADABLE = "unreadable"


EpochEnds = Mapping[tuple[int, int], int]
"""By partition and leader epoch, where that epoch ends in the topic (`ConsumerLike.ends_of_epochs`)."""
NOT_ASKED: Final[EpochEnds] = MappingProxyType({})


def end_of(partition: int, epoch: int | None, ends: Mapping[int, int], epoch_ends: EpochEnds) -> int:
    """Return up to which offset the topic still has what a reader read of a partition; `epoch` is that of its last
    record."""
    end = ends.get(partition, 0)
    return end if epoch is None else min(end, epoch_ends.get((partition, epoch), end))
