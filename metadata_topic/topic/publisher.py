"""Publishes to the metadata topic without ever blocking the caller.

Every unacknowledged record is in one queue, oldest first: librdkafka has the head part ("sent"), the rest waits. One
thread moves records from waiting to sent while librdkafka accepts them, and acknowledged records leave at the front.
Nothing is ever skipped: librdkafka retries for ever and in order (idempotent, acks=all, no message time-out). If it
gives up (a fatal error, a missing topic), or if no broker answers it for long (it may look for a recreated topic at the
wrong place), the producer is replaced by a new one, which gets all unacknowledged records again, oldest first, after a
pause. Only then may a record be published twice, or after a younger one, and readers tolerate both.

A record goes to the partition of the broker whose object it is about, so that all records about a broker's objects have
one order. Nearly everything that an agent publishes is about its own objects. Each new producer asks for the number of
partitions, and again from time to time, because some may be added. While there is no topic, nothing is sent: the
records wait for it.

The queue is bounded by records, bytes, and time; beyond that `publish` raises, and the caller stops uploading.
Publication is *stalled* (`stall_reason`) while the oldest record has waited too long, or while records written to the
topic would be lost (`hold`). The metadata of an uploaded object must never be lost.

Records are sent in groups: those that came while the group before was under way, or within `linger_ms`, unless somebody
waits for one of them. With several batches under way librdkafka would spin as soon as its limit of requests in flight
is reached, which cost more than the rest of the agent.

`publish` may be called from any thread. Records still in the queue when the process dies are lost; their objects are
orphans, which reconciliation finds.
"""

import threading
from collections.abc import Callable
from functools import partial

import structlog
from tenacity import RetryCallState, Retrying, retry_if_result, wait_fixed

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS, PendingRecord, PublicationQueue, PublisherSettings
from metadata_topic.topic.topic import metadata_partition
from metadata_topic.topic.topic_producer import ProducerConfig, ProducerFactory, ProducerLike, confluent_producer
from metadata_topic.topic.topic_requirements import MAX_BATCH_BYTES

log = structlog.get_logger(__name__)


_POLL_S = 0.05
"""How long a wait for delivery reports may take (guessed)."""
_IDLE_S = 5.0
"""How long a wait for a record to publish may take (guessed)."""
_ASK_TIMEOUT_S = 3.0
"""How long a request for the topic's partitions may take (guessed)."""
_ASK_AGAIN_S = 60.0
"""How often the topic's partitions are asked for (guessed)."""
_LONGEST_SILENCE_S = 300.0
"""The limit while a cluster is away (guessed): a new producer does not help then, and asks all brokers again."""
_BATCHING_MS = 5
"""Time for librdkafka to take all records of a group into one batch (guessed)."""


