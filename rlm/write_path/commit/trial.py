"""Finds out whether links hold records back at producers, by taking links away for a moment. Sans-IO.

A producer that waits for its followers gets each answer later by links than inline. What it has to send meanwhile waits
with it. By Little's law, what waits at all producers of a topic is their rate, times how long each record is held back.
So when links are taken away for a *look*, a surplus comes, and the surplus divided by the rate is that time. If links
hold nobody up, there is none. If the surplus still grows or is near the limit, the look goes on; if it grows to the
end, links cost throughput. Nothing else is known: no acks, no connections.

One `Trial` for each topic led here by cost:

    state   event                                        next state
    LINKS   a look begins                                LOOK
    LOOK    no surplus, or nothing to tell               LINKS; the next look comes later
    LOOK    records were held back for too long          LINKS; a vote, and another look follows at once
    LOOK    that again, for the LOOKS-th time in a row   INLINE, for a hold-off
    INLINE  the hold-off is over, or the load has ended  LINKS; after a hold-off one look is enough

Only what was appended to the topic's logs counts, so neither reads of followers that catch up do, nor what only waited
for its upload. Each look is compared with the time by links right before it, so a load that grows votes once. One that
comes in bursts is not held up: by links as much came in the same time.

Producers write to several topics, so a look at one may show nothing. `Trials` therefore has one round of looks at a
time for the whole broker, in which all topics take part that are due, or half-way to it. Each is judged by its own
bytes, and only topics whose looks told something are looked at again. All times are monotonic seconds.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import structlog

from rlm.write_path.commit.constants import GROWS, HOLD_OFF_S, LOOK_S, LOOKS, PERIOD_S

log = structlog.get_logger(__name__)

WINDOW_S: Final = 2 * LOOK_S[0]
"""Seconds by links, before each look, that show the usual rate."""
_STEP_S: Final = LOOK_S[0] / 2
"""Seconds between samples. The first one of a round, or after a look, is too early: producers get used to links."""


class State(Enum):
    """How a topic's bytes travel, as far as its trial decides."""

    LINKS = "links"
    LOOK = "look"
    INLINE = "inline"


