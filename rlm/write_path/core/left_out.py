"""Ranges of one led log that were left out of objects, because they went inline and nothing else wants them stored.

Sans-IO. Each range is a pause between linked stretches. They are declared, so that nobody takes them for lost. Nothing
depends on a declaration being in time: what was not declared yet is read again when the log is resumed, and left out
again. So a complete range is declared after some seconds, and a growing one every ten minutes.
"""

from typing import Final

from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges

_ENDED_S: Final = 10.0
_GROWING_S: Final = 600.0
"""That is 41 bytes a partition, before compression: with 1,000 partitions 0.7 % of 10 KB/s."""
_MANY: Final = 100


class LeftOut:
    """Ascending ranges that must be declared. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._ranges: list[OffsetRange] = []
        self._grows_from = -1
        """End of the range that grows; negative: what was read last was kept."""
        self._told_s: float | None = None
        """None: nothing was left out yet."""
        self._has_news = False

    def add(self, begin: int, end: int) -> None:
        """Add a range that was read and left out. Offsets without a record before it belong to it."""
        if self._grows_from >= 0:
            begin = min(begin, self._grows_from)
        self._ranges = joined_ranges([*self._ranges, (begin, end)])
        self._grows_from, self._has_news = end, True

    def also(self, begin: int, end: int) -> None:
        """Add a range that was kept before and is left out now."""
        self._ranges = joined_ranges([*self._ranges, (begin, end)])
        self._has_news = True

    def kept(self) -> None:
        """Record that what was read last will be stored."""
        self._grows_from = -1

    def truncated(self, offset: int) -> None:
        """Cut the ranges, because the log was cut there."""
        self._ranges = [(begin, min(end, offset)) for begin, end in self._ranges if begin < offset]
        self._grows_from = min(self._grows_from, offset)

    def is_due(self, now_s: float) -> bool:
        """Whether to `take` now."""
        if not self._has_news:
            return False
        if self._told_s is None:
            self._told_s = now_s
        is_ended = self._grows_from < 0 or len(self._ranges) > 1
        return len(self._ranges) >= _MANY or now_s - self._told_s >= (_ENDED_S if is_ended else _GROWING_S)

    def take(self, now_s: float) -> tuple[OffsetRange, ...]:
        """Return the new ranges since the last call; a growing range continues where the last one ended."""
        ranges = tuple(self._ranges) if self._has_news else ()
        self._ranges, self._has_news, self._told_s = [], False, now_s
        return ranges
