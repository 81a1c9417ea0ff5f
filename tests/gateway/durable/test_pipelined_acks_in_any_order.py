"""Seeded runs of a producer, an agent that holds its answers, and a leader to which everything happens."""

import random
from collections import deque

import pytest

from gateway.durable.pipelined_acks import Way
from kafka_log.topic_partition import TopicId
from tests.gateway.durable.test_pipelined_acks import NO_ERROR, NOT_LEADER, TOO_FEW, TOPIC, Leader, Rig

SEEDS, STEPS = 60, 300
RECORDS = 3


class Life:
    """A leader's log whose records have names, so that what was acknowledged can be looked for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leader = Leader()
        self.rig = Rig(self.random.choice((9, 13)), self.leader)
        self.half_until_s: float | None = None
        """The topic's name is another one's already, and its partition is not until then."""
        self.log: list[int] = []
        """The number of the request that each offset is of."""
        self.committed: set[int] = set()
        """Requests whose last record was below a high watermark that followers of the minimum ISR had reached."""
        self.is_enough_in_sync = True
        self.in_turn: deque[int] = deque()
        """Requests that wait at the agent."""
        self.waiting: tuple[int, int] | None = None
        """One with acks=all that the broker has not answered: number and base offset; it reads nothing meanwhile."""
        self.questions: deque[bytes | tuple[int, int]] = deque()
        """What the broker has not read: the agent's frames, and requests by number and acks."""
        self.sent: deque[int] = deque()
        self.number = 0
        self.acknowledged = 0

    def run(self, steps: int) -> None:
        events = (self.send,) * 4 + (self.serve,) * 6 + (self.replicate,) * 3 + (self.agent,) * 6 + (self.client,) * 4
        rare = (self.change_isr, self.raise_epoch, self.lose_the_tail, self.make_topic_again)
        self.send()
        self.settle()
        for _ in range(5):  # the partition is learnt
            self.agent()
            self.serve()
        for _ in range(steps):
            self.rig.now_s += self.random.choice((1e-4, 1e-3, 1e-2))
            if self.half_until_s is not None and self.rig.now_s >= self.half_until_s:
                self.make_partition_again()
            self.random.choice(events if self.random.random() < 0.97 else rare)()

    def settle(self) -> None:
        """Nothing goes wrong any more: every request is answered."""
        self.is_enough_in_sync = True
        self.make_partition_again()
        for _ in range(2000):
            if not self.sent:
                return
            self.rig.now_s += 0.05
            for step in (self.serve, self.replicate, self.agent, self.client):
                step()
        raise AssertionError(f"requests {list(self.sent)} were never answered")

    # What happens.

    def send(self) -> None:
        if len(self.sent) >= 20 or self.rig.answers.is_busy:
            return
        self.number += 1
        self.sent.append(self.number)
        self.in_turn.append(self.number)
        self._forward()

    def _forward(self) -> None:
        while self.in_turn and (acks := self.rig.send(self.in_turn[0], records=RECORDS)) is not None:
            self.questions.append((self.in_turn.popleft(), acks))

    def serve(self) -> None:
        """The broker reads the next frame of the connection, unless it waits for replication."""
        if self.waiting is not None or not self.questions:
            return
        frame = self.questions.popleft()
        if isinstance(frame, bytes):
            self.rig.answers.answered(self.leader.answer(frame), self.rig.now_s)
            return
        number, acks = frame
        if acks == -1 and not self.is_enough_in_sync:
            self.rig.append(number, -1, TOO_FEW)
            return
        base_offset = len(self.log)
        self.log += [number] * RECORDS
        if acks == -1:
            self.waiting = number, base_offset
        else:
            self.rig.append(number, base_offset)

    def replicate(self) -> None:
        if self.is_enough_in_sync:
            self.leader.high_watermark = self.random.randint(self.leader.high_watermark, len(self.log))
            self.committed.update(self.log[: self.leader.high_watermark])
            if self.leader.high_watermark < len(self.log):
                self.committed.discard(self.log[self.leader.high_watermark])
        if self.waiting is not None and self.waiting[1] + RECORDS <= self.leader.high_watermark:
            self._answer_waiting(self.waiting[1], NO_ERROR)

    def agent(self) -> None:
        self.questions += self.rig.answers.to_broker(self.rig.now_s)
        self._forward()

    def client(self) -> None:
        told = self.rig.told()
        if told is not None:
            number = self.sent.popleft()
            if told[0] == NO_ERROR:
                self.acknowledged += 1
                assert number in self.committed, f"request {number} was acknowledged and not replicated"

    def change_isr(self) -> None:
        self.is_enough_in_sync = not self.is_enough_in_sync

    def raise_epoch(self) -> None:
        self.leader.ends[self.leader.epoch] = len(self.log)
        self.leader.epoch += 1

    def lose_the_tail(self) -> None:
        """Another broker led, without what was not replicated, and wrote something; this one leads again."""
        kept = self.random.randint(self.leader.high_watermark, len(self.log))
        self.leader.ends[self.leader.epoch] = kept
        self.leader.ends = {epoch: min(end, kept) for epoch, end in self.leader.ends.items()}
        self.leader.epoch += 2
        self.log = self.log[:kept] + [0] * (len(self.log) - kept + 5)
        self._lost()

    def make_topic_again(self) -> None:
        if self.rig.version >= 13:  # a request that names the old id is refused by the broker itself
            return
        self.leader.topic_id = TopicId(self.random.randbytes(16))
        self.half_until_s = self.rig.now_s + self.random.random()

    def make_partition_again(self) -> None:
        if self.half_until_s is None:
            return
        self.half_until_s = None
        self.rig.logs.topics_known(frozenset(), {self.leader.topic_id: TOPIC})
        by_others = self.random.choice((0, len(self.log) + 20 * RECORDS))
        self.leader.epoch, self.leader.ends, self.leader.high_watermark = 5, {}, by_others
        self.log = [0] * by_others
        self._lost()

    def _lost(self) -> None:
        if self.waiting is not None:
            self._answer_waiting(-1, NOT_LEADER)

    def _answer_waiting(self, base_offset: int, error: int) -> None:
        assert self.waiting is not None
        (number, _), self.waiting = self.waiting, None
        self.rig.append(number, base_offset, error)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_nothing_is_acknowledged_that_is_not_replicated_and_everything_is_answered(first: int) -> None:
    pipelined = acknowledged = 0
    for seed in range(first, first + 20):
        life = Life(seed)
        life.run(STEPS)
        life.settle()
        pipelined += life.rig.ways.count(Way.PIPELINED)
        acknowledged += life.acknowledged
        life.rig.answers.close()
        assert not life.rig.replication.waiting_bytes, "bytes that nobody waits for are given back"
    assert pipelined > acknowledged / 4 > 0, "runs in which nothing is pipelined prove nothing"
