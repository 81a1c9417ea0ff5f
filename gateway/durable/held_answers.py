"""One connection's answers to Produce and EndTxn, held until what they acknowledge is stored. Sans-IO.

Frames that go to the broker, its answers and the time go in; answers come out, in the order in which they came.

Holds true:

- An answer that says of a durable topic's records that they are in the log goes on once they are in object storage and
  published as well, or says something else: REQUEST_TIMED_OUT, or NOT_LEADER_OR_FOLLOWER where the log was cut or is
  not led here any more. Both have a client try again, as from a broker. Other partitions of the answer stay as they
  are.
- Where the records stand, the broker says: its base offset and as many as the request had. So a duplicate, which is
  answered with the offset of the original, waits for that. DUPLICATE_SEQUENCE_NUMBER, which clients take for success,
  has no offset, and is refused.
- An answer is held for no longer than a share of what the client gives the request, so that it hears of it in time.
- All behind an answer that is held waits: clients count on Kafka's order.
- A Produce or EndTxn request that is not understood is refused while any topic is durable; so is an answer. Who meets
  that closes the connection.
- Answers to EndTxn are held as `HeldTransactions` says, which asks the broker for more.

What is held is bounded (`is_full`: read no more answers; `is_busy`: read no more requests).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gateway.durable.durable_logs import DurableLogs, Hold, Verdict
from gateway.durable.ended_transactions import EndedTransactions
from gateway.durable.held_transactions import Ending, HeldTransactions, Markers
from gateway.durable.produce_answer import AnsweredPartition, correlation_id_of, refuse, scan_produce_answer
from gateway.durable.transaction_frames import is_end_txn, scan_end_txn
from gateway.produce.produce_frame import (
    ACKS_NONE,
    MIN_TRANSACTIONAL_VERSION,
    ProducedRecords,
    ProduceRequestView,
    Unread,
    scan_produce_request,
)
from kafka_log.crc32c import Buffer
from kafka_log.record_batch import CorruptBatchError, scan_batches
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import MalformedFrameError

_NONE: Final = 0
_NOT_LEADER_OR_FOLLOWER: Final = 6
_REQUEST_TIMED_OUT: Final = 7
_DUPLICATE_SEQUENCE_NUMBER: Final = 46
_ERRORS: Final = {Verdict.NOT_LED: _NOT_LEADER_OR_FOLLOWER, Verdict.TIMED_OUT: _REQUEST_TIMED_OUT}

HELD_SHARE: Final = 0.9
"""Of the request's own time-out: clients give up at about all of it."""
MAX_ANSWERS: Final = 1000
MAX_BYTES: Final = 256 * 1024
MAX_REQUESTS: Final = 1000


class ProduceRefusedError(ConnectionError):
    """A Produce or EndTxn request whose answer could not be held."""


class _Asked(NamedTuple):
    """A Produce request that the broker has not answered."""

    api_version: int
    deadline_s: float
    records: dict[tuple[TopicId | str, int], int | None]
    """How many offsets each partition's take; None: not to be told."""


@dataclass(slots=True)
class _Answer:
    frame: Buffer
    came_s: float
    deadline_s: float
    holds: list[tuple[AnsweredPartition, Hold]] = field(default_factory=list)
    ending: Ending | None = None
    """Of EndTxn alone."""

    @property
    def is_settled(self) -> bool:
        if self.ending is not None:
            return self.ending.verdict is not None
        return all(held.verdict is not None for _, held in self.holds)


class Told(Protocol):
    """Who hears how waiting ended, and how long it took, in seconds."""

    def ended(self, verdict: Verdict, held_s: float) -> None:
        """For a partition of a Produce answer."""

    def transaction_ended(self, verdict: Verdict, held_s: float) -> None:
        """For an EndTxn answer."""


