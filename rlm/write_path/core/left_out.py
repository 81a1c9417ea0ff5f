"""What of one led log was left out of objects, as it went inline and nothing else wants it stored, sans-IO.

It is told of as ranges of offsets, one for each pause between stretches that were linked, so that nobody takes it for
lost. Nothing depends on that in time: what was not told of yet is read again when the log is resumed, and left out
again. So a range that has come to its end is told of after some seconds, and one that grows every ten minutes.
"""

from typing import Final

from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges

_ENDED_S: Final = 10.0
_GROWING_S: Final = 600.0
"""41 bytes a partition then, before compression: with 1,000 of them 0.7 % of 10 KB/s."""
_MANY: Final = 100


class LeftOut:
    """Ascending ranges that are to be told of. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._ranges: list[OffsetRange] = []
        self._grows_from = -1
        """The end of the range that grows; negative: what was read last was kept."""
        self._told_s: float | None = None
        """None: nothing was left out yet."""
        self._has_news = False

    def add(self, begin: int, end: int) -> None:
        """These were read, and left out. Offsets without a record behind the last ones belong to them."""
        if self._grows_from >= 0:
            begin = min(begin, self._grows_from)
        self._ranges = joined_ranges([*self._ranges, (begin, end)])
        self._grows_from, self._has_news = end, True

    def also(self, begin: int, end: int) -> None:
        """These were kept before, and left out after all."""
        self._ranges = joined_ranges([*self._ranges, (begin, end)])
        self._has_news = True

    def kept(self) -> None:
        """What was read last is to be stored."""
        self._grows_from = -1

    def truncated(self, offset: int) -> None:
        """The log was cut there."""
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
        """What is new since the last time; a range that grows is told of anew from where that ended."""
        ranges = tuple(self._ranges) if self._has_news else ()
        self._ranges, self._has_news, self._told_s = [], False, now_s
        return ranges
