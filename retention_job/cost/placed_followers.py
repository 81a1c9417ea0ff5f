"""Places the followers of a leader's partitions in a cluster of a given size, for a scenario. Sans-IO."""

from functools import cache
from random import Random

from rlm.write_path.uploads.segment_queue import ranges_read


def ranges_by_chance(brokers: float, of_each: float, partitions: float, max_gap: float) -> tuple[int, float]:
    """Return the number of ranges read of an object, and the ratio of read bytes to wanted bytes.

    The object has an entry of each partition, all of the same length; gaps of up to `max_gap` entries are read too. The
    other parameters are those of `placed_by_chance`.
    """
    placed = placed_by_chance(round(brokers), round(of_each), round(partitions) or 1)
    ranges, along = ranges_read(placed, max_gap)
    wanted = sum(map(len, placed))
    return ranges, (wanted + along) / wanted


@cache
def placed_by_chance(brokers: int, of_each: int, partitions: int) -> tuple[tuple[int, ...], ...]:
    """Return the followers of each partition, in the order in which an object holds the partitions.

    `brokers` is the number of brokers in other zones, `of_each` of them follow each partition. Equal inputs give equal
    results.
    """
    drawn = Random(partitions)  # noqa: S311 - nobody is to be surprised
    in_zone = max(brokers // of_each, 1)
    placed = [tuple([zone * in_zone + drawn.randrange(in_zone) for zone in range(of_each)]) for _ in range(partitions)]
    return tuple(sorted(placed))
