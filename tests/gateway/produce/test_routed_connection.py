"""Both ends of a client's connection together, by seeds: whatever fails, the broker gets what the client sent.

A client sends frames as fast as it may be read; uploads and reads end in any order, fail, come late or bring other
bytes; the leader's agent asks; the broker answers in order; the connection may close at any time.
"""

import heapq
import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest

from gateway.produce import route_core, splice_core
from gateway.produce.produce_frame import ProduceRequestView
from gateway.produce.route_core import RouteCore, RouteLimits, StoredRecords, Window
from gateway.produce.route_request import encode_route_request
from gateway.produce.splice_core import SpliceCore, SpliceLimits
from plugin.router_object_id import RouterObjectId
from replication.wire.request_order import RequestOrder
from tests.gateway.produce.produce_frames import produce, records

FRAMES = 60
KEPT_BYTES = 60_000
WINDOW = Window(6, 20_000)
WAIT_S = 0.2


@dataclass
class Line:
    """One connection with a gateway's core at one end and the leader's agent's at the other."""

    seed: int
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tie = count()
        self.acks: dict[int, int] = {}
        self.frames = deque(self.frame(number) for number in range(FRAMES))
        self.sent: list[bytes] = []
        self.gateway = RouteCore(RouteLimits(WAIT_S, 12, KEPT_BYTES, WINDOW), self.is_linked)
        self.order = RequestOrder[int | None]()
        self.leader = SpliceCore(SpliceLimits(WAIT_S, 1 << 20, 8_000, WINDOW), 4, 11)
        self.objects: dict[RouterObjectId, bytes] = {}
        self.produced: list[bytes] = []
        self.answered: list[int] = []
        self.asked: Counter[str] = Counter()
        self.offered: set[int] = set()
        self.settled: list[int] = []
        self.closes_s = self.rng.uniform(0, 3) if self.seed % 3 == 0 else float("inf")
        self.line_s = {"gateway": 0.0, "leader": 0.0, "broker": 0.0}
        self.has_turn = False
        self.failing = self.rng.choice([0.0, 0.1, 0.5, 1.0])

    def frame(self, correlation_id: int) -> bytes:
        acks = self.acks[correlation_id] = self.rng.choice([-1, -1, -1, 1, 0])
        sizes = [self.rng.choice([10, 300, 3_000, 12_000]) for _ in range(self.rng.randint(1, 3))]
        return produce(
            {number: records(size) for number, size in enumerate(sizes)},
            correlation_id=correlation_id,
            acks=acks,
            version=self.rng.choice([7, 9, 12, 13]),
        )

    def is_linked(self, view: ProduceRequestView, size: int, now_s: float) -> bool:
        return size > 1000 and self.rng.random() < 0.9

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + delay_s, next(self.tie), do))

    def in_order(self, way: str, do: Callable[[], None]) -> None:
        """Over a connection: later, and not before what was sent there before."""
        self.line_s[way] = max(self.line_s[way], self.now_s + self.rng.uniform(0, 0.02))
        heapq.heappush(self.events, (self.line_s[way], next(self.tie), do))

    def fails(self) -> bool:
        return self.rng.random() < self.failing

    # What the cores want done.

    def at_gateway(self, actions: Sequence[route_core.Action]) -> None:
        for action in actions:
            match action:
                case route_core.Offer(number, chunks):
                    self.offered.add(number)
                    self.upload(number, b"".join(chunks))
                case route_core.Settled(number):
                    assert number in self.offered
                    self.settled.append(number)
                case route_core.ForwardInline(frame):
                    self.order.asked(frame, None)
                    self.to_leader(partial(self.leader.frame_came, bytes(frame)))
                case route_core.ForwardRoute(request):
                    self.order.asked(request.skeleton[0], request.number)
                    self.to_leader(partial(self.routed, b"".join(map(bytes, encode_route_request(request)))))
                case route_core.SendOriginal(number, frame):
                    self.to_leader(partial(self.leader.original_came, number, bytes(frame)))
        assert self.gateway.kept_bytes < KEPT_BYTES + 40_000
        self.read_on()
        self.wake(self.gateway.deadline_s, lambda: self.at_gateway(self.gateway.look_again(self.now_s)))

    def to_leader(self, take: Callable[[], Sequence[splice_core.Action]]) -> None:
        self.in_order("leader", lambda: self.at_leader(take()))

    def routed(self, body: bytes) -> Sequence[splice_core.Action]:
        return self.leader.request_came(body, self.now_s)

    def wake(self, at_s: float | None, do: Callable[[], None]) -> None:
        if at_s is not None:
            heapq.heappush(self.events, (max(at_s, self.now_s), next(self.tie), do))

    def upload(self, number: int, content: bytes) -> None:
        object_id = RouterObjectId(4, 11, 0, number)
        start = self.rng.randrange(500)
        self.objects[object_id] = b"." * start + content + b"."
        delay_s = self.rng.choice([0.001, 0.02, 0.02, 0.05, 0.5])
        if self.fails():
            self.after(delay_s, lambda: self.at_gateway(self.gateway.not_stored(number, self.now_s)))
        else:
            where = StoredRecords(object_id, start, b"")
            self.after(delay_s, lambda: self.at_gateway(self.gateway.stored(number, where, self.now_s)))

    def at_leader(self, actions: Sequence[splice_core.Action]) -> None:
        for action in actions:
            match action:
                case splice_core.Read():
                    self.read(action)
                case splice_core.ToBroker(buffers):
                    self.to_broker(b"".join(map(bytes, buffers)))
                case splice_core.AskInline(number, reason):
                    self.asked[reason.value] += 1
                    self.ask(number)
        self.wake(self.leader.deadline_s, lambda: self.at_leader(self.leader.look_again(self.now_s)))

    def ask(self, number: int) -> None:
        self.in_order("gateway", lambda: self.at_gateway(self.gateway.inline_asked(number, self.now_s)))

    def read(self, wanted: splice_core.Read) -> None:
        content = self.objects[wanted.object_id][wanted.start_position : wanted.end_position]
        assert wanted.number not in self.settled
        delay_s = self.rng.choice([0.001, 0.01, 0.01, 0.05, 0.5])
        if self.fails():
            if self.rng.random() < 0.5:
                self.after(delay_s, lambda: self.at_leader(self.leader.not_read(wanted.number)))
                return
            content = content[:-1] + bytes((content[-1] ^ 1,))
        self.after(delay_s, lambda: self.at_leader(self.leader.was_read(wanted.number, content)))

    def to_broker(self, frame: bytes) -> None:
        self.produced.append(frame)
        version, correlation_id = struct.unpack(">hi", frame[2:8])
        if self.acks[correlation_id] != 0:
            response = struct.pack(">i", correlation_id) + bytes((version,))

            def answer() -> None:
                self.answered.append(correlation_id)
                number = self.order.answered(response)
                self.at_gateway([] if number is None else self.gateway.answered(number, self.now_s))

            self.in_order("gateway", answer)

    # The client.

    def read_on(self) -> None:
        if self.frames and not self.gateway.is_full and not self.has_turn:
            self.has_turn = True
            self.after(self.rng.choice([0.0, 0.0, 0.001, 0.03]), self.client_sends)

    def client_sends(self) -> None:
        self.has_turn = False
        if self.gateway.is_full:
            return
        self.sent.append(self.frames.popleft())
        self.at_gateway(self.gateway.frame_came(self.sent[-1], self.now_s))

    def run(self) -> None:
        self.read_on()
        while self.events:
            at_s, _, do = heapq.heappop(self.events)
            if at_s >= self.closes_s:
                self.now_s = self.closes_s
                self.at_gateway_closed()
                return
            self.now_s = at_s
            do()
            assert self.now_s < 600

    def at_gateway_closed(self) -> None:
        for action in self.gateway.closed():
            assert isinstance(action, route_core.Settled)
            self.settled.append(action.number)


@pytest.mark.parametrize("seed", range(150))
def test_the_broker_gets_what_the_client_sent_each_frame_once_and_in_order(seed: int) -> None:
    line = Line(seed)
    line.run()
    assert line.produced == line.sent[: len(line.produced)]
    answered = [number for number in range(len(line.produced)) if line.acks[number] != 0]
    assert line.answered == answered[: len(line.answered)]
    assert sorted(line.settled) == sorted(line.offered)  # each once
    if line.closes_s == float("inf"):
        assert len(line.produced) == FRAMES
        assert line.answered == answered
        assert line.gateway.kept_bytes == 0


def test_the_seeds_bring_about_all_that_can_go_wrong() -> None:
    asked: Counter[str] = Counter()
    linked = 0
    for seed in range(150):
        line = Line(seed)
        line.run()
        asked += line.asked
        linked += len(line.offered)
    assert min(asked[reason.value] for reason in splice_core.AskReason) > 20
    assert linked > 1000
