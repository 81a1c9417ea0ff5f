"""Finds out whether links hold records back at producers, by taking links away for a moment. Sans-IO.

A producer that waits for its followers gets each answer later by links than inline. What it has to send meanwhile waits
with it. By Little's law, what waits at all producers of a topic is their rate, times how long each record is held back.
So when links are taken away for a *look*, a surplus comes, and the surplus divided by the rate is that time. If links
hold nobody up, there is none. If the surplus still grows at the look's end, it goes on; if it grows to the end, links
cost throughput. Nothing else is known: no acks, no connections.

One `Trial` for each topic led here by cost:

    state   event                                        next state
    LINKS   a look begins                                LOOK
    LOOK    no surplus, or nothing to tell               LINKS; the next look comes later
    LOOK    records were held back for too long          LINKS; a vote, if the rate by links after it confirms it
    LOOK    that again, for the LOOKS-th time in a row   INLINE, for a hold-off
    INLINE  the hold-off is over, or the load has ended  LINKS; after a hold-off one look is enough

Only what was appended to the topic's logs counts, so neither reads of followers that catch up do, nor what only waited
for its upload. A load that begins in a look looks like a surplus; the rate by links before and after tells. A load that
falls silent meanwhile comes in bursts, and tells nothing.

Producers write to several topics, so a look at one may show nothing. `Trials` therefore has one round of looks at a
time for the whole broker, in which all topics take part that are due, or half-way to it. Each is judged by its own
bytes.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

import structlog

from rlm.write_path.commit.constants import (
    BATCHES,
    GROWS,
    HOLD_OFF_S,
    LOOK_MAX_S,
    LOOK_S,
    LOOKS,
    NOBODY,
    PERIOD_S,
    WINDOW_S,
)

log = structlog.get_logger(__name__)


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
    NOTHING = "nothing"
    """Too little came to tell, or a load began or ended."""
    GROWS = "grows"
    """The surplus grows: the look goes on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was appended to a topic's logs here, up to a (monotonic) time."""

    at_s: float
    size_bytes: int
    batches: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a topic went inline. Times are monotonic seconds."""

    at_s: float
    until_s: float
    held_back_s: float
    """By how much links held records back."""
    limit_s: float
    grew: bool
    """Whether it still grew: links cost throughput."""
    looks: int
    topics: tuple[str, ...] = ()
    """All that were found in this round."""


_NEXT: Final[Mapping[tuple[State, Finding | None], State]] = {
    (State.LINKS, None): State.LOOK,
    (State.LOOK, Finding.GROWS): State.LOOK,
    (State.LOOK, Finding.FREE): State.LINKS,
    (State.LOOK, Finding.NOTHING): State.LINKS,
    (State.LOOK, Finding.HELD): State.LINKS,  # INLINE with the last vote
    (State.INLINE, None): State.LINKS,
}


class Trial:
    """The state of one topic. All times are monotonic seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """How long links may hold records back."""
        self.state = State.LINKS
        self.verdict: Verdict | None = None
        """The last one."""
        self.votes = 0
        self.next_s = -math.inf
        """By links: when the next look is due. Inline: when the hold-off ends, or the load is looked at."""
        self._period_s, self._hold_off_s = PERIOD_S[0], HOLD_OFF_S[0]
        self._needed = LOOKS
        self._window: list[Sample] = []
        self._look: list[Sample] = []
        self._rate = self._batch_bytes = 0.0
        """By links, in the last window."""
        self._found: Finding | None = None
        self._is_idle = False
        """Whether nothing came in the last window."""
        self._is_suspect = False
        """Whether the last look waits for the rate after it."""
        self._held_back_s: float | None = None
        """By how much links hold records back, averaged over looks; None: not known."""

    def is_due(self, now_s: float) -> bool:
        """Whether to look now."""
        return self.state is State.LINKS and now_s >= self.next_s

    def may_join(self, now_s: float) -> bool:
        """Whether to look when others do."""
        return self.state is State.LINKS and now_s >= self.next_s - self._period_s / 2

    @property
    def is_open(self) -> bool:
        """Whether another look must follow soon."""
        return self.state is State.LINKS and (self._is_suspect or self.votes > 0)

    @property
    def holds_nobody(self) -> bool:
        """Whether links hold no records back worth mentioning, so that uploads may wait for large objects."""
        return self._held_back_s is not None and self._held_back_s < NOBODY * self.limit_s

    @property
    def is_silent(self) -> bool:
        """Whether nothing came since the sample before."""
        return self._window[-1].size_bytes <= self._window[-2].size_bytes

    @property
    def has_few(self) -> bool:
        """Whether something came in the window, but too little to tell a rate."""
        return 0 < self._window[-1].batches - self._window[0].batches < BATCHES

    def note_window(self, sample: Sample, *, is_first: bool = False) -> None:
        """Note what came by links."""
        self._window = [sample] if is_first else [*self._window, sample]

    def begin_look(self) -> None:
        """End the window. The look begins if enough came by links."""
        window, self._window = self._window, []
        began, sample = window[0], window[-1]
        size, seconds = sample.size_bytes - began.size_bytes, max(sample.at_s - began.at_s, 1e-3)
        rate, batches = size / seconds, sample.batches - began.batches
        if self._is_suspect:  # a load that has grown is faster by links, too
            self._is_suspect = False
            self._rate = max(self._rate, rate)
            self.votes = self.votes + 1 if self._judge() is Finding.HELD else 0
        self._is_idle = size <= 0
        if batches < BATCHES or self._is_idle or _fell_silent(window):
            self._found, self.votes = Finding.NOTHING, 0
            return
        self._rate, self._batch_bytes = rate, size / batches
        self._look, self.state = [sample], _NEXT[State.LINKS, None]

    def goes_on(self, sample: Sample) -> bool:
        """Note what came in the look so far. Returns whether it must go on."""
        self._look.append(sample)
        return self._seconds < 0.9 * LOOK_S or self._judge() is Finding.GROWS

    def end_look(self) -> Finding:
        """Judge the look."""
        found = self._judge()
        if found is Finding.GROWS:  # others of the round go on no longer
            found = Finding.HELD if self._seconds > 0.9 * LOOK_MAX_S else Finding.FREE
        self._found, self.state = found, _NEXT[self.state, found]
        if found is not Finding.NOTHING:
            before_s = self._surplus_s if self._held_back_s is None else self._held_back_s
            self._held_back_s = (before_s + self._surplus_s) / 2
        if found is not Finding.HELD:
            self.votes = 0
        elif self.votes + 1 >= self._needed:
            self._go_inline()
        else:
            self._is_suspect = True
        return found

    def end_round(self, now_s: float) -> None:
        """Note that no look follows soon."""
        if self.state is State.INLINE:
            return
        if self._window:  # it ended before a look
            self._window, self._found = [], Finding.NOTHING
        self._is_suspect = False
        self.votes = 0
        if self._found is not Finding.NOTHING:
            self._needed = LOOKS
        self.next_s = now_s + self._period_s
        self._period_s = PERIOD_S[0] if self._is_idle else min(2 * self._period_s, PERIOD_S[1])
        if self._found is Finding.FREE:
            self._hold_off_s = max(self._hold_off_s / 2, HOLD_OFF_S[0])

    def look_at_load(self, sample: Sample) -> None:
        """Look inline, from time to time, whether the hold-off is over, or the load has ended."""
        before, self._window = self._window, [sample]
        verdict = self.verdict
        has_ended = bool(before) and sample.size_bytes <= before[0].size_bytes
        if has_ended:
            self._hold_off_s = HOLD_OFF_S[0]
        if has_ended or verdict is None or sample.at_s >= verdict.until_s:
            self.state, self._window = _NEXT[State.INLINE, None], []
            self._needed, self.votes = LOOKS if has_ended else 1, 0
            self._period_s, self.next_s = PERIOD_S[0], sample.at_s
        else:
            self.next_s = min(sample.at_s + HOLD_OFF_S[0], verdict.until_s)

    def forget_pace(self) -> None:
        """Look soon again: the load is a new one."""
        if self.state is State.LINKS:
            self._period_s, self.next_s, self._held_back_s = PERIOD_S[0], -math.inf, None

    def _go_inline(self) -> None:
        now_s, surplus_s = self._look[-1].at_s, self._surplus_s
        until_s = now_s + self._hold_off_s
        looks = self.votes + 1
        self.verdict = Verdict(now_s, until_s, surplus_s, self.limit_s, self._grows, looks)
        self.state, self.votes, self._window = State.INLINE, 0, self._look[-1:]
        self.next_s = min(now_s + HOLD_OFF_S[0], until_s)
        self._hold_off_s = min(2 * self._hold_off_s, HOLD_OFF_S[1])

    def _judge(self) -> Finding:
        if self._look[-1].size_bytes <= self._look[0].size_bytes or _fell_silent(self._look, 1):
            return Finding.NOTHING
        chance_s = math.sqrt(self._seconds * self._batch_bytes / self._rate)
        """By so much what comes in the look differs by chance: the square root of its number of batches."""
        if self._surplus_s > 2 * chance_s and self._surplus_s > self.limit_s:
            return Finding.HELD
        return Finding.GROWS if self._grows else Finding.FREE

    @property
    def _seconds(self) -> float:
        return max(self._look[-1].at_s - self._look[0].at_s, 1e-3)

    @property
    def _surplus_s(self) -> float:
        """How long records were held back."""
        return (self._look[-1].size_bytes - self._look[0].size_bytes) / self._rate - self._seconds

    @property
    def _grows(self) -> bool:
        half, last = self._look[(len(self._look) - 1) // 2], self._look[-1]
        seconds = max(last.at_s - half.at_s, 1e-3)
        return (last.size_bytes - half.size_bytes) / seconds > GROWS * self._rate


def _fell_silent(samples: Sequence[Sample], after: int = 0) -> bool:
    """Whether hardly anything came between two samples in a row, where at least eight batches would on average.

    A round by links may still be under way as a look begins, so its first part does not count.
    """
    first, last = samples[0], samples[-1]
    seconds = max(last.at_s - first.at_s, 1e-3)
    rate, batches = (last.size_bytes - first.size_bytes) / seconds, (last.batches - first.batches) / seconds
    for one, later in pairwise(samples[after:]):
        part_s = later.at_s - one.at_s
        if batches * part_s >= 8 and later.size_bytes - one.size_bytes < rate * part_s / 8:
            return True
    return False


class _Phase(Enum):
    SETTLE = "settle"
    """Producers get used to links again."""
    WINDOW = "window"
    LOOK = "look"


class Trials:
    """The trials of all topics led here by cost, and their round of looks. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}
        self._partitions: Mapping[str, Set[object]] = {}
        self._members: dict[str, Trial] = {}
        """The topics of the round under way."""
        self._phase = _Phase.SETTLE
        self._due_s = -math.inf
        self._ends_s = self._begun_s = 0.0
        """When the window ends, and when the look began."""

    def set_led(self, limits_s: Mapping[str, float], partitions: Mapping[str, Set[object]]) -> None:
        """Set the topics, how long links may hold records of each back, and its partitions led here."""
        changed = {one for one in self._members if partitions.get(one) != self._partitions.get(one)}
        for topic in changed:  # samples before and after would not be of the same logs
            self._members.pop(topic)
        self._trials = {
            topic: self._trials[topic] if topic in self._trials and topic not in changed else Trial(limit_s)
            for topic, limit_s in limits_s.items()
        }
        for topic, limit_s in limits_s.items():
            self._trials[topic].limit_s = limit_s
        self._partitions = partitions

    def state(self, topic: str) -> State:
        """Return the topic's state."""
        trial = self._trials.get(topic)
        return State.LINKS if trial is None else trial.state

    def verdict(self, topic: str) -> Verdict | None:
        """Return the topic's last verdict."""
        trial = self._trials.get(topic)
        return None if trial is None else trial.verdict

    def holds_nobody(self, topic: str) -> bool:
        """Whether links are known to hold none of the topic's records back."""
        return topic in self._trials and self._trials[topic].holds_nobody

    @property
    def is_looking(self) -> bool:
        """Whether bytes go inline for a look."""
        return bool(self._members) and self._phase is _Phase.LOOK

    def is_tried(self, topic: str) -> bool:
        """Whether the topic's usual rate is measured: links are in use, whether they pay at this moment or not."""
        return topic in self._members and not self.is_looking

    # When samples are wanted, and of which topics.

    def due_s(self, *, do_pay: bool) -> float:
        """Return when `advance` is due; `do_pay`: links are in use."""
        ends_s = min((one.next_s for one in self._trials.values() if one.state is State.INLINE), default=math.inf)
        if self._members:
            return min(self._due_s, ends_s)
        if not do_pay:
            return ends_s
        return min((one.next_s for one in self._trials.values()), default=math.inf)

    def wanted(self, now_s: float) -> list[str]:
        """Return the topics of which `advance` needs samples now."""
        looked_at = [topic for topic, one in self._trials.items() if one.state is State.INLINE and now_s >= one.next_s]
        return [*(self._members if now_s >= self._due_s else ()), *looked_at]

    # What happens.

    def forget_pace(self) -> None:
        """Note that links begin after a pause: the load is taken for a new one."""
        for one in self._trials.values():
            one.forget_pace()

    def advance(self, samples: Mapping[str, Sample], now_s: float, *, do_pay: bool) -> list[tuple[str, Finding]]:
        """Go on with these samples. Returns what looks that ended found."""
        for topic, one in self._trials.items():
            if one.state is State.INLINE and now_s >= one.next_s and topic in samples:
                one.look_at_load(samples[topic])
        if self._members and now_s >= self._due_s:
            return self._go_on(samples, now_s, do_pay=do_pay)
        if not self._members and do_pay and any(one.is_due(now_s) for one in self._trials.values()):
            self._members = {topic: one for topic, one in self._trials.items() if one.may_join(now_s)}
            self._settle(now_s)
        return []

    def _go_on(self, samples: Mapping[str, Sample], now_s: float, *, do_pay: bool) -> list[tuple[str, Finding]]:
        match self._phase:
            case _Phase.SETTLE:
                for topic, one in self._members.items():
                    one.note_window(samples[topic], is_first=True)
                # Looks must not keep step with a load's own bursts.
                self._ends_s = now_s + WINDOW_S * (0.55 + now_s * 0.618 % 0.25)
                self._phase, self._due_s = _Phase.WINDOW, now_s + LOOK_S / 2
            case _Phase.WINDOW:
                for topic, one in self._members.items():
                    one.note_window(samples[topic])
                self._due_s = now_s + LOOK_S / 2
                if not do_pay and all(one.is_silent for one in self._members.values()):
                    self._end_round(now_s)
                is_short = now_s < self._ends_s + LOOK_MAX_S and any(one.has_few for one in self._members.values())
                if not self._members or now_s < self._ends_s or is_short:
                    return []
                for one in self._members.values():
                    one.begin_look()
                self._phase, self._begun_s = _Phase.LOOK, now_s
                if not any(one.state is State.LOOK for one in self._members.values()):
                    self._end_round(now_s)
            case _Phase.LOOK:
                return self._go_on_looking(samples, now_s)
        return []

    def _settle(self, now_s: float) -> None:
        self._phase, self._due_s = _Phase.SETTLE, now_s + WINDOW_S / 3

    def _go_on_looking(self, samples: Mapping[str, Sample], now_s: float) -> list[tuple[str, Finding]]:
        looking = {topic: one for topic, one in self._members.items() if one.state is State.LOOK}
        go_on = [one.goes_on(samples[topic]) for topic, one in looking.items()]
        if any(go_on) and now_s - self._begun_s < 0.95 * LOOK_MAX_S:
            self._due_s = now_s + LOOK_S / 2
            return []
        found = [(topic, one.end_look()) for topic, one in looking.items()]
        held = tuple(topic for topic, one in looking.items() if one.state is State.INLINE)
        for topic in held:
            self._tell(topic, held)
        if any(one.is_open for one in self._members.values()):
            self._members = {topic: one for topic, one in self._members.items() if one.state is not State.INLINE}
            self._settle(now_s)
        else:
            self._end_round(now_s)
        return found

    def _tell(self, topic: str, held: tuple[str, ...]) -> None:
        trial = self._trials[topic]
        if (verdict := trial.verdict) is not None:
            trial.verdict = verdict = replace(verdict, topics=held)
            log.info(
                "links_hold_records_back",
                topic=topic,
                seconds=round(verdict.held_back_s, 2),
                allowed=verdict.limit_s,
                looks=verdict.looks,
                inline_for_s=round(verdict.until_s - verdict.at_s),
            )

    def _end_round(self, now_s: float) -> None:
        for one in self._members.values():
            one.end_round(now_s)
        self._members = {}
