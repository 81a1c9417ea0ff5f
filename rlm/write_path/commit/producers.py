"""Who waits for uploads, whether links cost producers their rate, and for how long links rest then, sans-IO.

A broker takes one Produce request of a connection at a time. Producers with acks=all have each one answered when the
followers have it, and by link that takes an upload and a read: a round. As long as rounds carry what they produce, they
are answered later and lose nothing. Beyond that, what they send piles up at the broker without an end. The broker's
files do not tell acks, so three things do, and the first two end links:

- *A first round that is far too small.* Links begin, and what the rate should have brought meanwhile does not come:
  requests are small and each waits for the one before. They are let go before the first upload.
- *A lower rate while producers stand still.* Less is appended while uploads are under way than at other times, more
  comes right after them, without an idle gap, and less comes through than came inline: at once where such rounds do not
  pay on the average, and for half a second where they do. Where as much comes meanwhile, or gaps are left, a lower rate
  is a load that fell; at the same rate producers only wait longer.
- *The same rate while they do.* A load may have grown beyond what rounds carry since it was measured. So bytes go
  inline for a moment now and then, and links begin again with what came through.

Links that ended so rest for a hold-off, doubled each time; a minute in which they hold nobody up resets it.
"""

import math
from typing import Final

from plugin.inline_reason import InlineReason
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.doubling_pause import DoublingPause

QUIET_S: Final = 0.004
"""Seconds: so long without an append is a silence. It must be longer than the gaps within a round, which a busy machine
draws out; of a warm round of 25 ms, 11 pass until all six producers have appended anew. By judgement."""
HOLD_OFF_MIN_S: Final = 1.0
HOLD_OFF_MAX_S: Final = 600.0
"""Seconds. A try takes half a second, so in five minutes of saturation some nine tries take 2 % of the time."""
GOOD_S: Final = 60.0
"""Seconds of links that hold nobody up, after which the next hold-off is a short one."""
SATURATED_S: Final = 0.5
"""Seconds of a lower rate that end links."""
_KEPT: Final = 0.85
"""Share of the inline rate that producers keep. With `always`, 10 MB/s of one default producer came to 7.7."""
_LOST: Final = 0.5
"""Likewise: with less, links end at once, as what waits meanwhile has to be drained."""
_IDLE_S: Final = 0.1
"""Seconds after an upload without an append, by which a load has ended."""
LOOK_S: Final = 0.4
"""Seconds for which bytes go inline to see what rate producers have."""
_PAUSE_S: Final = 5.0
"""Seconds after which a load that pays again is another one."""
_LOOK_AFTER_S: Final = 3.0
"""Seconds of standing still before the first such look; doubled by each that saw the same rate, up to a minute."""
_BEGINS: Final = 0.35
"""Share of what the rate brings that must come before the first upload. By judgement: a few batches may be late, and of
those who wait for a small request nobody appends."""
_RATE_S: Final = 0.5
"""Seconds over which the kept rate is averaged."""
_LOAN_OBJECTS: Final = 4.0
"""So many objects' worth may be lost to objects that are too small before links end: rounds of default producers carry
one to two break-evens, so single ones do not pay, and all together do."""
WEIGHT: Final = 1 / 4
"""Share of the newest upload in what is known of all, so that a load that changes is recognised within a few."""
_MOST: Final = 0.5
"""Share of uploads. The plain half."""
_STILL: Final = 0.6
"""Share of what is appended usually: with less during uploads, producers stand still. Where all wait it is 0.6 at most,
in step or not, and where nobody does 0.95 and more (`perf.cost`)."""
_AT_ONCE: Final = 0.7
"""Share of uploads right after which, or during which, something was appended: with less there are idle gaps, so rounds
carry all that is produced. At saturation it is 0.95 and more (`perf.cost`)."""
_AT_ONCE_WEIGHT: Final = 1 / 8
_UNMOVED: Final = 0.8
"""Share of what is appended usually: from it on during uploads, nobody is taken to wait. Those who wait for an upload
append nothing meanwhile, so a fifth of the load's producers may, or all of them for a fifth of their time."""
_MEANWHILE_WEIGHT: Final = 1 / 16
"""As WEIGHT, for that share: an upload takes a few batches' time, so it takes many to tell."""


