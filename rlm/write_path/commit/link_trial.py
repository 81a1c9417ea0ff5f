"""Whether producers wait, found out at loads of which one upload interval's bytes do not pay for an object, sans-IO.

Where nobody waits, several intervals' bytes may share an object, and pay. What is appended while uploads are under way
tells who waits (`Producers`), but such a load has no uploads to learn from. So what an interval has brought is held for
another one, and more, as long as appends go on as they did inline. Those who wait append once and then nothing: they
are held up for an interval or two, then their bytes go inline, and the next trial comes after a pause.
"""

import math
from enum import Enum
from typing import Final

from rlm.write_path.commit.doubling_pause import DoublingPause
from rlm.write_path.commit.group_commit import stretched_interval_s

_TRIED_SHARE: Final = 0.5
"""Of the longest interval: loads that pay by so much of it are tried. By judgement, so that they pay still where their
rate was guessed too high."""
_GOES_ON: Final = 0.7
"""Share of the usual appends that must come on. By judgement: a few batches may be late, and of those who wait nobody
appends."""
_BEGINS: Final = 0.35
"""Share of the usual appends that must come in the first interval, which is short. By judgement: half of that."""
_STEADY_S: Final = 0.25
"""Seconds: for so long the rate must have been one to be tried, as in a burst that begins more comes on whoever waits.
By judgement: two and a half times what rates are averaged over."""
_PAUSE_MIN_S: Final = 0.2
"""Seconds without another trial after one in vain; doubled by each in a row."""
_PAUSE_MAX_S: Final = 12.8
"""Seconds. By judgement: where producers wait, two intervals of 25 ms are 0.4 % of the time then."""


class Verdict(Enum):
    """Of a look at what was gathered."""

    GOES_ON = "goes on"
    """It is to become more."""
    NOBODY_WAITS = "nobody waits"
    SOMEBODY_WAITS = "somebody waits"


class LinkTrial:
    """Of all that is led here. Looked at once in each upload interval; times are monotonic seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._longest_s = stretched_interval_s(interval_s)
        self._usual_bytes_per_s = 0.0
        self._begun_s = -math.inf
        self._first: tuple[float, int] | None = None
        """When the first interval was over, and what it had brought."""
        self._steady_since_s = math.inf
        """Since when a rate comes that is to be tried; inf: none does."""
        self._pause = DoublingPause(_PAUSE_MIN_S, _PAUSE_MAX_S)
        self.is_on = False
        """Whether links are tried."""

    @property
    def is_held(self) -> bool:
        """Whether what was gathered is to become more."""
        return self._first is not None

    def begin(self, usual_bytes_per_s: float, paying_bytes: float, now_s: float) -> bool:
        """Whether links are tried, now that so much comes inline: one is on, or its time has come."""
        pays_in_s = paying_bytes / max(usual_bytes_per_s, 1.0)
        if not self._interval_s < pays_in_s <= _TRIED_SHARE * self._longest_s:
            self._steady_since_s = math.inf
        elif self._steady_since_s == math.inf:
            self._steady_since_s = now_s
        elif not self.is_on and self._pause.is_over(now_s) and now_s >= self._steady_since_s + _STEADY_S:
            self.is_on, self._begun_s, self._usual_bytes_per_s = True, now_s, usual_bytes_per_s
        return self.is_on

    def look(self, gathered_bytes: int, now_s: float) -> Verdict:
        """So much was gathered by now."""
        if self._first is None:
            usual_bytes = self._usual_bytes_per_s * (now_s - self._begun_s)
            if gathered_bytes < _BEGINS * usual_bytes:
                return self._in_vain(now_s)
            self._first = now_s, gathered_bytes
            return Verdict.GOES_ON
        over_s, more_bytes = now_s - self._first[0], gathered_bytes - self._first[1]
        if more_bytes < _GOES_ON * self._usual_bytes_per_s * over_s:
            return self._in_vain(now_s)
        if over_s + 1.5 * self._interval_s <= self._longest_s:
            return Verdict.GOES_ON
        self._pause.reset()
        self.end()
        return Verdict.NOBODY_WAITS

    def _in_vain(self, now_s: float) -> Verdict:
        self._pause.begin(now_s)
        self.end()
        return Verdict.SOMEBODY_WAITS

    def end(self) -> None:
        """What was held goes one way or the other."""
        self.is_on, self._first, self._steady_since_s = False, None, math.inf
