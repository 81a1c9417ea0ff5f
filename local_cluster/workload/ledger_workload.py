"""A workload of numbered records against a real cluster: producer threads, one consumer thread, a ledger.

The producers run until they are told to stop; the consumer reads every partition from the start, in the order of the
log. `finish` stops the producers, waits for their last acknowledgements, and lets the consumer read up to the log's
present end: a record that was acknowledged and is not read by then is lost, however slow the machine is.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from kafka_cluster.flushing import flush
from local_cluster.cluster_admin import CLIENT_CONFIG, ClusterAdmin
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.ledger import Ledger, LedgerReport, Outcome, ProducerPage, ProducerPlan, TransactionPlan

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

REQUEST_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 120.0
_TICK_S = 0.01
_BURST_RECORDS = 500


class LedgerWorkloadError(Exception):
    """The workload itself failed, so that its report would be meaningless."""


class LedgerWorkload:
    """Runs producers by plan, and a consumer, on one topic that no other client writes to."""

    def __init__(self, bootstrap_servers: str, topic: str, plans: Sequence[ProducerPlan], *, seed: int = 0) -> None:
        """Prepare all threads. Raises LedgerWorkloadError if the topic is not there."""
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
        """Start all threads."""
        for thread in [*self._producers, self._consumer]:
            thread.start()

    def abandon(self) -> None:
        """Tell all threads to end, without waiting: for use when the cluster is taken down."""
        self._stop.set()
        self._read_to_end.set()

    def report(self) -> LedgerReport:
        """Return the present counts, while it runs. Raises LedgerWorkloadError if a thread has failed."""
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

    def run(self) -> None:
        producer, started = self._connect(), time.monotonic()
        while not self._stop.is_set():
            for _ in range(self._due(started)):
                self._send(producer)
            producer.poll(_TICK_S)
        flush(producer, DELIVERY_TIMEOUT_S)

    def _connect(self) -> "Producer":
        from confluent_kafka import Producer

        return Producer(self._config)

    def _due(self, started: float) -> int:
        """Return how many records to send now; bounded, so that answers and the stop are seen."""
        if self._plan.records_per_s is None:
            return _BURST_RECORDS
        due = int((time.monotonic() - started) * self._plan.records_per_s) - self._page.next_sequence
        return max(0, min(due, _BURST_RECORDS))

    def _send(self, producer: "Producer") -> None:
        sequence = self._page.sent()
        value = self._page.pattern.value(self._number, sequence)
        partition = self._partitions[sequence % len(self._partitions)]

        def answered(error: "KafkaError | None", message: "Message") -> None:
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
            for _ in range(min(left, self._due(started))):
                self._send(producer)
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
