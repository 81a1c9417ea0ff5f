"""A workload of numbered records against a real cluster, and the account of what became of each of them.

Every record carries its producer's number and a sequence number that counts from 0 without a gap, so every fault of a
record shows: it is lost, doubled, out of order, altered, or was acknowledged with another offset than the one it is
read at. The ledger only counts: one thread writes a producer's side of its page, one thread the consumer's side;
`report` may be called at any time and is exact once both have ended.

The workload's producers run until they are told to stop; its consumer reads every partition from the start, in the
order of the log. `finish` stops the producers, waits for their last acknowledgements, and lets the consumer read up to
the log's present end: a record that was acknowledged and is not read by then is lost, however slow the machine is.
"""

import hashlib
import random
import struct
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from kafka_cluster.flushing import flush
from local_cluster.cluster_admin import CLIENT_CONFIG, ClusterAdmin
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.json_events import SHORTEST_EVENT, json_event

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

REQUEST_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 120.0
_TICK_S = 0.01
_BURST_RECORDS = 500
_BATCH_BYTES = 1_000_000
"""librdkafka's `batch.size` by default."""
MAX_INFLIGHT_RECORDS = 5
"""An idempotent librdkafka producer sends no further batch to a partition while this many records are under way."""
_HEADER = struct.Struct(">4sIQ")
"""Magic, the producer's number, the sequence number."""
_MAGIC = b"WALK"
_SEED = struct.Struct(">Q")
MINIMUM_PAYLOAD_BYTES = _HEADER.size

_NEVER = -1


class Outcome(IntEnum):
    """What the cluster responded about a record."""

    UNKNOWN = 0
    """No answer yet, or an error that leaves it open: the record may exist or not."""
    ACKNOWLEDGED = 1
    """It must exist. For a transaction's record: the commit was acknowledged."""
    ABORTED = 2
    """A committed reader must not see it."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """A plan of transactions of `records` records each; every `abort_every`-th is aborted (0: none)."""

    records: int = 50
    abort_every: int = 4


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """The plan of one producer of the workload. Without a rate it writes as fast as it can."""

    name: str
    acks: str = "all"
    codec: str = "none"
    payload_bytes: int = 1000
    records_per_s: float | None = 500.0
    transaction: TransactionPlan | None = None
    client_config: Mapping[str, object] = field(default_factory=dict)
    """librdkafka's keys, which override the plan's."""
    sends_events: bool = False
    """Whether values are events in JSON; else nothing in them repeats."""


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """Counts of one producer's records by what became of them."""

    name: str
    sent: int
    acknowledged: int
    aborted: int
    consumed: int
    """Distinct records that were read."""
    lost: int
    """Acknowledged, but not read though the log was read to its end."""
    reordered: int
    """Read after a later record of the same producer and partition."""
    duplicates: int
    """Read once more, at another offset."""
    aborted_but_read: int
    altered: int
    """Read with other bytes than were sent."""
    at_wrong_offset: int
    """Read at another offset than the one acknowledged."""

    @property
    def faults(self) -> int:
        """The sum of all counts that must be zero."""
        misread = self.reordered + self.duplicates + self.aborted_but_read + self.altered
        return self.lost + misread + self.at_wrong_offset


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The result of a workload, by producer."""

    producers: tuple[ProducerReport, ...]
    foreign_records: int
    """Read, but not written by this workload."""

    @property
    def faults(self) -> int:
        """The sum of all counts that must be zero, over all producers."""
        return sum(producer.faults for producer in self.producers)

    @property
    def sent(self) -> int:
        return sum(producer.sent for producer in self.producers)

    @property
    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self.producers)

    @property
    def consumed(self) -> int:
        return sum(producer.consumed for producer in self.producers)

    def __str__(self) -> str:
        return "; ".join(
            f"{producer.name}: {producer.sent} sent, {producer.acknowledged} acknowledged, {producer.consumed} "
            f"consumed, {producer.lost} lost, {producer.reordered} reordered, {producer.duplicates} duplicates, "
            f"{producer.altered} altered, {producer.at_wrong_offset} at a wrong offset, "
            f"{producer.aborted_but_read} aborted but read"
            for producer in self.producers
        )


_EVENTS = 1000
"""Events that a producer sends in turn: 700 KB, more than packing looks back."""


class Pattern(Protocol):
    """Makes the values of producers' records."""

    def value(self, number: int, sequence: int) -> bytes:
        """Return the bytes of record `sequence` of producer `number`."""


