"""Whether links in one consumer's answers are worth the reads that they cost. Sans-IO.

Followers of a whole broker read an object for many partitions at once; a consumer may want some bytes of each. So an
answer is linked only if its bytes, shared by the objects that it names, are worth a read each.

At the end of the log, answers are as small as the consumer is quick: one that goes inline is asked for within
milliseconds, before much has come. So it is what an upload's interval brings at the rate of late that must be worth a
read. Answers that wait for links then hold as much.
"""

from dataclasses import dataclass

from rlm.write_path.commit.bandwidth import RateMeter

_TIME_CONSTANT_S = 1.0


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """By the price table."""

    read_bytes: int
    """So many bytes inline cost as much as a read."""
    interval_s: float
    """Of uploads."""


class ReadWorth:
    """Of one connection. All times are monotonic seconds."""

    def __init__(self, costs: ReadCosts) -> None:
        self._costs = costs
        self._rate = RateMeter(_TIME_CONSTANT_S)

    def answered(self, record_bytes: int, now_s: float) -> None:
        """The broker has so much for the consumer."""
        self._rate.add(record_bytes, now_s)

    def pays(self, record_bytes: int, reads: int, now_s: float) -> bool:
        """Whether so many bytes, in an answer that takes so many reads, are to be linked."""
        expected_bytes = self._rate.bytes_per_second(now_s) * self._costs.interval_s
        return max(record_bytes, expected_bytes) >= reads * self._costs.read_bytes
