"""Pauses links to one peer after a defect; meanwhile the leader's bytes go inline.

A defect is a message that the other agent's version encodes differently, or a response that our own planning fails on.
The next fetch asks for the same records and would meet the defect again. So a defect never ends a connection: this
response goes inline, and so do the following ones for a while that doubles while defects go on. A store's bytes that do
not match their link count as a defect only when several responses in a row have them.
"""

from collections.abc import Callable
from typing import Final

import structlog

from plugin.errors import defect_site
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import SpliceError
from replication.wire.metrics import ReplicationMetrics

log = structlog.get_logger(__name__)

FIRST_HOLD_OFF_S: Final = 10.0
LONGEST_HOLD_OFF_S: Final = 600.0
_CORRUPT_MAX: Final = 3
"""One response may meet a damaged object. After so many in a row, links cost reads and bring nothing."""


class LinkHoldOff:
    """For how long links are paused after defects. Sans-IO; all times are monotonic seconds."""

    def __init__(self) -> None:
        self._rest_s = 0.0
        self._until_s = float("-inf")

    def is_over(self, now_s: float) -> bool:
        return now_s >= self._until_s

    def begin(self, now_s: float) -> float:
        """Record a defect. Returns the seconds of the pause that begins with it; 0 if a pause is under way."""
        if not self.is_over(now_s):
            return 0.0
        goes_on = now_s < self._until_s + LONGEST_HOLD_OFF_S
        self._rest_s = min(2 * self._rest_s, LONGEST_HOLD_OFF_S) if goes_on else FIRST_HOLD_OFF_S
        self._until_s = now_s + self._rest_s
        return self._rest_s


class LinkDefects:
    """Counts the defects on the way to or from one peer, and logs one line for each pause."""

    def __init__(self, metrics: ReplicationMetrics, clock: Callable[[], float], **peer: int) -> None:
        """`peer` names the other agent's broker in logs; `clock` gives monotonic seconds."""
        self._metrics = metrics
        self._clock = clock
        self._peer = peer
        self._rest = LinkHoldOff()
        self._corrupt_in_a_row = 0

    @property
    def links_held_off(self) -> bool:
        """Whether links are paused now, so that all bytes must go inline."""
        return not self._rest.is_over(self._clock())

    def spliced(self) -> None:
        """Record that a linked response was put together successfully."""
        self._corrupt_in_a_row = 0

    def corrupt(self, error: SpliceError) -> None:
        """Record stored bytes that do not match a link; only several in a row are a defect."""
        self._corrupt_in_a_row += 1
        if self._corrupt_in_a_row >= _CORRUPT_MAX:
            self.record("corrupt", error)

    def record(self, where: str, error: BaseException) -> None:
        """Record a defect; `where` labels the counter."""
        self._metrics.fault(f"link_defect_{where}")
        rest_s = self._rest.begin(self._clock())
        if rest_s:
            told = str(error) if isinstance(error, MalformedFrameError | SpliceError) else defect_site(error)
            log.error("link_defect", where=where, defect=told, **self._peer, inline_for_s=rest_s)
