"""Functions on ranges of offsets [from, to): join, cut, and find what is missing."""

from collections.abc import Iterable
from typing import Final

OffsetRange = tuple[int, int]
"""From an offset to another one, exclusive."""

NO_END: Final = 2**63 - 1


def joined_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join ranges into ascending ranges that do not touch; empty ones are left out."""
    joined: list[OffsetRange] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def ranges_missing(ranges: Iterable[OffsetRange], within: OffsetRange) -> list[OffsetRange]:
    """Return the parts of `within` that are in none of the ranges, ascending."""
    position, end = within
    missing: list[OffsetRange] = []
    for begin, behind in joined_ranges(ranges):
        if begin >= end:
            break
        if begin > position:
            missing.append((position, begin))
        position = max(position, behind)
    if position < end:
        missing.append((position, end))
    return missing


def ranges_common(one: OffsetRange, others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets that a range shares with each of the others, in their order; empty ranges are left out."""
    shared = ((max(one[0], begin), min(one[1], end)) for begin, end in others)
    return [(begin, end) for begin, end in shared if begin < end]