class PayloadPattern:
    """Makes values in which a reader can detect altered bytes."""

    def __init__(self, seed: int, payload_bytes: int, *, sends_events: bool = False) -> None:
        """`sends_events`: the values are JSON events, else random bytes."""
        if payload_bytes < MINIMUM_PAYLOAD_BYTES:
            raise ValueError(f"a payload has {MINIMUM_PAYLOAD_BYTES} bytes at least, not {payload_bytes}")
        self._seed = seed
        self._body_bytes = payload_bytes - _HEADER.size
        source = random.Random(seed)  # noqa: S311 (readers make the same ones)
        self._events = [json_event(source, number) for number in range(_EVENTS if sends_events else 0)]

    def value(self, number: int, sequence: int) -> bytes:
        head = _HEADER.pack(_MAGIC, number, sequence)
        if self._events:
            count = self._body_bytes // SHORTEST_EVENT + 1
            events = (self._events[(sequence * count + one) % _EVENTS] for one in range(count))
            return head + b"\n".join(events)[: self._body_bytes]
        # Half a byte of entropy in each byte, and nothing that another record repeats: codecs have something to do,
        # and something to keep.
        body = hashlib.shake_128(_SEED.pack(self._seed) + head).hexdigest((self._body_bytes + 1) // 2)
        return head + body[: self._body_bytes].encode()


def read_identity(value: bytes | None) -> tuple[int, int] | None:
    """Return the producer's number and the sequence in a record's value; None if a ledger did not make it."""
    if value is None or len(value) < _HEADER.size:
        return None
    magic, number, sequence = _HEADER.unpack_from(value)
    return (number, sequence) if magic == _MAGIC else None


class ProducerPage:
    """The account of one producer's records: outcomes and offsets by sequence number."""

    def __init__(self, name: str, pattern: Pattern) -> None:
        self.name = name
        self.pattern = pattern
        self._outcomes = bytearray()
        self._acknowledged_offsets = array("q")
        self._read_offsets = array("q")
        self._last_sequences: dict[int, int] = {}
        self._reordered = 0
        self._duplicates = 0
        self._altered = 0

    @property
    def next_sequence(self) -> int:
        return len(self._outcomes)

    def sent(self) -> int:
        """Note one more record as sent, and return its sequence number."""
        sequence = len(self._outcomes)
        self._acknowledged_offsets.append(_NEVER)
        self._outcomes.append(Outcome.UNKNOWN)
        return sequence

    def delivered(self, sequence: int, offset: int | None) -> None:
        """Note that a record is in the log; `settle` decides whether it counts as acknowledged.

        The offset of a record that was sent again after its response was lost is not known (None).
        """
        if offset is not None:
            self._acknowledged_offsets[sequence] = offset

    def settle(self, sequences: range, outcome: Outcome) -> None:
        """Note the outcome of these records. A commit does not acknowledge a record that was never delivered."""
        for sequence in sequences:
            self._outcomes[sequence] = outcome

    def read(self, partition: int, offset: int, sequence: int, value: bytes, number: int) -> None:
        """Note that the consumer read this record."""
        if sequence >= len(self._outcomes):
            self._altered += 1  # the number itself was altered: no such record was sent
            return
        if sequence >= len(self._read_offsets):
            self._read_offsets.extend([_NEVER] * (len(self._outcomes) - len(self._read_offsets)))
        earlier = self._read_offsets[sequence]
        if earlier != _NEVER:
            # Reading the same offset again is the reader's fault; a second copy in the log is the cluster's.
            self._duplicates += earlier != offset
            return
        self._read_offsets[sequence] = offset
        if sequence < self._last_sequences.get(partition, _NEVER):
            self._reordered += 1
        else:
            self._last_sequences[partition] = sequence
        self._altered += value != self.pattern.value(number, sequence)

    def report(self) -> ProducerReport:
        """Return the present counts."""
        sent = len(self._outcomes)
        outcomes = np.frombuffer(bytes(self._outcomes), dtype=np.uint8)
        acknowledged, aborted = outcomes == Outcome.ACKNOWLEDGED, outcomes == Outcome.ABORTED
        offsets = np.array(self._acknowledged_offsets[:sent], dtype=np.int64)
        read = np.full(sent, _NEVER, dtype=np.int64)
        seen = np.array(self._read_offsets[:sent], dtype=np.int64)
        read[: len(seen)] = seen
        was_read = read != _NEVER
        return ProducerReport(
            name=self.name,
            sent=sent,
            acknowledged=int(acknowledged.sum()),
            aborted=int(aborted.sum()),
            consumed=int(was_read.sum()),
            lost=int((acknowledged & ~was_read).sum()),
            reordered=self._reordered,
            duplicates=self._duplicates,
            aborted_but_read=int((aborted & was_read).sum()),
            altered=self._altered,
            at_wrong_offset=int((acknowledged & was_read & (offsets != _NEVER) & (offsets != read)).sum()),
        )


class Ledger:
    """The accounts of all producers of a workload."""

    def __init__(self, plans: Sequence[ProducerPlan], seed: int = 0) -> None:
        self.pages = tuple(
            ProducerPage(plan.name, PayloadPattern(seed + number, plan.payload_bytes, sends_events=plan.sends_events))
            for number, plan in enumerate(plans)
        )
        self._foreign = 0

    def read(self, partition: int, offset: int, value: bytes | None) -> None:
        """Note that the consumer read a record."""
        identity = read_identity(value)
        if identity is None or identity[0] >= len(self.pages) or value is None:
            self._foreign += 1
            return
        number, sequence = identity
        self.pages[number].read(partition, offset, sequence, value, number)

    def report(self) -> LedgerReport:
        """Return the present counts; `lost` has a meaning only if the log was read to its end."""
        return LedgerReport(tuple(page.report() for page in self.pages), self._foreign)


class LedgerWorkloadError(Exception):
    """The workload itself failed, so that its report would be meaningless."""


class LedgerWorkload:
    """Runs producers by plan, and a consumer, on one topic that no other client writes to."""

    def __init__(self, bootstrap_servers: str, topic: str, plans: Sequence[ProducerPlan], *, seed: int = 0) -> None:
        """Prepare all threads. Raises LedgerWorkloadError if the topic does not exist."""
        self.topic = topic
        self.ledger = Ledger(plans, seed)
        self._config: dict[str, object] = {"bootstrap.servers": bootstrap_servers, **CLIENT_CONFIG}
        self._stop = threading.Event()
        self._read_to_end = threading.Event()
        self._failures: list[BaseException] = []
        self._partitions = _partitions_of(ClusterAdmin(bootstrap_servers), topic)
        self._producers = [
            self._thread(f"producer {plan.name}", self._writer(number, plan).run) for number, plan in enumerate(plans)
        ]
        self._consumer = self._thread("consumer", self._consume)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
        for thread in [*self._producers, self._consumer]:
            thread.join(REQUEST_TIMEOUT_S)

    def start(self) -> None:
        for thread in [*self._producers, self._consumer]:
            thread.start()

    def abandon(self) -> None:
        """Tell all threads to end, without waiting, because the cluster is taken down."""
        self._stop.set()
        self._read_to_end.set()

    def report(self) -> LedgerReport:
        """Return the present counts, while the workload runs. Raises LedgerWorkloadError if a thread has failed."""
        if self._failures:
            raise LedgerWorkloadError(f"the workload failed: {self._failures[0]!r}") from self._failures[0]
        return self.ledger.report()

    def stop_producing(self, timeout_s: float = DELIVERY_TIMEOUT_S) -> None:
        """Stop the producers and wait until each record is acknowledged or given up.

        Raises LedgerWorkloadError.
        """
        self._stop.set()
        for thread in self._producers:
            thread.join(timeout_s)
            if thread.is_alive():
                raise LedgerWorkloadError(f"{thread.name} has not ended within {timeout_s:g} s")
        self.report()

    def finish(self, timeout_s: float = DELIVERY_TIMEOUT_S) -> LedgerReport:
        """Stop producing, read to the log's end, and give the final report. Raises LedgerWorkloadError."""
        self.stop_producing(timeout_s)
        self._read_to_end.set()
        self._consumer.join(timeout_s)
        if self._consumer.is_alive():
            raise LedgerWorkloadError(f"the consumer has not reached the log's end within {timeout_s:g} s")
        return self.report()

    def _writer(self, number: int, plan: ProducerPlan) -> "_Writer":
        kind = _Writer if plan.transaction is None else _TransactionWriter
        return kind(self._config, (self.topic, self._partitions), plan, number, self.ledger.pages[number], self._stop)

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # handed to whoever asks for the report
                self._failures.append(error)
                self._stop.set()

        return threading.Thread(target=guarded, name=f"ledger {name}", daemon=True)

    def _consume(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                **self._config,
                "group.id": "ledger",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in self._partitions])
            reached = dict.fromkeys(self._partitions, 0)
            ends: dict[int, int] | None = None
            while ends is None or any(reached[number] < end for number, end in ends.items()):
                for message in consumer.consume(_BURST_RECORDS, timeout=0.1):
                    self._take(message, reached)
                if ends is None and self._read_to_end.is_set():
                    ends = self._end_offsets()
        finally:
            consumer.close()

    def _take(self, message: "Message", reached: dict[int, int]) -> None:
        from confluent_kafka import KafkaError, KafkaException

        partition, offset, error = message.partition(), message.offset(), message.error()
        if error is None:
            self.ledger.read(partition, offset, message.value())
            reached[partition] = max(reached[partition], offset + 1)
        elif error.code() == KafkaError._PARTITION_EOF:
            # The offset is past the control records too, which no message tells of.
            reached[partition] = max(reached[partition], offset)
        elif error.fatal():
            raise KafkaException(error)

    def _end_offsets(self) -> dict[int, int] | None:
        """Return high watermarks; None if a broker does not answer now: the next round asks again.

        The end for a committed reader does not help: before the markers of the last transactions are written, it is the
        start of the first open transaction. An admin client does not help either: it continues to ask former leaders.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        reader = Consumer({**self._config, "group.id": "ledger-end", "isolation.level": "read_uncommitted"})
        try:
            return {
                number: reader.get_watermark_offsets(TopicPartition(self.topic, number), timeout=5)[1]
                for number in self._partitions
            }
        except KafkaException:
            return None
        finally:
            reader.close()


def _partitions_of(admin: ClusterAdmin, topic: str) -> tuple[int, ...]:
    """Wait until the topic is known; one that was made just now is not yet known to every broker."""
    try:
        states = wait_until(lambda: admin.partitions(topic), f"topic {topic} is known", REQUEST_TIMEOUT_S)
    except WaitTimeoutError as error:
        raise LedgerWorkloadError(f"topic {topic} cannot be used: {error}") from error
    return tuple(state.partition for state in states)


class RecordsInFlight:
    """Knows which records of a producer wait for their delivery report, and which partition takes another one.

    A partition gets one batch at a time: a thread of librdkafka polls without a pause while records are due that it may
    not send yet.
    """

    def __init__(self, partitions: Sequence[int], linger_s: float, batch_records: int) -> None:
        self._partitions = partitions
        self._linger_s = linger_s
        self._batch_records = max(MAX_INFLIGHT_RECORDS, batch_records)
        self._sent_s: dict[int, dict[int, float]] = {partition: {} for partition in partitions}  # by sequence, too

    def open_partition(self, sequence: int, now_s: float) -> int | None:
        """Return the partition for this record, the next in turn that takes one; None: all wait for reports."""
        for step in range(len(self._partitions)):
            partition = self._partitions[(sequence + step) % len(self._partitions)]
            sent_s = self._sent_s[partition]
            is_lingering = now_s - next(iter(sent_s.values()), now_s) < self._linger_s
            if len(sent_s) < (self._batch_records if is_lingering else MAX_INFLIGHT_RECORDS):
                return partition
        return None

    def sent(self, partition: int, sequence: int, now_s: float) -> None:
        """Note that a record was handed to the client."""
        self._sent_s[partition][sequence] = now_s

    def answered(self, partition: int, sequence: int) -> None:
        """Note that the client reported a record's delivery or failure."""
        del self._sent_s[partition][sequence]


