"""A day of gateways that are killed and stores that fail, in virtual time: no object is left, and none is missed.

Left: an object that is still there when all is over. Missed: one that is not there when the agent beside a leader
reads it for a request that is not settled; but for requests of a gateway that stood still for longer than objects are
kept, which are asked for inline then.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import pytest

from gateway.produce.route_core import StoredRecords
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import KEEP_S, RouterChannel, RouterSweep
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from rlm.write_path.commit.cadence import CommitLimits

DAY_S = 86_400.0
SWEEP_EACH_S = 300.0
WALL_MS = 1_790_000_000_000
LIMITS = CommitLimits(0.025, 1.0, 4_000, 4, 0.5, 5.0)
SLOW_S = 0.5


@dataclass(frozen=True)
class Odds:
    """Of one run: what fails, and how often."""

    put_fails: float
    delete_fails: float
    killed_each_s: float
    requests_each_s: float = 20.0


ODDS = [Odds(0.0, 0.0, 1800.0), Odds(0.1, 0.1, 3600.0), Odds(0.5, 0.5, 7200.0), Odds(0.1, 0.0, 200.0)]


class World:
    """The store, the time, and three gateways."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.odds = ODDS[seed % len(ODDS)]
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.tie = count()
        self.stored: dict[RouterObjectId, float] = {}
        self.told: Counter[str] = Counter()
        self.oldest_s = 0.0
        self.ends_s = DAY_S
        self.gateways = [Gateway(self, number, 1) for number in range(3)]

    @property
    def wall_ms(self) -> int:
        return WALL_MS + int(self.now_s * 1000)

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + delay_s, next(self.tie), do))

    def each(self, mean_s: float, do: Callable[[], None]) -> None:
        """At random times, until the day is over."""
        delay_s = self.rng.expovariate(1 / mean_s)
        if self.now_s + delay_s < self.ends_s:
            self.after(delay_s, partial(self.again, mean_s, do))

    def again(self, mean_s: float, do: Callable[[], None]) -> None:
        do()
        self.each(mean_s, do)

    def put(self, object_id: RouterObjectId) -> None:
        assert object_id not in self.stored
        self.stored[object_id] = self.now_s

    def delete(self, object_id: RouterObjectId) -> None:
        written_s = self.stored.pop(object_id, None)
        if written_s is not None:
            self.oldest_s = max(self.oldest_s, self.now_s - written_s)

    def run(self) -> None:
        for number in range(3):
            self.each(self.odds.requests_each_s, partial(self.request, number))
            self.each(self.odds.killed_each_s, partial(self.kill, number))
            self.sweeps(number)
        while self.events:
            self.now_s, _, do = heapq.heappop(self.events)
            do()

    def request(self, number: int) -> None:
        self.gateways[number].request()

    def kill(self, number: int) -> None:
        self.told["killed"] += 1
        self.gateways[number].is_dead = True
        self.gateways[number] = Gateway(self, number, self.gateways[number].incarnation + 1)

    def sweeps(self, number: int) -> None:
        """As long as the day is, and until all is swept that it may have left."""
        self.gateways[number].sweep()
        if self.now_s < DAY_S + 3 * KEEP_S:
            self.after(SWEEP_EACH_S, lambda: self.sweeps(number))


