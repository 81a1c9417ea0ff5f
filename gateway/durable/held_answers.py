"""One connection's answers to Produce requests, held until what they acknowledge is stored. Sans-IO.

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
- A Produce request that is not understood is refused while any topic is durable; so is an answer. Who meets that closes
  the connection.

What is held is bounded (`is_full`: read no more answers; `is_busy`: read no more requests).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.durable.durable_logs import DurableLogs, Hold, Verdict
from gateway.durable.produce_answer import AnsweredPartition, correlation_id_of, refuse, scan_produce_answer
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
    """A Produce request whose answer could not be held."""


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


class HeldAnswers:
    """See the module's theory. All times are monotonic seconds."""

    def __init__(
        self,
        logs: DurableLogs,
        woken: Callable[[], object],
        ended: Callable[[Verdict, float], object] = lambda _verdict, _held_s: None,
    ) -> None:
        """`woken` is called when answers may have become `ready`; `ended` hears how waiting for a partition ended, and
        how long it took.
        """
        self._logs = logs
        self._woken = woken
        self._ended = ended
        self._asked: dict[int, _Asked] = {}
        """By correlation id."""
        self._answers: deque[_Answer] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more answers are to be taken in."""
        return len(self._answers) >= MAX_ANSWERS or self._bytes >= MAX_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether no more requests are to be sent to the broker."""
        return len(self._asked) >= MAX_REQUESTS

    @property
    def held_bytes(self) -> int:
        """Of answers that were not given away."""
        return self._bytes

    @property
    def deadline_s(self) -> float | None:
        """When to look for `ready` at the latest; None: not before something happens."""
        return self._answers[0].deadline_s if self._answers else None

    def asked(self, frame: Buffer, now_s: float) -> None:
        """This goes to the broker. Raises ProduceRefusedError, where it must not."""
        view = scan_produce_request(frame, MIN_TRANSACTIONAL_VERSION)
        if view is Unread.OTHER_API or not self._logs.may_hold:
            return
        if isinstance(view, Unread):
            raise ProduceRefusedError(f"a Produce request that is not understood ({view.value})")
        if view.acks == ACKS_NONE:
            return
        if view.correlation_id in self._asked:
            raise ProduceRefusedError("two Produce requests with one correlation id")
        records = {(_topic(one), one.partition): _offsets(frame, one) for one in view.fields}
        self._asked[view.correlation_id] = _Asked(view.api_version, _deadline_s(view, now_s), records)

    def answered(self, frame: Buffer, now_s: float) -> None:
        """The broker's next answer. Raises MalformedFrameError."""
        answer = _Answer(frame, now_s, now_s)
        correlation_id = correlation_id_of(frame) if self._asked else None
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
        if now_s < first.deadline_s and any(held.verdict is None for _, held in first.holds):
            return None
        self._answers.popleft()
        self._bytes -= len(first.frame)
        return self._settled(first, now_s)

    def _settled(self, answer: _Answer, now_s: float) -> Buffer:
        changed: bytearray | None = None
        for found, held in answer.holds:
            verdict = held.verdict or Verdict.TIMED_OUT
            self._logs.let_go(held)
            self._ended(verdict, now_s - answer.came_s)
            if verdict is not Verdict.STORED:
                changed = bytearray(answer.frame) if changed is None else changed
                refuse(changed, found, _ERRORS[verdict])
        return answer.frame if changed is None else changed

    def close(self) -> None:
        """The connection ended: what is held goes to nobody."""
        for answer in self._answers:
            for _, held in answer.holds:
                self._logs.let_go(held)
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
