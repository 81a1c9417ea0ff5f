"""Detects producers that wait for uploads and lose throughput by links, and pauses links for them. Sans-IO.

A broker handles one Produce request of a connection at a time. With acks=all each request is answered when the
followers have it, which by link takes an upload and a read: a round. As long as rounds carry what producers send,
answers come later and nothing is lost. Beyond that, requests pile up without end. The broker's files do not show acks,
so three signs are used; the first two end links:

- *A first round that is far too small.* Links begin, and the bytes that the rate should have brought do not come:
  requests are small and each waits for the one before. Links end before the first upload.
- *A lower rate while producers wait.* Less is appended while uploads are under way than at other times, more comes
  right after them without an idle gap, and less comes in total than inline: links end at once if such rounds do not pay
  on the average, and after half a second if they do. If as much comes during uploads, or gaps are left, a lower rate
  only means that the load fell; at the same rate producers only wait longer.
- *The same rate while they wait.* A load may have grown beyond what rounds carry since it was measured. So bytes go
  inline for a moment now and then, and links begin again with the newly measured rate.

Links that ended this way pause for a hold-off, doubled each time; a minute of links without a slowdown resets it.
"""

import math
from typing import Final

from plugin.inline_reason import InlineReason
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.doubling_pause import DoublingPause

QUIET_S: Final = 0.004
"""Seconds without an append that count as a silence. It must be longer than the gaps within a round, which a busy
machine stretches: of a warm round of 25 ms, 11 pass until all six producers have appended again. By judgement."""
HOLD_OFF_MIN_S: Final = 1.0
HOLD_OFF_MAX_S: Final = 600.0
"""Seconds. A try takes half a second, so in five minutes of saturation some nine tries take 2 % of the time."""
GOOD_S: Final = 60.0
"""Seconds of links without a slowdown after which the next hold-off is a short one."""
SATURATED_S: Final = 0.5
"""Seconds of a lower rate that end links."""
_KEPT: Final = 0.85
"""Share of the inline rate that producers must keep. With `always`, 10 MB/s of one default producer fell to 7.7."""
_LOST: Final = 0.5
"""Below this share of the inline rate links end at once, because what waits meanwhile has to be drained."""
_IDLE_S: Final = 0.1
"""Seconds without an append after an upload that mean the end of a load."""
LOOK_S: Final = 0.4
"""Seconds for which bytes go inline to measure the producers' rate."""
_PAUSE_S: Final = 5.0
"""After a pause of so many seconds, a load that pays counts as a new one."""
_LOOK_AFTER_S: Final = 3.0
"""Seconds of waiting producers before the first such look; doubled by each that saw the same rate, up to a minute."""
_BEGINS: Final = 0.35
"""Share of what the rate brings that must come before the first upload. By judgement: a few batches may be late, and
producers that wait for a small request append nothing."""
_RATE_S: Final = 0.5
"""Seconds over which the kept rate is averaged."""
_LOAN_OBJECTS: Final = 4.0
"""Objects' worth that may be lost to small objects before links end: rounds of default producers carry one to two
break-evens, so single ones may not pay while all together do."""
WEIGHT: Final = 1 / 4
"""Weight of the newest upload in the averages, so that a changed load is recognised within a few uploads."""
_MOST: Final = 0.5
"""Share of uploads that counts as most: the plain half."""
_STILL: Final = 0.6
"""Producers count as waiting if appends during uploads fall below this share of the usual. If all wait it is at most
0.6, in step or not; if nobody does it is 0.95 or more (`perf.cost`)."""
_AT_ONCE: Final = 0.7
"""Share of uploads with appends right after or during them. Below it there are idle gaps, so rounds carry all that is
produced. At saturation it is 0.95 or more (`perf.cost`)."""
_AT_ONCE_WEIGHT: Final = 1 / 8
_UNMOVED: Final = 0.8
"""Nobody counts as waiting if appends during uploads reach this share of the usual. Waiting producers append nothing
during an upload, so up to a fifth of the producers may wait, or all of them for a fifth of the time."""
_MEANWHILE_WEIGHT: Final = 1 / 16
"""Weight of the newest upload for the share of appends during uploads. An upload takes the time of a few batches, so
many uploads are needed."""


