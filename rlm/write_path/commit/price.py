"""What an object and an inline byte cost now, and whether the present rate pays for objects. Sans-IO.

An object combines all partitions that are led here, so the rate of all that may be linked counts. A load shows in two
places. While links are in use, the logs are read every few milliseconds and show the rate. While bytes go inline, the
logs are read seldom, and what followers fetch beyond the stored offsets shows it first.
"""

import math
from collections import defaultdict
from collections.abc import Collection

import structlog

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.constants import GAINED_MAX, HOLD_OFF_S, LOAN, PAYS_TIMES, RATE_S
from rlm.write_path.commit.link_costs import LinkCosts, Outlook

log = structlog.get_logger(__name__)


class Price:
    """Belongs to one agent. All times are monotonic seconds."""

    def __init__(self, break_even_bytes: int, wait_max_s: float, costs: LinkCosts | None = None) -> None:
        """`break_even_bytes` is used while there are no `costs`; appends within `wait_max_s` may share an object."""
        self._wait_max_s = wait_max_s
        self._costs = costs
        self._led: Collection[Assignment] = ()
        self._outlook = Outlook.of_size(break_even_bytes)
        self._appended = RateMeter(RATE_S)
        self._fetched: defaultdict[int, RateMeter] = defaultdict(lambda: RateMeter(RATE_S))
        self._did_pay = False
        """Whether the rate paid when bytes last came."""
        self._paid_s = -math.inf
        self.begun_s = -math.inf
        """When it began to pay, after a pause."""
        self._entries = 1.0
        """Of an object, on average."""
        self._gained = 0.0
        """How many objects' worth the last ones had more than they should; below 0: less."""
        self.rests_until_s, self._rest_s = -math.inf, HOLD_OFF_S[0]
        self._uploading_s = -math.inf
        """When the last object began that is made only because links pay."""
        self.upload_s = 0.0
        """How long uploads took recently; 0 before the first."""
        self.spacing_s = 0.0
        """Least time from one upload to the next, unless an object is whole (`cadence.spacing_s`)."""

    # What happened.

    def set_led(self, led: Collection[Assignment]) -> None:
        """Set the partitions that are led here, and their followers."""
        self._led = led
        did_pay = self.break_even_bytes != NEVER_PAYS
        self.reckon()
        if self._costs is not None and did_pay and led and self.break_even_bytes == NEVER_PAYS:
            log.warning(
                "links_never_pay",
                cross_zone_gb_usd=self._costs.prices.zone_crossing_gb,
                partitions=len(led),
                remote_followers=len(set().union(*(one.remote_followers or () for one in led))),
                object_life_s=max(one.object_life_s for one in led),
                consequence="all but topics with the policy always goes inline",
            )

    def reckon(self) -> None:
        """Calculate again: how well inline bytes are packed may have changed."""
        if self._costs is not None:
            self._outlook = self._costs.judge(self._led)

    def appended(self, size: int, since_s: float, now_s: float) -> None:
        """Record that so many bytes were read from a log, appended since `since_s`, that may be linked."""
        self._note(self._appended, size, now_s, now_s - since_s)

    def fetched(self, follower_id: int, size: int, now_s: float) -> None:
        """Record that a follower is about to get so many bytes that may be linked and are not stored yet."""
        self._note(self._fetched[follower_id], size, now_s)

    def uploaded(self, duration_s: float, entries: int = 1) -> None:
        """Record that an upload of so many entries took so long."""
        self.upload_s += (duration_s - self.upload_s) / 8 if self.upload_s else duration_s
        self._entries += (entries - self._entries) / 8

    def uploading(self, size: int, now_s: float) -> None:
        """Record that an object of so many bytes begins, only because links pay. If many are small, links rest."""
        self._gained = min(self._gained + size / max(self.paying_bytes, 1) - 1, GAINED_MAX)
        self._uploading_s = now_s
        if self._gained < -LOAN:
            is_soon = now_s - self.rests_until_s < self._rest_s  # after the last rest
            self._rest_s = min(2 * self._rest_s, HOLD_OFF_S[1]) if is_soon else HOLD_OFF_S[0]
            self._gained, self.rests_until_s = 0.0, now_s + self._rest_s

    def _note(self, meter: RateMeter, size: int, now_s: float, over_s: float = 0.0) -> None:
        self._did_pay = self._brings_objects(now_s)
        meter.add(size, now_s, over_s)
        self._did_pay = self._brings_objects(now_s)
        if self._did_pay:
            if now_s - self._paid_s > HOLD_OFF_S[0]:  # a new load
                self.begun_s, self._gained, self.rests_until_s = now_s, 0.0, -math.inf
            self._paid_s = now_s

    # Questions. They change nothing.

    @property
    def break_even_bytes(self) -> int:
        """The size from which on an object is cheaper than its bytes inline, or NEVER_PAYS."""
        return self._outlook.break_even_bytes(self._entries)

    @property
    def paying_bytes(self) -> float:
        """The average size that objects should have, so that they pay with something to spare."""
        return self._outlook.paying_bytes(self._entries)

    @property
    def wanted_bytes(self) -> float:
        """The average size to wait for, if all producers do not wait sooner."""
        return self._outlook.wanted_bytes(self._entries)

    def never_pays(self, assignment: Assignment) -> bool:
        """Whether no object of this partition ever pays, whatever its size."""
        if assignment.link_policy is LinkPolicy.ALWAYS:
            return False
        if self.break_even_bytes == NEVER_PAYS:
            return True
        return assignment.topic_id_partition in self._outlook.unpaying

    def bytes_per_s(self, now_s: float) -> float:
        """Return the recent rate, shown by the logs or, sooner, by what a follower gets inline."""
        return max(meter.bytes_per_second(now_s) for meter in (self._appended, *list(self._fetched.values())))

    def wait_s(self, at_most_s: float) -> float:
        """Return how long an upload may wait for more, where its records may wait so long."""
        return max(min(at_most_s, self._wait_max_s), self.spacing_s)

    def pays(self, now_s: float) -> bool:
        """Whether the rate brings paying objects. Once it does, it may fall to what just pays, and seldom flaps."""
        is_uploading = now_s < self._uploading_s + self.link_s  # what is paid for already is also used
        return is_uploading or (not self.rests(now_s) and self._brings_objects(now_s))

    def rests(self, now_s: float) -> bool:
        """Whether objects were too small lately, whatever the rate."""
        return now_s < self.rests_until_s

    def object_bytes(self, now_s: float) -> float:
        """Return the size of the objects that the rate brings."""
        return self.bytes_per_s(now_s) * self.wait_s(self._wait_max_s)

    def _brings_objects(self, now_s: float) -> bool:
        return self.object_bytes(now_s) >= (1.0 if self._did_pay else PAYS_TIMES) * self.break_even_bytes

    @property
    def link_s(self) -> float:
        """Seconds from an upload's start until a follower has its bytes: reading takes about as long as writing."""
        return 2 * self.upload_s + self.spacing_s
