"""Holds answers to one connection's EndTxn requests until the markers of the transactions are stored. Sans-IO.

A coordinator answers EndTxn before it writes markers, which may go to other brokers. So the agent beside it asks it,
too, on the client's own connection, hence as the client. DescribeTransactions goes in front of each EndTxn, because the
coordinator forgets the partitions of a transaction that is over. It goes again after the answer, until all markers are
in the logs. Then they lie below the logs' ends, and each leader is asked whether its log is stored up to there
(`Markers`).

Holds true:

- An answer without an error goes on once the markers in durable topics are in object storage and published. Else it
  says COORDINATOR_LOAD_IN_PROGRESS, on which clients repeat EndTxn, or the error by which the broker says that it is
  not the coordinator any more. A coordinator answers a repeated EndTxn as it did the first.
- A transaction's partitions are those that the coordinator told before the end or since. If it tells none any more, or
  leaves out those that have their markers, as for a repeated EndTxn, the remembered ones count
  (`gateway.durable.ended_transactions`). If none are remembered, all partitions of all durable topics are waited for.
- Transactions without partitions of durable topics are not held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.ended_transactions import EndedTransactions, Partitions, Transaction
from gateway.durable.transaction_frames import (
    Description,
    EndTxnRequest,
    TransactionState,
    describe_transaction,
    refuse_end_txn,
    scan_description,
    scan_end_txn_answer,
)
from kafka_log.crc32c import Buffer

LetGo = Callable[[], object]

HELD_S: Final = 27.0
"""EndTxn names no time-out. Clients' own is 30 s by default; this is the same share of it as for Produce."""
_POLL_S, _POLL_MAX_S = 0.002, 0.1

_COORDINATOR_LOAD_IN_PROGRESS: Final = 14
_OF_COORDINATORS: Final = frozenset({14, 15, 16})
"""The coordinator is loading, not available, or not the coordinator any more."""


class Markers(Protocol):
    """Asks the leaders of logs whether these are stored."""

    def wait(self, partitions: Partitions | None, tell: Callable[[], object]) -> LetGo:
        """Call `tell` once these logs are stored and published up to where they end now; None: those of all durable
        topics. Topics that are not durable count as stored. The returned function ends the waiting.
        """


@dataclass(slots=True, eq=False)
class Ending:
    """One EndTxn request and what is known of its transaction."""

    request: EndTxnRequest
    deadline_s: float
    partitions: Partitions | None = frozenset()
    """Those that are known; None: nobody can tell them."""
    transaction: Transaction | None = None
    """None: there is none, or it was not told."""
    is_answered: bool = False
    error_at: int = 0
    verdict: Verdict | None = None
    error: int = _COORDINATOR_LOAD_IN_PROGRESS
    """The error to answer with if the verdict is not STORED."""
    is_asked_for: bool = False
    """Whether a description is on its way."""
    poll_s: float = _POLL_S
    next_poll_s: float | None = None
    let_go: LetGo | None = None


