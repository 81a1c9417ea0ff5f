"""Forwards one connection's acks=all requests as acks=1, and holds their answers until replication. Sans-IO.

A broker reads the next request of a connection after it has answered the last one, and answers acks=all after
replication. So the agent forwards acks=1 and holds the answer until the leader's own word says what acks=all promises:
the high watermark has passed the request's last offset in the leader epoch under which it was forwarded. Since Kafka
3.7 (KAFKA-15583) the high watermark stands still while the ISR is smaller than min.insync.replicas.

`gateway.durable.leader_questions` asks the leader, on the client's own connection.

Holds true:

- A request goes on as acks=1 only if the agent has seen a directory of each of its topics, and each of its partitions
  was asked about since on this connection, so epoch and id are known and the client may describe the topic. Everything
  else goes on unchanged.
- When the epoch rose by one, this broker led both, so its log still has the records, and the answer waits on under the
  new epoch. When it rose by more, the broker's epoch history decides: the answer waits on if the old epoch's end is at
  or past the records' end; otherwise it is NOT_LEADER_OR_FOLLOWER.
- While a partition may be below its minimum ISR (something waited `SUSPECTED_S`), its requests go on unchanged, so the
  broker itself refuses them before it appends, until its high watermark moves or it acknowledges one.
- What is appended and not replicated is bounded: per connection by reading no more, per partition by acks=all.
- While anything is held, the broker gets no requests of the client but Produce that it answers at once
  (`HeldResponses.asked`). Behind any other request, the broker would read the agent's questions too late. So all others
  are as late as in stock Kafka.
- A broker that throttles the client reads no question meanwhile. Its requests go on unchanged for `_THROTTLED_S` then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.leader_questions import (
    ANY_EPOCH,
    FENCED_LEADER_EPOCH,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    EpochEnd,
    HighWatermark,
    KnownLeaders,
    LeaderQuestions,
    LedPartition,
    NamedTopic,
    OwnRequest,
    Question,
    TopicPartition,
)
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.leader.follower_offsets import MAX_PARTITIONS, FollowerOffsets

SUSPECTED_S: Final = 1.0
"""A response that waited for so long may wait for an ISR that is too small (guessed)."""
CONNECTION_BYTES: Final = 8 * 1024 * 1024
"""Most bytes appended by one connection and not replicated. Kafka's producers send at most five requests of 1 MiB
(guessed)."""
PARTITION_BYTES: Final = 16 * 1024 * 1024
"""Most bytes appended to one partition by all connections and not replicated (guessed)."""
_POLL_S, _POLL_MAX_S = 0.008, 0.064
"""How soon to ask without a hint by a follower's fetch, which may bypass this agent (guessed)."""
_POLL_AGAIN_S: Final = 0.002
"""How soon to ask again after such a hint: the broker may have responded before it handled the fetch (guessed)."""
_THROTTLED_S: Final = 60.0
"""How long requests pass unchanged after a throttled one (guessed): a client is soon throttled again."""

_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_GONE: Final = frozenset({_UNKNOWN_TOPIC_OR_PARTITION, 6, 56, 75, 100})
"""UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID. Any
other error, as OFFSET_NOT_AVAILABLE, means: not yet.
"""


class AckRoute(Enum):
    """How an acks=all request was forwarded; the value labels a counter."""

    PIPELINED = "pipelined"
    UNKNOWN = "unchanged_partition_not_known_yet"
    NO_RIGHT = "unchanged_client_may_not_describe"
    OLD_BROKER = "unchanged_broker_before_3_8"
    UNREADABLE = "unchanged_not_understood"
    SUSPECTED = "unchanged_isr_may_be_too_small"
    BOUND = "unchanged_too_much_not_replicated"
    THROTTLED = "unchanged_client_is_throttled"


