"""Whether all that is appended here waits for rounds, one after the other, sans-IO.

A broker takes one Produce request of a connection at a time. So what a producer with acks=all has sent ahead is
appended request by request, each as soon as the followers have the one before. A round by link takes an upload and a
read, ten times as long as one inline, and that many times less comes through: what is sent meanwhile piles up at the
broker, without an end. It shows in when appends come: at once after an object has reached the followers, all together,
and then none until the next one has. Producers that pause, several that are not in step, and those with acks=1 append
at other times, too.
"""

import math
from typing import Final

from rlm.write_path.commit.group_commit import QUIET_S

_IN_A_ROW: Final = 4
"""Rounds. By judgement: producers that pause between their requests look so for a few by chance. Of nine of them, at 7
MB/s together, three came in a row once in 20 s (`perf.cost`)."""
_AGAIN: Final = 1
"""Likewise, where it was so before."""
_FREE: Final = 16
"""Other rounds in a row, by which it is so no more. By judgement: some 0.5 s."""
_READS: Final = 2
"""Uploads' times in which an object is read at most. By judgement: one takes about as long as the other."""
_ROUND_MAX_S: Final = 1.0
"""Seconds from one object to the next: after more, nothing is known of what came between."""


class LockStep:
    """Of all that is led here. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._first_s = self._last_s = math.inf
        """Of the appends since the last upload began; inf: none."""
        self._begun_s = self._ended_s = math.inf
        """Of those in the upload under way."""
        self._stored_s = -math.inf
        self._in_a_row = self._free = 0
        self._enough = _IN_A_ROW

    def appended(self, now_s: float) -> None:
        """Something was appended."""
        if self._first_s == math.inf:
            self._first_s = now_s
        self._last_s = now_s

    def started(self) -> None:
        """An upload of all that was appended began."""
        self._begun_s, self._ended_s = self._first_s, self._last_s
        self._first_s = self._last_s = math.inf

    def stored(self, upload_s: float, *, alone: bool, now_s: float) -> bool | None:
        """The upload took so long and is stored; whether nothing was appended meanwhile.

        Whether appends have waited for rounds for several in a row; None: it is not known yet.
        """
        since_s, self._stored_s = self._stored_s, now_s
        if self._begun_s - since_s > _ROUND_MAX_S:
            self._in_a_row = 0
            return None
        at_once = self._begun_s - since_s <= _READS * upload_s + 2 * QUIET_S
        is_one = self._ended_s - self._begun_s <= QUIET_S
        if not (alone and self._first_s == math.inf and at_once and is_one):
            self._in_a_row, self._free = 0, self._free + 1
            if self._free < _FREE:
                return None
            self._free, self._enough = 0, _IN_A_ROW
            return False
        self._in_a_row, self._free = self._in_a_row + 1, 0
        if self._in_a_row < self._enough:
            return None
        self._in_a_row, self._enough = 0, _AGAIN
        self._stored_s = -math.inf  # what is under way goes inline, and tells nothing
        return True
