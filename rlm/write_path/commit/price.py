"""Whether the present rate pays for objects. Sans-IO. All times are monotonic seconds.

An object combines all partitions that are led here, so the rate of all that may be linked counts. A load shows in two
places. While links are in use, the logs are read every few milliseconds and show the rate. While bytes go inline, the
logs are read seldom, and what followers fetch beyond the stored offsets shows it first.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.constants import GAINED_MAX, HOLD_OFF_S, PAYS_TIMES

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What objects cost and links save, in dollars, for the partitions that are led at one time."""

    object_usd: float
    """Cost of an object without entries: requests, and cross-zone metadata."""
    entry_usd: float
    byte_saved_usd: float
    """Saved by each linked byte; 0 or less: no object ever pays."""
    unpaying: frozenset[TopicIdPartition] = frozenset()
    """Partitions that never pay, whatever the size."""

    def break_even_bytes(self, entries: float) -> int:
        """Return the size in bytes from which an object with this many entries pays, or NEVER_PAYS."""
        if self.byte_saved_usd <= 0:
            return NEVER_PAYS
        return round((self.object_usd + entries * self.entry_usd) / self.byte_saved_usd)

    def paying_bytes(self, entries: float) -> float:
        """Return the average size that objects should have, so that they pay with something to spare."""
        return PAYS_TIMES * self.break_even_bytes(entries)


class Price:
    """Whether objects pay at one agent, by the rates of appends and of what followers fetch."""

    def __init__(self, judge: Callable[[Collection[Assignment]], Outlook], wait_max_s: float) -> None:
        """`judge` says what objects of partitions cost; appends within `wait_max_s` may share an object."""
        self._judge, self._wait_max_s = judge, wait_max_s
        self._led: Collection[Assignment] = ()
        self._outlook = judge(())
        self._appended = RateMeter()
        self._fetched: defaultdict[int, RateMeter] = defaultdict(RateMeter)
        self._did_pay = False
        """Whether the rate paid when bytes last came."""
        self._paid_s = self._uploading_s = -math.inf
        """When the rate last paid, and when the last object began that is made only because links pay."""
        self.rests_until_s = -math.inf
        """Until when no object is made only because links pay."""
        self._entries, self._gained = 1.0, 0.0
        """Of an object, on average; how many objects' worth the last ones had more than they should, below 0: less."""
        self.upload_s = 0.0
        """How long uploads took recently; 0 before the first."""
        self.spacing_s = 0.0
        """Least time from one upload to the next."""

    # What happened.

    def set_led(self, led: Collection[Assignment]) -> None:
        did_pay, self._led = not self._led or self.break_even_bytes != NEVER_PAYS, led
        self.reckon()
        if did_pay and led and self.break_even_bytes == NEVER_PAYS:
            life_s, told = max(one.object_life_s for one in led), "all but topics with the policy always goes inline"
            log.warning("links_never_pay", partitions=len(led), object_life_s=life_s, consequence=told)

    def reckon(self) -> None:
        """Calculate costs and savings again, because the ratio of packing may have changed."""
        self._outlook = self._judge(self._led)

    def appended(self, size: int, since_s: float, now_s: float) -> bool:
        """Record bytes of a log that may be linked, appended since `since_s`. Returns whether a new load begins."""
        return self._note(self._appended, size, now_s, now_s - since_s)

    def fetched(self, follower_id: int, size: int, now_s: float) -> bool:
        """Record bytes that a follower is about to get and that no object has. Returns whether a new load begins."""
        return self._note(self._fetched[follower_id], size, now_s)

    def uploaded(self, duration_s: float, entries: int = 1) -> None:
        self.upload_s += (duration_s - self.upload_s) / 8 if self.upload_s else duration_s
        self._entries += (entries - self._entries) / 8

    def uploading(self, size: int, now_s: float) -> None:
        """Record an object of `size` bytes that is made only because links pay; many small ones end that (`rests`)."""
        self._gained = min(self._gained + size / max(self.paying_bytes, 1) - 1, GAINED_MAX)
        self._uploading_s = now_s
        if self._gained < -1:
            self._gained, self.rests_until_s = 0.0, now_s + HOLD_OFF_S[0]

    def _note(self, meter: RateMeter, size: int, now_s: float, over_s: float = 0.0) -> bool:
        self._did_pay = self._brings_objects(now_s)
        meter.add(size, now_s, over_s)
        self._did_pay = self._brings_objects(now_s)
        is_new = self._did_pay and now_s - self._paid_s > HOLD_OFF_S[0]
        if is_new:
            self._gained, self.rests_until_s = 0.0, -math.inf
        if self._did_pay:
            self._paid_s = now_s
        return is_new

    # Questions. They change nothing.

    @property
    def break_even_bytes(self) -> int:
        """The size from which on an object is cheaper than its bytes inline, or NEVER_PAYS."""
        return self._outlook.break_even_bytes(self._entries)

    @property
    def paying_bytes(self) -> float:
        return self._outlook.paying_bytes(self._entries)

    def never_pays(self, one: Assignment) -> bool:
        """Whether this partition is linked by cost, and no object of it ever pays, whatever its size."""
        is_unpaying = self.break_even_bytes == NEVER_PAYS or one.topic_id_partition in self._outlook.unpaying
        return is_unpaying and one.link_policy is not LinkPolicy.ALWAYS

    def bytes_per_s(self, now_s: float) -> float:
        """Return the recent rate, shown by the logs or, sooner, by what a follower gets inline."""
        return max([meter.bytes_per_second(now_s) for meter in (self._appended, *list(self._fetched.values()))])

    def wait_s(self, at_most_s: float = math.inf) -> float:
        """Return for how many seconds an upload may wait for more, if its records may wait for `at_most_s`."""
        return max(min(at_most_s, self._wait_max_s), self.spacing_s)

    def object_bytes(self, now_s: float) -> float:
        """Return the size in bytes that an object reaches at the present rate."""
        return self.bytes_per_s(now_s) * self.wait_s()

    def pays(self, now_s: float) -> bool:
        """Whether objects pay at the present rate; to begin takes a higher rate than to go on, against flapping."""
        is_uploading = now_s < self._uploading_s + self.link_s  # what is paid for already is also used
        return is_uploading or (not self.rests(now_s) and self._brings_objects(now_s))

    def rests(self, now_s: float) -> bool:
        """Whether links are off for a hold-off, because objects turned out too small to pay."""
        return now_s < self.rests_until_s

    def _brings_objects(self, now_s: float) -> bool:
        return self.object_bytes(now_s) >= (1.0 if self._did_pay else PAYS_TIMES) * self.break_even_bytes

    @property
    def link_s(self) -> float:
        """Seconds from an upload's start until a follower has its bytes: reading takes about as long as writing."""
        return 2 * self.upload_s + self.spacing_s
