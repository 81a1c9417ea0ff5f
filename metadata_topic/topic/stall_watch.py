"""Notices a consumer that does not move although there is more to read.

Consumers have been reported to read nothing more of a partition after its leader had moved, without any error, until
they were replaced (librdkafka issues 843, 2363 and 2625). Two looks show this: nothing was read in between, although
the partition already ended beyond the position at the first look. A slow reader moves; an up-to-date one is at the end.
Ends are asked for all partitions at once: while one has no leader they are unknown, and nothing is concluded.
"""

from collections.abc import Mapping


class StallWatch:
    """The watch of one consumer. Sans-IO; not thread-safe. All times are monotonic seconds."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._looked_s = now_s
        self._positions: Mapping[int, int] = {}
        self._end_offsets: Mapping[int, int] = {}

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a look."""
        return now_s - self._looked_s >= self._interval_s

    def stalled(self, positions: Mapping[int, int], end_offsets: Mapping[int, int], now_s: float) -> int | None:
        """Return a partition that has not moved since the last look although it had more; None: all is well.

        Both by partition: the next offset to read, and the end according to brokers now; empty when unknown.
        """
        earlier, goals = self._positions, self._end_offsets
        self._looked_s, self._positions, self._end_offsets = now_s, dict(positions), dict(end_offsets)
        for partition, position in positions.items():
            if earlier.get(partition) == position < goals.get(partition, 0):
                return partition
        return None
