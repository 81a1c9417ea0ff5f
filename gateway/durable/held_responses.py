"""One connection's answers to Produce, held until what they acknowledge is kept. Sans-IO.

Frames that go to the broker, its answers and the time go in; answers come out, in the order in which they came.

Kept means one thing or both: *stored*, for durable topics, and *replicated*, for acks=all that went on as acks=1
(`gateway.durable.pipelined_acks`).

Holds true:

- Answers belong to requests by the order of the connection (`RequestOrder`), the agent's own questions included.
- An answer that acknowledges records of a durable topic goes on once they are in object storage and published. Else it
  says REQUEST_TIMED_OUT, or NOT_LEADER_OR_FOLLOWER if the log was truncated or is not led here any more. On both, a
  client retries, as on a broker's. Other partitions of the answer stay as they are.
- The broker says where the records stand: from its base offset on, as many as the request had. So a duplicate, which is
  answered with the offset of the original, waits for that. DUPLICATE_SEQUENCE_NUMBER, which clients take for success,
  has no offset. It is refused for a durable topic. For acks=all that went on as acks=1 it goes on once all is
  replicated that the log had then.
- A request of a transaction for a durable topic never reaches the broker: it is answered with POLICY_VIOLATION. While
  it is not known which topics are durable, it is answered with NOT_LEADER_OR_FOLLOWER, on which clients retry.
- The throttle time of an answer is shortened by the time for which it was held: brokers count from their own answer on.
- An answer is held for at most a share of the request's time-out, so that the client gets it in time.
- All answers behind a held one wait: clients rely on Kafka's order.
- A Produce request that is not understood is refused while any topic is durable; so is an answer. The caller then
  closes the connection.
- A broker that got SaslHandshake reads only SaslAuthenticate next. So a client that logs in again waits until none of
  the agent's questions is open, and the agent asks none until the login is over.

What is held is bounded (`is_full`: read no more answers; `is_busy`: read no more requests).
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.durable.durable_logs import DurableLogs, Hold, Verdict
from gateway.durable.leader_questions import OWN_ID, OwnRequest
from gateway.durable.pipelined_acks import Forwarded, PipelinedAcks, ReplicationHold, ReplicationLimits
from gateway.durable.produce_response import (
    ProduceResponseView,
    ResponsePartition,
    refuse,
    refuse_all,
    scan_produce_response,
    set_throttle_ms,
    throttle_ms,
)
from gateway.produce.produce_frame import (
    ACKS_ALL,
    ACKS_NONE,
    MIN_TRANSACTIONAL_VERSION,
    ProducedRecords,
    ProduceRequestView,
    Unread,
    client_id_of,
    scan_produce_request,
    with_acks_of_leader,
)
from kafka_log.crc32c import Buffer
from kafka_log.record_batch import CorruptBatchError, scan_batches
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.request_order import RequestOrder

_NONE: Final = 0
_NOT_LEADER_OR_FOLLOWER: Final = 6
_REQUEST_TIMED_OUT: Final = 7
_POLICY_VIOLATION: Final = 44
_DUPLICATE_SEQUENCE_NUMBER: Final = 46
_ERRORS: Final = {Verdict.NOT_LED: _NOT_LEADER_OR_FOLLOWER, Verdict.TIMED_OUT: _REQUEST_TIMED_OUT}

HELD_SHARE: Final = 0.9
"""Share of the request's own time-out for which its answer is held at most: clients give up at about all of it."""
MAX_RESPONSES: Final = 1000
MAX_BYTES: Final = 256 * 1024
MAX_REQUESTS: Final = 1000
_SASL: Final = frozenset({17, 36})
"""API keys of SaslHandshake and SaslAuthenticate."""
_API_KEY = struct.Struct(">h")
_NO_TRANSACTIONS: Final = (
    "this topic has remote.wal.durable.enable, and durable topics take no transactions (remote-wal gateway)"
)

PartitionKey = tuple[TopicId | str, int]
"""A partition as a Produce request names it: by topic id from version 13 on, by topic name before."""


class ProduceRefusedError(ConnectionError):
    """A Produce request may not be sent to the broker, because its response could not be held."""