class Gateway:
    """One start of a gateway's agent: its channel, and what it does for it."""

    def __init__(self, world: World, gateway_id: int, incarnation: int) -> None:
        self.world, self.incarnation, self.rng = world, incarnation, world.rng
        decider = RouteDecider(
            LinkPolicy.ALWAYS, RouteCosts(0, 0), LIMITS.interval_s, CircuitBreaker(BreakerLimits(3, 1.0, 30.0))
        )
        self.channel = RouterChannel(gateway_id, incarnation, LIMITS, decider, SLOW_S)
        self.sweeper = RouterSweep(self.channel.is_live)
        self.requests = count()
        self.settled: set[int] = set()
        self.wakes_s = math.inf
        self.is_dead = False

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.world.after(delay_s, lambda: None if self.is_dead else do())

    def request(self) -> None:
        """A few at once, of which some are gone before anything is stored."""
        for _ in range(self.rng.choice([1, 1, 2, 8])):
            holder = next(self.requests)
            self.channel.offer(holder, [b"." * self.rng.choice([100, 1_000, 5_000])])
            if self.rng.random() < 0.2:
                self.after(self.rng.uniform(0, 0.1), partial(self.settle, holder))
        self.go_on()

    def settle(self, holder: int) -> None:
        self.settled.add(holder)
        self.channel.settled(holder, self.world.now_s)
        self.go_on()

    def go_on(self) -> None:
        """What is due: uploads, deletions, and when to look again."""
        now_s = self.world.now_s
        if self.channel.start_s(now_s) <= now_s:
            for upload in self.channel.round(now_s, self.world.wall_ms).uploads:
                self.upload(upload.object_id)
        if (start_s := self.channel.start_s(now_s)) < math.inf:
            self.wake(start_s)
        for due in self.channel.due_deletions(now_s):
            assert due.custom_metadata in (b"", b"zone")
            self.delete(due.object_id)
        self.wake(self.channel.next_deletion_s)

    def wake(self, at_s: float) -> None:
        if at_s < self.wakes_s:
            self.wakes_s = at_s
            self.after(at_s - self.world.now_s + 1e-6, self.woken)

    def woken(self) -> None:
        self.wakes_s = math.inf
        self.go_on()

    def upload(self, object_id: RouterObjectId) -> None:
        """It takes effect, or not, or long after it failed, whatever becomes of the gateway meanwhile."""
        world, rng = self.world, self.rng
        took_s = rng.choice([0.005, 0.01, 0.02, 0.3, 2.0])
        if rng.random() < world.odds.put_fails:
            effect = rng.choice(["none", "before", "after", "long after"])
            world.told[f"failed upload, effect {effect}"] += 1
            if effect != "none":
                delay_s = {"before": took_s / 2, "after": took_s + rng.uniform(0, 1)}.get(effect, rng.uniform(1, 900))
                world.after(delay_s, lambda: world.put(object_id))
            self.after(took_s, lambda: self.not_stored(object_id))
        else:
            world.after(took_s / 2, lambda: world.put(object_id))
            self.after(took_s, lambda: self.stored(object_id))

    def not_stored(self, object_id: RouterObjectId) -> None:
        self.channel.failed(object_id, self.world.now_s)
        self.go_on()

    def stored(self, object_id: RouterObjectId) -> None:
        """Each request is read by its leader's agent, and answered, dropped, or hangs for minutes."""
        for holder, where in self.channel.stored(object_id, b"zone", self.world.now_s):
            assert isinstance(holder, int)
            answered_s = self.rng.choice([0.01, 0.05, 0.5, 5.0, 120.0])
            self.after(self.rng.uniform(0, answered_s), partial(self.read, holder, where))
            self.after(answered_s, partial(self.settle, holder))
        self.go_on()

    def read(self, holder: int, where: StoredRecords) -> None:
        if holder in self.settled:
            return
        self.world.told["read"] += 1
        assert where.object_id in self.world.stored, f"{where.object_id} is missed at {self.world.now_s}"

    def delete(self, object_id: RouterObjectId) -> None:
        world, took_s = self.world, self.rng.choice([0.005, 0.02, 1.0])
        if self.rng.random() < world.odds.delete_fails:
            if self.rng.random() < 0.5:
                world.after(took_s / 2, lambda: world.delete(object_id))
            self.after(took_s, lambda: self.not_deleted(object_id))
        else:
            world.after(took_s / 2, lambda: world.delete(object_id))
            self.after(took_s, lambda: self.deleted(object_id))

    def not_deleted(self, object_id: RouterObjectId) -> None:
        self.channel.not_deleted(object_id, self.world.now_s)
        self.go_on()

    def deleted(self, object_id: RouterObjectId) -> None:
        self.channel.deleted(object_id)
        self.go_on()

    def sweep(self) -> None:
        world = self.world
        listed = [
            StoredBlob(object_id.blob_name, 1, b"zone", round(written_s * 1000))
            for object_id, written_s in world.stored.items()
        ]
        for dead in self.sweeper.dead(listed, world.now_s):
            if self.rng.random() >= world.odds.delete_fails:
                world.told["swept"] += 1
                object_id = RouterObjectId.parse(dead.name)
                assert object_id is not None
                world.delete(object_id)


@pytest.mark.parametrize("seed", range(len(ODDS)))
def test_after_a_day_and_random_kills_no_object_is_left_and_none_was_missed(seed: int) -> None:
    world = World(seed)
    world.run()
    assert world.stored == {}
    assert sum(gateway.channel.objects for gateway in world.gateways) == 0
    assert world.told["read"] > 5_000
    assert world.told["killed"] > 20
    assert world.oldest_s < 2 * KEEP_S + SWEEP_EACH_S * (3 if world.odds.delete_fails < 0.4 else 12)


def test_the_day_brings_about_what_only_a_sweep_finds() -> None:
    """Else the test above could not tell a sweep from none."""
    world = World(3)
    world.run()
    assert world.told["swept"] > 5
    assert world.told["failed upload, effect long after"] > 50