class Finding(Enum):
    """What a look found."""

    FREE = "free"
    """Links hold no records back, or not for too long."""
    HELD = "held"
    """Links hold records back for too long."""
    GROWS = "grows"
    """The surplus grows, or is near the limit: the look goes on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was appended to a topic's logs here, up to a time."""

    at_s: float
    size_bytes: int
    batches: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the last look at a topic found."""

    at_s: float
    held_back_s: float
    """How long links held records back."""
    limit_s: float
    looks: int
    """How many in a row found records held back for too long."""
    costs_throughput: bool
    """Whether that was found because more still came at the end of the longest look, whatever the limit."""
    until_s: float
    """Until when the topic goes inline; before `at_s`: it stays linked."""
    topics: tuple[str, ...] = ()
    """All that go inline by this round."""


class Trial:
    """Whether links hold records of one topic back at producers: its state, looks and what they found."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """How long links may hold records back."""
        self.state = State.LINKS
        self.found: Found | None = None
        self.votes, self.is_open = 0, False
        """Of looks in a row, and whether another one must follow at once."""
        self.next_s = -math.inf
        """When the next look is due, or a sample tells whether it is; inf: a round is under way."""
        self.may_wait = True
        """Whether all producers may be waiting when nothing comes: no look showed otherwise."""
        self._period_s, self._hold_off_s = PERIOD_S[0], HOLD_OFF_S[0]
        self._retry_until_s = -math.inf
        """Until when one look is enough, soon after a hold-off."""
        self._samples, self._look = list[Sample](), list[Sample]()
        """By links since the last look, or the last one seen outside of a round; those of the look."""
        self._rate = self._batch_bytes = self._busiest_bytes = 0.0
        """By links before the look; the last is the most that came within a look's time."""

    # A round of looks.

    def begin_round(self, now_s: float) -> bool:
        """Join a round, which begins by links, if the next look is due or half-way to it. Returns whether it joined."""
        joins = self.state is State.LINKS and now_s >= self.next_s - self._period_s / 2
        if joins:
            self._samples, self.next_s = [], math.inf
        return joins

    def note(self, sample: Sample) -> None:
        (self._look if self.state is State.LOOK else self._samples).append(sample)

    def begin_look(self) -> None:
        """Send bytes inline from now on, as a look, if enough was appended before to show the usual rate."""
        window = self._samples[1:]
        began, sample = window[0], window[-1]
        size, batches = sample.size_bytes - began.size_bytes, sample.batches - began.batches
        if size <= 0 or batches < 4:  # so many that none may come by chance alone (`_chance_s`)
            self.votes, self.is_open = 0, False
            return
        rate = size / max(sample.at_s - began.at_s, 1e-3)
        if self.votes and self._rate < rate:  # the machine stood still before the last look, or a load grew
            self._rate = rate
            self.votes -= self.finding is not Finding.HELD
        self._rate, self._batch_bytes = rate, size / batches
        self._busiest_bytes = max(two.size_bytes - one.size_bytes for one, two in zip(window, window[2:], strict=False))
        self._look, self.state = [sample], State.LOOK

    @property
    def finding(self) -> Finding:
        """What the look has found so far."""
        size, surplus_s = self._look[-1].size_bytes - self._look[0].size_bytes, self._surplus_s
        if surplus_s <= self._chance_s or size <= self._busiest_bytes * self._seconds / LOOK_S[0]:
            return Finding.FREE
        if surplus_s > self.limit_s + self._chance_s:
            return Finding.HELD
        return Finding.GROWS if self._grows or surplus_s > self.limit_s / 2 else Finding.FREE

    def end_look(self) -> Finding:
        """End the look and return what it found; go inline for a hold-off if looks in a row found records held back."""
        found, surplus_s, now_s, until_s = self.finding, self._surplus_s, self._look[-1].at_s, -math.inf
        costs_throughput = found is Finding.GROWS and self._grows and self._seconds > 0.9 * LOOK_S[1]
        if found is Finding.GROWS:
            found = Finding.HELD if costs_throughput or surplus_s > self.limit_s else Finding.FREE
        looks = self.votes = self.votes + 1 if found is Finding.HELD else 0
        may_wait, self.may_wait = self.may_wait, surplus_s > self._chance_s
        # Where nobody waits, uploads wait for larger objects from now on: that may hold producers back.
        self.is_open = self.votes > 0 or (may_wait and not self.may_wait)
        self.state, self._samples = State.LINKS, []
        if looks >= (1 if now_s < self._retry_until_s else LOOKS):
            until_s = now_s + self._hold_off_s
            self.state, self._samples, self.votes = State.INLINE, self._look[-1:], 0
            self.next_s, self._retry_until_s = min(now_s + PERIOD_S[0], until_s), until_s + PERIOD_S[0]
            self._hold_off_s = min(2 * self._hold_off_s, HOLD_OFF_S[1])
        elif not looks:
            self._hold_off_s = HOLD_OFF_S[0]
        self.found = Found(now_s, surplus_s, self.limit_s, looks, costs_throughput, until_s)
        return found

    def end_round(self, now_s: float) -> None:
        """Leave the round: go by links, and have the next look after a period."""
        is_idle = len({one.size_bytes for one in self._samples}) == 1
        self.next_s = now_s + (PERIOD_S[0] if is_idle else self._period_s)
        self._period_s = PERIOD_S[0] if is_idle else min(2 * self._period_s, PERIOD_S[1])
        self.state, self.votes, self._samples = State.LINKS, 0, self._samples[-1:]

    # Between rounds.

    def check(self, sample: Sample) -> None:
        """Take a sample outside of a round: it shows whether the hold-off is over, and whether anything is appended."""
        is_idle = bool(self._samples) and sample.size_bytes <= self._samples[-1].size_bytes
        self._samples = [sample]
        if self.state is State.INLINE:
            if not is_idle and self.found is not None and sample.at_s < self.found.until_s:
                self.next_s = min(sample.at_s + PERIOD_S[0], self.found.until_s)
                return
            self.state, self._period_s, self.next_s = State.LINKS, PERIOD_S[0], sample.at_s
        if is_idle:
            self.next_s, self._hold_off_s, self._retry_until_s = sample.at_s + PERIOD_S[0], HOLD_OFF_S[0], -math.inf

    def load_began(self, now_s: float) -> None:
        """Note a new load: its next look comes soon, but not before the load has settled."""
        if self.state is State.LINKS and self.next_s < math.inf:
            self._period_s, self.next_s, self.may_wait = PERIOD_S[0], now_s + LOOK_S[1], True

    @property
    def _seconds(self) -> float:
        return max(self._look[-1].at_s - self._look[0].at_s, 1e-3)

    @property
    def _chance_s(self) -> float:
        """What comes differs by chance by twice the square root of its number of batches."""
        return 2 * math.sqrt(self._seconds * self._batch_bytes / self._rate)

    @property
    def _grows(self) -> bool:
        half, last = self._look[(len(self._look) - 1) // 2], self._look[-1]
        return last.size_bytes - half.size_bytes > GROWS * self._rate * (last.at_s - half.at_s)

    @property
    def _surplus_s(self) -> float:
        """How long records were held back."""
        return (self._look[-1].size_bytes - self._look[0].size_bytes) / self._rate - self._seconds


class Trials:
    """The trials of all topics led here by cost, and their round of looks."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}
        self._partitions: Mapping[str, Set[object]] = {}
        self._members: dict[str, Trial] = {}
        """The topics of the round under way."""
        self.is_looking = False
        """Whether bytes go inline for a look."""
        self._due_s, self._steps = 0.0, 0
        """When samples are due in the round, and how many came by links or in the look."""

    def set_led(self, limits_s: Mapping[str, float], partitions: Mapping[str, Set[object]]) -> None:
        """Set the topics, how long links may hold records of each back, and its partitions led here."""
        # What came before a change is not of the same logs.
        changed = {one for one in self._members if partitions.get(one) != self._partitions.get(one)}
        kept = {topic: one for topic, one in self._trials.items() if topic not in changed}
        self._trials = {topic: kept.get(topic) or Trial(limit_s) for topic, limit_s in limits_s.items()}
        for topic, one in self._trials.items():
            one.limit_s = limits_s[topic]
        self._members = {topic: one for topic, one in self._members.items() if topic not in changed}
        self._partitions = partitions
        self.is_looking &= bool(self._members)

    # Questions.

    def of(self, topic: str) -> Trial:
        """Return the topic's trial; if there is none, one that has found nothing."""
        return self._trials.get(topic) or Trial(math.inf)

    def found(self) -> dict[str, Found | None]:
        """Return by topic what the last look found. On any thread."""
        return {topic: one.found for topic, one in self._trials.items()}

    def is_tried(self, topic: str) -> bool:
        """Whether the topic's usual rate is being measured, so that it must go by links even if they do not pay now."""
        return topic in self._members and not self.is_looking

    def due_s(self, *, do_pay: bool) -> float:
        """Return when to call `advance` next; `do_pay`: links are in use."""
        waiting = [one.next_s for one in self._trials.values() if do_pay or one.state is State.INLINE]
        return min([self._due_s if self._members else math.inf, *waiting])

    def wanted(self, now_s: float) -> list[str]:
        """Return the topics for which `advance` needs now what was appended to their logs (`Sample`)."""
        members = self._members if now_s >= self._due_s else ()
        return [topic for topic, one in self._trials.items() if one.next_s <= now_s or topic in members]

    # What happens.

    def load_began(self, now_s: float) -> None:
        """Note that a new load began after a pause: each topic's next look comes soon."""
        for one in self._trials.values():
            one.load_began(now_s)

    def abandon(self, now_s: float) -> None:
        """End the round of looks without a result: uploads are late or fail, so nothing can be compared."""
        for one in self._members.values():
            one.end_round(now_s)
        self._members, self.is_looking = {}, False

    def advance(self, samples: Mapping[str, Sample], now_s: float, *, do_pay: bool) -> list[tuple[str, Finding]]:
        """Take the samples by topic, and begin or end looks. Returns topic and finding of each look that ended."""
        for topic, one in self._trials.items():
            if one.next_s <= now_s and topic in samples:
                one.check(samples[topic])
        if self._members:
            return self._go_on(samples, now_s) if now_s >= self._due_s else []
        if do_pay and any(one.state is State.LINKS and one.next_s <= now_s for one in self._trials.values()):
            self._members = {topic: one for topic, one in self._trials.items() if one.begin_round(now_s)}
            self._go_by_links(now_s)
        return []

    def _go_by_links(self, now_s: float) -> None:
        # Looks must not keep step with a load's own bursts.
        self.is_looking, self._steps, self._due_s = False, 0, now_s + _STEP_S * (1 + now_s * 0.618 % 1)

    def _go_on(self, samples: Mapping[str, Sample], now_s: float) -> list[tuple[str, Finding]]:
        for topic, one in self._members.items():
            one.note(samples[topic])
        self._due_s, self._steps = now_s + _STEP_S, self._steps + 1
        if not self.is_looking and self._steps > 1 + WINDOW_S / _STEP_S:
            for one in self._members.values():
                one.begin_look()
            self._steps = 0
            self.is_looking = any(one.state is State.LOOK for one in self._members.values())
            if not self.is_looking:
                self.abandon(now_s)
        looking = {topic: one for topic, one in self._members.items() if one.state is State.LOOK}
        grows = self._steps < LOOK_S[1] / _STEP_S and any(one.finding is Finding.GROWS for one in looking.values())
        if grows or not looking or self._steps * _STEP_S < LOOK_S[0]:
            return []
        found = [(topic, one.end_look()) for topic, one in looking.items()]
        held = tuple(topic for topic, one in looking.items() if one.state is State.INLINE)
        for topic, one in list(self._members.items()):
            if topic in held:
                if (what := one.found) is not None:
                    one.found = replace(what, topics=held)
                    seconds = round(what.held_back_s, 2)
                    log.info("links_hold_records_back", topic=topic, seconds=seconds, allowed=what.limit_s, topics=held)
            elif one.is_open:
                continue
            else:  # it is not looked at again because others are
                one.end_round(now_s)
            del self._members[topic]
        self._go_by_links(now_s)
        return found