class ReplicationLimits:
    """What all connections of one agent know together about replication of logs. Event loop only."""

    def __init__(self, followers: FollowerOffsets, pipelined: Callable[[AckRoute], object] = lambda _way: None) -> None:
        """`pipelined` counts requests by `AckRoute`."""
        self.followers = followers
        self.pipelined = pipelined
        self._suspected: dict[TopicIdPartition, int] = {}
        """The high watermark at which each one stood still; -1: none is known."""
        self._high_watermarks: dict[TopicIdPartition, int] = {}
        self._waiting_bytes: Counter[TopicIdPartition] = Counter()

    def is_suspected(self, log: TopicIdPartition) -> bool:
        """Whether a log may have fewer in-sync replicas than min.insync.replicas."""
        return log in self._suspected

    def suspect(self, log: TopicIdPartition) -> None:
        """Note that a log's high watermark has not moved for a long time."""
        if len(self._suspected) > MAX_PARTITIONS:  # deleted topics' are among them
            self._suspected.clear()
        self._suspected.setdefault(log, self._high_watermarks.get(log, -1))

    def moved(self, log: TopicIdPartition, high_watermark: int) -> None:
        """Note a log's high watermark, as its leader reports it."""
        if len(self._high_watermarks) > MAX_PARTITIONS:
            self._high_watermarks.clear()
        self._high_watermarks[log] = high_watermark
        stood_at = self._suspected.get(log)
        if stood_at == -1:
            self._suspected[log] = high_watermark
        elif stood_at is not None and high_watermark > stood_at:
            del self._suspected[log]

    def acknowledged(self, log: TopicIdPartition) -> None:
        """Note that the broker itself has acknowledged an acks=all request for a log."""
        self._suspected.pop(log, None)

    def take(self, log: TopicIdPartition, size: int) -> None:
        """Count bytes that were sent to a log as acks=1 and are not known to be replicated."""
        self._waiting_bytes[log] += size

    def give_back(self, log: TopicIdPartition, size: int) -> None:
        """Stop counting bytes, because they are replicated or no response waits for them."""
        self._waiting_bytes[log] -= size
        if self._waiting_bytes[log] <= 0:
            del self._waiting_bytes[log]

    def is_full(self, log: TopicIdPartition) -> bool:
        """Whether as many bytes of a log as allowed are not known to be replicated."""
        return self._waiting_bytes[log] >= PARTITION_BYTES


class Forwarded(NamedTuple):
    """One partition of a request that was forwarded as acks=1."""

    led: LedPartition
    size: int


class ReplicationHold:
    """One partition of a response that is held until its records are replicated."""

    __slots__ = ("end_offset", "epoch", "forwarded", "since_s", "verdict")

    def __init__(self, forwarded: Forwarded, end_offset: int | None, since_s: float) -> None:
        self.forwarded = forwarded
        self.epoch = forwarded.led.epoch
        self.end_offset = end_offset
        """Exclusive; None: the broker did not say, so it is where the log ends when the leader is asked."""
        self.since_s = since_s
        self.verdict: Verdict | None = None


