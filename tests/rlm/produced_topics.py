"""Producers and their brokers' logs, in virtual time and without IO, for trials: each obeys Little's law.

A producer gets records at its rate and sends all that it has in one request, as large as a request may be. The broker
appends it at once, and answers after a round: with acks=all one by link or inline, by how the topics of the request
travel; with acks=1 at once. Meanwhile the producer sends nothing more.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from rlm.write_path.commit.trial import Finding, Sample, State, Trials

STEP_S: Final = 0.005


@dataclass
class Fleet:
    bytes_per_s: float
    """Of all together; inf: as fast as they go."""
    producers: int = 1
    topics: tuple[str, ...] = ("t",)
    """Each request has as much for each of them."""
    request_bytes: int = 64_000
    link_s: float = 0.1
    """A round by links; 0: acks=1."""
    inline_s: float = 0.01
    is_active: Callable[[float], bool] = lambda _now_s: True
    batch_bytes: int = 16_000
    wait_bytes: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)


class Produced:
    """A broker with these fleets, and the trials of its topics."""

    def __init__(self, fleets: Sequence[Fleet], *, seed: int = 0, stalls: float = 0.0) -> None:
        """`stalls`: share of time in which the machine does nothing."""
        self.fleets, self.rng, self._stalls = fleets, Random(seed), stalls
        self.topics = sorted({topic for one in fleets for topic in one.topics})
        self.trials = Trials()
        self.trials.set_led(dict.fromkeys(self.topics, 0.25), {topic: {topic} for topic in self.topics})
        self.now_s = 1000.0
        self.appended, self.batches = dict.fromkeys(self.topics, 0), dict.fromkeys(self.topics, 0)
        self.linked_bytes = dict.fromkeys(self.topics, 0)
        self.found: list[tuple[str, Finding]] = []
        self.states = set[State]()
        self._stalled_until_s, self._before = 0.0, dict(self.appended)
        for one in fleets:
            one.wait_bytes = [self.rng.random() * one.request_bytes for _ in range(one.producers)]
            one.busy_s = [0.0] * one.producers

    def linked_share(self, topic: str = "t") -> float:
        """Of what was appended since the last call."""
        return self.linked_bytes[topic] / max(self.appended[topic] - self._before[topic], 1)

    def run(self, seconds: float, *, trials: bool = True) -> "Produced":
        """Go on for so long. Counts begin anew."""
        self._before = dict(self.appended)
        self.linked_bytes = dict.fromkeys(self.topics, 0)
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            if self._stalls and self.now_s >= self._stalled_until_s and self.rng.random() < self._stalls * STEP_S / 0.1:
                self._stalled_until_s = self.now_s + self.rng.expovariate(1 / 0.1)
            for one in self.fleets:
                self._produce(one)
            if trials and self.trials.due_s(do_pay=True) <= self.now_s:
                wanted = self.trials.wanted(self.now_s)
                samples = {one: Sample(self.now_s, self.appended[one], self.batches[one]) for one in wanted}
                before = {topic: self.trials.of(topic).state for topic in self.topics}
                self.found += self.trials.advance(samples, self.now_s, do_pay=True)
                self.states |= {self.trials.of(one).state for one in self.topics}
                self._release({one for one in self.topics if self.trials.of(one).state is not before[one]})
        return self

    def rate(self) -> float:
        """Bytes a second of all topics since the counts began."""
        return sum(self.appended[one] - self._before[one] for one in self.topics)

    def _release(self, topics: set[str]) -> None:
        """What waits for links goes inline at once."""
        for fleet in self.fleets:
            if topics & set(fleet.topics) and not any(self.trials.of(one).state is State.LINKS for one in fleet.topics):
                fleet.busy_s = [min(one, self.now_s + fleet.inline_s) for one in fleet.busy_s]

    def _round_s(self, fleet: Fleet) -> float:
        links = any(self.trials.of(topic).state is State.LINKS for topic in fleet.topics)
        return (fleet.link_s if links else min(fleet.inline_s, fleet.link_s)) * self.rng.lognormvariate(0, 0.2)

    def _produce(self, fleet: Fleet) -> None:
        is_active = fleet.is_active(self.now_s)
        for number in range(fleet.producers):
            if is_active:
                fleet.wait_bytes[number] += min(fleet.bytes_per_s / fleet.producers * STEP_S, 1e9)
            if self.now_s < max(fleet.busy_s[number], self._stalled_until_s):
                continue
            size = int(min(fleet.wait_bytes[number], fleet.request_bytes))
            if size < max(min(fleet.batch_bytes, fleet.request_bytes, fleet.bytes_per_s / fleet.producers * 0.01), 1):
                continue
            fleet.wait_bytes[number] = min(fleet.wait_bytes[number] - size, 32e6)
            fleet.busy_s[number] = self.now_s + self._round_s(fleet)
            self._append(fleet.topics, size)

    def _append(self, topics: Iterable[str], size: int) -> None:
        for topic in topics:
            self.appended[topic] += size
            self.batches[topic] += max(math.ceil(size / 16_000), 1)
            if self.trials.of(topic).state is State.LINKS:
                self.linked_bytes[topic] += size
