"""Decides between link and inline for the newest bytes of a partition.

An object costs requests, fees and storage; an inline byte costs cross-zone traffic (`link_costs`). Below the break-even
size an object loses money, so with the policy by cost the bytes of small loads go inline, as fast as in stock Kafka. If
the rate brings a paying object within the time that an upload may wait, links are used, unless they slow producers down
(`Producers`).
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from plugin.prices import NEVER_PAYS
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.group_commit import UPLOAD_WAIT_MAX_S, Urgency
from rlm.write_path.commit.link_costs import LinkCosts, Outlook
from rlm.write_path.commit.producers import Connections, Producers

log = structlog.get_logger(__name__)


PAYS_TIMES: Final = 1.25
"""How often an object should pay for itself on the average, so that a small one now and then costs nothing."""


_FREE_SHARE: Final = 0.95
"""Share of a partition's bytes that must come from producers that do not wait, so that nobody counts as waiting."""
_FREE_S: Final = 1 / 3
"""Seconds over which that is averaged: other bytes are below 5 % a second after the last of them."""


_ON_THEIR_WAY_S: Final = 5.0
"""Seconds from a request at the agent to its records in the log: a busy broker has seconds of requests before it.
Later they count as refused, and cover no other bytes. By judgement."""


class LinkMode(Enum):
    """How the newest bytes of a partition travel now."""

    OFF = "off"
    """Bytes travel as in stock Kafka: the feature is off for the topic or for now, or the partition is not led here."""
    INLINE = "inline"
    LINK = "link"
    """Bytes travel as links; it is worth waiting for the upload."""


@dataclass(frozen=True, slots=True)
class CostLimits:
    """The numbers that the decision by cost uses."""

    break_even_bytes: int
    """Used while there are no `LinkCosts`."""
    upload_interval_s: float
    """How often objects are uploaded while linking."""
    hold_s: float = 0.2
    """How long links stay in use after the last reason for them, so that the mode does not flap."""
    upload_wait_max_s: float = UPLOAD_WAIT_MAX_S
    """remote.wal.link.upload.wait.max.ms: appends within such a time may share an object."""
    time_constant_s: float = 0.1
    """Rates are averaged over so long. The bytes of a new load go inline for about as long."""


class _Uploads:
    """Averages over recent uploads."""

    def __init__(self) -> None:
        self.duration_s = 0.0
        self.entries = 1.0
        """Entries of an object."""

    def add(self, duration_s: float, entries: int) -> None:
        self.duration_s += (duration_s - self.duration_s) / 8 if self.duration_s else duration_s
        self.entries += (entries - self.entries) / 8


class _Freely:
    """Measures how much of one partition's appends came from producers that do not wait."""

    def __init__(self) -> None:
        self._appended, self._others = RateMeter(_FREE_S), RateMeter(_FREE_S)
        self._told: deque[tuple[float, int]] = deque()
        """Bytes on their way to the log, in order, and when they were told."""

    def tell(self, size: int, now_s: float) -> None:
        """Note bytes of such producers that are on their way to the log."""
        self._forget_refused(now_s)  # also where nothing is ever appended
        self._told.append((now_s, size))

    def append(self, size: int, since_s: float, now_s: float) -> None:
        """Note what a read of the log brought."""
        self._appended.add(size, now_s, now_s - since_s)
        self._forget_refused(since_s)
        others = size
        while self._told and others:
            told_s, told = self._told.popleft()
            if told > others:
                self._told.appendleft((told_s, told - others))
            others = max(others - told, 0)
        self._others.add(others, now_s, now_s - since_s)

    def _forget_refused(self, now_s: float) -> None:
        while self._told and self._told[0][0] < now_s - _ON_THEIR_WAY_S:
            self._told.popleft()

    def is_all(self, now_s: float) -> bool:
        """Whether nearly all of the last second's appends came so, and of those that are on their way."""
        appended = self._appended.bytes_per_second(now_s)
        is_known = appended >= 1 or bool(self._told)
        return is_known and self._others.bytes_per_second(now_s) <= (1 - _FREE_SHARE) * max(appended, 1.0)