class Producers:
    """The producers of everything that is led here. All times are monotonic seconds."""

    def __init__(self, first_look_s: float = LOOK_S) -> None:
        """For `first_look_s` the bytes of a new load go inline, to measure its producers' rate."""
        self._first_look_s = first_look_s
        self._wanted_since_s = self._paying_s = -math.inf
        """Since when links would pay, ignoring short pauses, and when they last did."""
        self._rate = RateMeter(_RATE_S)
        self._begun_s: float | None = None
        """When links by cost began; None: bytes go inline."""
        self._inline_rate: float | None = None
        """The rate before links began, known from the first upload on."""
        self._first_s = self._round_s = math.inf
        """First append since the last upload began, and first append of the upload under way; inf: none."""
        self._at_once = _AT_ONCE
        """Share of uploads that were followed by appends without an idle gap."""
        self._stored_s = -math.inf
        self._share_disturbed = 0.0
        self._meanwhile_bytes = self._usual_bytes = 0.0
        """Average bytes appended during the last uploads, and in as much time in general."""
        self._uploads = 0
        self._slower_since_s = math.inf
        self._good_since_s = math.inf
        self._look_after_s = _LOOK_AFTER_S
        self._look_until_s = -math.inf
        self._paid_objects = 0.0
        """How much more than break-even the objects since links began have brought, in objects' worth; negative:
        less.
        """
        self._hold_off = DoublingPause(HOLD_OFF_MIN_S, HOLD_OFF_MAX_S)
        self.held_up_s: float | None = None
        """When links last ended because they slowed producers down."""
        self.why = ""
        """Why, in words."""

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
        """Whether most of the last uploads met a silence that lasted until they were stored. At first True."""
        return self._share_disturbed < _MOST

    @property
    def nobody_waits(self) -> bool:
        """Whether as much was appended during the last uploads as at any other time."""
        return not self.wait and self._meanwhile_bytes >= _UNMOVED * self._usual_bytes

    @property
    def _stand_still(self) -> bool:
        """Whether a lower rate is a loss of waiting producers: little comes during uploads, more right after them."""
        return self._at_once >= _AT_ONCE and self._meanwhile_bytes < _STILL * self._usual_bytes

    @property
    def rest_until_s(self) -> float:
        """Until when nothing is linked by cost."""
        return max(self._look_until_s, self._hold_off.until_s)

    def may_link(self, now_s: float) -> bool:
        """Whether links that would pay may be used:

        no hold-off is on, and the inline rate was measured, unless nobody waits.
        """
        if now_s - self._paying_s > _PAUSE_S:
            self._wanted_since_s, self._inline_rate = now_s, None
        self._paying_s = now_s
        is_known = self.nobody_waits or now_s - self._wanted_since_s >= self._first_look_s
        return is_known and now_s >= self.rest_until_s

    def may_rest(self, now_s: float) -> InlineReason | None:
        """Why links that would pay are not used now; None: neither a hold-off nor a look is on. On any thread."""
        if now_s < self._hold_off.until_s:
            return InlineReason.HELD_UP
        return InlineReason.LOOK if now_s < self._look_until_s else None

    # What happened.

    def linking(self, now_s: float) -> None:
        """Record that links by cost are in use now."""
        if self._begun_s is None:
            self._begun_s, self._slower_since_s = now_s, math.inf
            self._paid_objects = 0.0
            self._good_since_s = min(self._good_since_s, now_s)

    def going_inline(self, now_s: float, *, do_pay: bool) -> None:
        """Record that bytes go inline now, and whether links would pay.

        If they stop paying while producers wait, they pause.
        """
        is_idle = self._first_s == math.inf and now_s - self._stored_s >= _IDLE_S
        if self._begun_s is not None and self._inline_rate and self._stand_still and not (do_pay or is_idle):
            rate = self._rate.bytes_per_second(now_s)
            if rate < _KEPT * self._inline_rate and self._paid_objects < 1:
                self._held_up_at(rate, now_s)
        self._begun_s = None

    def append_seen(self, now_s: float) -> None:
        """Record that an append was noticed."""
        self._first_s = min(self._first_s, now_s)

    def appended(self, size: int, since_s: float, now_s: float) -> None:
        """Record the bytes that came since `since_s`."""
        self._rate.add(size, now_s, now_s - since_s)

    def are_held_up(self, gathered_bytes: int, paying_bytes: float, now_s: float) -> bool:
        """Check before an upload by cost. Returns whether so little came that links end here."""
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
        """Return the rate before links, once they have begun and all appends are read; 0: it was not measured."""
        if not self._first_look_s:
            return 0.0
        # The average knows only a part of a load that began a moment ago.
        return self._rate.bytes_per_second(now_s) / -math.expm1((self._wanted_since_s - now_s) / _RATE_S)

    def uploading(self, size_bytes: int, paying_bytes: float, now_s: float) -> None:
        """Record that an upload of so many bytes begins, and how many bytes would pay."""
        self._round_s, self._first_s = self._first_s, math.inf
        if self._begun_s is None:
            return
        if self._inline_rate is None:
            self._inline_rate = self._usual_rate(now_s)
        self._paid_objects = min(self._paid_objects + size_bytes / max(paying_bytes, 1.0) - 1, _LOAN_OBJECTS)

    def stored(self, upload_s: float, appended_bytes: int, usual_bytes: float | None, now_s: float) -> bool:
        """Record the end of an upload, the bytes appended since it began, and the usual bytes in that time, if known.

        Returns whether links by cost end here, for a hold-off or a look.
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
        """End links for a hold-off."""
        self._hold_off.begin(now_s)
        self._begun_s, self._good_since_s, self._look_after_s = None, math.inf, _LOOK_AFTER_S
        self._inline_rate = None
        self.held_up_s, self.why = now_s, why

    def did_well(self) -> None:
        """Make the next hold-off a short one, because links paid."""
        self._hold_off.reset()
