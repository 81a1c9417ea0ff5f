"""Notices a consumer that stands still though there is more to read.

Theory. Consumers have been reported to read nothing more of a partition after its leader had moved, without any error,
until they were made anew (librdkafka issues 843, 2363 and 2625). Two looks tell: nothing has been read in between, and
the partition ended beyond that at the first look already. A slow reader moves; one that is up to date stands at the
end. Ends are asked for of all partitions at once: while one has no leader they are not told, and nothing is concluded.
"""

from collections.abc import Mapping


class StallWatch:
    """Of one consumer. Sans-IO; not thread-safe. All times are monotonic seconds."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._looked_s = now_s
        self._positions: Mapping[int, int] = {}
        self._end_offsets: Mapping[int, int] = {}

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a look."""
        return now_s - self._looked_s >= self._interval_s

    def stalled(self, positions: Mapping[int, int], end_offsets: Mapping[int, int], now_s: float) -> int | None:
        """A partition that has stood still since the last look, short of its end at that time; None: all is well.

        Both by partition: the offset to be read next, and the end as brokers tell it now; empty when they do not.
        """
        earlier, goals = self._positions, self._end_offsets
        self._looked_s, self._positions, self._end_offsets = now_s, dict(positions), dict(end_offsets)
        for partition, position in positions.items():
            if earlier.get(partition) == position < goals.get(partition, 0):
                return partition
        return None