class _Writer:
    """One producer without transactions; only its thread uses its side of the page."""

    def __init__(
        self,
        config: dict[str, object],
        target: tuple[str, Sequence[int]],
        plan: ProducerPlan,
        number: int,
        page: ProducerPage,
        stop: threading.Event,
    ) -> None:
        self._topic, self._partitions = target
        self._plan = plan
        self._number = number
        self._page = page
        self._stop = stop
        self._key = plan.name.encode()
        self._config: dict[str, object] = {
            **config,
            "acks": plan.acks,
            "compression.type": plan.codec,
            "linger.ms": 5,
            "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
            # Without it a retry could double or reorder records by Kafka's own rules.
            "enable.idempotence": plan.acks == "all",
            **({} if plan.acks == "all" else {"max.in.flight.requests.per.connection": 1}),
            **plan.client_config,
        }
        self._in_flight = self._none_in_flight()

    def run(self) -> None:
        producer, started = self._connect(), time.monotonic()
        while not self._stop.is_set():
            self._send(producer, self._due(started))
            producer.poll(_TICK_S)
        flush(producer, DELIVERY_TIMEOUT_S)

    def _connect(self) -> "Producer":
        from confluent_kafka import Producer

        return Producer(self._config)

    def _due(self, started: float) -> int:
        """Return how many records to send now; bounded, so that answers and the stop are seen."""
        sent, due = self._page.next_sequence, _BURST_RECORDS
        if self._plan.records_per_s is not None:
            due = min(due, int((time.monotonic() - started) * self._plan.records_per_s) - sent)
        return max(0, due)

    def _send(self, producer: "Producer", records: int) -> None:
        """Send up to so many records, fewer when every partition waits for answers."""
        for _ in range(records):
            partition = self._in_flight.open_partition(self._page.next_sequence, time.monotonic())
            if partition is None:
                return
            self._send_to(producer, partition)

    def _none_in_flight(self) -> RecordsInFlight:
        linger_s = float(str(self._config["linger.ms"])) / 1000
        return RecordsInFlight(self._partitions, linger_s, _BATCH_BYTES // self._plan.payload_bytes)

    def _send_to(self, producer: "Producer", partition: int) -> None:
        sequence = self._page.sent()
        in_flight = self._in_flight
        in_flight.sent(partition, sequence, time.monotonic())
        value = self._page.pattern.value(self._number, sequence)

        def answered(error: "KafkaError | None", message: "Message") -> None:
            in_flight.answered(partition, sequence)
            self._answered(sequence, error, message)

        while True:
            try:
                producer.produce(self._topic, value, self._key, partition, on_delivery=answered)
            except BufferError:
                producer.poll(_TICK_S)  # the client's queue is full: wait for answers
            else:
                return

    def _answered(self, sequence: int, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self._page.delivered(sequence, message.offset())
            self._page.settle(range(sequence, sequence + 1), Outcome.ACKNOWLEDGED)


class _TransactionWriter(_Writer):
    """One transactional producer: its records count by the outcome of their transaction."""

    def run(self) -> None:
        assert self._plan.transaction is not None  # noqa: S101 - chosen by it
        producer, started = self._connect(), time.monotonic()
        number = 0
        while not self._stop.is_set():
            first = self._page.next_sequence
            number += 1
            try:
                self._transact(producer, self._plan.transaction, number, started)
            except _TransactionLostError:
                # It is not known whether it was committed; a new session of the same id ends it.
                self._page.settle(range(first, self._page.next_sequence), Outcome.UNKNOWN)
                # The new session answers for its own records alone.
                self._in_flight = self._none_in_flight()
                producer = self._connect()

    def _connect(self) -> "Producer":
        from confluent_kafka import Producer

        identity = {"transactional.id": f"ledger-{self._topic}-{self._plan.name}"}
        limit = {"transaction.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000)}
        producer = Producer({**self._config, **identity, **limit})
        self._attempt(lambda: producer.init_transactions(REQUEST_TIMEOUT_S))
        return producer

    def _transact(self, producer: "Producer", plan: TransactionPlan, number: int, started: float) -> None:
        first = self._page.next_sequence
        wants_commit = not plan.abort_every or number % plan.abort_every != 0
        committed = (
            self._attempt(producer.begin_transaction)
            and self._attempt(lambda: self._fill(producer, first + plan.records, started))
            and wants_commit
            and self._attempt(lambda: producer.commit_transaction(REQUEST_TIMEOUT_S))
        )
        if not committed:
            self._attempt(lambda: producer.abort_transaction(REQUEST_TIMEOUT_S))
        outcome = Outcome.ACKNOWLEDGED if committed else Outcome.ABORTED
        self._page.settle(range(first, self._page.next_sequence), outcome)

    def _fill(self, producer: "Producer", end: int, started: float) -> None:
        while (left := end - self._page.next_sequence) > 0 and not self._stop.is_set():
            self._send(producer, min(left, self._due(started)))
            producer.poll(_TICK_S)
        flush(producer, DELIVERY_TIMEOUT_S)

    def _answered(self, sequence: int, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self._page.delivered(sequence, message.offset())

    def _attempt(self, call: Callable[[], object]) -> bool:
        """Call until there is an answer: True if it succeeded, False if the transaction must be aborted.

        Raises _TransactionLostError if the session is over.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        while True:
            try:
                call()
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable() or time.monotonic() >= deadline:
                    raise _TransactionLostError(error.str()) from exception
            else:
                return True


class _TransactionLostError(Exception):
    """The producer's session ended with an open transaction."""