class RemoteWalMetadataPublisher(PublicationQueue):
    """Publishes one agent's records to the metadata topic, in order per partition, on its own thread."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        broker_id: int,
        clock: Callable[[], float],
        settings: PublisherSettings = DEFAULT_SETTINGS,
        producer_factory: ProducerFactory = confluent_producer,
    ) -> None:
        """`clock` also counts while the host sleeps, in seconds (`plugin.wall_clock.lasting_s`). The thread starts
        with `start`."""
        super().__init__(clock, settings)
        self._client_config = client_config
        self._partition_count = 0
        """0: must be asked for."""
        self._ask_again_s = float("-inf")
        self._client_id = f"remote-wal-agent-{broker_id}-metadata"
        self._producer_factory = producer_factory
        self._failure: object | None = None
        self._answered_s = float("-inf")
        """When a record was last acknowledged, or the first unacknowledged one was sent."""
        self._patience_s = settings.unanswered_ms / 1000
        self._thread: threading.Thread | None = None

    def start(self, on_defect: Callable[[Exception], object] = lambda _defect: None) -> None:
        """Begin publishing. Earlier records go out now, also those that an earlier thread had sent.

        `on_defect` is called on the publishing thread when a defect ends it; `start` may then be called again.
        """
        self._thread = threading.Thread(target=self._run, args=(on_defect,), name="metadata-publisher", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> int:
        """Publish what is possible in that time, then stop. Returns how many records are left. Idempotent."""
        if self._thread is not None and not self._closing:
            self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        left = self.pending
        if left:
            log.error("metadata_left_unpublished", records=left, topic=self._settings.topic)
        return left

    # The publishing thread

    def _run(self, on_defect: Callable[[Exception], object]) -> None:
        retrying = Retrying(
            retry=retry_if_result(lambda was_closed: not was_closed),
            wait=wait_fixed(self._settings.retry_pause_ms / 1000),
            before_sleep=self._start_over,
            sleep=self._pause,
        )
        try:
            self._take_back()
            retrying(self._publish)
        except Exception as defect:
            on_defect(defect)

    def _publish(self) -> bool:
        """Publish by a new producer until that fails. Returns whether the publisher was closed instead."""
        producer = self._new_producer()
        while not self._closing and self._failure is None:
            if self._sent:
                self._poll(producer, _POLL_S)
                self._expect_answers()
            elif self._records_gathered():
                if self._may_send(producer):
                    self._send_waiting(producer)
                else:
                    self._poll(producer, 0)
                    self._pause(self._settings.retry_pause_ms / 1000)
            else:
                self._poll(producer, 0)
        was_closed = self._closing
        producer.purge()
        producer.flush(1.0 if was_closed else 5.0)
        return was_closed

    def _records_gathered(self) -> bool:
        """Wait for a record, and then for others that may go with it; False when none came for a while."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closing, timeout=_IDLE_S)
            if self._waiting:
                self._changed.wait_for(
                    lambda: self._closing or bool(self._awaited), timeout=self._settings.linger_ms / 1000
                )
            return bool(self._waiting)

    def _may_send(self, producer: ProducerLike) -> bool:
        """Whether the topic exists and may be written to; asks for its partitions from time to time."""
        if self._held is not None:
            return False
        now_s = self._clock()
        if self._partition_count and now_s < self._ask_again_s:
            return True
        reason = f"there is no {self._settings.topic}"
        try:
            self._partition_count = producer.partition_count(self._settings.topic, _ASK_TIMEOUT_S)
        except Exception as error:  # KafkaException; the last known number stays
            reason = str(error)
        self._ask_again_s = now_s + _ASK_AGAIN_S
        if not self._partition_count and reason != self._waits_for:
            self._waits_for = reason
            log.warning("metadata_publication_waits", topic=self._settings.topic, reason=reason)
        return self._partition_count > 0

    def _poll(self, producer: ProducerLike, timeout_s: float) -> None:
        """Have deliveries reported. A fatal error of the producer is raised here."""
        try:
            producer.poll(timeout_s)
        except Exception as error:
            self._fail(error)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _send_waiting(self, producer: ProducerLike) -> None:
        while not self._closing and self._failure is None:
            with self._changed:
                if not self._waiting:
                    return
                record = self._waiting[0]
            try:
                producer.produce(
                    self._settings.topic,
                    value=record.value,
                    key=record.key,
                    partition=metadata_partition(record.broker_id, self._partition_count),
                    on_delivery=partial(self._delivered, record),
                )
            except BufferError:
                self._counters["queue_full"] += 1
                return
            except Exception as error:
                # KafkaException: the producer is in a fatal state, or the partition does not exist.
                self._fail(error)
                return
            with self._changed:
                if not self._sent:
                    self._answered_s = self._clock()
                self._sent.append(self._waiting.popleft())
                self._counters["sent"] += 1

    def _delivered(self, record: PendingRecord, error: object | None, _message: object) -> None:
        """Handle librdkafka's report, inside `poll` or `flush`, on the publishing thread."""
        if error is not None:
            self._counters["delivery_failures"] += 1
            self._fail(error)
            return
        self._answered_s = self._clock()
        self._patience_s = self._settings.unanswered_ms / 1000
        with self._changed:
            record.acknowledged = True
            while self._sent and self._sent[0].acknowledged:
                self._left(self._sent.popleft())
                self._waits_for = ""
            if not self._sent:
                self._changed.notify_all()

    def _expect_answers(self) -> None:
        """Replace a producer without acknowledgements, after twice as long each time, until one gets any."""
        silent_s = self._clock() - self._answered_s
        if self._sent and self._failure is None and silent_s >= self._patience_s:
            self._fail(f"no broker has acknowledged a record for {silent_s:.0f} s")
            self._patience_s = min(2 * self._patience_s, _LONGEST_SILENCE_S)

    def _fail(self, error: object) -> None:
        if self._failure is None:
            self._failure = error

    def _start_over(self, _state: RetryCallState) -> None:
        """Take back unacknowledged records, for a new producer after the pause."""
        log.warning(
            "metadata_publication_failed",
            topic=self._settings.topic,
            error=str(self._failure),
            pending=self.pending,
            retry_in_ms=self._settings.retry_pause_ms,
        )
        self._take_back()
        with self._changed:
            self._counters["producer_restarts"] += 1

    def _take_back(self) -> None:
        """Move unacknowledged records back to the waiting ones, the oldest first."""
        with self._changed:
            while self._sent:
                record = self._sent.pop()
                if record.acknowledged:
                    self._left(record)
                else:
                    self._waiting.appendleft(record)
            if self._failure is not None:
                self._waits_for = str(self._failure)
            self._failure = None
            self._partition_count = 0  # the topic may be another one
            self._changed.notify_all()

    def _new_producer(self) -> ProducerLike:
        config: ProducerConfig = {
            **self._client_config.for_confluent(
                client_id=self._client_id,
                acks="all",
                enable_idempotence=True,
                message_timeout_ms=0,
                linger_ms=_BATCHING_MS,
                compression_type="zstd",
                queue_buffering_max_messages=10_000,
                queue_buffering_max_kbytes=16 * 1024,
                message_max_bytes=MAX_BATCH_BYTES,
            ),
        }
        return self._producer_factory(config)
