"""Link or inline: which way the newest bytes of a partition should travel.

An object costs requests, fees and storage, an inline byte costs the zone border (`link_costs`). Below the break-even
size an object loses money, so with the policy by cost the bytes of small loads go inline, as fast as in stock Kafka.
Above it, links are used and everything is done to make them quick.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

import structlog

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.group_commit import Urgency
from rlm.write_path.commit.link_costs import LinkCosts, Outlook
from rlm.write_path.commit.link_pauses import LinkPauses, PauseLimits
from rlm.write_path.commit.link_trial import LinkTrial

log = structlog.get_logger(__name__)


class LinkMode(Enum):
    """How the newest bytes of a partition travel now."""

    OFF = "off"
    """As in stock Kafka: the feature is off for the topic or for now, or the partition is not led here."""
    INLINE = "inline"
    LINK = "link"
    """As links; it is worth waiting for the upload."""


class RateMeter:
    """Bytes per second, exponentially averaged: after `time_constant_s` a step has made 63 % of its way."""

    def __init__(self, time_constant_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._bytes = 0.0
        self._at_s = -math.inf

    def add(self, size: int, now_s: float, over_s: float = 0.0) -> None:
        """Count so many bytes at this (monotonic) time, which came evenly over the last `over_s` seconds."""
        self._decay(now_s)
        if over_s > 0:  # what came first has decayed since
            size_left = size * self._time_constant_s / over_s * -math.expm1(-over_s / self._time_constant_s)
            self._bytes += size_left
        else:
            self._bytes += size

    def bytes_per_second(self, now_s: float) -> float:
        """The rate as of now."""
        self._decay(now_s)
        return self._bytes / self._time_constant_s

    def _decay(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._bytes *= math.exp((self._at_s - now_s) / self._time_constant_s)
            self._at_s = now_s


@dataclass(frozen=True, slots=True)
class CostLimits:
    """What the decision by cost rests on."""

    break_even_bytes: int
    """While there are no `LinkCosts`."""
    upload_interval_s: float
    """How often objects are uploaded while linking."""
    hold_s: float = 0.2
    """For how long links stay in use after the last reason for them, so that the mode does not flap."""
    pauses: PauseLimits = field(default_factory=PauseLimits)
    time_constant_s: float = 0.1
    """Rates are averaged over so long. The bytes of a load that begins go inline for about as long."""


class _Uploads:
    """What they were of late."""

    def __init__(self) -> None:
        self.duration_s = 0.0
        self.entries = 1.0
        """Of an object."""

    def add(self, duration_s: float, entries: int) -> None:
        self.duration_s += (duration_s - self.duration_s) / 8 if self.duration_s else duration_s
        self.entries += (entries - self.entries) / 8


class LinkDecider:
    """Decides per agent, as an object combines all partitions that are led here.

    A load shows in two places. While links are in use, the logs are read every few milliseconds and tell the rate;
    while bytes go inline, the logs are read seldom, and what followers fetch beyond the stored offsets tells it first.
    """

    def __init__(self, limits: CostLimits, costs: LinkCosts | None = None) -> None:
        self._limits = limits
        self._costs = costs
        self._outlook: Outlook | None = None
        self._uploads = _Uploads()
        self._appended = RateMeter(limits.time_constant_s)
        self._fetched: defaultdict[int, RateMeter] = defaultdict(lambda: RateMeter(limits.time_constant_s))
        self._hold_until_s = -math.inf
        self.pauses = LinkPauses(limits.pauses)
        self.interval_s = limits.upload_interval_s
        """From one upload to the next, as it would be now."""
        self.spacing_s = 0.0
        """From one upload to the next at least (`rlm.write_path.commit.object_spacing`), unless an object is whole."""
        self.is_off: Callable[[], bool] = lambda: False
        """Whether nothing may be linked now, whatever the policies say."""
        self.trial: LinkTrial | None = None
        """Where objects may wait for several intervals."""

    def appended(self, size: int, since_s: float, now_s: float) -> None:
        """So many bytes were read from an active segment led here, all that came since then."""
        self._appended.add(size, now_s, now_s - since_s)

    def fetched(self, follower_id: int, size: int, now_s: float) -> None:
        """A follower is about to be sent so many bytes that are not stored yet."""
        self._fetched[follower_id].add(size, now_s)

    def led(self, assignments: Collection[Assignment]) -> None:
        """These partitions are led here from now on, and followed from where they say."""
        if self._costs is None:
            return
        paid, self._outlook = self.break_even_bytes != NEVER_PAYS, self._costs.outlook(assignments)
        if paid and assignments and self.break_even_bytes == NEVER_PAYS:
            log.warning(
                "links_never_pay",
                border_gb_usd=self._costs.prices.zone_crossing_gb,
                partitions=len(assignments),
                remote_followers=len(set().union(*(one.remote_followers or () for one in assignments))),
                object_life_s=max(one.object_life_s for one in assignments),
                consequence="all but topics with the policy always goes inline",
            )

    def may_link(self, assignment: Assignment) -> bool:
        """Whether links to this partition's bytes can be worth anything to anybody."""
        if assignment.remote_followers is not None and not assignment.remote_followers:
            return False
        if assignment.link_policy is LinkPolicy.ALWAYS or self._outlook is None:
            return True
        return assignment.topic_id_partition not in self._outlook.unpaying

    @property
    def break_even_bytes(self) -> int:
        """The size from which on an object is cheaper than its bytes inline, or NEVER_PAYS."""
        if self._outlook is None:
            return self._limits.break_even_bytes
        return self._outlook.break_even_bytes(self._uploads.entries)

    def uploaded(self, duration_s: float, entries: int = 1) -> None:
        """An upload of so many entries took so long."""
        self._uploads.add(duration_s, entries)

    def mode(self, policy: LinkPolicy, latency_bound_ms: int, pending_bytes: int, now_s: float) -> LinkMode:
        """The way for `pending_bytes` that a follower waits for."""
        if self.is_off():
            return LinkMode.OFF
        if policy is LinkPolicy.ALWAYS:
            return LinkMode.LINK
        rate = max(meter.bytes_per_second(now_s) for meter in (self._appended, *self._fetched.values()))
        if self._object_pays(pending_bytes, rate, now_s) or self._is_tried(policy, rate, now_s):
            self._hold_until_s = now_s + self._limits.hold_s
        # Reading an object takes about as long as writing it.
        if policy is LinkPolicy.LATENCY and (2 * self._uploads.duration_s + self.spacing_s) * 1000 > latency_bound_ms:
            return LinkMode.INLINE
        return LinkMode.LINK if now_s < self._hold_until_s else LinkMode.INLINE

    def mode_of(self, assignment: Assignment, pending_bytes: int, now_s: float) -> LinkMode:
        """`mode`, for what of this partition and others together a follower in another zone waits for."""
        if not self.may_link(assignment):
            return LinkMode.OFF if self.is_off() else LinkMode.INLINE
        return self.mode(assignment.link_policy, assignment.latency_bound_ms, pending_bytes, now_s)

    def urgency(self, assignments: Iterable[Assignment], now_s: float) -> Urgency:
        """How an upload is wanted: as by the most urgent of those whose bytes it would take."""
        urgency = Urgency.ARCHIVE
        for wanted in assignments:
            if wanted.is_durable:
                return Urgency.LINKS
            if self.mode_of(wanted, 0, now_s) is LinkMode.LINK:
                if wanted.link_policy is LinkPolicy.ALWAYS:
                    return Urgency.LINKS
                is_bounded = wanted.link_policy is LinkPolicy.LATENCY
                urgency = max(urgency, Urgency.BOUNDED_LINKS if is_bounded else Urgency.PAYING_LINKS)
        return urgency

    def end_links(self) -> None:
        """Bytes go inline, until links pay anew."""
        self._hold_until_s = -math.inf

    def did_not_pay(self, now_s: float) -> None:
        """What an interval brought for links was less than pays: bytes go inline for a while."""
        self.end_links()
        self.pauses.did_not_pay(now_s)

    def holds_up(self, now_s: float) -> None:
        """Producers wait for rounds that carry too little: bytes go inline for long."""
        self.end_links()
        self.pauses.held_up(now_s)

    def expected_bytes(self, now_s: float) -> float:
        """What an upload interval brings at the rate of late."""
        return self._appended.bytes_per_second(now_s) * self._limits.upload_interval_s

    @property
    def full_object_bytes(self) -> float:
        """From this size on, what an object costs beside its bytes is a small part of what these cost."""
        return math.inf if self._outlook is None else self._outlook.full_object_bytes(self._uploads.entries)

    def pays(self, size: int) -> bool:
        """Whether an object of this size is cheaper than its bytes inline."""
        return size >= self.break_even_bytes

    def _object_pays(self, pending_bytes: int, rate: float, now_s: float) -> bool:
        return self.pauses.are_over(now_s) and self.pays(max(pending_bytes, int(rate * self.interval_s)))

    def _is_tried(self, policy: LinkPolicy, rate: float, now_s: float) -> bool:
        if policy is not LinkPolicy.COST or self.trial is None:
            return False
        may_begin = now_s >= self._hold_until_s and self.pauses.are_over(now_s)
        return self.trial.begin(rate, self.break_even_bytes, now_s) if may_begin else self.trial.is_on