class HeldTransactions:
    """Holds answers to EndTxn until the transaction's records are stored. Times are monotonic seconds."""

    def __init__(
        self,
        logs: DurableLogs,
        markers: Markers,
        ended: EndedTransactions,
        woken: Callable[[], object],
        next_id: Callable[[], int],
    ) -> None:
        """`ended` is what all connections remember; `woken` is called when a verdict has come; `next_id` gives
        correlation ids that no client has.
        """
        self._logs = logs
        self._markers = markers
        self._ended = ended
        self._woken = woken
        self._asked: dict[int, Ending] = {}
        """EndTxn requests that are not answered, by correlation id."""
        self._described: dict[int, Ending] = {}
        """EndTxn requests by the correlation ids of the agent's questions about them."""
        self._ending: dict[Ending, None] = {}
        """EndTxn requests whose answers are held."""
        self._next_id = next_id

    def __len__(self) -> int:
        return len(self._asked) + len(self._ending)

    @property
    def is_asking(self) -> bool:
        """Whether a held answer waits for the broker's answer to one of the agent's questions."""
        return any(one.is_asked_for or one.next_poll_s is not None for one in self._ending)

    @property
    def next_poll_s(self) -> float | None:
        """When `polls` has something to ask."""
        return min((one.next_poll_s for one in self._ending if one.next_poll_s is not None), default=None)

    def asked(self, request: EndTxnRequest, now_s: float) -> bytes:
        """Take an EndTxn that goes to the broker next. Returns the question that must go there before it."""
        ending = Ending(request, now_s + HELD_S)
        self._asked[request.correlation_id] = ending
        return self._describe(ending)

    def is_asked(self, correlation_id: int) -> bool:
        """Whether an EndTxn with this id is not answered."""
        return correlation_id in self._asked

    def _describe(self, ending: Ending) -> bytes:
        ending.is_asked_for = True
        id_ = self._next_id()
        self._described[id_] = ending
        return describe_transaction(ending.request, id_)

    def take_answer(self, correlation_id: int | None, frame: Buffer, now_s: float) -> bool:
        """Take an answer to one of the agent's questions. False: it is for the client. Raises MalformedFrameError."""
        ending = self._described.pop(correlation_id, None) if correlation_id is not None else None
        if ending is None:
            return False
        ending.is_asked_for = False
        description = scan_description(frame)
        if not ending.is_answered:
            self._before(ending, description)
        elif ending in self._ending:
            self._after(ending, description, now_s)
        return True

    def _before(self, ending: Ending, description: Description) -> None:
        if description.state is TransactionState.EMPTY:
            return
        if description.state is None:
            ending.partitions = None
            return
        if description.began_ms >= 0:
            ending.transaction = (ending.request.transactional_id, description.began_ms)
        if description.state is TransactionState.OPEN:
            ending.partitions = description.partitions
        else:  # the coordinator leaves out those that have their markers
            ending.partitions = self._ended.partitions(ending.transaction) if ending.transaction is not None else None

    def answered(self, correlation_id: int | None, frame: Buffer, now_s: float) -> Ending | None:
        """Take the broker's answer to an EndTxn; return the `Ending` by whose verdict it is held, None: it is not held.

        Raises MalformedFrameError.
        """
        ending = self._asked.pop(correlation_id, None) if correlation_id is not None else None
        if ending is None:
            return None
        error, ending.error_at = scan_end_txn_answer(frame, ending.request.api_version)
        ending.is_answered = True
        if error or not self._may_matter(ending):
            return None
        self._ending[ending] = None
        self._remember(ending)
        ending.next_poll_s = now_s
        return ending

    def _remember(self, ending: Ending) -> None:
        """Remember the partitions of a transaction that this request ends.

        Not those of others: a client that has no right to them may ask, and they may still get more partitions.
        """
        if ending.transaction is not None and ending.partitions is not None:
            self._ended.remember(ending.transaction, ending.partitions)

    def _may_matter(self, ending: Ending) -> bool:
        durable = self._logs.durable
        if ending.partitions is None or durable is None:
            return durable is None or bool(durable)
        return any(topic in durable for topic, _ in ending.partitions)

    def polls(self, now_s: float) -> list[bytes]:
        """Return the questions that go to the broker now."""
        frames = []
        for ending in self._ending:
            if ending.next_poll_s is not None and ending.next_poll_s <= now_s and not ending.is_asked_for:
                ending.next_poll_s = None
                frames.append(self._describe(ending))
        return frames

    def _after(self, ending: Ending, description: Description, now_s: float) -> None:
        if ending.partitions is not None and not description.partitions <= ending.partitions:
            ending.partitions |= description.partitions
            self._remember(ending)
        if description.error in _OF_COORDINATORS:
            ending.error = description.error
            self._end(ending, Verdict.NOT_LED)
        elif description.error or description.state in (None, TransactionState.ENDING):
            ending.next_poll_s = now_s + ending.poll_s
            ending.poll_s = min(2 * ending.poll_s, _POLL_MAX_S)
        else:
            ending.let_go = self._markers.wait(ending.partitions, lambda: self._end(ending, Verdict.STORED))

    def _end(self, ending: Ending, verdict: Verdict) -> None:
        if ending.verdict is None:
            ending.verdict = verdict
            self._woken()

    def settle(self, ending: Ending, frame: Buffer) -> tuple[Buffer, Verdict]:
        """End the hold of an EndTxn answer: return what the client gets, and the verdict, TIMED_OUT without one."""
        self._ending.pop(ending, None)
        if ending.let_go is not None:
            ending.let_go()
        verdict = ending.verdict or Verdict.TIMED_OUT
        if verdict is Verdict.STORED:
            if ending.transaction is not None:
                self._ended.forget(ending.transaction)
            return frame, verdict
        changed = bytearray(frame)
        refuse_end_txn(changed, ending.request.api_version, ending.error_at, ending.error)
        return changed, verdict

    def close(self) -> None:
        """Stop all waiting: the connection ended."""
        for ending in self._ending:
            if ending.let_go is not None:
                ending.let_go()
        self._ending.clear()
        self._asked.clear()
        self._described.clear()
