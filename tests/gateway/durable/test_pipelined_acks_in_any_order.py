"""Seeded runs of an idempotent producer, an agent that holds its answers, and a leader to which everything happens."""

import random
from collections import deque

import pytest

from gateway.durable.pipelined_acks import AckRoute
from gateway.durable.produce_response import scan_produce_response
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_table import SettingsTable
from tests.gateway.durable.test_pipelined_acks import (
    DUPLICATE,
    NO_ERROR,
    NOT_LEADER,
    TIMED_OUT,
    TOO_FEW,
    TOPIC,
    Leader,
    Rig,
)
from tests.gateway.produce.produce_frames import TOPIC_ID

SEEDS, STEPS = 60, 400
RECORDS = 3
"""Of each batch: the log is cut, and replicated, between batches alone."""


class Life:
    """A leader's log whose batches have numbers, so that what was acknowledged can be looked for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leader = Leader()
        self.rig = Rig(self.random.choice((9, 13)), self.leader)
        self.directory_id = TOPIC_ID
        self.half_until_s: float | None = None
        """The topic's name is another one's already, and its partition is not until then."""
        self.log: list[int] = []
        """The number of the batch that each offset is of; 0: another producer's."""
        self.committed: set[int] = set()
        """Batches that were below a high watermark which followers of the minimum ISR had reached."""
        self.is_enough_in_sync = True
        self.throttles = self.random.random() < 0.1
        self.muted_until_s = 0.0
        self.sent: dict[int, tuple[int, int]] = {}
        """Number of the batch, and acks, of each request that is to be answered, by correlation id."""
        self.in_turn: deque[tuple[int, int, int]] = deque()
        """Requests that wait at the agent: correlation id, number and acks."""
        self.waiting: tuple[int, int] | None = None
        """One with acks=all that the broker has not answered: its id and base offset; it reads nothing meanwhile."""
        self.unread: deque[bytes | tuple[int, int, int]] = deque()
        """What the broker has not read: the agent's questions, and requests as it got them."""
        self.to_retry: deque[int] = deque()
        self.requests = self.batches = self.acknowledged = self.duplicates = 0

    def run(self, steps: int) -> None:
        events = [self.send] * 4 + [self.serve] * 6 + [self.replicate] * 3 + [self.agent] * 6 + [self.client] * 4
        events.append(self.look)
        rare = [self.change_isr, self.raise_epoch, self.lose_the_tail] + [self.make_topic_again] * 3
        self.send()
        self.settle()
        for _ in range(5):  # the partition is learnt
            self.agent()
            self.serve()
        for _ in range(steps):
            self.rig.now_s += self.random.choice((1e-4, 1e-3, 1e-2))
            if self.half_until_s is not None and self.rig.now_s >= self.half_until_s:
                self.make_partition_again()
            self.random.choice(events if self.random.random() < 0.96 else rare)()

    def settle(self) -> None:
        """Nothing goes wrong any more: every request is answered."""
        self.is_enough_in_sync = True
        self.make_partition_again()
        for _ in range(2000):
            if not self.sent and not self.in_turn:
                return
            self.rig.now_s += 0.05
            for step in (self.serve, self.replicate, self.agent, self.client):
                step()
        raise AssertionError(f"requests {list(self.sent)} were never answered")

    # The producer and the agent.

    def send(self) -> None:
        if len(self.sent) >= 20 or self.rig.answers.is_busy:
            return
        self.requests += 1
        acks = self.random.choice((-1,) * 10 + (1, 0))
        if acks == -1 and self.to_retry:
            number = self.to_retry.popleft()
        else:
            self.batches += 1
            number = self.batches
        if acks:
            self.sent[self.requests] = number, acks
        self.in_turn.append((self.requests, number, acks))
        self._forward()

    def _forward(self) -> None:
        while self.in_turn:
            id_, number, acks = self.in_turn[0]
            if (changed := self.rig.send(id_, records=RECORDS, acks=acks)) is None:
                return
            self.in_turn.popleft()
            self.unread.append((id_, number, changed))

    def agent(self) -> None:
        self.unread += self.rig.answers.to_broker(self.rig.now_s)
        self._forward()

    def look(self) -> None:
        """The agent sees which topic has a directory."""
        self.rig.logs.topics_known(SettingsTable(), {self.directory_id: TOPIC})

    def client(self) -> None:
        if (found := self.rig.answers.ready(self.rig.now_s)) is None:
            return
        frame, _ = found
        id_ = next(iter(self.sent))
        number, acks = self.sent.pop(id_)
        assert int.from_bytes(bytes(frame[:4]), "big") == id_, "answers keep the order of the requests"
        error = scan_produce_response(frame, self.rig.version).partitions[0].error
        if acks == -1 and error in (NO_ERROR, DUPLICATE):
            self.acknowledged += 1
            self.duplicates += error == DUPLICATE
            assert number in self.committed, f"batch {number} was acknowledged and not replicated"
        elif acks == -1:
            assert error in (NOT_LEADER, TIMED_OUT, TOO_FEW), "what a client takes for success"
            self.to_retry.append(number)

    # The broker.

    def serve(self) -> None:
        """Read the next frame of the connection, unless the broker waits for replication or throttles the client."""
        if self.waiting is not None or not self.unread or self.rig.now_s < self.muted_until_s:
            return
        frame = self.unread.popleft()
        self.leader.log_end = len(self.log)
        if isinstance(frame, bytes):
            self.rig.answers.answered(self.leader.answer(frame), self.rig.now_s)
        else:
            self._produce(*frame)

    def _produce(self, id_: int, number: int, acks: int) -> None:
        if acks == -1 and not self.is_enough_in_sync:
            self.rig.append(id_, -1, TOO_FEW)
            return
        is_duplicate = number in self.log
        base_offset = self.log.index(number) if is_duplicate else len(self.log)
        if not is_duplicate:
            self.log += [number] * RECORDS
        if acks == -1:
            self.waiting = id_, base_offset
        elif acks == 1 and is_duplicate and self.random.random() < 0.2:
            self.rig.append(id_, -1, DUPLICATE)
        elif acks == 1:
            throttle_ms = self.random.randrange(1, 50) if self.throttles and self.random.random() < 0.2 else 0
            self.muted_until_s = self.rig.now_s + throttle_ms / 1000
            self.rig.append(id_, base_offset, throttle_ms=throttle_ms)

    def replicate(self) -> None:
        if self.is_enough_in_sync:
            self.leader.high_watermark = self._between_batches(self.leader.high_watermark)
            self.committed.update(self.log[: self.leader.high_watermark])
        if self.waiting is not None and self.waiting[1] + RECORDS <= self.leader.high_watermark:
            self._answer_waiting(self.waiting[1], NO_ERROR)

    def _between_batches(self, begin: int) -> int:
        """An offset from there to the log's end."""
        return self.random.randrange(begin, len(self.log) + 1, RECORDS)

    # What happens to the partition.

    def change_isr(self) -> None:
        self.is_enough_in_sync = not self.is_enough_in_sync

    def raise_epoch(self) -> None:
        self.leader.ends[self.leader.epoch] = len(self.log)
        self.leader.epoch += 1

    def lose_the_tail(self) -> None:
        """Another broker led, without what was not replicated, and wrote something; this one leads again."""
        kept = self._between_batches(self.leader.high_watermark)
        self.leader.ends[self.leader.epoch] = kept
        self.leader.ends = {epoch: min(end, kept) for epoch, end in self.leader.ends.items()}
        self.leader.epoch += 2
        self.log = self.log[:kept] + [0] * (len(self.log) - kept + 2 * RECORDS)
        self._lost()

    def make_topic_again(self) -> None:
        if self.rig.version >= 13 or self.half_until_s is not None:  # a broker refuses requests by the old id
            return
        self.leader.topic_id = TopicId(self.random.randbytes(16))
        self.half_until_s = self.rig.now_s + 0.3 * self.random.random()

    def make_partition_again(self) -> None:
        if self.half_until_s is None:
            return
        self.half_until_s, self.directory_id = None, self.leader.topic_id
        by_others = self.random.choice((0, len(self.log) + 20 * RECORDS))
        self.leader.epoch, self.leader.ends, self.leader.high_watermark = 5, {}, by_others
        self.log = [0] * by_others
        self._lost()

    def _lost(self) -> None:
        if self.waiting is not None:
            self._answer_waiting(-1, NOT_LEADER)

    def _answer_waiting(self, base_offset: int, error: int) -> None:
        assert self.waiting is not None
        (id_, _), self.waiting = self.waiting, None
        self.rig.append(id_, base_offset, error)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_nothing_is_acknowledged_that_is_not_replicated_and_everything_is_answered(first: int) -> None:
    pipelined = acknowledged = duplicates = 0
    for seed in range(first, first + 20):
        life = Life(seed)
        life.run(STEPS)
        life.settle()
        pipelined += life.rig.ways.count(AckRoute.PIPELINED)
        acknowledged += life.acknowledged
        duplicates += life.duplicates
        life.rig.answers.close()
        assert not life.rig.replication.taken_bytes, "bytes that nobody waits for are given back"
    assert duplicates
    assert pipelined > acknowledged / 4 > 0, "runs in which nothing is pipelined prove nothing"
