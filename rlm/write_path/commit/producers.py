"""Whether links cost producers their rate, and for how long links rest if they do, sans-IO.

A broker takes one Produce request of a connection at a time. It answers a producer with acks=all when the followers
have the records, and by link that takes an upload and a read: a round. As long as rounds carry what is produced, each
answer comes later and nothing is lost. Beyond that, producers lose throughput and their queues grow without an end.

The broker's files do not tell acks, and on a busy machine patterns of appends are too noisy to show who waits. So rates
are compared: what comes inline is measured before links begin, and then against what comes with them.

- *Less comes with links*, for half a second: bytes go inline for a look. If more comes then, as before, links have held
  producers up. If not, the load fell, and links go on.
- *As much comes*: the load may have grown to more than rounds carry. So there is a look now and then, soon after the
  rate has changed, and less and less often while looks find nothing.
- *A first round is far too small*, or objects do not pay: links end at once. Small requests that wait for each other
  must not stand in a queue for half a second.

Links that ended so rest for a hold-off, doubled each time; a minute in which they hold nobody up resets it. Appends are
used the other way round only: if about as much is appended during uploads as at other times, producers go on whatever
becomes of their records, and there are no looks.
"""

import math
from typing import Final

from plugin.inline_reason import InlineReason
from rlm.write_path.commit.doubling_pause import DoublingPause

QUIET_S: Final = 0.004
"""Seconds: so long without an append is a silence. It must be longer than the gaps within a round, which a busy machine
draws out; of a warm round of 25 ms, 11 pass until all six producers have appended anew. By judgement."""
HOLD_OFF_MIN_S: Final = 1.0
HOLD_OFF_MAX_S: Final = 600.0
"""Seconds. A try takes half a second, so in five minutes of saturation some nine tries take 2 % of the time."""
GOOD_S: Final = 60.0
"""Seconds of links that hold nobody up, after which the next hold-off is a short one."""
WINDOW_S: Final = 0.5
"""Seconds over which the rate of links is measured."""
_SMALL_WINDOW_S: Final = 0.05
"""Seconds after which an upload too small to pay ends a window in which little came: what waits has to be drained."""
_LITTLE: Final = 0.5
"""Share of the inline rate that is little."""
LOOK_S: Final = 0.4
"""Seconds for which bytes go inline to see what rate producers have."""
_KEPT: Final = 0.85
"""Share of the inline rate that producers keep. With `always`, 10 MB/s of one default producer came to 7.7."""
_CHANGED: Final = 1.3
"""A load that grew by so much is another one."""
_IDLE_S: Final = 0.3
"""Seconds since the last append and the last upload by which a load has ended: longer than uploads wait for more."""
_PAUSE_S: Final = 5.0
"""Seconds after which a load that pays again is another one."""
_LOOK_AFTER_S: Final = 3.0
"""Seconds from one look to the next where nothing seems to be lost; doubled while looks find nothing."""
_LOOK_AFTER_MAX_S: Final = 60.0
"""Seconds. Looks at this distance cost 0.7 % of the links."""
_BEGINS: Final = 0.35
"""Share of what the rate brings that must come before the first upload. By judgement: a few batches may be late, and of
those who wait for a small request nobody appends."""
_LOAN_OBJECTS: Final = 4.0
"""So many objects' worth may be lost to objects that are too small before links end: rounds of default producers carry
one to two break-evens, so single ones do not pay, and all together do."""
WEIGHT: Final = 1 / 4
"""Share of the newest upload in what is known of all, so that a load that changes is recognised within a few."""
_MOST: Final = 0.5
"""Share of uploads. The plain half."""
_UNMOVED: Final = 0.8
"""Share of what is appended usually: from it on during uploads, nobody is taken to wait. Those who wait for an upload
append nothing meanwhile, so a fifth of the load's producers may, or all of them for a fifth of their time."""
_MEANWHILE_WEIGHT: Final = 1 / 16
"""Share of the newest upload in that share: an upload takes a few batches' time, so it takes many to tell."""
_MANY_WEIGHT: Final = 1 / 32
"""Share of the newest upload in what tells for whom no look is made."""
_MANY: Final = 0.35
"""Share of uploads. With appends during so many, and _MOVED of the usual bytes, a lower rate is no sign of producers
that wait. On two cores at a load of 15, producers with acks=1 came to 0.3 to 0.9, six with acks=all to 0 to 0.4; on a
quiet machine it is 0.95 and 0."""
_MOVED: Final = 0.65
"""Share of the usual bytes. Producers that all wait come to 0.6 at most, in step or not (`perf.cost`)."""