class _Asked(NamedTuple):
    """A Produce request that the broker has not answered."""

    api_version: int
    deadline_s: float
    acks: int
    records: dict[PartitionKey, int | None]
    """How many offsets each partition's records take; None: not known."""
    forwarded: dict[PartitionKey, Forwarded]
    """The partitions that went on as acks=1 instead of acks=all; empty: none did."""


N = TypeVar("N")


@dataclass(slots=True)
class _Pending(Generic[N]):
    """A request of the client whose answer it has not got."""

    note: N
    asked: _Asked | None = None
    """For Produce only; None: its answer is not held."""
    is_refused: bool = False
    """The broker did not get it, and `frame` comes in its turn."""
    frame: Buffer = b""
    """The answer."""
    came_s: float = 0.0
    deadline_s: float = 0.0
    """When the answer goes on at the latest."""
    view: ProduceResponseView | None = None
    holds: list[tuple[ResponsePartition, Hold | ReplicationHold]] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        return all(held.verdict is not None for _, held in self.holds)


class Told(Protocol):
    """Is notified of how waiting for responses ended."""

    def ended(self, verdict: Verdict, held_s: float) -> None:
        """Note how waiting for a partition of a Produce response ended, and how long it took in seconds."""

    def transaction_refused(self) -> None:
        """Note a transactional request to a durable topic, which was refused."""