class HeldAnswers:
    """See the module's theory. All times are monotonic seconds."""

    def __init__(
        self,
        logs: DurableLogs,
        markers: Markers,
        ended: EndedTransactions,
        woken: Callable[[], object],
        told: Told,
    ) -> None:
        """`ended` is shared by all connections; `woken` is called when answers may have become `ready`."""
        self._logs = logs
        self._woken = woken
        self._told = told
        self._transactions = HeldTransactions(logs, markers, ended, woken)
        self._asked: dict[int, _Asked] = {}
        """By correlation id."""
        self._answers: deque[_Answer] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more answers are to be taken in: none that is held waits for one of them."""
        return self._has_much and not self.is_asking

    @property
    def is_asking(self) -> bool:
        """Whether one that is held waits for an answer of the broker to what was asked here."""
        return self._transactions.is_asking

    @property
    def _has_much(self) -> bool:
        return len(self._answers) >= MAX_ANSWERS or self._bytes >= MAX_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether no more requests are to be sent to the broker."""
        return self._has_much or len(self._asked) + len(self._transactions) >= MAX_REQUESTS

    @property
    def held_bytes(self) -> int:
        """Of answers that were not given away."""
        return self._bytes

    @property
    def deadline_s(self) -> float | None:
        """When to look for `ready` and `to_broker` at the latest; None: not before something happens."""
        deadlines = [self._answers[0].deadline_s] if self._answers else []
        if (next_poll_s := self._transactions.next_poll_s) is not None:
            deadlines.append(next_poll_s)
        return min(deadlines, default=None)

    def asked(self, frame: Buffer, now_s: float) -> bytes | None:
        """This goes to the broker; a frame that goes there before it. Raises ProduceRefusedError, where it must not."""
        if not self._logs.may_hold:
            return None
        if is_end_txn(frame):
            return self._asked_to_end(frame, now_s)
        self._asked_to_produce(frame, now_s)
        return None

    def _asked_to_end(self, frame: Buffer, now_s: float) -> bytes:
        try:
            request = scan_end_txn(frame)
        except MalformedFrameError as error:
            raise ProduceRefusedError(f"an EndTxn request that is not understood ({error})") from error
        if request is None:
            raise ProduceRefusedError("an EndTxn request that is not understood (version)")
        self._check_id(request.correlation_id)
        return self._transactions.asked(request, now_s)

    def _check_id(self, correlation_id: int) -> None:
        if correlation_id in self._asked or self._transactions.is_asked(correlation_id):
            raise ProduceRefusedError("two requests with one correlation id")

    def to_broker(self, now_s: float) -> list[bytes]:
        """The frames that go to the broker now, beside those of the client."""
        return self._transactions.polls(now_s)

    def _asked_to_produce(self, frame: Buffer, now_s: float) -> None:
        view = scan_produce_request(frame, MIN_TRANSACTIONAL_VERSION)
        if view is Unread.OTHER_API:
            return
        if isinstance(view, Unread):
            raise ProduceRefusedError(f"a Produce request that is not understood ({view.value})")
        if view.acks == ACKS_NONE:
            return
        self._check_id(view.correlation_id)
        records = {(_topic(one), one.partition): _offsets(frame, one) for one in view.fields}
        self._asked[view.correlation_id] = _Asked(view.api_version, _deadline_s(view, now_s), records)

    def answered(self, frame: Buffer, now_s: float) -> None:
        """The broker's next answer. Raises MalformedFrameError."""
        answer = _Answer(frame, now_s, now_s)
        correlation_id = correlation_id_of(frame)
        if self._transactions.took(correlation_id, frame, now_s):
            return
        if (ending := self._transactions.answered(correlation_id, frame, now_s)) is not None:
            answer.ending, answer.deadline_s = ending, ending.deadline_s
        asked = self._asked.pop(correlation_id, None) if correlation_id is not None else None
        if asked is not None:
            answer.deadline_s = asked.deadline_s
            for found in scan_produce_answer(frame, asked.api_version):
                if (held := self._hold(asked, found)) is not None:
                    answer.holds.append((found, held))
        self._answers.append(answer)
        self._bytes += len(frame)

    def _hold(self, asked: _Asked, found: AnsweredPartition) -> Hold | None:
        if found.error not in (_NONE, _DUPLICATE_SEQUENCE_NUMBER):
            return None
        offsets = asked.records.get((found.topic, found.partition))
        is_told = found.error == _NONE and offsets is not None and found.base_offset >= 0
        end_offset = found.base_offset + offsets if is_told and offsets is not None else None
        return self._logs.hold(found.topic, found.partition, end_offset, self._woken)

    def ready(self, now_s: float) -> Buffer | None:
        """The answer that goes to the client now; None: none does yet."""
        if not self._answers:
            return None
        first = self._answers[0]
        if now_s < first.deadline_s and not first.is_settled:
            return None
        self._answers.popleft()
        self._bytes -= len(first.frame)
        return self._settled(first, now_s)

    def _settled(self, answer: _Answer, now_s: float) -> Buffer:
        if answer.ending is not None:
            frame, verdict = self._transactions.settle(answer.ending, answer.frame)
            self._told.transaction_ended(verdict, now_s - answer.came_s)
            return frame
        changed: bytearray | None = None
        for found, held in answer.holds:
            verdict = held.verdict or Verdict.TIMED_OUT
            self._logs.let_go(held)
            self._told.ended(verdict, now_s - answer.came_s)
            if verdict is not Verdict.STORED:
                changed = bytearray(answer.frame) if changed is None else changed
                refuse(changed, found, _ERRORS[verdict])
        return answer.frame if changed is None else changed

    def close(self) -> None:
        """The connection ended: what is held goes to nobody."""
        for answer in self._answers:
            for _, held in answer.holds:
                self._logs.let_go(held)
        self._transactions.close()
        self._answers.clear()
        self._asked.clear()
        self._bytes = 0


def _deadline_s(view: ProduceRequestView, now_s: float) -> float:
    return now_s + max(view.timeout_ms, 0) / 1000 * HELD_SHARE


def _topic(records: ProducedRecords) -> TopicId | str:
    return records.topic_id if records.topic_id is not None else records.topic_name or ""


def _offsets(frame: Buffer, records: ProducedRecords) -> int | None:
    """How many offsets these take; None: they are no batches that are understood, so the broker's to judge."""
    try:
        spans = scan_batches(frame, records.records_start, records.records_end)
    except CorruptBatchError:
        return None
    if (spans[-1].end if spans else records.records_start) != records.records_end:
        return None
    return sum(span.last_offset - span.base_offset + 1 for span in spans)
