"""Followers of a leader's partitions, as placed in a cluster of that size, for a scenario. Sans-IO."""

from functools import cache
from random import Random

from rlm.write_path.reading_order import ranges_read


def ranges_by_chance(brokers: float, of_each: float, partitions: float, max_gap: float) -> tuple[int, float]:
    """How many ranges are read of an object with an entry of each partition, all as long, and how many times its bytes
    for each time that they are wanted, where gaps of so many entries are read along. As for `placed_by_chance`.
    """
    placed = placed_by_chance(round(brokers), round(of_each), round(partitions) or 1)
    ranges, along = ranges_read(placed, max_gap)
    wanted = sum(map(len, placed))
    return ranges, (wanted + along) / wanted


@cache
def placed_by_chance(brokers: int, of_each: int, partitions: int) -> tuple[tuple[int, ...], ...]:
    """The followers of each of so many partitions, in the order in which an object holds these.

    `brokers` are those of other zones, `of_each` partition follows one in each zone. The same inputs bring the same.
    """
    drawn = Random(partitions)  # noqa: S311 - nobody is to be surprised
    in_zone = max(brokers // of_each, 1)
    placed = [tuple([zone * in_zone + drawn.randrange(in_zone) for zone in range(of_each)]) for _ in range(partitions)]
    return tuple(sorted(placed))