class HeldResponses(Generic[N]):
    """Holds one connection's Produce responses in order until their conditions are met. Times are monotonic seconds."""

    def __init__(
        self,
        logs: DurableLogs,
        woken: Callable[[], object],
        told: Told,
        replication: ReplicationLimits | None = None,
    ) -> None:
        """`replication` is shared by all connections; without it, acks=all requests are forwarded unchanged.

        `woken` is called when a response may have become `ready`.
        """
        self._logs = logs
        self._woken = woken
        self._told = told
        self._is_login = False
        self._acks: PipelinedAcks | None = None
        if replication is not None:
            self._acks = PipelinedAcks(replication, logs, woken)
        self._order: RequestOrder[_Pending[N] | OwnRequest] = RequestOrder()
        self._answers: deque[_Pending[N]] = deque()
        self._bytes = 0

    @property
    def may_hold(self) -> bool:
        """Whether any topic's or request's response may have to be held."""
        return self._acks is not None or self._logs.may_hold

    @property
    def is_full(self) -> bool:
        """Whether to read no more responses from the broker; False while a held response waits for one of them."""
        return self._has_much and not self.is_asking

    @property
    def is_asking(self) -> bool:
        """Whether a held response waits for the broker's response to one of the agent's own requests."""
        return self._acks is not None and self._acks.is_asking

    @property
    def _has_much(self) -> bool:
        return len(self._answers) >= MAX_RESPONSES or self._bytes >= MAX_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether to send no more requests to the broker."""
        if self._acks is not None and self._acks.is_full:
            return True
        return self._has_much or len(self._order) >= MAX_REQUESTS

    @property
    def held_bytes(self) -> int:
        """Bytes of responses that were not sent to the client yet."""
        return self._bytes

    @property
    def deadline_s(self) -> float | None:
        """When to call `ready` and `to_broker` at the latest; None: not before something happens."""
        deadlines = [self._answers[0].deadline_s] if self._answers else []
        if not self._is_login and self._acks is not None and self._acks.next_poll_s is not None:
            deadlines.append(self._acks.next_poll_s)
        return min(deadlines, default=None)

    def passed(self, frame: Buffer, note: N) -> None:
        """Note a client's frame that is sent to the broker unchanged, and whose response is not held; its beginning
        is enough."""
        self._order.asked(frame, _Pending(note))

    def asked(self, frame: Buffer, note: N, now_s: float) -> list[Buffer] | None:
        """Return the frame, as buffers, to send to the broker for the client's next one; empty: none is to be sent, and
        None: call again when something has changed.

        `note` is returned with the response by `ready`. Raises ProduceRefusedError if nothing may be sent.
        """
        if not self.may_hold:
            self.passed(frame, note)
            return [frame]
        view = scan_produce_request(frame, MIN_TRANSACTIONAL_VERSION)
        if not isinstance(view, Unread):
            self._is_login = False
            return self._asked_to_produce(frame, view, note, now_s)
        is_login = len(frame) >= _API_KEY.size and _API_KEY.unpack_from(frame)[0] in _SASL
        if self._acks is not None and (self._acks.is_waiting or (is_login and self.is_asking)):
            return None
        self._is_login = is_login
        if view is not Unread.OTHER_API and self._logs.may_hold:
            raise ProduceRefusedError(f"a Produce request that is not understood ({view.value})")
        self.passed(frame, note)
        return [frame]

    def to_broker(self, now_s: float) -> list[bytes]:
        """Return the agent's own frames to send to the broker now, besides the client's."""
        if self._is_login or self._acks is None:
            return []
        questions = self._acks.to_broker(now_s)
        for question in questions:
            self._order.add(OWN_ID, question)
        return [question.frame for question in questions]

    def _asked_to_produce(self, frame: Buffer, view: ProduceRequestView, note: N, now_s: float) -> list[Buffer] | None:
        if view.is_transactional and (refusal := self._refuse_transaction(view)) is not None:
            self._order.add(view.correlation_id, _Pending(note, is_refused=True, frame=refusal))
            self._take_refusals(now_s)
            return []
        if view.acks == ACKS_NONE:
            return [frame]
        records = {(_topic(one), one.partition): _offsets(frame, one) for one in view.fields}
        forwarded: dict[PartitionKey, Forwarded] | None = {}
        if self._acks is not None and view.acks == ACKS_ALL:
            forwarded = self._acks.admit(_sizes(view, records), client_id_of(frame), now_s)
        if forwarded is None:
            return None
        asked = _Asked(view.api_version, _deadline_s(view, now_s), view.acks, records, forwarded)
        self._order.add(view.correlation_id, _Pending(note, asked))
        return with_acks_of_leader(frame, view) if forwarded else [frame]

    def _refuse_transaction(self, view: ProduceRequestView) -> bytes | None:
        """Return the refusal of a transactional request; None: none of its topics is durable."""
        are_durable = {self._logs.is_durable(_topic(one), one.partition) for one in view.fields}
        if are_durable <= {False}:
            return None
        if view.acks == ACKS_NONE:
            raise ProduceRefusedError("a request of a transaction with acks=0 for a topic that may be durable")
        if True in are_durable:
            self._told.transaction_refused()
            return refuse_all(view, _POLICY_VIOLATION, _NO_TRANSACTIONS)
        self._logs.ask_anew()
        return refuse_all(view, _NOT_LEADER_OR_FOLLOWER, "it is not known yet which topics are durable")

    def _take_refusals(self, now_s: float) -> None:
        """Let the answers of refused requests come in their turn."""
        while isinstance(first := next(iter(self._order), None), _Pending) and first.is_refused:
            self._order.pop_first()
            self._take(first, now_s)
            self._woken()

    def _take(self, pending: _Pending[N], now_s: float) -> None:
        pending.came_s = now_s
        self._answers.append(pending)
        self._bytes += len(pending.frame)

    def answered(self, frame: Buffer, now_s: float) -> None:
        """Take the broker's next response. Raises MalformedFrameError."""
        what = self._order.answered(frame)
        if isinstance(what, OwnRequest):
            what.take(frame)
            if self._acks is not None:
                self._acks.answered(now_s)
        else:
            what.frame = frame
            if what.asked is not None:
                self._read(what, what.asked, now_s)
            self._take(what, now_s)
        self._take_refusals(now_s)

    def _read(self, answer: _Pending[N], asked: _Asked, now_s: float) -> None:
        """Begin all holds that an answer to Produce waits for."""
        answer.deadline_s = asked.deadline_s
        try:
            answer.view = scan_produce_response(answer.frame, asked.api_version)
        except MalformedFrameError:
            self._let_go_of(asked)
            raise
        if self._acks is not None and (throttled_ms := throttle_ms(answer.frame, answer.view)):
            self._acks.note_throttle(throttled_ms, now_s)
        was_forwarded = bool(asked.forwarded)
        for found in answer.view.partitions:
            answer.holds += [(found, held) for held in self._holds(asked, found, now_s)]
        self._let_go_of(asked)
        if self._acks is not None and asked.acks == ACKS_ALL and not was_forwarded:
            kept = ((one.topic, one.partition) for one in answer.view.partitions if one.error == _NONE)
            self._acks.acknowledged(kept)

    def _let_go_of(self, asked: _Asked) -> None:
        """Give back what of a request is not held."""
        for forwarded in asked.forwarded.values():
            if self._acks is not None:
                self._acks.refused(forwarded)
        asked.forwarded.clear()

    def _holds(self, asked: _Asked, found: ResponsePartition, now_s: float) -> list[Hold | ReplicationHold]:
        """Begin the holds that this partition of the answer waits for, and return them."""
        key = found.topic, found.partition
        forwarded = asked.forwarded.pop(key, None)
        if found.error not in (_NONE, _DUPLICATE_SEQUENCE_NUMBER):
            if forwarded is not None and self._acks is not None:
                self._acks.refused(forwarded)
            return []
        offsets = asked.records.get(key)
        has_end = found.error == _NONE and offsets is not None and found.base_offset >= 0
        end_offset = found.base_offset + offsets if has_end and offsets is not None else None
        held: list[Hold | ReplicationHold] = []
        if (stored := self._logs.hold(found.topic, found.partition, end_offset, self._woken)) is not None:
            held.append(stored)
        if forwarded is not None and self._acks is not None:
            held.append(self._acks.hold(forwarded, end_offset, now_s))
        return held

    def ready(self, now_s: float) -> tuple[Buffer, N] | None:
        """Remove and return the next response to the client, with its note; None: there is none yet."""
        if not self._answers:
            return None
        first = self._answers[0]
        if now_s < first.deadline_s and not first.is_settled:
            return None
        self._answers.popleft()
        self._bytes -= len(first.frame)
        return self._settled(first, now_s), first.note

    def _settled(self, answer: _Pending[N], now_s: float) -> Buffer:
        held_s = now_s - answer.came_s
        refused: list[tuple[ResponsePartition, Verdict]] = []
        for found, held in answer.holds:
            verdict = held.verdict or Verdict.TIMED_OUT
            self._let_go(held)
            self._told.ended(verdict, held_s)
            if not verdict.is_kept:
                refused.append((found, verdict))
        throttled_ms = throttle_ms(answer.frame, answer.view) if answer.view is not None else 0
        if not refused and not throttled_ms:
            return answer.frame
        changed = bytearray(answer.frame)
        for found, verdict in refused:
            refuse(changed, found, _ERRORS[verdict])
        if throttled_ms and answer.view is not None:
            set_throttle_ms(changed, answer.view, max(throttled_ms - int(held_s * 1000), 0))
        return changed

    def _let_go(self, held: Hold | ReplicationHold) -> None:
        if isinstance(held, Hold):
            self._logs.let_go(held)
        elif self._acks is not None:
            self._acks.let_go(held)

    def close(self) -> None:
        """Drop all that is held, because the connection ended."""
        for answer in self._answers:
            for _, held in answer.holds:
                self._let_go(held)
        while len(self._order):
            if isinstance(what := self._order.pop_first(), _Pending) and what.asked is not None:
                self._let_go_of(what.asked)
        if self._acks is not None:
            self._acks.close()
        self._answers.clear()
        self._bytes = 0


def _deadline_s(view: ProduceRequestView, now_s: float) -> float:
    return now_s + max(view.timeout_ms, 0) / 1000 * HELD_SHARE


def _sizes(view: ProduceRequestView, records: dict[PartitionKey, int | None]) -> dict[PartitionKey, int | None]:
    """Return the records' bytes by partition; None if they are not understood, or any partition is there twice."""
    if len(records) != len(view.fields):
        return dict.fromkeys(records)
    sizes = {(_topic(one), one.partition): one.records_end - one.records_start for one in view.fields}
    return {key: sizes[key] if offsets is not None else None for key, offsets in records.items()}


def _topic(records: ProducedRecords) -> TopicId | str:
    return records.topic_id if records.topic_id is not None else records.topic_name or ""


def _offsets(frame: Buffer, records: ProducedRecords) -> int | None:
    """Return how many offsets these records take; None: they are not understood, so the broker must judge them."""
    try:
        spans = scan_batches(frame, records.records_start, records.records_end)
    except CorruptBatchError:
        return None
    if (spans[-1].end if spans else records.records_start) != records.records_end:
        return None
    return sum(span.last_offset - span.base_offset + 1 for span in spans)
