"""What every run has: virtual time, streams of chance, a trace, and what was met."""

import asyncio
import hashlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from rlm.write_path.metrics import StageTimes, WriteMetrics
from tests.simulation.agent_model import wall_ms_at
from tests.simulation.metadata_topic_model import TopicModel
from tests.simulation.plan import Event
from tests.simulation.seeded_storage import HEALTHY, SeededStorage
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop


class SimulatedRun(ABC):
    storage: SeededStorage

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = VirtualTimeLoop()
        self.loop.set_exception_handler(self._defect)
        self.loop.default_executor = SeededExecutor(self.loop, 8, lambda: (0.0, 0.0))
        self._streams: dict[str, random.Random] = {}
        self.hits: Counter[str] = Counter()
        self._trace: list[tuple[float, tuple[object, ...]]] = []
        self.topic = TopicModel(self.loop, self.random("topic"))
        self.topic.on_refused = lambda: self.hit("publication refused")
        self.registry = CollectorRegistry()
        self.metrics, self.stage_times = WriteMetrics(self.registry), StageTimes(self.registry)
        """Of all agents: nothing here depends on them, and it takes long to make them."""
        self.ends = False
        self.defects: list[BaseException] = []

    def _defect(self, _loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        self.defects.append(told.get("exception") or AssertionError(told["message"]))

    # What happens.

    async def live(self, events: Sequence[Event]) -> None:
        self.begin()
        for count, (after_s, kind, number) in enumerate(events):
            if count == len(events) // 2:
                self.in_the_midst()
            await asyncio.sleep(after_s)
            self.look()
            self.note(kind, number)
            doing = self.do(kind, number)
            if doing is not None:
                await doing
            self.look()
        self.note("settle")
        self.ends = self.storage.never_fails = True
        self.storage.mode = HEALTHY
        self.topic.is_away, self.topic.delay_max_s = False, 0.02
        await self.settle()

    @abstractmethod
    def begin(self) -> None:
        """Brokers and agents start."""

    @abstractmethod
    def in_the_midst(self) -> None:
        """What is looked at when half of the events are over."""

    @abstractmethod
    def do(self, kind: str, number: int) -> Awaitable[None] | None:
        """An event happens."""

    @abstractmethod
    def look(self) -> None:
        """Raises AssertionError where something does not hold."""

    @abstractmethod
    async def settle(self) -> None:
        """Nothing fails any more: all comes to the end that it is to come to."""

    # What the parts of a run are given.

    def random(self, name: str) -> random.Random:
        """A stream of its own for each name, so that what one draws does not change the others."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed} {name}")
        return self._streams[name]

    def wall_ms(self) -> int:
        return wall_ms_at(self.loop.time())

    def note(self, *what: object) -> None:
        self._trace.append((self.loop.time(), what))

    @property
    def trace(self) -> list[str]:
        return [f"{at_s:.6f} {' '.join(map(str, what))}" for at_s, what in self._trace]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def hit(self, fault: str) -> None:
        self.hits[fault] += 1

    def read_delays(self) -> Delays:
        rng = self.random("reads")
        longest_s = 0.8 if rng.random() < 0.05 else 0.004
        return rng.uniform(0, longest_s), rng.choice((0.0, rng.uniform(0, longest_s)))

    def may_watch(self) -> bool:
        may = self.ends or self.random("watches").random() > 0.1
        if not may:
            self.hit("watch refused")
        return may

    def checked(self, check: Callable[[], None]) -> None:
        """The product must not take our judgement for a listener's defect."""
        try:
            check()
        except AssertionError as broken:
            self.defects.append(broken)
