"""Decides whether links in one consumer's answers are worth the reads that they cost. Sans-IO.

A broker's followers read an object for many partitions at once; a consumer may want some bytes of each. So an answer is
linked only if its bytes, divided by the objects that it names, are worth a read each.

At the end of the log, a fast consumer gets small answers: after an inline one it asks again within milliseconds, before
much has come. So there the bytes that an upload's interval brings at the recent rate must be worth a read. Answers that
wait for links then hold that many.
"""

from dataclasses import dataclass

from rlm.write_path.commit.bandwidth import RateMeter

_TIME_CONSTANT_S = 1.0


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """What a read of an object costs and a byte across zones, by the price table."""

    read_bytes: int
    """How many inline bytes cost as much as a read."""
    interval_s: float
    """The interval of uploads."""


class ReadWorth:
    """Decides for one connection whether links pay for their reads. All times are monotonic seconds."""

    def __init__(self, costs: ReadCosts) -> None:
        self._costs = costs
        self._rate = RateMeter(_TIME_CONSTANT_S)

    def answered(self, record_bytes: int, now_s: float) -> None:
        """Record the size of the records in a response of the broker."""
        self._rate.add(record_bytes, now_s)

    def pays(self, record_bytes: int, reads: int, now_s: float) -> bool:
        """Whether links to this many bytes of a response pay for this many reads."""
        expected_bytes = self._rate.bytes_per_second(now_s) * self._costs.interval_s
        return max(record_bytes, expected_bytes) >= reads * self._costs.read_bytes