class LinkDecider:
    """Decides for the whole agent, because an object combines all partitions that are led here.

    A load shows in two places. While links are in use, the logs are read every few milliseconds and show the rate.
    While bytes go inline, the logs are read seldom, and what followers fetch beyond the stored offsets shows it first.
    """

    def __init__(
        self,
        limits: CostLimits,
        costs: LinkCosts | None = None,
        connections: Callable[[], Connections | None] | None = None,
    ) -> None:
        """`connections`: see `Producers`."""
        self._limits = limits
        self._costs = costs
        self._outlook: Outlook | None = None
        self._uploads = _Uploads()
        self._appended = RateMeter(limits.time_constant_s)
        self._fetched: defaultdict[int, RateMeter] = defaultdict(lambda: RateMeter(limits.time_constant_s))
        self._hold_until_s = -math.inf
        self._freely: dict[TopicIdPartition, _Freely] = {}
        self.producers = Producers(connections)
        self.spacing_s = 0.0
        """Least time from one upload to the next (`group_commit.spacing_s`), unless an object is
        whole.
        """
        self.is_off: Callable[[], bool] = lambda: False
        """Whether nothing may be linked now, whatever the policies say."""
        self.paused_because: Callable[[str], str | None] = lambda _topic: None
        """Why an operator paused a topic's links, in words; None: nobody did."""
        self.wanted_within_s = limits.upload_wait_max_s
        """How long the logs of the last `judge_urgency` call may wait at most."""
        self.wanted_freely = False
        """Whether no producer of those logs waits."""

    def appended(self, size: int, since_s: float, now_s: float, partition: TopicIdPartition | None = None) -> None:
        """Record that so many bytes were read from an active segment led here, appended since `since_s`."""
        self._appended.add(size, now_s, now_s - since_s)
        if partition in self._freely:
            self._freely[partition].append(size, since_s, now_s)

    def came_freely(self, partition: TopicIdPartition, size: int, now_s: float) -> None:
        """Record bytes of Produce requests through an agent whose producers do not wait:

        acks 0 or 1, or held acknowledgements.
        """
        self._freely.setdefault(partition, _Freely()).tell(size, now_s)

    def is_free(self, partition: TopicIdPartition, now_s: float) -> bool:
        """Whether (almost) all recent appends came from producers that do not wait."""
        return partition in self._freely and self._freely[partition].is_all(now_s)

    def fetched(self, follower_id: int, size: int, now_s: float) -> None:
        """Record that a follower is about to get so many bytes that are not stored yet."""
        self._fetched[follower_id].add(size, now_s)

    def set_led(self, assignments: Collection[Assignment]) -> None:
        """Set the partitions that are led here, and their followers."""
        for gone in self._freely.keys() - {one.topic_id_partition for one in assignments}:
            del self._freely[gone]
        if self._costs is None:
            return
        paid, self._outlook = self.break_even_bytes != NEVER_PAYS, self._costs.judge(assignments)
        if paid and assignments and self.break_even_bytes == NEVER_PAYS:
            log.warning(
                "links_never_pay",
                cross_zone_gb_usd=self._costs.prices.zone_crossing_gb,
                partitions=len(assignments),
                remote_followers=len(set().union(*(one.remote_followers or () for one in assignments))),
                object_life_s=max(one.object_life_s for one in assignments),
                consequence="all but topics with the policy always goes inline",
            )

    def may_link(self, assignment: Assignment) -> bool:
        """Whether links to this partition's bytes can be worth anything."""
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
        """Record that an upload of so many entries took so long."""
        self._uploads.add(duration_s, entries)

    def choose_mode(
        self,
        policy: LinkPolicy,
        latency_bound_ms: int,
        pending_bytes: int,
        now_s: float,
        wait_s: float = math.inf,
        *,
        is_free: bool = False,
    ) -> LinkMode:
        """Return the mode for `pending_bytes` that a follower waits for, if an upload may wait at most `wait_s`.

        `is_free`: no producer of them waits, so they are linked wherever that pays.
        """
        if self.is_off():
            return LinkMode.OFF
        if policy is LinkPolicy.ALWAYS:
            return LinkMode.LINK
        if self._pays_on_average(policy, pending_bytes, now_s, wait_s):
            self._hold_until_s = now_s + self._limits.hold_s
        do_pay = now_s < self._hold_until_s
        is_linking = do_pay and (is_free or self.producers.may_link(now_s))
        if is_linking and not is_free:
            if not self.producers.are_linking:
                self.producers.linking(now_s, self.bytes_per_s(now_s))
        elif not is_free:
            self.producers.going_inline(now_s, do_pay=do_pay)
        if policy is LinkPolicy.LATENCY and self.link_ms > latency_bound_ms:
            return LinkMode.INLINE
        return LinkMode.LINK if is_linking else LinkMode.INLINE

    def _pays_on_average(self, policy: LinkPolicy, pending_bytes: int, now_s: float, wait_s: float) -> bool:
        rate_bytes = self.bytes_per_s(now_s) * self._wait_s(policy, wait_s)
        return self.pays(max(pending_bytes, int(rate_bytes / PAYS_TIMES)))

    def _wait_s(self, policy: LinkPolicy, wait_s: float) -> float:
        """Return how long an upload may wait for more."""
        if policy is LinkPolicy.LATENCY:
            return max(self._limits.upload_interval_s, self.spacing_s)
        return max(min(wait_s, self._limits.upload_wait_max_s), self.spacing_s)

    def bytes_per_s(self, now_s: float) -> float:
        """Return the recent rate, shown by the logs or, sooner, by what a follower gets inline."""
        return max(meter.bytes_per_second(now_s) for meter in (self._appended, *list(self._fetched.values())))

    def mode_of(self, assignment: Assignment, pending_bytes: int, now_s: float) -> LinkMode:
        """Return the mode for what a follower in another zone waits for, of this partition and others together."""
        if self.paused_because(assignment.topic) is not None or self.is_off():
            return LinkMode.OFF
        if not self.may_link(assignment):
            return LinkMode.INLINE
        bound_ms, wait_s = assignment.latency_bound_ms, assignment.upload_wait_max_s
        is_free = self.is_free(assignment.topic_id_partition, now_s)
        return self.choose_mode(assignment.link_policy, bound_ms, pending_bytes, now_s, wait_s, is_free=is_free)

    def why_inline(self, assignment: Assignment, now_s: float) -> InlineReason:
        """Why this partition's bytes go inline, if they do. On any thread."""
        if self.is_off():
            return InlineReason.UPLOADS_STOPPED
        if self.paused_because(assignment.topic) is not None:
            return InlineReason.PAUSED_BY_OPERATOR
        if assignment.remote_followers is not None and not assignment.remote_followers:
            return InlineReason.NO_FOLLOWER_ELSEWHERE
        if not self.may_link(assignment) or self.break_even_bytes == NEVER_PAYS:
            return InlineReason.NEVER_PAYS
        is_bounded = assignment.link_policy is LinkPolicy.LATENCY
        if is_bounded and self.link_ms > assignment.latency_bound_ms:
            return InlineReason.LATENCY_BOUND
        rests = self.producers.may_rest(now_s)
        if self.is_free(assignment.topic_id_partition, now_s):
            return InlineReason.LOAD  # nothing else ends its links
        wait_s = self._wait_s(assignment.link_policy, assignment.upload_wait_max_s)
        if rests is None and self.bytes_per_s(now_s) * wait_s < self.paying_bytes:
            return InlineReason.LOAD
        return rests or InlineReason.LOOK

    def told_why(self, assignment: Assignment, now_s: float) -> str:
        """Describe `why_inline` in words and numbers."""
        match self.why_inline(assignment, now_s):
            case InlineReason.LOAD:
                wait_s = self._wait_s(assignment.link_policy, assignment.upload_wait_max_s)
                rate = self.bytes_per_s(now_s)
                return (
                    f"{rate / 1e6:.2f} MB/s here bring {rate * wait_s / 1e3:.0f} KB in {wait_s * 1e3:.0f} ms; links "
                    f"start at {self.paying_bytes / 1e3:.0f} KB"
                )
            case InlineReason.HELD_UP:
                since_s = now_s - (self.producers.held_up_s or now_s)
                left_s = max(self.producers.rest_until_s - now_s, 0.0)
                return (
                    f"links held producers up {since_s:.0f} s ago ({self.producers.why}), next try in {left_s:.0f} s; "
                    "see held acknowledgements"
                )
            case InlineReason.UNSEEN:
                return self.producers.why
            case InlineReason.LATENCY_BOUND:
                return f"upload and read take {self.link_ms:.0f} ms, the topic allows {assignment.latency_bound_ms}"
            case InlineReason.NEVER_PAYS:
                life_h = assignment.object_life_s / 3600
                return f"no object pays: each is stored for {life_h:.1f} h at these prices"
            case InlineReason.PAUSED_BY_OPERATOR:
                return self.paused_because(assignment.topic) or "links were paused until now"
            case InlineReason.LOOK if self.producers.may_rest(now_s) is None:
                return "all is linked now"
            case InlineReason.LOOK:
                return "a look whether producers have more to send than links carry"
            case InlineReason.NO_FOLLOWER_ELSEWHERE:
                return "no follower stands in another zone"
            case _:
                return "the metadata topic takes no records"

    @property
    def upload_ms(self) -> float:
        """Milliseconds that uploads took recently; 0 before the first."""
        return self._uploads.duration_s * 1000

    @property
    def link_ms(self) -> float:
        """Milliseconds from an upload's start until a follower has its bytes: reading takes about as long as
        writing.
        """
        return (2 * self._uploads.duration_s + self.spacing_s) * 1000

    def judge_urgency(self, assignments: Iterable[Assignment], now_s: float) -> Urgency:
        """Return how an upload is wanted: the most urgent of the partitions whose bytes it would take decides."""
        urgency, self.wanted_within_s, self.wanted_freely = Urgency.ARCHIVE, self._limits.upload_wait_max_s, True
        for wanted in assignments:
            if wanted.is_durable:
                return Urgency.LINKS
            if self.mode_of(wanted, 0, now_s) is LinkMode.LINK:
                if wanted.link_policy is LinkPolicy.ALWAYS:
                    return Urgency.LINKS
                is_bounded = wanted.link_policy is LinkPolicy.LATENCY
                urgency = max(urgency, Urgency.BOUNDED_LINKS if is_bounded else Urgency.PAYING_LINKS)
                self.wanted_within_s = min(self.wanted_within_s, wanted.upload_wait_max_s)
                self.wanted_freely &= self.is_free(wanted.topic_id_partition, now_s)
        return urgency

    def did_not_pay(self, now_s: float) -> None:
        """End links for a while: what an interval brought was less than pays."""
        self._hold_until_s = -math.inf
        self.producers.held_up(now_s, "too little came for an object")

    def expected_bytes(self, now_s: float) -> float:
        """Return the bytes that an upload interval brings at the recent rate."""
        return self._appended.bytes_per_second(now_s) * self._limits.upload_interval_s

    @property
    def full_object_bytes(self) -> float:
        """The size from which on an object's other costs are small compared with those of its bytes."""
        return math.inf if self._outlook is None else self._outlook.full_object_bytes(self._uploads.entries)

    def pays(self, size: int) -> bool:
        """Whether an object of this size is cheaper than its bytes inline."""
        return size >= self.break_even_bytes

    @property
    def paying_bytes(self) -> float:
        """The average size that objects should have, so that they pay with something to spare."""
        return PAYS_TIMES * self.break_even_bytes