class _Measured:
    """Measures the rate of appends since a moment."""

    def __init__(self) -> None:
        self._since_s, self._bytes = -math.inf, 0.0

    def restart(self, now_s: float) -> None:
        self._since_s, self._bytes = now_s, 0.0

    def add(self, size: int, since_s: float, now_s: float) -> None:
        """Count bytes that came evenly between the two moments, except those before the measurement began."""
        begin_s = max(since_s, self._since_s)
        self._bytes += size if begin_s == since_s else size * max(now_s - begin_s, 0.0) / (now_s - since_s)

    def seconds(self, now_s: float) -> float:
        return now_s - self._since_s

    def bytes_per_s(self, now_s: float) -> float:
        return self._bytes / max(now_s - self._since_s, 0.001)


class Producers:
    """Judges whether producers of the partitions led here lose throughput by links. Times are monotonic seconds."""

    def __init__(self, first_look_s: float = LOOK_S) -> None:
        """A load that begins goes inline for `first_look_s`, which tells the rate of its producers."""
        self._first_look_s = first_look_s
        self._wanted_since_s = self._paying_s = -math.inf
        """When links began to pay, short pauses aside, and when they did last."""
        self._inline, self._window = _Measured(), _Measured()
        """The rate since bytes went inline last, and in the current window of links."""
        self._begun_s: float | None = None
        """When links by cost began; None: bytes go inline."""
        self._inline_rate: float | None = None
        """What came through before they began; None until the first upload since tells it."""
        self._linked_rate: float | None = None
        """What links brought before the look under way."""
        self._is_lower = False
        """Whether that was less than what came inline before them."""
        self._look_until_s = -math.inf
        self._looks = DoublingPause(_LOOK_AFTER_S, _LOOK_AFTER_MAX_S)
        self._looks_when_lower = DoublingPause(WINDOW_S, _LOOK_AFTER_MAX_S)
        self._append_s = self._stored_s = -math.inf
        self._first_append_s, self._is_read = -math.inf, True
        """The first append after the last read, and whether none came since."""
        self._share_disturbed = self._share_disturbed_of_many = 0.0
        self._meanwhile_bytes = self._usual_bytes = 0.0
        """Bytes appended during the last uploads, and usually in as much time."""
        self._uploads = 0
        self._good_since_s = math.inf
        self._paid_objects = 0.0
        """How many objects' worth was saved since links began; below 0: lost."""
        self._hold_off = DoublingPause(HOLD_OFF_MIN_S, HOLD_OFF_MAX_S)
        self.held_up_s: float | None = None
        """When links last ended because they held producers up."""
        self.why = ""
        """Why, in words."""

    def __str__(self) -> str:
        meanwhile = self._meanwhile_bytes / max(self._usual_bytes, 1.0)
        inline = "?" if self._inline_rate is None else f"{self._inline_rate / 1e6:.2f}"
        return (
            f"links {'off' if self._begun_s is None else f'since {self._begun_s:.3f}'}, "
            f"producers {'wait' if self.wait else 'go on'}, {meanwhile:.2f} of the usual come during uploads, "
            f"MB/s inline {inline}, paid {self._paid_objects:+.1f} objects, next look at {self._looks.until_s:.3f}, "
            f"hold-off until {self.rest_until_s:.3f}: {self.why or 'none'}"
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
    def _may_wait(self) -> bool:
        """Whether a lower rate may come from producers that wait, which is what looks are for."""
        moved = self._meanwhile_bytes >= _MOVED * self._usual_bytes
        return self._share_disturbed_of_many < _MANY or not moved

    @property
    def rest_until_s(self) -> float:
        """Until when nothing is linked by cost."""
        return max(self._look_until_s, self._hold_off.until_s)

    def may_link(self, now_s: float) -> bool:
        """Tell whether links that would pay may be used now.

        No hold-off may be on, and the inline rate must be known, unless nobody waits.
        """
        if now_s - self._paying_s > _PAUSE_S:
            self._wanted_since_s = now_s
            self._looks.reset()
            self._end_links(now_s)
        self._paying_s = now_s
        is_known = self.nobody_waits or now_s - self._wanted_since_s >= self._first_look_s
        return is_known and now_s >= self.rest_until_s

    def may_rest(self, now_s: float) -> InlineReason | None:
        """Return why links that would pay rest now, or None if they do not. May be called on any thread."""
        if now_s < self._hold_off.until_s:
            return InlineReason.HELD_UP
        return InlineReason.LOOK if now_s < self._look_until_s else None

    # What happened.

    def linking(self, now_s: float) -> None:
        """Note that links by cost are in use."""
        if self._begun_s is not None:
            return
        self._begun_s = now_s
        self._good_since_s = min(self._good_since_s, now_s)
        if self._inline_rate is None or self._inline.seconds(now_s) >= LOOK_S:
            self._inline_rate, self._paid_objects = None, 0.0

    def going_inline(self, now_s: float, *, do_pay: bool) -> None:
        """Note that links by cost are not in use. If they stopped paying because producers wait, they rest."""
        if self._begun_s is None:
            return
        is_idle = now_s - max(self._append_s, self._stored_s) >= _IDLE_S
        if self._inline_rate and self.wait and self._paid_objects < 1 and not (do_pay or is_idle):
            rate = self._window.bytes_per_s(now_s)
            if rate < _KEPT * self._inline_rate:
                self._lost(rate, self._inline_rate, now_s)
                return
        self._go_inline(now_s)

    def _go_inline(self, now_s: float) -> None:
        self._begun_s = None
        self._inline.restart(now_s)

    def _end_links(self, now_s: float) -> None:
        """Go inline until the inline rate is measured anew."""
        self._go_inline(now_s)
        self._inline_rate = self._linked_rate = None

    def append_seen(self, now_s: float) -> None:
        """Note an append."""
        self._append_s = now_s
        if self._is_read:
            self._first_append_s, self._is_read = now_s, False

    def appended(self, size: int, since_s: float, now_s: float) -> None:
        """Note bytes that came since then, or since the first append that was seen after it."""
        self._is_read, since_s = True, max(since_s, min(self._first_append_s, now_s))
        self._inline.add(size, since_s, now_s)
        self._window.add(size, since_s, now_s)

    def are_held_up(self, gathered_bytes: int, paying_bytes: float, now_s: float) -> bool:
        """Tell before an upload by cost whether so little came that links end here."""
        if self._begun_s is None:
            return False
        if self._inline_rate is None and self._first_look_s and gathered_bytes < paying_bytes:
            usual_bytes = self._inline.bytes_per_s(now_s) * (now_s - self._begun_s)
            if gathered_bytes < _BEGINS * usual_bytes:
                self.held_up(now_s, f"{gathered_bytes} bytes came where {usual_bytes:.0f} were usual")
                return True
        if self._paid_objects + gathered_bytes / max(paying_bytes, 1.0) < 1 - _LOAN_OBJECTS:
            self.held_up(now_s, "objects became too small to pay")
            return True
        return False

    def uploading(self, size_bytes: int, paying_bytes: float, now_s: float) -> None:
        """Note that an upload begins, and compare rates. All that was appended is read by now."""
        if self._begun_s is None:
            return
        self._paid_objects = min(self._paid_objects + size_bytes / max(paying_bytes, 1.0) - 1, _LOAN_OBJECTS)
        if not self._first_look_s:
            return
        if self._inline_rate is None:
            self._compare_look(now_s)
        elif self._window.seconds(now_s) >= WINDOW_S or (
            size_bytes < paying_bytes
            and self._window.seconds(now_s) >= _SMALL_WINDOW_S
            and self._window.bytes_per_s(now_s) < _LITTLE * self._inline_rate
        ):
            self._compare_links(self._inline_rate, now_s)

    def _compare_look(self, now_s: float) -> None:
        """Take the inline rate when links begin, and hold the links before a look against it."""
        inline_rate, linked_rate = self._inline.bytes_per_s(now_s), self._linked_rate
        if linked_rate is not None and linked_rate < _KEPT * inline_rate:
            if self._is_lower:
                self._lost(linked_rate, inline_rate, now_s)
                return
            self._looks_when_lower.reset()
        if self._looks.is_over(now_s):
            self._looks.begin(now_s)
        self._inline_rate, self._linked_rate = inline_rate, None
        self._window.restart(now_s)

    def _compare_links(self, inline_rate: float, now_s: float) -> None:
        """Hold the rate of a window of links against the inline rate."""
        rate = self._window.bytes_per_s(now_s)
        self._window.restart(now_s)
        if not self._may_wait:
            self._inline_rate = rate
        elif rate < _KEPT * inline_rate:
            if self._paid_objects < 0:
                self._lost(rate, inline_rate, now_s)
            elif self._looks_when_lower.is_over(now_s):
                self._looks_when_lower.begin(now_s)
                self._look(now_s, rate, is_lower=True)
        elif self._looks.is_over(now_s):
            self._look(now_s, rate, is_lower=False)
        elif rate > _CHANGED * inline_rate and self._looks.until_s > now_s + _LOOK_AFTER_S:
            self._looks.reset()
            self._looks.begin(now_s)
        elif now_s >= self._looks_when_lower.until_s + _LOOK_AFTER_MAX_S:
            self._looks_when_lower.reset()
        if now_s - self._good_since_s >= GOOD_S:
            self._hold_off.reset()

    def _look(self, now_s: float, linked_rate: float, *, is_lower: bool) -> None:
        self._end_links(now_s)
        self._linked_rate, self._is_lower = linked_rate, is_lower
        self._look_until_s = now_s + LOOK_S

    def stored(self, upload_s: float, appended_bytes: int, usual_bytes: float | None, now_s: float) -> None:
        """Note a stored upload: what was appended since it began, and what usually is in as much time, if known."""
        self._stored_s = now_s
        self._share_disturbed_of_many += _MANY_WEIGHT * ((appended_bytes > 0) - self._share_disturbed_of_many)
        self._share_disturbed += WEIGHT * ((appended_bytes > 0) - self._share_disturbed)
        if usual_bytes is not None:
            self._uploads += 1
            weight = max(1 / self._uploads, _MEANWHILE_WEIGHT)
            self._meanwhile_bytes += weight * (appended_bytes - self._meanwhile_bytes)
            self._usual_bytes += weight * (usual_bytes - self._usual_bytes)

    def _lost(self, rate: float, inline_rate: float, now_s: float) -> None:
        self.held_up(now_s, f"{rate / 1e6:.2f} MB/s came through where {inline_rate / 1e6:.2f} did inline")

    def held_up(self, now_s: float, why: str) -> None:
        """End links for a hold-off."""
        self._hold_off.begin(now_s)
        self._good_since_s = math.inf
        self._looks.reset()
        self._looks_when_lower.reset()
        self._end_links(now_s)
        self.held_up_s, self.why = now_s, why

    def did_well(self) -> None:
        """Note that links paid: the next hold-off is a short one."""
        self._hold_off.reset()