class Producers:
    """Those of all that is led here. All times are monotonic seconds."""

    def __init__(self, first_look_s: float = LOOK_S) -> None:
        """For `first_look_s` bytes of a load that begins go inline, so that the rate of its producers is known."""
        self._first_look_s = first_look_s
        self._wanted_since_s = self._paying_s = -math.inf
        """Since when links would pay, but for short pauses, and when they did last."""
        self._rate = RateMeter(_RATE_S)
        self._begun_s: float | None = None
        """When links by cost began; None: bytes go inline."""
        self._inline_rate: float | None = None
        """What came through before they began, told by the first upload since."""
        self._first_s = self._round_s = math.inf
        """Of the appends since the last upload began, and of those in the one under way; inf: none."""
        self._at_once = _AT_ONCE
        """Share of uploads that were followed by appends without an idle gap."""
        self._stored_s = -math.inf
        self._share_disturbed = 0.0
        self._meanwhile_bytes = self._usual_bytes = 0.0
        """What was appended during the last uploads, and what is in as much time on the average."""
        self._uploads = 0
        self._slower_since_s = math.inf
        self._good_since_s = math.inf
        self._look_after_s = _LOOK_AFTER_S
        self._look_until_s = -math.inf
        self._paid_objects = 0.0
        """By how many objects' worth those since links began paid more than once; below 0: less."""
        self._hold_off = DoublingPause(HOLD_OFF_MIN_S, HOLD_OFF_MAX_S)
        self.held_up_s: float | None = None
        """When links ended last as they held producers up."""
        self.why = ""
        """In words."""

    def __str__(self) -> str:
        meanwhile = self._meanwhile_bytes / max(self._usual_bytes, 1.0)
        inline = "?" if self._inline_rate is None else f"{self._inline_rate / 1e6:.2f}"
        return (
            f"links {'off' if self._begun_s is None else f'since {self._begun_s:.3f}'}, "
            f"producers {'wait' if self.wait else 'go on'}, {meanwhile:.2f} of the usual come during uploads, "
            f"{self._at_once:.2f} of uploads are followed at once, "
            f"MB/s inline {inline}, "
            f"paid {self._paid_objects:+.1f} objects, hold-off until {self.rest_until_s:.3f}: {self.why or 'none'}"
        )

    @property
    def wait(self) -> bool:
        """Whether most of the last uploads met a silence that lasted until they were stored. At first: yes."""
        return self._share_disturbed < _MOST

    @property
    def nobody_waits(self) -> bool:
        """Whether as much was appended during the last uploads as at any other time."""
        return not self.wait and self._meanwhile_bytes >= _UNMOVED * self._usual_bytes

    @property
    def _stand_still(self) -> bool:
        """Whether a lower rate is the loss of those who wait: little comes during uploads, more right after them."""
        return self._at_once >= _AT_ONCE and self._meanwhile_bytes < _STILL * self._usual_bytes

    @property
    def rest_until_s(self) -> float:
        """Until when nothing is linked by cost."""
        return max(self._look_until_s, self._hold_off.until_s)

    def may_link(self, now_s: float) -> bool:
        """Whether links that would pay may be used: no hold-off is on, and what comes inline was seen for a while,
        unless nobody waits."""
        if now_s - self._paying_s > _PAUSE_S:
            self._wanted_since_s, self._inline_rate = now_s, None
        self._paying_s = now_s
        is_known = self.nobody_waits or now_s - self._wanted_since_s >= self._first_look_s
        return is_known and now_s >= self.rest_until_s

    def may_rest(self, now_s: float) -> InlineReason | None:
        """Why links that would pay are not used now; None: a hold-off or a look is not on. On any thread."""
        if now_s < self._hold_off.until_s:
            return InlineReason.HELD_UP
        return InlineReason.LOOK if now_s < self._look_until_s else None

    # What happened.

    def linking(self, now_s: float) -> None:
        """Links by cost are in use now."""
        if self._begun_s is None:
            self._begun_s, self._slower_since_s = now_s, math.inf
            self._paid_objects = 0.0
            self._good_since_s = min(self._good_since_s, now_s)

    def going_inline(self, now_s: float, *, do_pay: bool) -> None:
        """They are not; whether they would pay. Where they do not pay any more as producers wait, they rest."""
        is_idle = self._first_s == math.inf and now_s - self._stored_s >= _IDLE_S
        if self._begun_s is not None and self._inline_rate and self._stand_still and not (do_pay or is_idle):
            rate = self._rate.bytes_per_second(now_s)
            if rate < _KEPT * self._inline_rate and self._paid_objects < 1:
                self._held_up_at(rate, now_s)
        self._begun_s = None

    def append_seen(self, now_s: float) -> None:
        """Something was appended."""
        self._first_s = min(self._first_s, now_s)

    def appended(self, size: int, since_s: float, now_s: float) -> None:
        """So many bytes came since then."""
        self._rate.add(size, now_s, now_s - since_s)

    def are_held_up(self, gathered_bytes: int, paying_bytes: float, now_s: float) -> bool:
        """Before an upload by cost: whether so little came that links end here."""
        if self._begun_s is None:
            return False
        if self._inline_rate is None and gathered_bytes < paying_bytes:
            usual_bytes = self._usual_rate(now_s) * (now_s - self._begun_s)
            if gathered_bytes < _BEGINS * usual_bytes:
                self.held_up(now_s, f"{gathered_bytes} bytes came where {usual_bytes:.0f} were usual")
                return True
        if self._paid_objects + gathered_bytes / max(paying_bytes, 1.0) < 1 - _LOAN_OBJECTS:
            self.held_up(now_s, "objects became too small to pay")
            return True
        return False

    def _usual_rate(self, now_s: float) -> float:
        """What came inline, told when links have begun and all that was appended is read; 0: it was not looked at."""
        if not self._first_look_s:
            return 0.0
        # Of a load that began a moment ago the average knows a part.
        return self._rate.bytes_per_second(now_s) / -math.expm1((self._wanted_since_s - now_s) / _RATE_S)

    def uploading(self, size_bytes: int, paying_bytes: float, now_s: float) -> None:
        """An upload of so many bytes begins, where so many pay."""
        self._round_s, self._first_s = self._first_s, math.inf
        if self._begun_s is None:
            return
        if self._inline_rate is None:
            self._inline_rate = self._usual_rate(now_s)
        self._paid_objects = min(self._paid_objects + size_bytes / max(paying_bytes, 1.0) - 1, _LOAN_OBJECTS)

    def stored(self, upload_s: float, appended_bytes: int, usual_bytes: float | None, now_s: float) -> bool:
        """An upload took so long; how much was appended since it began, and is in such a time, if known.

        Whether links by cost end here, for a hold-off or a look.
        """
        self._share_disturbed += WEIGHT * ((appended_bytes > 0) - self._share_disturbed)
        if usual_bytes is not None:
            self._uploads += 1
            weight = max(1 / self._uploads, _MEANWHILE_WEIGHT)
            self._meanwhile_bytes += weight * (appended_bytes - self._meanwhile_bytes)
            self._usual_bytes += weight * (usual_bytes - self._usual_bytes)
        is_at_once = self._round_s - self._stored_s <= 2 * upload_s + 2 * QUIET_S
        self._at_once += _AT_ONCE_WEIGHT * (is_at_once - self._at_once)
        self._stored_s = now_s
        return self._begun_s is not None and self._judge(self._begun_s, now_s)

    def _judge(self, begun_s: float, now_s: float) -> bool:
        if not self._stand_still or self._inline_rate is None:
            self._slower_since_s = math.inf
        elif (rate := self._rate.bytes_per_second(now_s)) >= _KEPT * self._inline_rate:
            self._slower_since_s = math.inf
            if now_s - begun_s >= self._look_after_s:
                self._look_after_s = min(2 * self._look_after_s, GOOD_S)
                self._look_until_s = now_s + LOOK_S
                self._begun_s = self._inline_rate = None
                return True
        elif (
            self._paid_objects < 0
            or rate < _LOST * self._inline_rate
            or now_s - min(self._slower_since_s, now_s) >= SATURATED_S
        ):
            self._held_up_at(rate, now_s)
            return True
        elif self._slower_since_s == math.inf:
            self._slower_since_s = now_s
        if now_s - self._good_since_s >= GOOD_S:
            self._hold_off.reset()
        return False

    def _held_up_at(self, rate: float, now_s: float) -> None:
        inline_rate = self._inline_rate or 0.0
        self.held_up(now_s, f"{rate / 1e6:.2f} MB/s came through where {inline_rate / 1e6:.2f} did inline")

    def held_up(self, now_s: float, why: str) -> None:
        """Links end for a hold-off."""
        self._hold_off.begin(now_s)
        self._begun_s, self._good_since_s, self._look_after_s = None, math.inf, _LOOK_AFTER_S
        self._inline_rate = None
        self.held_up_s, self.why = now_s, why

    def did_well(self) -> None:
        """Links paid: the next hold-off is a short one."""
        self._hold_off.reset()