class PipelinedAcks:
    """Forwards requests of one connection as acks=1, and determines when they are replicated. Times are monotonic
    seconds."""

    def __init__(
        self,
        shared: ReplicationLimits,
        logs: DurableLogs,
        woken: Callable[[], object],
    ) -> None:
        """`logs` knows the topics that have a directory here.

        `woken` is called when there is something to ask the broker.
        """
        self._shared = shared
        self._logs = logs
        self._woken = woken
        self._questions = LeaderQuestions()
        self._leaders = KnownLeaders()
        self._holds: dict[TopicPartition, list[ReplicationHold]] = {}
        self._fenced: set[TopicPartition] = set()
        """Partitions whose epoch rose; its history is to be asked for."""
        self._bytes = 0
        self._is_due = False
        self._muted_until_s = 0.0
        self._poll_s = _POLL_S
        self._next_poll_s: float | None = None

    # Requests.

    @property
    def is_full(self) -> bool:
        """Whether to read no more requests."""
        return self._bytes >= CONNECTION_BYTES

    @property
    def is_asking(self) -> bool:
        """Whether one of the agent's questions to the broker is open, or is needed for a held response."""
        return self._questions.is_open or bool(self._holds)

    @property
    def is_waiting(self) -> bool:
        """Whether records were forwarded as acks=1 that are not known to be replicated."""
        return self._bytes > 0

    def admit(
        self, sizes: Mapping[tuple[TopicId | str, int], int | None], client_id: bytes, now_s: float
    ) -> dict[tuple[TopicId | str, int], Forwarded] | None:
        """Decide whether a request with acks=all is forwarded as acks=1, and return the partitions to `hold` its
        response for.

        Empty: forward it unchanged. None: forward nothing yet; call again once nothing `is_waiting`. `sizes` are
        bytes by the request's own names of partitions; None: the records are not understood. `client_id` is as in the
        frame.
        """
        self._suspect(now_s)
        forwarded: dict[tuple[TopicId | str, int], Forwarded] = {}
        ways = [self._way(key, size, forwarded, now_s) for key, size in sizes.items()]
        others = [one for one in ways if one is not AckRoute.PIPELINED]
        way = next((one for one in AckRoute if one in others), AckRoute.PIPELINED) if others else AckRoute.PIPELINED
        if way is not AckRoute.PIPELINED and self.is_waiting:
            return None
        self._questions.client_id = client_id
        self._shared.pipelined(way)
        if way is not AckRoute.PIPELINED:
            return {}
        for one in forwarded.values():
            self._bytes += one.size
            self._shared.take(one.led.log, one.size)
        return forwarded

    def note_throttle(self, throttle_ms: int, now_s: float) -> None:
        """Note that the broker reads nothing from this connection for `throttle_ms`."""
        self._muted_until_s = max(self._muted_until_s, now_s + throttle_ms / 1000)

    def _way(
        self,
        key: tuple[TopicId | str, int],
        size: int | None,
        forwarded: dict[tuple[TopicId | str, int], Forwarded],
        now_s: float,
    ) -> AckRoute:
        if self._questions.are_answered is False:
            return AckRoute.OLD_BROKER
        if self._muted_until_s and now_s < self._muted_until_s + _THROTTLED_S:
            return AckRoute.THROTTLED
        if size is None:
            return AckRoute.UNREADABLE
        topic, partition = key
        named = self._logs.named(topic)
        if named is None:
            self._logs.ask_anew()
            return AckRoute.UNKNOWN
        name, topic_id = (named[0], partition), named[1]
        led = self._leaders.of_request(name, topic_id)
        if led is None:
            if self._leaders.want(name, topic_id, now_s):
                self._due()
            return AckRoute.NO_RIGHT if self._leaders.may_not_describe(name) else AckRoute.UNKNOWN
        if self._shared.is_suspected(led.log):
            return AckRoute.SUSPECTED
        if self._shared.is_full(led.log):
            return AckRoute.BOUND
        forwarded[key] = Forwarded(led, size)
        return AckRoute.PIPELINED

    # Answers.

    def hold(self, forwarded: Forwarded, end_offset: int | None, now_s: float) -> ReplicationHold:
        """Hold the response until records up to `end_offset` are replicated; None: the broker did not say where they
        end."""
        held = ReplicationHold(forwarded, end_offset, now_s)
        self._holds.setdefault(forwarded.led.name, []).append(held)
        if self._next_poll_s is None:
            self._next_poll_s = now_s + self._poll_s
        self._watch(held)
        return held

    def _watch(self, held: ReplicationHold) -> None:
        """Ask the leader again as soon as followers have fetched what is held; at once if it is not known."""
        if held.end_offset is None:
            self._due()
        else:
            self._shared.followers.wait(held.forwarded.led.log, held.end_offset, self._due)

    def refused(self, forwarded: Forwarded) -> None:
        """Note that the broker has refused these records, and so not appended them."""
        self._release(forwarded)
        self._leaders.forget(forwarded.led.name)

    def acknowledged(self, names: Iterable[tuple[TopicId | str, int]]) -> None:
        """Note that the broker itself has acknowledged acks=all for these partitions."""
        for topic, partition in names:
            named = self._logs.named(topic)
            if named is not None and (led := self._leaders.get((named[0], partition))) is not None:
                self._shared.acknowledged(led.log)

    def let_go(self, held: ReplicationHold) -> None:
        """Drop a hold, because its response is no longer waited for."""
        if held.verdict is None:
            self._end(held, Verdict.TIMED_OUT)
            self._forget(held)

    def _end(self, held: ReplicationHold, verdict: Verdict) -> None:
        held.verdict = verdict
        self._release(held.forwarded)

    def _release(self, forwarded: Forwarded) -> None:
        self._bytes -= forwarded.size
        self._shared.give_back(forwarded.led.log, forwarded.size)

    def _forget(self, held: ReplicationHold) -> None:
        name = held.forwarded.led.name
        left = [one for one in self._holds.get(name, ()) if one is not held]
        if left:
            self._holds[name] = left
        else:
            self._holds.pop(name, None)

    # Questions.

    def _due(self) -> None:
        self._is_due = True
        self._woken()

    @property
    def next_poll_s(self) -> float | None:
        """When `to_broker` has questions again, in monotonic seconds; None: not before something happens."""
        return self._next_poll_s if self._has_questions and not self._questions.is_open else None

    @property
    def _has_questions(self) -> bool:
        return bool(self._holds or self._leaders.wanted)

    def to_broker(self, now_s: float) -> list[OwnRequest]:
        """Return the agent's own requests to send to the broker now, which ask about partitions."""
        self._suspect(now_s)
        is_late = self._next_poll_s is not None and now_s >= self._next_poll_s
        if self._questions.is_open or not self._has_questions or not (self._is_due or is_late):
            return []
        if self._questions.are_answered is None:
            return [self._questions.ask_whether()]
        if not self._questions.are_answered:
            self._leaders.wanted.clear()
            return []
        self._poll_s = _POLL_AGAIN_S if self._is_due else min(2 * self._poll_s, _POLL_MAX_S)
        self._is_due, self._next_poll_s = False, now_s + self._poll_s
        names = {**self._leaders.wanted, **dict.fromkeys(self._holds)}
        histories = {
            name: min(held.epoch for held in holds)
            for name, holds in self._holds.items()
            if name in self._fenced or any(held.end_offset is None for held in holds)
        }
        return self._questions.ask({one: self._insisted_epoch(one) for one in names}, histories)

    def _suspect(self, now_s: float) -> None:
        for holds in self._holds.values():
            if now_s - max(holds[0].since_s, self._muted_until_s) > SUSPECTED_S:
                self._shared.suspect(holds[0].forwarded.led.log)

    def _insisted_epoch(self, name: TopicPartition) -> int:
        if name in self._fenced or name in self._leaders.wanted or name not in self._holds:
            return ANY_EPOCH
        return min(held.epoch for held in self._holds[name])

    def answered(self, now_s: float) -> None:
        """Take the conclusions of a question, if its last response has come."""
        if (question := self._questions.concluded()) is not None:
            if question.throttle_ms:
                self.note_throttle(question.throttle_ms, now_s)
            self._conclude(question, now_s)
        self._woken()

    # What the answers say.

    def _conclude(self, question: Question, now_s: float) -> None:
        for name, insisted in question.epochs.items():
            told, topic = question.watermarks.get(name), question.topics.get(name[0])
            if told is None or topic is None:
                self._leaders.wanted.pop(name, None)
                continue
            if name in self._leaders.wanted:
                self._leaders.learn(name, told, topic, now_s)
            if name in self._holds:
                self._judge(name, insisted, told, topic, question)

    def _judge(
        self, name: TopicPartition, insisted: int, told: HighWatermark, topic: NamedTopic, question: Question
    ) -> None:
        holds = self._holds[name]
        log = holds[0].forwarded.led.log
        is_gone = told.error in _GONE or topic.error == _UNKNOWN_TOPIC_OR_PARTITION
        if is_gone or (topic.error == NONE and topic.topic_id != log.topic_id):
            self._settle(name, holds, Verdict.NOT_LED)
        elif TOPIC_AUTHORIZATION_FAILED in (told.error, topic.error):
            self._settle(name, holds, Verdict.TIMED_OUT)
        elif told.error == FENCED_LEADER_EPOCH:
            self._fenced.add(name)
            self._leaders.forget(name)
            self._is_due = True
        elif told.error == topic.error == NONE:
            if name in self._fenced and name in question.histories:
                self._judge_history(name, told.leader_epoch, question)
            elif insisted != ANY_EPOCH:
                self._shared.moved(log, told.offset)
                current = [one for one in holds if one.epoch == told.leader_epoch]
                self._learn_end(current, question.ends.get(name))
                passed = [one for one in current if one.end_offset is not None and one.end_offset <= told.offset]
                self._settle(name, passed, Verdict.REPLICATED)
        if name not in self._holds:
            self._fenced.discard(name)

    def _learn_end(self, holds: Iterable[ReplicationHold], end: EpochEnd | None) -> None:
        """Let holds of the present epoch whose end is not known wait for all that the log had when this was asked.

        The broker has answered their requests before the question, so the records lie below.
        """
        for one in holds:
            if one.end_offset is None and end is not None and (end.error, end.leader_epoch) == (NONE, one.epoch):
                one.end_offset = end.end_offset
                self._watch(one)

    def _judge_history(self, name: TopicPartition, new_epoch: int, question: Question) -> None:
        """Continue holds of the old epoch under the new one if the log still has their records; refuse the others.

        An epoch has one leader, and a leader truncates nothing. So if the new epoch is the next one, all records are
        there, also those that were appended after it had begun.
        """
        old_epoch, end = question.histories[name], question.ends.get(name)
        if end is None or end.error not in (NONE, *_GONE):
            return
        self._fenced.discard(name)
        is_next = new_epoch == old_epoch + 1
        reached = end.end_offset if end.error == NONE and end.leader_epoch == old_epoch else -1
        lost = []
        for one in self._holds[name]:
            if one.epoch == old_epoch:
                if is_next or (one.end_offset is not None and one.end_offset <= reached):
                    one.epoch = new_epoch
                else:
                    lost.append(one)
        self._settle(name, lost, Verdict.NOT_LED)
        self._is_due = True

    def _settle(self, name: TopicPartition, holds: list[ReplicationHold], verdict: Verdict) -> None:
        if not holds:
            return
        if verdict is Verdict.REPLICATED:
            self._poll_s = _POLL_S
        else:
            self._leaders.forget(name)
        for held in list(holds):
            self._end(held, verdict)
            self._forget(held)
        if name in self._holds:
            self._watch(self._holds[name][0])

    def close(self) -> None:
        """Drop all holds, because the connection ended."""
        for holds in self._holds.values():
            for held in holds:
                self._release(held.forwarded)
        self._holds.clear()
        self._shared.followers.forget(self._due)
